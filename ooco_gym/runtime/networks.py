"""Networks of policies in numpy, in the format of `weights.npz`.

`onnx_source` traces these computations into a graph; the C of `c_source` computes the same. The
form `candidate_scorer`, that of `agents.policies.networks` with feature scaling, scores actions. It
maps cluster (n, Fc), candidates (n, K, F), mask (n, A) and decision (n, D) to actions int64 (n,),
or (n, P) levels of a vector, and logits float32 (n, A), `MASKED` if illegal. The form `linear` sets
parameters of a rule. Weights are (outputs, inputs), as in PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.runtime.manifest import PARAMETERS

MASKED = np.float32(-1e8)  # the logit of an illegal action
FARTHEST = np.float32(8.0)  # scaled features are clipped to this many standard deviations
_MOST_EXPONENT = 80.0  # beyond any bounds, but far from overflow


class Sizes(NamedTuple):
    """Sizes of inputs and outputs: features of cluster, decisions, candidates, features of each,
    actions, and each part's levels if actions are vectors."""

    cluster: int
    decisions: int
    places: int
    features: int
    actions: int
    levels: tuple[int, ...] = ()

    @property
    def context(self) -> int:
        """Number of features that belong to no candidate."""
        return self.cluster + self.decisions

    @property
    def fixed(self) -> int:
        """Number of actions without a candidate."""
        return 0 if self.levels else self.actions - self.places


def sizes_of(manifest: Mapping[str, Any]) -> Sizes:
    """Returns the sizes in a manifest of kind `candidates`."""
    shapes = {key: manifest["inputs"][key]["shape"] for key in ("cluster", "decision", "candidates", "action_mask")}
    levels = tuple(len(part["levels"]) for part in manifest.get("parts") or ())
    places, features = shapes["candidates"]
    return Sizes(shapes["cluster"][0], shapes["decision"][0], places, features, shapes["action_mask"][0], levels)


# --- Networks from arrays --------------------------------------------------------------------------------------------
def shapes_of(described: Mapping[str, Any], sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Returns the shapes by name of the arrays of an action-scoring network, from a manifest's `network`."""
    hidden, own = described["hidden"], max(sizes.levels, default=1)
    shapes = {f"{key}.{part}": (count,) for key, count in (("cluster", sizes.cluster), ("candidates", sizes.features))
              for part in ("mean", "deviation")}
    embedded = sizes.features + (sizes.places if sizes.levels else 0)
    shapes |= {"embed.weight": (hidden, embedded), "embed.bias": (hidden,), "context.weight": (hidden, sizes.context),
               "own.weight": (hidden, hidden), "own.bias": (hidden,), "state.weight": (hidden, hidden + sizes.context),
               "head.weight": (own, hidden), "head.bias": (own,)}
    if not sizes.levels:
        shapes |= {"pool.weight": (hidden, hidden + sizes.context), "pool.bias": (hidden,),
                   "fixed.weight": (sizes.fixed, hidden), "fixed.bias": (sizes.fixed,)}
    return shapes


def built(described: Mapping[str, Any], arrays: Mapping[str, np.ndarray], sizes: Sizes) -> ArrayScorer:
    """Returns the action-scoring network of a manifest's `network` and its arrays.

    Raises:
        UserError: arrays, network and sizes do not match.
    """
    _check(shapes_of(described, sizes), arrays)
    return ArrayScorer({name: array.astype(np.float32) for name, array in arrays.items()}, sizes)


def network_of(manifest: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Any:
    """Returns the network of a manifest of either kind, a function of its inputs that returns its
    outputs in order.

    Raises:
        UserError: the arrays do not match the manifest.
    """
    if manifest["kind"] != PARAMETERS:
        return built(manifest["network"], arrays, sizes_of(manifest))
    count = len(manifest["parameters"])
    _check({"weight": (count, len(manifest["inputs"]["cluster"]["features"])), "bias": (count,)}, arrays)
    weight, bias = np.ascontiguousarray(arrays["weight"].T, np.float64), np.asarray(arrays["bias"], np.float64)
    scales = Scales(manifest["parameters"])
    return lambda features: (scales(features.astype(np.float64) @ weight + bias),)


def _check(wanted: Mapping[str, tuple[int, ...]], arrays: Mapping[str, np.ndarray]) -> None:
    found = {name: np.shape(array) for name, array in arrays.items()}
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise UserError(f"the network's array '{name}' has shape {found.get(name)}; expected {wanted.get(name)}, "
                            "as its manifest says; export the policy again")


# --- Parameters -------------------------------------------------------------------------------------------------------
class Scales:
    """Maps the network's outputs to values within bounds.

    Args:
        parameters: each with `name`, `base`, `scale`, `step`, `low`, `high`, as in the manifest.
    """

    def __init__(self, parameters: Sequence[Mapping[str, Any]]) -> None:
        columns = np.array([[one["base"], one["step"], one["low"], one["high"]] for one in parameters], np.float64)
        self.base, step, self.low, self.high = np.ascontiguousarray(columns.T)
        log = np.array([one["scale"] == "log" for one in parameters])
        self._log, self._linear = np.where(log, step, 0.0), np.where(log, 0.0, step)

    def __call__(self, z: Any) -> Any:
        """Returns values float64 (..., P) for z (..., P): base × exp(z step) on a log scale, else base + z step."""
        exponent = np.minimum(np.maximum(z * self._log, -_MOST_EXPONENT), _MOST_EXPONENT)
        values = self.base * np.exp(exponent) + z * self._linear
        return np.minimum(np.maximum(values, self.low), self.high)


# --- Scores of actions ------------------------------------------------------------------------------------------------
class ArrayScorer:
    """A deep set over scaled features: each candidate is embedded with the context, and sees the mean of all."""

    def __init__(self, arrays: Mapping[str, np.ndarray], sizes: Sizes) -> None:
        self.sizes = sizes
        self._w = {name: np.ascontiguousarray(array.T) for name, array in arrays.items()}
        if sizes.levels:  # each parameter's index is a one-hot feature
            self._w["embed.place"] = self._w["embed.weight"][sizes.features :]
            self._w["embed.weight"] = np.ascontiguousarray(self._w["embed.weight"][: sizes.features])

    def _scaled(self, key: str, values: Any) -> Any:
        z = (values - self._w[f"{key}.mean"]) / self._w[f"{key}.deviation"]
        return np.minimum(np.maximum(z, -FARTHEST), FARTHEST)

    def _seen(self, cluster: Any, candidates: Any, mask: Any, decision: Any) -> tuple[Any, Any, Any]:
        """Returns context (n, C), candidates (n, K, F) and which candidates are present (n, K)."""
        context = np.concatenate([self._scaled("cluster", cluster), decision], axis=1)
        offered = self._scaled("candidates", candidates)
        if self.sizes.levels:
            return context, offered, np.ones((1, self.sizes.places), np.float32)
        there = mask[:, self.sizes.fixed :].astype(bool).astype(np.float32)
        return context, offered * there[:, :, None], there

    def __call__(self, cluster: Any, candidates: Any, mask: Any, decision: Any) -> tuple[Any, Any]:
        w, sizes = self._w, self.sizes
        context, offered, there = self._seen(cluster, candidates, mask, decision)
        own = offered @ w["embed.weight"] + (context @ w["context.weight"] + w["embed.bias"])[:, None]
        if sizes.levels:
            own = own + w["embed.place"]
        embedded = np.tanh(own)
        weight = there / np.maximum(there.sum(axis=1, keepdims=True), np.float32(1.0))
        state = np.concatenate([(weight[:, None] @ embedded)[:, 0], context], axis=1)
        mine = np.tanh(embedded @ w["own.weight"] + (state @ w["state.weight"] + w["own.bias"])[:, None])
        scores = mine @ w["head.weight"] + w["head.bias"]
        if sizes.levels:
            each = [scores[:, place, :count] for place, count in enumerate(sizes.levels)]
            return answered(np.concatenate(each, axis=1), mask, sizes.levels)
        pooled = np.tanh(state @ w["pool.weight"] + w["pool.bias"])
        fixed = pooled @ w["fixed.weight"] + w["fixed.bias"]
        return answered(np.concatenate([fixed, scores[:, :, 0]], axis=1), mask)


def answered(scores: Any, mask: Any, levels: tuple[int, ...] = ()) -> tuple[Any, Any]:
    """Returns actions and masked logits for scores (n, A)."""
    logits = np.where(mask.astype(bool), scores, MASKED)
    if not levels:
        return logits.argmax(axis=1), logits
    ends = pairwise(np.cumsum((0, *levels)).tolist())
    return np.stack([logits[:, begin:end].argmax(axis=1) for begin, end in ends], axis=1), logits
