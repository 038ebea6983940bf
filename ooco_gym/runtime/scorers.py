"""Networks that score actions, in numpy, as `weights.npz` keeps them: `candidate_scorer`, `flat`, and `scorer`.

Each is called with cluster (n, Fc), candidates (n, K, F), mask (n, A) and decision (n, D), and answers with actions
int64 (n,), or (n, P) levels of a vector, and logits float32 (n, A), `MASKED` where illegal. The first two are those of
`agents.learning.networks`, with the scaling of features; the third is what a search over few weights finds. Weights
are (outputs, inputs), as PyTorch keeps them.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.runtime.arrays import check_names, read_arrays, taken
from ooco_gym.runtime.layers import Layers, read_layers

MASKED = np.float32(-1e8)  # the logit of an illegal action
FARTHEST = np.float32(8.0)  # deviations from the mean at which a scaled feature is cut


class Sizes(NamedTuple):
    """How large what goes in and comes out is: features of cluster, decisions, candidates, features of each, actions,
    and the levels of each part where the action is a vector."""

    cluster: int
    decisions: int
    places: int
    features: int
    actions: int
    levels: tuple[int, ...] = ()

    @property
    def context(self) -> int:
        """Features that are not of a candidate."""
        return self.cluster + self.decisions

    @property
    def fixed(self) -> int:
        """Actions that take no candidate."""
        return 0 if self.levels else self.actions - self.places


def sizes_of(manifest: Mapping[str, Any]) -> Sizes:
    """The sizes that a manifest of kind `candidates` says."""
    shapes = {key: manifest["inputs"][key]["shape"] for key in ("cluster", "decision", "candidates", "action_mask")}
    levels = tuple(len(part["levels"]) for part in manifest.get("parts") or ())
    places, features = shapes["candidates"]
    return Sizes(shapes["cluster"][0], shapes["decision"][0], places, features, shapes["action_mask"][0], levels)


def answered(scores: np.ndarray, mask: np.ndarray, levels: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Actions and masked logits, of scores (n, A)."""
    logits = np.where(mask > 0, scores, MASKED)
    if not levels:
        return logits.argmax(axis=1), logits
    ends = pairwise(np.cumsum((0, *levels)))
    return np.stack([logits[:, begin:end].argmax(axis=1) for begin, end in ends], axis=1), logits


def shapes_of(described: Mapping[str, Any], sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """The arrays of a network by name, with their shapes.

    Raises:
        UserError: the manifest's `network` lacks what its form needs.
    """
    form = described["form"]
    scales = {"cluster.mean": (sizes.cluster,), "cluster.deviation": (sizes.cluster,),
              "candidates.mean": (sizes.features,), "candidates.deviation": (sizes.features,)}
    if form == "scorer":
        seen = _layer_sizes(described)[0]
        if sizes.levels or seen not in (sizes.features, sizes.features + sizes.cluster):
            raise UserError(f"a network of the form 'scorer' takes {seen} numbers; expected the {sizes.features} of a "
                            f"candidate, or these and the {sizes.cluster} of the cluster")
        return {"fixed.weight": (sizes.fixed, sizes.cluster), "fixed.bias": (sizes.fixed,),
                **_layer_shapes(described)}
    if "hidden" not in described:
        raise UserError(f"the manifest's network of the form '{form}' lacks 'hidden'")
    hidden, kinds = described["hidden"], described.get("kinds", 1)
    if kinds not in (1, sizes.decisions):
        raise UserError(f"the manifest's network has {kinds} kinds of heads; expected 1 or {sizes.decisions}")
    if form == "flat":
        inputs = sizes.context + sizes.places * sizes.features + sizes.actions
        return {**scales, "first.weight": (hidden, inputs), "first.bias": (hidden,), "second.weight": (hidden, hidden),
                "second.bias": (hidden,), "last.weight": (sizes.actions * kinds, hidden),
                "last.bias": (sizes.actions * kinds,)}
    own = max(sizes.levels) if sizes.levels else 1
    embedded = sizes.features + (sizes.places if sizes.levels else 0)
    shapes = {**scales, "embed.weight": (hidden, embedded), "embed.bias": (hidden,),
              "context.weight": (hidden, sizes.context), "own.weight": (hidden, hidden), "own.bias": (hidden,),
              "state.weight": (hidden, hidden + sizes.context),
              "head.weight": (own * kinds, hidden), "head.bias": (own * kinds,)}
    if not sizes.levels:
        shapes |= {"pool.weight": (hidden, hidden + sizes.context), "pool.bias": (hidden,),
                   "fixed.weight": (sizes.fixed * kinds, hidden), "fixed.bias": (sizes.fixed * kinds,)}
    return shapes


def _layer_sizes(described: Mapping[str, Any]) -> list[int]:
    sizes, names = described.get("sizes"), described.get("activations")
    if not sizes or not names or len(sizes) != len(names) + 1 or sizes[-1] != 1:
        raise UserError("a network of the form 'scorer' has sizes, the last of them 1, and an activation for each "
                        "layer")
    return sizes


def _layer_shapes(described: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    sizes = _layer_sizes(described)
    return {f"layers.{place}.{name}": shape for place, (before, after) in enumerate(pairwise(sizes))
            for name, shape in (("weight", (after, before)), ("bias", (after,)))}


class _Scaled:
    """The scaling of features that a trained network begins with."""

    def __init__(self, arrays: Mapping[str, np.ndarray], sizes: Sizes) -> None:
        self.sizes = sizes
        self._scales = [(arrays[f"{key}.mean"], arrays[f"{key}.deviation"]) for key in ("cluster", "candidates")]

    def scaled(self, values: np.ndarray, which: int) -> np.ndarray:
        mean, deviation = self._scales[which]
        return np.minimum(np.maximum((values - mean) / deviation, -FARTHEST), FARTHEST)

    def seen(self, cluster: np.ndarray, candidates: np.ndarray, mask: np.ndarray, decision: np.ndarray
             ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Context (n, C), candidates (n, K, F), which of them are there (n, K)."""
        context = np.concatenate([self.scaled(cluster, 0), decision], axis=1)
        offered = self.scaled(candidates, 1)
        if self.sizes.levels:
            return context, offered, np.ones(offered.shape[:2], np.float32)
        there = (mask[:, self.sizes.fixed :] > 0).astype(np.float32)
        return context, offered * there[:, :, None], there


class CandidateScorer(_Scaled):
    """A deep set: each candidate is embedded beside the context, and sees the mean of all."""

    def __init__(self, arrays: Mapping[str, np.ndarray], sizes: Sizes, kinds: int = 1) -> None:
        super().__init__(arrays, sizes)
        self.kinds = kinds
        self._w = {name: np.ascontiguousarray(array.T) for name, array in arrays.items()}
        if sizes.levels:  # each parameter has a place of its own, as a one-hot feature
            self._w["embed.place"] = self._w["embed.weight"][sizes.features :]
            self._w["embed.weight"] = np.ascontiguousarray(self._w["embed.weight"][: sizes.features])

    def __call__(self, cluster: np.ndarray, candidates: np.ndarray, mask: np.ndarray, decision: np.ndarray
                 ) -> tuple[np.ndarray, np.ndarray]:
        """Actions and logits."""
        w, context, offered, there = self._w, *self.seen(cluster, candidates, mask, decision)
        own = offered @ w["embed.weight"] + (context @ w["context.weight"] + w["embed.bias"])[:, None]
        if self.sizes.levels:
            own = own + w["embed.place"]
        embedded = np.tanh(own)
        weight = there / np.maximum(there.sum(axis=1, keepdims=True), 1.0)
        state = np.concatenate([(weight[:, None] @ embedded)[:, 0], context], axis=1)
        mine = np.tanh(embedded @ w["own.weight"] + (state @ w["state.weight"] + w["own.bias"])[:, None])
        scores = self._due(mine @ w["head.weight"] + w["head.bias"], decision)
        if self.sizes.levels:
            scores = np.concatenate([scores[:, place, :count] for place, count in enumerate(self.sizes.levels)], axis=1)
        else:
            pooled = np.tanh(state @ w["pool.weight"] + w["pool.bias"])
            fixed = self._due((pooled @ w["fixed.weight"] + w["fixed.bias"])[:, None], decision)[:, 0]
            scores = np.concatenate([fixed, scores[:, :, 0]], axis=1)
        return answered(scores, mask, self.sizes.levels)

    def _due(self, scores: np.ndarray, decision: np.ndarray) -> np.ndarray:
        """Of the scores (n, K, outputs · kinds) of every kind of decision those of the one that is due."""
        if self.kinds == 1:
            return scores
        return (scores.reshape(*scores.shape[:2], -1, self.kinds) * decision[:, None, None]).sum(-1)


class FlatScorer(_Scaled):
    """Two layers over all features side by side."""

    def __init__(self, arrays: Mapping[str, np.ndarray], sizes: Sizes, kinds: int = 1) -> None:
        super().__init__(arrays, sizes)
        self.kinds, self._w = kinds, {name: np.ascontiguousarray(array.T) for name, array in arrays.items()}

    def __call__(self, cluster: np.ndarray, candidates: np.ndarray, mask: np.ndarray, decision: np.ndarray
                 ) -> tuple[np.ndarray, np.ndarray]:
        """Actions and logits."""
        w, context, offered, _ = self._w, *self.seen(cluster, candidates, mask, decision)
        x = np.concatenate([context, offered.reshape(len(context), -1), (mask > 0).astype(np.float32)], axis=1)
        hidden = np.tanh(np.tanh(x @ w["first.weight"] + w["first.bias"]) @ w["second.weight"] + w["second.bias"])
        scores = hidden @ w["last.weight"] + w["last.bias"]
        if self.kinds > 1:
            scores = (scores.reshape(len(x), self.sizes.actions, self.kinds) * decision[:, None]).sum(-1)
        return answered(scores, mask, self.sizes.levels)


class LayerScorer:
    """Fixed actions are scored by the cluster, each candidate by layers over its features, and the cluster's if wanted.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], layers: Layers, sizes: Sizes) -> None:
        self.sizes, self._layers = sizes, layers
        self._weight, self._bias = np.ascontiguousarray(arrays["fixed.weight"].T), arrays["fixed.bias"]
        self._sees_cluster = layers.inputs > sizes.features

    def __call__(self, cluster: np.ndarray, candidates: np.ndarray, mask: np.ndarray, decision: np.ndarray
                 ) -> tuple[np.ndarray, np.ndarray]:
        """Actions and logits."""
        offered = candidates
        if self._sees_cluster:
            beside = np.broadcast_to(cluster[:, None], (*candidates.shape[:2], cluster.shape[1]))
            offered = np.concatenate([candidates, beside], axis=2)
        scores = np.concatenate([cluster @ self._weight + self._bias, self._layers(offered)[:, :, 0]], axis=1)
        return answered(scores.astype(np.float32), mask, ())


def built(described: Mapping[str, Any], arrays: Mapping[str, np.ndarray], sizes: Sizes, file: Path) -> Any:
    """The network of a manifest's `network` and the arrays of `file`.

    Raises:
        UserError: they do not fit each other, or the sizes of inputs and actions.
    """
    form = described.get("form")
    if form not in ("candidate_scorer", "flat", "scorer"):
        raise UserError(f"'{file}': the manifest's network is of the form '{form}', which scores no candidates")
    wanted = shapes_of(described, sizes)
    held = {name: taken(file, arrays, name, shape) for name, shape in wanted.items()}
    check_names(file, arrays, set(wanted))
    if form == "scorer":
        return LayerScorer(held, read_layers(file, held, described), sizes)
    for name in ("cluster.deviation", "candidates.deviation"):
        if not (held[name] > 0).all():
            raise UserError(f"'{file}' has a deviation of a feature that is not above 0; export the policy again")
    made = CandidateScorer if form == "candidate_scorer" else FlatScorer
    return made({name: array.astype(np.float32) for name, array in held.items()}, sizes, described.get("kinds", 1))


def read_scorer(folder: Path, name: str, manifest: Mapping[str, Any]) -> Any:
    """The network of a bundle of kind `candidates`.

    Raises:
        UserError: its arrays are damaged or do not fit the manifest.
    """
    return built(manifest.get("network") or {}, read_arrays(folder / name), sizes_of(manifest), folder / name)
