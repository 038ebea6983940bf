"""A trained network's weights as `weights.npz` keeps them (`ooco_gym.runtime.scorers`): of a run, or of a graph.

The layers of `agents.learning.networks` have other names there, because an engine's programmer reads them without the
classes beside them. A network with several numbers for each action (quantiles) is averaged over them: its last layer is
linear, so the mean of what it says is what the mean of its weights says.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ooco_gym.runtime.scorers import Sizes, shapes_of

_NAMES = {"encoder.cluster.mean": "cluster.mean", "encoder.cluster.deviation": "cluster.deviation",
          "encoder.candidates.mean": "candidates.mean", "encoder.candidates.deviation": "candidates.deviation"}
_LAYERS = {
    "candidate_scorer": {"actor.of_candidate": "embed", "actor.of_context": "context", "own": "own",
                         "own_pool": "state", "fixed_pool": "pool", "heads.of_candidate": "head",
                         "heads.of_fixed": "fixed"},
    "mlp": {"actor.0": "first", "actor.2": "second", "last": "last"},
}
_FORMS = {"candidate_scorer": "candidate_scorer", "mlp": "flat"}
_HEADS = ("head", "fixed", "last")


def arrays_of_run(run: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
    """(The manifest's `network`, the arrays) of a run's actor; None where its network has no such form (attention)."""
    scorer = run.actor.scorer
    name = {"CandidateScorer": "candidate_scorer", "FlatScorer": "mlp"}.get(type(scorer).__name__)
    if name is None:
        return None
    state = {key: value.detach().cpu().numpy() for key, value in run.actor.state_dict().items()}
    kinds = scorer.heads.kinds if name == "candidate_scorer" else scorer.kinds
    return _converted(name, state, int(scorer.latent_dim_vf), int(kinds), int(scorer.outputs))


def arrays_of_graph(path: Path, sizes: Sizes) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
    """As `arrays_of_run`, of a `policy.onnx` that `ooco-gym export` wrote; None where its weights are not those of a
    candidate scorer with one head for all decisions.

    The exporter names biases and turns most weights round; each weight is found by the bias that is added next.
    """
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(str(path)).graph
    held = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
    state = {name: array for name, array in held.items() if name.startswith(("encoder.", "scorer."))}
    for product in graph.node:
        if product.op_type == "MatMul" and product.input[1] in held:
            for node in graph.node:
                bias = next((one for one in node.input if one.endswith(".bias")), None)
                if node.op_type == "Add" and product.output[0] in node.input and bias is not None:
                    state[bias.removesuffix("bias") + "weight"] = held[product.input[1]].T
    hidden = state["scorer.own.bias"].shape[0] if "scorer.own.bias" in state else 0
    if not hidden:
        return None
    described = {"form": "candidate_scorer", "hidden": hidden, "kinds": 1}
    found = _converted("candidate_scorer", {key.removeprefix("scorer.") if key.startswith("scorer.") else key: value
                                            for key, value in state.items()}, hidden, 1, 1, prefix="")
    wanted = shapes_of(described, sizes)
    return found if {name: array.shape for name, array in found[1].items()} == wanted else None


def _converted(network: str, state: Mapping[str, np.ndarray], hidden: int, kinds: int, outputs: int,
               prefix: str = "scorer.") -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The arrays of a network by the names that `weights.npz` has."""
    arrays = {mine: np.asarray(state[theirs], np.float32) for theirs, mine in _NAMES.items()}
    for theirs, mine in _LAYERS[network].items():
        for part in ("weight", "bias"):
            value = state.get(f"{prefix}{theirs}.{part}")
            if value is not None:
                arrays[f"{mine}.{part}"] = _averaged(value, kinds, outputs if mine in _HEADS else 1)
    if network == "candidate_scorer" and "fixed.weight" not in arrays:  # levels alone: nothing reads the pooled state
        arrays = {name: array for name, array in arrays.items() if not name.startswith("pool.")}
    return {"form": _FORMS[network], "hidden": hidden, "kinds": kinds}, arrays


def _averaged(values: np.ndarray, kinds: int, outputs: int) -> np.ndarray:
    """The rows (actions · outputs · kinds) of a last layer, averaged over the outputs."""
    if outputs == 1:
        return np.asarray(values, np.float32)
    split = values.reshape(-1, outputs, kinds, *values.shape[1:]).astype(np.float64)
    return split.mean(axis=1).reshape(-1, *values.shape[1:]).astype(np.float32)
