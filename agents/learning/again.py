"""Exports a bundle again: one of the zoo, or of an earlier version, in all forms that its network can be written in."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from agents.learning.arrays import arrays_of_graph
from agents.learning.describing import LICENCE, forms_of, origin, summarised, with_seen
from ooco_gym.errors import UserError
from ooco_gym.runtime import ARRAYS_FILE, MODEL_FILE, SCHEMA, Policy, write_bundle
from ooco_gym.runtime.arrays import read_arrays
from ooco_gym.runtime.manifest import FEATURES, INPUTS, PARAMETERS, kind_of, read_manifest
from ooco_gym.runtime.scorers import Sizes, built, sizes_of
from ooco_gym.runtime.writing import VECTORS
from ooco_gym.zoo import read_card

_WRITTEN = ("schema", "manifest_sha256", "files", "forms", "reference")


def export_again(folder: str, config: Mapping[str, Any], wanted: Sequence[str] | None, checks: int, seed: int
                 ) -> dict[str, Any]:
    """Writes the bundle `folder` anew into `config["out"]`, and summarises.

    Raises:
        UserError: the bundle is broken, or cannot be written in a form that is asked for.
    """

    manifest, path, out = read_manifest(folder), Path(folder), Path(config["out"])
    if out.resolve() == path.resolve():
        raise UserError(f"out='{out}' is the bundle itself; give another folder")
    if kind_of(manifest) == PARAMETERS:
        return _parameters(path, manifest, out, config, wanted, checks)
    policy, sizes = Policy.load(path), sizes_of(manifest)
    found = (manifest["network"], read_arrays(path / ARRAYS_FILE)) if ARRAYS_FILE in manifest["files"] else (
        arrays_of_graph(path / MODEL_FILE, sizes))
    forms = forms_of(wanted, found is not None, str(config["policy"]))
    if "onnx" in forms and MODEL_FILE not in manifest["files"]:
        forms.remove("onnx")
    agreement: dict[str, Any] = {**(manifest.get("agreement") or {}), "checks": checks, "action_agreement": 1.0,
                                 "disagreements": 0, "max_logit_error": 0.0}
    described = {**_upgraded(manifest, path, config.get("name")), "agreement": agreement}
    if found is not None:
        described["network"] = found[0]
        with_seen(described["inputs"], {key: (found[1][f"{key}.mean"], found[1][f"{key}.deviation"])
                                        for key in ("cluster", "candidates") if f"{key}.mean" in found[1]})
        agreement |= _agreement(policy, built(*found, sizes, path / ARRAYS_FILE), drawn(manifest, sizes, checks, seed))
    asked = drawn(manifest, sizes, VECTORS, seed + 1)
    reference = {**dict(zip(INPUTS, asked, strict=True)), "logits": policy.preferences(dict(zip(INPUTS, asked,
                                                                                               strict=True)))[1]}
    write_bundle(out, described, None if found is None else found[1], reference, forms,
                 lambda file: file.write_bytes((path / MODEL_FILE).read_bytes()), config.get("target"))
    return summarised(out, config, {"env": manifest.get("environment"), "decisions": manifest["decisions"],
                                    **agreement})


def drawn(manifest: Mapping[str, Any], sizes: Sizes, count: int, seed: int) -> tuple[np.ndarray, ...]:
    """Cluster, candidates, masks with a legal action and decisions, at random within the features' bounds."""
    random = np.random.default_rng((seed, 13))
    parts = {}
    for key in FEATURES:
        table = manifest["inputs"][key]["features"]
        low, high = (np.array([float(row.get(end, default)) for row in table])
                     for end, default in (("low", 0.0), ("high", 1.0)))
        parts[key] = random.uniform(np.maximum(low, -1e3), np.minimum(high, 1e3),
                                    (count, *manifest["inputs"][key]["shape"])).astype(np.float32)
    mask = (random.random((count, sizes.actions)) < 0.5).astype(np.int8)
    first = 0
    for choices in sizes.levels or (sizes.actions,):
        mask[np.arange(count), first + random.integers(0, choices, count)] = 1
        first += choices
    decision = np.eye(sizes.decisions, dtype=np.float32)[random.integers(0, sizes.decisions, count)]
    return parts["cluster"], parts["candidates"], mask, decision


def _agreement(policy: Policy, network: Any, observations: tuple[np.ndarray, ...]) -> dict[str, Any]:
    """How far the arrays agree with the bundle as it was."""
    mine, mask = network(*observations), observations[2] > 0
    actions, logits = policy.preferences(dict(zip(INPUTS, observations, strict=True)))
    error = float(np.abs(np.asarray(mine[1], np.float64) - logits)[mask].max())
    equal = np.reshape(mine[0] == actions, (len(mask), -1)).all(axis=1)
    if error > 1e-4:
        raise UserError(f"the bundle's arrays do not answer as its graph does: largest logit error {error:.1e}; "
                        "nothing was written")
    return {"action_agreement": float(equal.mean()), "disagreements": 0, "max_logit_error": error}


def _upgraded(manifest: Mapping[str, Any], path: Path, name: str | None) -> dict[str, Any]:
    """A manifest of any version as one of this version, but for what `write_bundle` adds."""
    kept = {key: value for key, value in json.loads(json.dumps(manifest)).items() if key not in _WRITTEN}
    if manifest["schema"] == SCHEMA:
        return kept | ({} if name is None else {"name": name})
    training = kept.get("training") or {}
    config = training.get("config") or {"env": {"id": str(kept.get("environment"))}, "agent": {}}
    card = read_card(path)
    decisions = kept["decisions"]
    versions = {**(kept.get("versions") or {}), "converted by ooco-gym": metadata.version("ooco-gym")}
    rebuilt = origin(config, int(training.get("timesteps") or 0)) if config.get("agent") else {
        "training": {"data": {}, "seeds": []}, "trained_for": {"slo": {}, "loads": []}}
    return {
        "kind": "candidates", "name": name or card.get("name") or "-".join(decisions) or "policy",
        "decision_point": {"name": ", ".join(decisions) or "action",
                           "meaning": "one of the actions, or a level for each part"},
        "rule": str((config.get("env") or {}).get("partner", "")), "history": 1,
        "outputs": {}, "environment": "", "action_space": {"kind": "Discrete", "n": len(kept["actions"])},
        **rebuilt, "licence": LICENCE, **{key: value for key, value in kept.items() if key not in rebuilt},
        "versions": versions, "scores": _scores(card),
    }


def _scores(card: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The scores of a policy's card, as a manifest has them."""
    own = (card.get("scores") or {}).get("this_policy") or {}
    found = []
    for metric, score in own.items():
        if isinstance(score, Mapping) and score.get("mean") is not None:
            row = {"metric": metric, **{key: score[key] for key in ("mean", "ci_low", "ci_high")
                                        if score.get(key) is not None}}
            found.append({**row, **({"n_windows": own["n_windows"]} if own.get("n_windows") else {})})
    return found


def _parameters(path: Path, manifest: Mapping[str, Any], out: Path, config: Mapping[str, Any],
                wanted: Sequence[str] | None, checks: int) -> dict[str, Any]:
    """A bundle of kind `parameters` anew."""
    from ooco_gym.runtime.manifest import REFERENCE_FILE

    policy = Policy.load(path, form="npz")
    kept = {key: value for key, value in manifest.items() if key not in _WRITTEN}
    write_bundle(out, kept, read_arrays(path / ARRAYS_FILE), read_arrays(path / REFERENCE_FILE),
                 forms_of(wanted, True, str(config["policy"])), None, config.get("target"))
    return summarised(out, config, {
        "env": manifest["environment"], "decisions": policy.decisions, "checks": checks, "action_agreement": 1.0,
        "disagreements": 0, "max_logit_error": 0.0})
