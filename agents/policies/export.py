"""`ooco-gym export`: writes a learned policy as ONNX, arrays and C, including scaling, mask and
arg-max, with a manifest.

All forms of a network are made from its arrays (`ooco_gym.runtime`). A policy of `conf/policy` with
a file of weights needs no network, and describes them itself (`ooco_gym.policy.weights`).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from agents.environments import OBSERVATION_KEYS, observed_shapes
from agents.policies.describing import manifest
from agents.policies.runs import LoadedRun, imitated, load_run
from agents.settings import require
from ooco_gym.cluster import Cluster
from ooco_gym.errors import UserError, unknown
from ooco_gym.policy import Policy as RulePolicy
from ooco_gym.policy import get_policy, is_policy, policy_of
from ooco_gym.policy.registry import known_of
from ooco_gym.resources import load_yaml
from ooco_gym.runtime import ARRAYS_FILE, MANIFEST_FILE, REFERENCE_FILE, Policy, read_manifest, write_bundle
from ooco_gym.runtime.manifest import read_arrays
from ooco_gym.runtime.networks import Sizes, built
from ooco_gym.runtime.writing import FORMS, VECTORS, feature_row, write_parameters_bundle
from ooco_gym.schema import plain, whole
from ooco_gym.sim.retention import BELADY

_TOLERANCE = 1e-4
# Layers of `agents.policies.networks`, and their names in `weights.npz`.
_NAMES = {"encoder.cluster.mean": "cluster.mean", "encoder.cluster.deviation": "cluster.deviation",
          "encoder.candidates.mean": "candidates.mean", "encoder.candidates.deviation": "candidates.deviation"}
_LAYERS = {"actor.of_candidate": "embed", "actor.of_context": "context", "own": "own", "own_pool": "state",
           "fixed_pool": "pool", "heads.of_candidate": "head", "heads.of_fixed": "fixed"}


def main(cfg: Any) -> dict[str, Any]:
    """Exports the policy `cfg.policy` into the folder `cfg.out`, compares its forms with it, and summarises.

    Raises:
        UserError: the policy or an extra is missing, a count or seed is out of range, a form cannot be written, or a
            form disagrees with the policy.
    """
    config = plain(cfg)
    checks, seed = whole("checks", config.get("checks", 1000), 1, 1 << 20), whole("seed", config.get("seed", 1), 0)
    forms, source, out = _forms(config), str(config["policy"]), Path(config["out"])
    agreement: dict[str, Any] = {}
    if (Path(source) / MANIFEST_FILE).is_file():
        _write_anew(Path(source), out, forms, config)
    elif not Path(source).is_dir() and is_policy(source):
        named = {"name": config["name"]} if config.get("name") else {}
        write_linear_bundle(out, get_policy(source), known_of(source), forms=forms, **named)
    else:
        require("export")
        run = load_run(source)
        _refuse_clairvoyance(run.config["env"])
        network, arrays = arrays_of_run(run)
        agreement = compare(run, network, arrays, random_observations(run, checks, seed))
        if agreement["max_logit_error"] > _TOLERANCE:
            raise UserError(f"the exported arrays disagree with the policy of '{source}': largest logit error "
                            f"{agreement['max_logit_error']:.1e}; nothing was written")
        asked = random_observations(run, VECTORS, seed + 1)
        reference = {**dict(zip(OBSERVATION_KEYS, asked, strict=True)), "logits": run.actor.answer(*asked)[1]}
        described = {**manifest(run, agreement, config.get("name")), "network": network}
        write_bundle(out, described, arrays, reference, forms)
        if not run.timesteps:  # validation preferred the copy, or the run was cut short
            rule = imitated(run.config["agent"])
            what = "the untrained policy" if rule is None else f"the initial copy of '{rule}'"
            warnings.warn(f"the policy of '{source}' has learned from 0 decisions: it is {what}; policy_last.zip in "
                          "the same folder is the last trained policy", UserWarning, stacklevel=2)
        agreement["decisions_learned"] = run.timesteps
    for form in set(forms) & {"npz", "onnx"}:
        Policy.load(out, form=form)  # raises if the form does not reproduce the reference vectors
    written = read_manifest(out)
    print(f"exported as {', '.join(forms)}: {out}")
    if agreement:
        print(f"{agreement['action_agreement']:.2%} of {checks:,} actions agree with the trained policy; largest logit "
              f"error {agreement['max_logit_error']:.1e}")
    return {"command": "export", "policy": source, "env": written["environment"], "decisions": written["decisions"],
            **agreement, "forms": written["forms"], "bundle_schema": written["schema"],
            "files": [*written["files"], MANIFEST_FILE]}


def _forms(config: Mapping[str, Any]) -> list[str]:
    """The forms that the user asks for; all by default.

    Raises:
        UserError: an unknown form.
    """
    given = config.get("forms")
    wanted = list(FORMS) if given is None else [given] if isinstance(given, str) else list(given)
    for form in wanted:
        if form not in FORMS:
            raise unknown("form", form, FORMS)
    if not wanted:
        raise UserError(f"forms=[] is empty; expected some of: {', '.join(FORMS)}")
    return [form for form in FORMS if form in wanted]


def _refuse_clairvoyance(env: Mapping[str, Any]) -> None:
    """Raises UserError if the policy was trained with a prefix cache that knows the future."""
    cluster = env.get("cluster") or (env.get("scenario") or {}).get("cluster")
    retention = None if cluster is None else Cluster.load(cluster).retention
    if retention and policy_of(retention, "retention").keeps == BELADY:
        raise UserError("the policy has learned on a cluster with retention=belady, a bound that no engine can "
                        "implement; train it with another retention")


def _write_anew(source: Path, out: Path, forms: list[str], config: Mapping[str, Any]) -> None:
    """Writes a bundle again in the forms asked for; its weights and origin stay.

    Raises:
        UserError: the bundle is broken, or lacks the arrays from which forms are made.
    """
    known = read_manifest(source)
    if out.resolve() == source.resolve():
        raise UserError(f"out='{out}' is the bundle itself; give another folder")
    if ARRAYS_FILE not in known["files"]:
        raise UserError(f"'{source}' has no {ARRAYS_FILE}, from which all forms are written; export the run itself, or "
                        "get the bundle's form npz from its source")
    kept = {key: value for key, value in known.items()
            if key not in ("schema", "manifest_sha256", "files", "forms", "reference")}
    kept["name"] = config.get("name") or kept["name"]
    write_bundle(out, kept, read_arrays(source / ARRAYS_FILE), read_arrays(source / REFERENCE_FILE), forms)


def write_linear_bundle(folder: Path, policy: RulePolicy, known: Mapping[str, Any], **how: Any) -> Path:
    """Writes the bundle of a policy with a file of weights into a folder, and returns the folder.

    Args:
        policy: the rule with its parameters.
        known: manifest entries on the training: `training`, `trained_for`, `scores`, `seen` (by feature).
        how: `name`, `forms` for `write_parameters_bundle`.

    Raises:
        UserError: the policy has no such weights, or names no file; or a form cannot be written.
    """
    if policy.layout is None:
        raise UserError(f"policy '{policy.name}' has no weights, so an engine needs no bundle; expected a learned "
                        "policy, such as learned_deadline, or a run of ooco-gym train")
    if policy.linear is None:
        raise UserError(f"policy '{policy.name}': no engine can run a bundle of its weights; without weights its order "
                        "is a policy of the scheduler inside vLLM (docs/vllm.md)")
    if not policy.values.get("weights"):
        raise UserError(f"policy '{policy.name}' names no weights file; expected {policy.name}:weights=FILE.npz")
    assert policy.weights is not None
    weights = policy.weights.reshape(len(policy.layout.rows), len(policy.layout.columns))
    linear, docs, parameters = policy.linear, {param.name: param.doc for param in policy.params}, []
    for one in linear.parameters:
        base = float(policy.values[one.name])
        parameters.append({"name": one.name, "base": base, "scale": one.scale, "step": one.step,
                           "low": min(one.low, base), "high": max(one.high, base), "meaning": docs[one.name]})
    moved = {parameter.name for parameter in linear.parameters}
    constants = {}
    for name, value in load_yaml("policy", linear.rule).items():
        if name not in moved and not isinstance(value, str) and float(policy.values[name]) != value:
            constants[name] = float(policy.values[name])
    interval_s = float(policy.values.get("interval_s") or 0.0)
    facts = {"environment": linear.environment, **known}
    seen = facts.pop("seen", {})  # values seen in training, by feature
    rows = []
    for feature in linear.features:
        row = feature_row(feature)
        if row["name"] in seen:
            row = {**row, "seen": [float(value) for value in seen[row["name"]]]}
        rows.append(row)
    return write_parameters_bundle(
        folder, parameters=parameters, features=rows, weights=weights, rule=linear.rule,
        interval_s=interval_s if interval_s > 0 else None, constants=constants, **{"name": policy.name, **facts, **how})


def arrays_of_run(run: LoadedRun) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Returns (the manifest's `network`, the arrays) of a run's actor, under the names of
    `ooco_gym.runtime.networks`."""
    scorer = run.actor.scorer
    state = {key: value.detach().cpu().numpy() for key, value in run.actor.state_dict().items()}
    arrays = {mine: state[theirs] for theirs, mine in _NAMES.items()}
    for theirs, mine in _LAYERS.items():
        for part in ("weight", "bias"):
            if f"scorer.{theirs}.{part}" in state:
                arrays[f"{mine}.{part}"] = state[f"scorer.{theirs}.{part}"]
    if "fixed.weight" not in arrays:  # levels alone: nothing reads the pooled state
        arrays = {key: array for key, array in arrays.items() if not key.startswith("pool.")}
    return {"form": "candidate_scorer", "hidden": scorer.latent_dim_vf}, arrays


def random_observations(run: LoadedRun, count: int, seed: int) -> tuple[np.ndarray, ...]:
    """Draws cluster (count, Fc), candidates (count, K, F), masks (count, A) with a legal action, decisions (count, D).

    Values are the training mean ± 3 deviations, within and beyond the training range.
    """
    random, encoder = np.random.default_rng((seed, 11)), run.actor.encoder
    shapes = observed_shapes(run.space, run.actor.levels)
    (actions,), (kinds,) = shapes["action_mask"], shapes["decision"]

    def draw(scale: Any, shape: tuple[int, ...]) -> np.ndarray:
        z = random.uniform(-3.0, 3.0, (count, *shape))
        return (scale.mean.numpy() + z * scale.deviation.numpy()).astype(np.float32)

    mask, first = (random.random((count, actions)) < 0.5).astype(np.int8), 0
    for choices in run.actor.levels or (actions,):  # at least one is legal in each part of an action
        mask[np.arange(count), first + random.integers(0, choices, count)] = 1
        first += choices
    cluster, candidates = (draw(getattr(encoder, key), shapes[key]) for key in ("cluster", "candidates"))
    return cluster, candidates, mask, np.eye(kinds, dtype=np.float32)[random.integers(0, kinds, count)]


def compare(run: LoadedRun, network: Mapping[str, Any], arrays: Mapping[str, np.ndarray],
            observations: tuple[np.ndarray, ...]) -> dict[str, Any]:
    """Compares the arrays with the trained network: share of equal actions (ties may differ by
    rounding), and the largest error of a legal action's logit."""
    mine = built(network, arrays, Sizes(*run.actor.encoder.layout))(*observations)
    theirs, legal = run.actor.answer(*observations), observations[2] > 0
    same = np.reshape(mine[0] == theirs[0], (len(legal), -1)).all(axis=1)
    return {"checks": len(legal), "action_agreement": float(same.mean()),
            "max_logit_error": float(np.abs(mine[1] - theirs[1])[legal].max())}
