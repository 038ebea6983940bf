"""`ooco-gym export`: writes a trained policy as ONNX, with scaling, mask and arg-max inside, and its manifest."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from agents.actions import action_meanings, action_names
from agents.environments import OBSERVATION_KEYS, decision_names, make_env, plain
from agents.extras import require
from agents.load import LoadedRun, load_run
from ooco_gym.envs.features import DECISIONS
from ooco_gym.errors import UserError
from ooco_gym.files import atomic_write, write_json
from ooco_gym.runtime.bundle import MANIFEST_FILE, MODEL_FILE, SCHEMA, file_digest

OPSET = 18
_TOLERANCE = 1e-4
_VERSIONS = ("ooco-gym", "torch", "stable-baselines3", "sb3-contrib", "onnx", "onnxscript", "onnxruntime", "numpy")


def main(cfg: Any) -> dict[str, Any]:
    """Exports the run `cfg.policy` into the folder `cfg.out`, checks it against the trained policy, and summarises.

    Raises:
        UserError: the run or an extra is missing, or the exported graph does not agree with the policy.
    """
    config = plain(cfg)
    require("export")
    checks = config.get("checks", 1000)
    if not isinstance(checks, int) or checks < 1:
        raise UserError(f"checks must be a whole number of at least 1, got {checks}")
    run = load_run(config["policy"])
    out = Path(config["out"])
    out.mkdir(parents=True, exist_ok=True)
    observations = random_observations(run, checks, int(config.get("seed") or 1))
    with atomic_write(out / MODEL_FILE) as temporary:
        write_onnx(run, temporary)
        agreement = compare(run, temporary, observations)
        if agreement["disagreements"] or agreement["max_logit_error"] > _TOLERANCE:
            raise UserError(f"the exported graph disagrees with the policy of '{config['policy']}': "
                            f"{agreement['action_agreement']:.2%} of actions agree, largest logit error "
                            f"{agreement['max_logit_error']:.1e}; nothing was written")
    write_json(out / MANIFEST_FILE, manifest(run, out / MODEL_FILE, agreement))
    summary = {"command": "export", "policy": str(config["policy"]), "env": run.config["env"]["id"],
               "bytes": (out / MODEL_FILE).stat().st_size, "opset": OPSET, "bundle_schema": SCHEMA, **agreement,
               "files": [MODEL_FILE, MANIFEST_FILE]}
    _show(summary, out)
    return summary


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
    encoder: Any = run.model.policy.features_extractor
    space: Any = run.model.observation_space
    actions, kinds = space["action_mask"].shape[0], space["decision"].shape[0]

    def draw(scale: Any, shape: tuple[int, ...]) -> np.ndarray:
        z = random.uniform(-3.0, 3.0, (count, *shape))
        return (scale.mean.numpy() + z * scale.deviation.numpy()).astype(np.float32)

    mask = (random.random((count, actions)) < 0.5).astype(np.int8)
    mask[np.arange(count), random.integers(0, actions, count)] = 1
    cluster, candidates = draw(encoder.cluster, space["cluster"].shape), draw(encoder.candidates,
                                                                              space["candidates"].shape)
    return cluster, candidates, mask, np.eye(kinds, dtype=np.float32)[random.integers(0, kinds, count)]


def compare(run: LoadedRun, path: Path, observations: tuple[np.ndarray, ...]) -> dict[str, Any]:
    """Runs graph and Stable-Baselines3 policy on the same observations: share of equal actions, largest logit error.

    The trained side is `MaskablePPO.predict` and the policy's own log-probabilities, not the module that was exported.
    """
    import onnxruntime
    import torch

    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    observation: dict[str, Any] = dict(zip(OBSERVATION_KEYS, observations, strict=True))
    mask = observation["action_mask"]
    outputs: Any = session.run(["action", "logits"], observation)
    actions, logits = outputs
    expected, _ = run.model.predict(observation, deterministic=True, action_masks=mask.astype(bool))
    with torch.inference_mode():
        tensors, _ = run.model.policy.obs_to_tensor(observation)
        distribution: Any = run.model.policy.get_distribution(tensors, action_masks=mask.astype(bool)).distribution
        trained = distribution.logits.numpy()  # normalised: log-probabilities
    normalised = logits - np.logaddexp.reduce(logits.astype(np.float64), axis=1, keepdims=True)
    legal = mask > 0
    rows = np.arange(len(mask))
    lost = trained[rows, expected] - trained[rows, actions]  # a tie within rounding may fall either way
    return {"checks": len(mask), "action_agreement": float(np.mean(actions == expected)),
            "disagreements": int(np.count_nonzero(lost > _TOLERANCE)),
            "max_logit_error": float(np.abs(normalised - trained)[legal].max()),
            "illegal_actions": int(np.count_nonzero(~legal[rows, actions]))}


def manifest(run: LoadedRun, model_path: Path, agreement: Mapping[str, Any]) -> dict[str, Any]:
    """Describes what goes in and comes out of the graph, and where it comes from."""
    space: Any = run.model.observation_space
    places, actions = space["candidates"].shape[0], space["action_mask"].shape[0]
    env = make_env(run.config["env"])
    try:
        decisions = decision_names(env)
        inputs: dict[str, Any] = {
            key: {"shape": list(space[key].shape), "dtype": "float32", "features": feature_table(env, space[key], key)}
            for key in ("cluster", "candidates", "decision")
        }
    finally:
        env.close()
    inputs["action_mask"] = {"shape": [actions], "dtype": "int8", "meaning": "1 where the action is legal"}
    config = {key: value for key, value in run.config.items() if key not in ("out", "logger")}
    return {
        "schema": SCHEMA, "environment": run.config["env"]["id"], "decisions": list(decisions),
        "inputs": inputs,
        "outputs": {"action": {"shape": [], "dtype": "int64", "meaning": "index into actions; always a legal one"},
                    "logits": {"shape": [actions], "dtype": "float32", "meaning": "preference; -1e8 where illegal"}},
        "batch_axis": "the first axis of every input and output, any size",
        "actions": action_names(decisions, places, actions - places),
        "actions_by_decision": action_meanings(decisions, places, actions - places),
        "inside_the_graph": ["scaling of features", "mask", "arg-max"],
        "versions": {name: _version(name) for name in _VERSIONS}, "opset": OPSET,
        "training": {"agent": plain(run.config["agent"])["name"], "seed": run.config.get("seed"),
                     "timesteps": int(run.model.num_timesteps), "config": config},
        "agreement": dict(agreement),
        "files": {MODEL_FILE: {"sha256": file_digest(model_path), "bytes": model_path.stat().st_size}},
    }


def feature_table(env: Any, space: Any, key: str) -> list[dict[str, Any]]:
    """Returns name, unit, bounds and meaning of each feature along the last axis of observation `key`."""
    low, high = space.low.reshape(-1, space.shape[-1]).min(0), space.high.reshape(-1, space.shape[-1]).max(0)
    described = getattr(env.unwrapped, "feature_tables", None)
    tables = {} if described is None else dict(described())
    if described is not None and key == "decision" and key not in tables:
        tables[key] = [{"name": name, "meaning": f"1 where '{name}' is what is decided"} for name in DECISIONS]
    rows = tables.get(key) or [{"name": f"{key}_{i}"} for i in range(len(low))]
    return [{**row, "low": float(low[i]), "high": float(high[i])} for i, row in enumerate(rows)]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _show(summary: Mapping[str, Any], out: Path) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(soft_wrap=True)
    ties = "" if summary["action_agreement"] == 1.0 else ", the others are ties within rounding"
    console.print(f"exported {summary['bytes']:,} bytes; {summary['action_agreement']:.2%} of {summary['checks']:,} "
                  f"actions agree with the trained policy{ties}; largest logit error {summary['max_logit_error']:.1e}")
    console.print(f"policy: {escape(str(out))}")
