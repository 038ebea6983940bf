"""`ooco-gym export`: writes a trained policy as ONNX, with scaling, mask and arg-max inside, and its manifest."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from importlib import metadata
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from agents.environments import OBSERVATION_KEYS, candidate_shape, decision_names, make_env, observed_shapes
from agents.learning.algorithms import imitated, recipe_of
from agents.learning.runs import LoadedRun, load_run
from agents.settings import plain, require, whole
from ooco_gym.envs.buffers import FIXED
from ooco_gym.envs.decision import PARTNER, kinds, meaning
from ooco_gym.errors import UserError
from ooco_gym.files import atomic_write, write_json
from ooco_gym.policy import policy_of
from ooco_gym.runtime import MANIFEST_FILE, MODEL_FILE, READABLE, file_digest

OPSET = 18
SCHEMA = READABLE[1]
_TOLERANCE = 1e-4
_VERSIONS = ("ooco-gym", "torch", "stable-baselines3", "sb3-contrib", "onnx", "onnxscript", "onnxruntime", "numpy")


def main(cfg: Any) -> dict[str, Any]:
    """Exports the run `cfg.policy` into the folder `cfg.out`, checks it against the trained policy, and summarises.

    Raises:
        UserError: the run or an extra is missing, a count or seed is none, or the exported graph does not agree with
            the policy.
    """
    config = plain(cfg)
    require("export")
    checks, seed = whole({"checks": 1000, **config}, "checks", 1), whole({"seed": 1, **config}, "seed", 0)
    run = load_run(config["policy"])
    out = Path(config["out"])
    out.mkdir(parents=True, exist_ok=True)
    observations = random_observations(run, checks, seed)
    with atomic_write(out / MODEL_FILE) as temporary:
        write_onnx(run, temporary)
        agreement = compare(run, temporary, observations)
        if agreement["disagreements"] or agreement["max_logit_error"] > _TOLERANCE:
            raise UserError(f"the exported graph disagrees with the policy of '{config['policy']}': "
                            f"{agreement['action_agreement']:.2%} of actions agree, largest logit error "
                            f"{agreement['max_logit_error']:.1e}; nothing was written")
    write_json(out / MANIFEST_FILE, manifest(run, out / MODEL_FILE, agreement))
    learned = learned_decisions(run)
    if not learned:
        warnings.warn(untrained(run, str(config["policy"])), UserWarning, stacklevel=2)
    summary = {"command": "export", "policy": str(config["policy"]), "env": run.config["env"]["id"],
               "decisions_learned": learned,
               "decisions": list(run.decisions),
               "bytes": (out / MODEL_FILE).stat().st_size, "opset": OPSET, "bundle_schema": SCHEMA, **agreement,
               "files": [MODEL_FILE, MANIFEST_FILE]}
    _show(summary, out)
    return summary


def learned_decisions(run: LoadedRun) -> int:
    """How many decisions the kept policy had learned from: 0 of a copy that validation preferred to all that was
    learned later, or of a run that ended first."""
    return int(run.model.num_timesteps)


def untrained(run: LoadedRun, name: str) -> str:
    """Says that a policy has learned nothing."""
    rule = imitated(plain(run.config["agent"]))
    what = "as it was before learning" if rule is None else f"the copy of '{rule}' that learning began with"
    return (f"the policy of '{name}' has learned from 0 decisions: it is {what}; the policy that learned last is "
            "policy_last.zip in the same folder")


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
    _forget_origin(model)
    onnx.checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString())


def _forget_origin(model: Any) -> None:
    """Drops the exporter's notes on every node: stack traces with the paths of the machine that exported."""
    graph = model.graph
    for part in (model, graph, *graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer):
        del part.metadata_props[:]
    for node in graph.node:
        node.doc_string = ""


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


def compare(run: LoadedRun, path: Path, observations: tuple[np.ndarray, ...]) -> dict[str, Any]:
    """Runs graph and Stable-Baselines3 policy on the same observations: share of equal actions, largest logit error.

    The trained side is the algorithm's own `predict` and the policy's own log-probabilities or action values, not the
    module that was exported.
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    observation: dict[str, Any] = dict(zip(OBSERVATION_KEYS, observations, strict=True))
    space: Any = run.model.observation_space
    seen = {key: part.reshape(-1, *space[key].shape) for key, part in observation.items()}  # as it was trained
    outputs: Any = session.run(["action", "logits"], observation)
    actions, logits = outputs
    legal = observation["action_mask"] > 0
    parts = run.actor.levels or (legal.shape[1],)
    chosen, expected = (np.reshape(each, (len(legal), len(parts))) for each in (actions, _predicted(run, seen)))
    trained = _scores(run, seen)
    rows, first, error, illegal = np.arange(len(legal)), 0, 0.0, 0
    lost = np.zeros(len(legal))
    for place, count in enumerate(parts):
        here = slice(first, first + count)
        wanted, mine = trained[0][:, here], logits[:, here].astype(np.float64)
        if trained[1]:
            mine = mine - np.logaddexp.reduce(mine, axis=1, keepdims=True)
        lost = np.maximum(lost, wanted[rows, expected[:, place]] - wanted[rows, chosen[:, place]])
        error = max(error, float(np.abs(mine - wanted)[legal[:, here]].max()))
        illegal += int(np.count_nonzero(~legal[:, here][rows, chosen[:, place]]))
        first += count
    return {"checks": len(legal), "action_agreement": float(np.mean((chosen == expected).all(axis=1))),
            "disagreements": int(np.count_nonzero(lost > _TOLERANCE)),  # a tie within rounding may fall either way
            "max_logit_error": error, "illegal_actions": illegal}


def _predicted(run: LoadedRun, observation: Mapping[str, np.ndarray]) -> np.ndarray:
    """What the trained algorithm itself answers, masked where it takes masks."""
    takes_masks = "action_masks" in signature(run.model.predict).parameters
    masks: dict[str, Any] = {"action_masks": observation["action_mask"].astype(bool)} if takes_masks else {}
    return np.asarray(run.model.predict(dict(observation), deterministic=True, **masks)[0])


def _scores(run: LoadedRun, observation: Mapping[str, np.ndarray]) -> tuple[np.ndarray, bool]:
    """What the trained policy thinks of each action, float64 (n, A), and whether these are log-probabilities (of each
    part of an action by themselves) rather than values."""
    import torch

    policy: Any = run.model.policy
    with torch.inference_mode():
        tensors, _ = policy.obs_to_tensor(dict(observation))
        if hasattr(policy, "get_distribution"):
            takes_masks = "action_masks" in signature(policy.get_distribution).parameters
            masks = {"action_masks": observation["action_mask"].astype(bool)} if takes_masks else {}
            found = policy.get_distribution(tensors, **masks)
            each = getattr(found, "distributions", None) or found.distribution
            each = list(each) if isinstance(each, (list, tuple)) else [each]
            return torch.cat([one.logits for one in each], dim=1).double().numpy(), True
        values = policy.quantile_net(tensors).mean(1) if hasattr(policy, "quantile_net") else policy.q_net(tensors)
        return values.double().numpy(), False


def manifest(run: LoadedRun, model_path: Path, agreement: Mapping[str, Any]) -> dict[str, Any]:
    """Describes what goes in and comes out of the graph, and where it comes from."""
    space: Any = run.model.observation_space
    shapes = observed_shapes(space)
    places, actions = shapes["candidates"][0], shapes["action_mask"][0]
    env = make_env(run.config["env"])
    try:
        decisions, parts = decision_names(env), action_parts(env)
        inputs: dict[str, Any] = {
            key: {"shape": list(shapes[key]), "dtype": "float32", "features": feature_table(env, space[key], key)}
            for key in ("cluster", "candidates", "decision")
        }
    finally:
        env.close()
    inputs["action_mask"] = {"shape": [actions], "dtype": "int8", "meaning": "1 where the action is legal"}
    config = {key: value for key, value in run.config.items() if key not in ("out", "logger")}
    names = [f"{part['name']}={level}" for part in parts for level in part["levels"]]
    return {
        "schema": SCHEMA, "environment": run.config["env"]["id"], "decisions": list(decisions),
        "history": run.history, "inputs": inputs,
        "outputs": {"action": {"shape": [len(parts)] if parts else [], "dtype": "int64", "meaning":
                               "a level for each of parts" if parts else "index into actions; always a legal one"},
                    "logits": {"shape": [actions], "dtype": "float32", "meaning": "preference; -1e8 where illegal"}},
        "batch_axis": "the first axis of every input and output, any size",
        "action_space": {"kind": "MultiDiscrete" if parts else "Discrete",
                         "n": [len(part["levels"]) for part in parts] if parts else actions},
        "parts": parts,
        "actions": names or action_names(decisions, places, actions - places),
        "actions_by_decision": {} if parts else action_meanings(decisions, places, actions - places),
        "inside_the_graph": ["scaling of features", "mask", "arg-max"],
        "versions": {name: _version(name) for name in _VERSIONS}, "opset": OPSET,
        "training": {"agent": recipe_of(plain(run.config["agent"])), "seed": run.config.get("seed"),
                     "timesteps": int(run.model.num_timesteps), "config": config},
        "agreement": dict(agreement),
        "files": {MODEL_FILE: {"sha256": file_digest(model_path), "bytes": model_path.stat().st_size}},
    }


def action_parts(env: Any) -> list[dict[str, Any]]:
    """What each part of an action sets, where an action is a vector of levels: name, values, the level as tuned, and
    the parameter's own words; else none."""
    controls = getattr(getattr(env.unwrapped, "episodes", None), "controls", None)
    if controls is None:
        return []
    partner = policy_of(env.unwrapped.config.partner)
    params = {param.name: param for param in partner.params}
    parts = []
    for place, name in enumerate(controls.names):
        values = controls.levels[place, : controls.counts[place]].tolist()
        choices = params[name].choices
        parts.append({"name": name, "levels": [choices[int(value)] for value in values] if choices else values,
                      "tuned": int(controls.tuned[place]), "of": partner.name, "meaning": params[name].doc})
    return parts


def feature_table(env: Any, space: Any, key: str) -> list[dict[str, Any]]:
    """Returns name, unit, bounds and meaning of each feature of observation `key`; of candidates, of each of them."""
    width = candidate_shape(space)[1] if key == "candidates" else space.shape[-1]
    low, high = space.low.reshape(-1, width).min(0), space.high.reshape(-1, width).max(0)
    described = getattr(env.unwrapped, "feature_tables", None)
    tables = {} if described is None else dict(described())
    rows = tables.get(key) or [{"name": f"{key}_{i}"} for i in range(len(low))]
    if len(rows) < len(low):  # the last vectors after the newest one
        rows = [*rows, *({**row, "name": f"{row['name']}, {back} decision{'s' if back > 1 else ''} ago"}
                         for back in range(1, len(low) // len(rows)) for row in rows)]
    return [{**row, "low": float(low[i]), "high": float(high[i])} for i, row in enumerate(rows)]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _show(summary: Mapping[str, Any], out: Path) -> None:
    ties = "" if summary["action_agreement"] == 1.0 else ", the others are ties within rounding"
    print(f"exported {summary['bytes']:,} bytes; {summary['action_agreement']:.2%} of {summary['checks']:,} "
          f"actions agree with the trained policy{ties}; largest logit error {summary['max_logit_error']:.1e}")
    print(f"policy: {out}")


_ANY = ("the decision's own no", PARTNER)


def action_meanings(decisions: Sequence[str], places: int, fixed: int) -> dict[str, list[str]]:
    """What each action means, by decision: the decision's no, the partner's answer, then one for each candidate.

    Args:
        places: candidates (K).
        fixed: actions before them.
    """

    def named(decision: str, action: int) -> str:
        if decision in kinds() and fixed == FIXED:
            return meaning(decision, action)
        before = (*_ANY, *(f"action {i}" for i in range(len(_ANY), fixed)))[:fixed]
        return before[action] if action < fixed else f"take candidate {action - fixed}"

    return {decision: [named(decision, action) for action in range(fixed + places)] for decision in decisions}


def action_names(decisions: Sequence[str], places: int, fixed: int) -> list[str]:
    """Names of the actions: those of the one decision there is, or words that hold for all of them."""
    name = decisions[0] if len(decisions) == 1 else ""
    return action_meanings([name], places, fixed)[name]
