"""What a guarded policy may be given, and what it may answer, by its manifest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ooco_gym.errors import is_whole

OUTSIDE, NOT_FINITE = "outside", "not_finite"
_ROUNDING = 1e-5  # of a bound: features are float32
_INPUTS = ("cluster", "candidates", "decision")


class Limits:
    """The ranges of the features: those seen in training where the manifest has them, else their bounds.

    Args:
        manifest: of the policy; of an empty one only numbers that are not finite are found.
        margin: by how much of its range in training a feature may be outside of it.
        ranges: whether ranges are looked at.
    """

    def __init__(self, manifest: Mapping[str, Any], margin: float, ranges: bool) -> None:
        inputs = manifest.get("inputs") or {}
        self._parameters = manifest.get("kind") == "parameters"
        self._fixed = 0
        if not self._parameters and "candidates" in inputs and not manifest.get("parts"):
            self._fixed = len(manifest["actions"]) - inputs["candidates"]["shape"][0]
        self._ranges = {key: bounds_of(inputs[key]["features"], margin) for key in _INPUTS
                        if ranges and "features" in inputs.get(key, {})}
        self._keys = ("cluster",) if self._parameters else _INPUTS

    def problem(self, observation: Any, mask: Any) -> str | None:
        """`not_finite`, `outside`, or None where there is nothing wrong."""
        for key in self._keys:
            values = _part(observation, key, self._parameters)
            if values is None:
                continue  # the policy says what it misses
            low, high = self._ranges.get(key, (None, None))
            if low is not None and key == "candidates":
                values = self._offered(values.reshape(-1, len(low)), observation, mask)
            # A sum is not finite if a summand is not, or if it is beyond any range.
            if not math.isfinite(values.sum()):
                return NOT_FINITE
            if low is not None and not ((values >= low) & (values <= high)).all():
                return OUTSIDE
        return None

    def _offered(self, rows: np.ndarray, observation: Any, mask: Any) -> np.ndarray:
        """The candidates that may be taken: what stands in the other places means nothing."""
        given = mask if mask is not None else observation.get("action_mask")
        if given is None or not self._fixed:
            return rows
        legal = np.asarray(given)[self._fixed :] != 0
        return rows[legal] if len(legal) == len(rows) else rows


class Answers:
    """What the policy may answer.

    Args:
        manifest: of the policy; of an empty one any answer is allowed.
    """

    def __init__(self, manifest: Mapping[str, Any]) -> None:
        self._bounds = {one["name"]: (one["low"], one["high"]) for one in manifest.get("parameters") or ()}
        self._actions = len(manifest.get("actions") or ())
        self._levels = [len(part["levels"]) for part in manifest.get("parts") or ()]

    def allowed(self, answer: Any, observation: Any, mask: Any) -> bool:
        """Whether an answer is one that may be acted on: a legal action, or a value within bounds of each parameter."""
        if self._bounds:
            return self._within(answer)
        if self._levels:
            levels = np.asarray(answer)
            return (levels.shape == (len(self._levels),) and np.issubdtype(levels.dtype, np.integer)
                    and all(0 <= level < count for level, count in zip(levels, self._levels, strict=True)))
        if not self._actions:
            return True
        if not is_whole(answer) or not 0 <= answer < self._actions:
            return False
        given = mask if mask is not None else observation.get("action_mask")
        return given is None or bool(np.asarray(given)[answer])

    def same(self, one: Any, other: Any) -> bool:
        """Whether two answers are the same, values of parameters within rounding."""
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            return one.keys() == other.keys() and all(
                math.isclose(one[key], other[key], rel_tol=1e-6, abs_tol=1e-9) for key in one)
        return bool(np.array_equal(np.asarray(one), np.asarray(other)))

    def _within(self, answer: Any) -> bool:
        return (isinstance(answer, Mapping) and answer.keys() == self._bounds.keys() and all(
            isinstance(answer[name], (int, float)) and low <= answer[name] <= high
            for name, (low, high) in self._bounds.items()))


def _part(observation: Any, key: str, whole: bool) -> np.ndarray | None:
    """One part of an observation; all of it where it may be the features alone (`whole`)."""
    if isinstance(observation, Mapping):
        return np.asarray(observation[key], np.float64) if key in observation else None
    return np.asarray(observation, np.float64) if whole else None


def bounds_of(features: Any, margin: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
    """Least and largest value of each feature that the policy is trusted with."""
    bounds = np.array([_bounds(feature, margin) for feature in features], np.float64).reshape(-1, 2)
    return bounds[:, 0], bounds[:, 1]


def _bounds(feature: Mapping[str, Any], margin: float) -> tuple[float, float]:
    low, high = (feature.get(key) for key in ("low", "high"))
    low, high = -math.inf if low is None else low, math.inf if high is None else high
    seen = feature.get("seen")
    if seen is not None:
        wide = margin * (seen[1] - seen[0])
        low, high = max(low, seen[0] - wide), min(high, seen[1] + wide)
    return low - _ROUNDING * max(1.0, abs(low)), high + _ROUNDING * max(1.0, abs(high))
