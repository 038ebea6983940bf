"""`ooco-gym export`: writes a trained policy as ONNX, arrays and C, scaling, mask and arg-max inside, with a manifest.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from agents.environments import OBSERVATION_KEYS, candidate_shape
from agents.learning.algorithms import imitated
from agents.learning.describing import OPSET, forms_of, manifest, summarised
from agents.learning.runs import LoadedRun, load_run
from agents.settings import plain, require, whole
from ooco_gym.errors import UserError, unknown
from ooco_gym.policy import is_policy
from ooco_gym.runtime import (
    ARRAYS_FILE,
    MANIFEST_FILE,
    MODEL_FILE,
    REFERENCE_FILE,
    Policy,
    read_manifest,
    write_bundle,
)
from ooco_gym.runtime.bundle import graph_network
from ooco_gym.runtime.manifest import read_arrays
from ooco_gym.runtime.networks import Sizes, built
from ooco_gym.runtime.writing import FORMS, VECTORS

_TOLERANCE = 1e-4
# Layers of `agents.learning.networks` as `weights.npz` calls them.
_NAMES = {"encoder.cluster.mean": "cluster.mean", "encoder.cluster.deviation": "cluster.deviation",
          "encoder.candidates.mean": "candidates.mean", "encoder.candidates.deviation": "candidates.deviation"}
_LAYERS = {
    "candidate_scorer": {"actor.of_candidate": "embed", "actor.of_context": "context", "own": "own",
                         "own_pool": "state", "fixed_pool": "pool", "heads.of_candidate": "head",
                         "heads.of_fixed": "fixed"},
    "mlp": {"actor.0": "first", "actor.2": "second", "last": "last"},
}



def main(cfg: Any) -> dict[str, Any]:
    """Exports the policy `cfg.policy` into the folder `cfg.out`, checks its forms against it, and summarises.

    Raises:
        UserError: the policy or an extra is missing, a count or seed is none, a form cannot be written, or a form does
            not agree with the policy.
    """
    config = plain(cfg)
    checks, seed = whole({"checks": 1000, **config}, "checks", 1), whole({"seed": 1, **config}, "seed", 0)
    wanted = forms_wanted(config)
    source = str(config["policy"])
    if (Path(source) / MANIFEST_FILE).is_file():
        return export_bundle(source, config, wanted)
    if not Path(source).is_dir() and is_policy(source):
        from agents.learning.weighted import export_weighted

        return export_weighted(config, wanted, checks, seed)
    require("export")
    run = load_run(config["policy"])
    out, name = Path(config["out"]), config.get("name")
    out.mkdir(parents=True, exist_ok=True)
    found = arrays_of_run(run)
    forms = forms_of(wanted, found is not None, str(config["policy"]))
    observations = random_observations(run, checks, seed)
    with TemporaryDirectory() as folder:
        graph = Path(folder) / MODEL_FILE
        write_onnx(run, graph)
        agreement = agreeing(run, forms, graph, found, observations, str(config["policy"]))
        described = manifest(run, agreement, name)
        if found is not None:
            described["network"] = found[0]
        asked = random_observations(run, VECTORS, seed + 1)
        reference = {**dict(zip(OBSERVATION_KEYS, asked, strict=True)), "logits": run.actor.answer(*asked)[1]}
        write_bundle(out, described, None if found is None else found[1], reference, forms,
                     graph.read_bytes(), config.get("target"))
    learned = int(run.model.num_timesteps)
    if not learned:  # a copy that validation preferred to all that was learned later, or a run that ended first
        rule = imitated(plain(run.config["agent"]))
        what = "as it was before learning" if rule is None else f"the copy of '{rule}' that learning began with"
        warnings.warn(f"the policy of '{config['policy']}' has learned from 0 decisions: it is {what}; the policy that "
                      "learned last is policy_last.zip in the same folder", UserWarning, stacklevel=2)
    return summarised(out, config, {"env": run.config["env"]["id"], "decisions_learned": learned,
                                    "decisions": list(run.decisions), **agreement})


def export_bundle(source: str, config: Mapping[str, Any], wanted: Sequence[str] | None) -> dict[str, Any]:
    """Writes a bundle anew in the forms asked for; its weights and its origin stay.

    Raises:
        UserError: the bundle is broken, or cannot be written in a form that is asked for.
    """
    manifest, path, out = read_manifest(source), Path(source), Path(config["out"])
    if out.resolve() == path.resolve():
        raise UserError(f"out='{out}' is the bundle itself; give another folder")
    held = {name: read_arrays(path / name) for name in (ARRAYS_FILE, REFERENCE_FILE) if name in manifest["files"]}
    forms = forms_of(wanted, ARRAYS_FILE in held, str(config["policy"]))
    graph = (path / MODEL_FILE).read_bytes() if MODEL_FILE in manifest["files"] else None
    kept = {key: value for key, value in manifest.items()
            if key not in ("schema", "manifest_sha256", "files", "forms", "reference")}
    if config.get("name"):
        kept["name"] = config["name"]
    write_bundle(out, kept, held.get(ARRAYS_FILE), held[REFERENCE_FILE], forms,
                 graph, config.get("target"))
    Policy.load(out)  # plays the reference vectors
    return summarised(out, config, {"env": manifest["environment"], "decisions": manifest["decisions"],
                                    "checks": len(held[REFERENCE_FILE]["cluster"]),
                                    "action_agreement": 1.0, "disagreements": 0, "max_logit_error": 0.0})


def forms_wanted(config: Mapping[str, Any]) -> list[str] | None:
    """The forms that the user asks for; None: all that there are.

    Raises:
        UserError: an unknown form or target.
    """
    given, target = config.get("forms"), config.get("target")
    if target not in (None, "c"):
        raise unknown("target", target, ("c",))
    if given is None:
        return None
    wanted = [given] if isinstance(given, str) else list(given)
    for form in wanted:
        if form not in FORMS:
            raise unknown("form", form, FORMS)
    if not wanted:
        raise UserError(f"forms=[] names no form; expected some of: {', '.join(FORMS)}")
    return [form for form in FORMS if form in wanted or (form == "c" and target == "c")]


def agreeing(run: LoadedRun, forms: Sequence[str], graph: Path, found: Any, observations: tuple[np.ndarray, ...],
             policy: str) -> dict[str, Any]:
    """How far the forms agree with the trained policy; the graph's figures, and those of the arrays with their name.

    Raises:
        UserError: one does not agree.
    """
    agreement = _checked(compare(run, graph_network(graph), observations), "graph", policy)
    if found is not None and set(forms) & {"npz", "c"}:
        layout: Any = run.actor.encoder.layout
        network = built(found[0], found[1], Sizes(*layout))
        arrays = _checked(compare(run, network, observations), "arrays", policy)
        agreement["npz"] = {key: arrays[key] for key in ("action_agreement", "disagreements", "max_logit_error")}
    return agreement


def _checked(agreement: dict[str, Any], what: str, policy: str) -> dict[str, Any]:
    if agreement["disagreements"] or agreement["max_logit_error"] > _TOLERANCE:
        raise UserError(f"the exported {what} disagrees with the policy of '{policy}': "
                        f"{agreement['action_agreement']:.2%} of actions agree, largest logit error "
                        f"{agreement['max_logit_error']:.1e}; nothing was written")
    return agreement


def arrays_of_run(run: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
    """(The manifest's `network`, the arrays) of a run's actor, under the names of `ooco_gym.runtime.networks`, which an
    engine's programmer reads; None where its network has no such form (attention)."""
    scorer = run.actor.scorer
    name = {"CandidateScorer": "candidate_scorer", "FlatScorer": "mlp"}.get(type(scorer).__name__)
    if name is None:
        return None
    state = {key: value.detach().cpu().numpy() for key, value in run.actor.state_dict().items()}
    kinds = scorer.heads.kinds if name == "candidate_scorer" else scorer.kinds
    arrays = {mine: state[theirs] for theirs, mine in _NAMES.items()}
    for theirs, mine in _LAYERS[name].items():
        for part in ("weight", "bias"):
            if f"scorer.{theirs}.{part}" in state:
                arrays[f"{mine}.{part}"] = state[f"scorer.{theirs}.{part}"]
    if name == "candidate_scorer" and "fixed.weight" not in arrays:  # levels alone: nothing reads the pooled state
        arrays = {key: array for key, array in arrays.items() if not key.startswith("pool.")}
    return {"form": {"mlp": "flat"}.get(name, name), "hidden": int(scorer.latent_dim_vf), "kinds": int(kinds)}, arrays


def write_onnx(run: LoadedRun, path: Path) -> None:
    """Writes the run's actor to `path` with a dynamic batch axis, and checks the graph with onnx.checker."""
    import onnx
    import torch

    example = tuple(torch.as_tensor(part) for part in random_observations(run, 3, 0))
    batch = torch.export.Dim("batch", min=1)
    # The exporter logs and warns about its own internals; what matters is checked below.
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                run.actor, example, dynamo=True, opset_version=OPSET, input_names=list(OBSERVATION_KEYS),
                output_names=["action", "logits"], verbose=False,
                dynamic_shapes=tuple({0: batch} for _ in OBSERVATION_KEYS),
            )
    finally:
        logging.disable(previous)
    assert program is not None
    model = program.model_proto
    graph = model.graph
    for part in (model, graph, *graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer):
        del part.metadata_props[:]  # the exporter's notes: stack traces with the paths of this machine
    for node in graph.node:
        node.doc_string = ""
    onnx.checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString())


def random_observations(run: LoadedRun, count: int, seed: int) -> tuple[np.ndarray, ...]:
    """Draws cluster (count, Fc), candidates (count, K, F), masks (count, A) with a legal action, decisions (count, D).

    Values are the training mean ± 3 deviations, so that they exercise the network where it was trained and beyond.
    """
    random = np.random.default_rng((seed, 11))
    encoder: Any = run.actor.encoder
    space: Any = run.model.observation_space
    actions, kinds = space["action_mask"].shape[0], space["decision"].shape[0]
    first = 0

    def draw(scale: Any, shape: tuple[int, ...]) -> np.ndarray:
        z = random.uniform(-3.0, 3.0, (count, *shape))
        return (scale.mean.numpy() + z * scale.deviation.numpy()).astype(np.float32)

    mask = (random.random((count, actions)) < 0.5).astype(np.int8)
    for choices in run.actor.levels or (actions,):  # one of them, in each part of an action, is legal at least
        mask[np.arange(count), first + random.integers(0, choices, count)] = 1
        first += choices
    cluster, candidates = draw(encoder.cluster, space["cluster"].shape), draw(
        encoder.candidates, candidate_shape(space["candidates"]))
    return cluster, candidates, mask, np.eye(kinds, dtype=np.float32)[random.integers(0, kinds, count)]


def compare(run: LoadedRun, answers: Any, observations: tuple[np.ndarray, ...]) -> dict[str, Any]:
    """Asks a form and the Stable-Baselines3 policy the same: share of equal actions, largest logit error.

    Args:
        run: the trained policy.
        answers: gives actions and logits of cluster, candidates, mask and decision.
        observations: these four, in that order.

    The trained side is the algorithm's own `predict` and the policy's own log-probabilities, not the module that was
    exported.
    """
    observation: dict[str, Any] = dict(zip(OBSERVATION_KEYS, observations, strict=True))
    space: Any = run.model.observation_space
    seen = {key: part.reshape(-1, *space[key].shape) for key, part in observation.items()}  # as it was trained
    actions, logits = answers(*observations)
    legal = observation["action_mask"] > 0
    parts = run.actor.levels or (legal.shape[1],)
    masks: dict[str, Any] = {"action_masks": legal} if "action_masks" in signature(run.model.predict).parameters else {}
    answered = np.asarray(run.model.predict(seen, deterministic=True, **masks)[0])
    chosen, expected = (np.reshape(each, (len(legal), len(parts))) for each in (actions, answered))
    trained = _log_probabilities(run, seen)
    rows, first, error, illegal = np.arange(len(legal)), 0, 0.0, 0
    lost = np.zeros(len(legal))
    for place, count in enumerate(parts):
        here = slice(first, first + count)
        wanted, mine = trained[:, here], logits[:, here].astype(np.float64)
        mine = mine - np.logaddexp.reduce(mine, axis=1, keepdims=True)
        lost = np.maximum(lost, wanted[rows, expected[:, place]] - wanted[rows, chosen[:, place]])
        error = max(error, float(np.abs(mine - wanted)[legal[:, here]].max()))
        illegal += int(np.count_nonzero(~legal[:, here][rows, chosen[:, place]]))
        first += count
    return {"checks": len(legal), "action_agreement": float(np.mean((chosen == expected).all(axis=1))),
            "disagreements": int(np.count_nonzero(lost > _TOLERANCE)),  # a tie within rounding may fall either way
            "max_logit_error": error, "illegal_actions": illegal}


def _log_probabilities(run: LoadedRun, observation: Mapping[str, np.ndarray]) -> np.ndarray:
    """Of each action, or of each part of an action by itself, in the trained policy: float64 (n, A)."""
    import torch

    policy: Any = run.model.policy
    takes_masks = "action_masks" in signature(policy.get_distribution).parameters
    masks = {"action_masks": observation["action_mask"].astype(bool)} if takes_masks else {}
    with torch.inference_mode():
        found = policy.get_distribution(policy.obs_to_tensor(dict(observation))[0], **masks)
        each = getattr(found, "distributions", None) or found.distribution
        each = list(each) if isinstance(each, (list, tuple)) else [each]
        return torch.cat([one.logits for one in each], dim=1).double().numpy()
