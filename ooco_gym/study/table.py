"""Results of many runs, a row for each point of a study, and the questions that papers ask of them.

A `Metric` has, at each point, one value per seed (or per resample of seeds, for what all seeds
sustain together). Metrics of the same points are added and divided; `at` chooses points, and each
question is a method that returns an `Answer`: one number per seed, with its interval.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.metrics.statistics import resampled_estimate, spread

MOST = 1e6  # replaces infinite ratios: quantiles between infinities are undefined
Labels = Mapping[str, Any]  # by axis; a list allows several labels


@dataclass(frozen=True)
class Answer:
    """One number per seed, shape (seeds,), or per resample, shape (resamples,).

    Attributes:
        values: the numbers.
        seeds: number of seeds.
        logarithm: whether the values are logarithms, whose mean and interval are shown as ratios.
    """

    values: np.ndarray
    seeds: int
    logarithm: bool = False

    def estimate(self) -> dict[str, float]:
        """Returns `mean`, `low` and `high`: the interval over seeds."""
        if self.seeds in (0, len(self.values)):
            found = spread(self.values)
        else:
            found = dict(zip(("mean", "low", "high"), resampled_estimate(self.values, self.seeds), strict=True))
        return {key: float(np.exp(found[key])) if self.logarithm else found[key] for key in ("mean", "low", "high")}


@dataclass(frozen=True)
class Metric:
    """A metric at the points of a study.

    Attributes:
        points: labels by axis, of each point.
        values: float64[points, seeds], or [points, resamples].
        seeds: number of seeds.
    """

    points: Sequence[Labels]
    values: np.ndarray
    seeds: int

    def __add__(self, other: Metric) -> Metric:
        return replace(self, values=self.values + other.values)

    def __sub__(self, number: float) -> Metric:
        return replace(self, values=self.values - number)

    def __truediv__(self, other: Metric) -> Metric:
        return replace(self, values=self.values / other.values)

    # --- Points
    def at(self, **labels: Any) -> Metric:
        """Returns the points with these labels (`policy="HyGen"`); of axes with a dot use `where`."""
        return self.where(labels)

    def where(self, labels: Labels) -> Metric:
        """Returns the points with these labels.

        Raises:
            UserError: there are none, or no such axis.
        """
        places = []
        for place, point in enumerate(self.points):
            if unknown := [axis for axis in labels if axis not in point]:
                raise UserError(f"{unknown[0]!r} is not one of its axes: {', '.join(point)}")
            if all(point[axis] in (label if isinstance(label, list) else [label]) for axis, label in labels.items()):
                places.append(place)
        if not places:
            raise UserError(f"no point has {dict(labels)}")
        return self._some(places)

    def over(self, labels: Labels) -> Metric:
        """Returns each value divided by that of the point with these labels and equal other ones."""
        mine = {str(sorted(point.items(), key=str)): place for place, point in enumerate(self.points)}
        other = self.values[[mine[str(sorted({**point, **labels}.items(), key=str))] for point in self.points]]
        return replace(self, values=self.values / np.where(other > 0, other, np.nan))

    def groups(self, along: str) -> list[Metric]:
        """Returns the points that differ only along an axis, in its order, group by group."""
        found: dict[str, list[int]] = {}
        for place, point in enumerate(self.points):
            found.setdefault(str({axis: label for axis, label in point.items() if axis != along}), []).append(place)
        return [self._some(places) for places in found.values()]

    def _some(self, places: Sequence[int]) -> Metric:
        return Metric([self.points[place] for place in places], self.values[places], self.seeds)

    def labels(self, axis: str) -> list[Any]:
        return list(dict.fromkeys(point[axis] for point in self.points))

    # --- Questions
    def value(self, take: str = "mean") -> Answer:
        """The metric: its mean over points, or at the point where it is `most` or `least`."""
        return self._answer(_taken(self.values, take))

    def ratio(self, a: Labels, b: Labels, take: str = "mean", best: str = "high") -> Answer:
        """The metric at points `a` over the best of the points `b` that are equal elsewhere; `best`: high or low."""
        mine, theirs = self._pairs(a, b, best)
        ratios = np.divide(mine, theirs, out=np.full(mine.shape, np.nan), where=theirs != 0)
        if self.seeds not in (0, mine.shape[-1]):  # in a resample where `b` sustains nothing
            ratios = np.where(theirs != 0, ratios, np.where(mine > 0, MOST, 1.0))
        return self._answer(_taken(ratios, take))

    def difference(self, a: Labels, b: Labels, take: str = "mean", best: str = "high") -> Answer:
        """The metric at points `a` less the best of the points `b` that are equal elsewhere."""
        mine, theirs = self._pairs(a, b, best)
        return self._answer(_taken(mine - theirs, take))

    def log_ratio(self, a: Labels, b: Labels, floor: float = 0.0, best: str = "high") -> Answer:
        """A ratio of geometric means over seeds, `floor` added to both."""
        mine, theirs = self._pairs(a, b, best)
        return replace(self._answer((np.log(mine + floor) - np.log(theirs + floor)).mean(axis=0)), logarithm=True)

    def kept(self, most: float | str | None = None, least: float | None = None, slack: float = 0.0) -> Answer:
        """The share of points at which the metric is at most `most` (a number, or the label of an
        axis), or at least `least`."""
        limit, flags = most if most is not None else least, []
        for point, value in zip(self.points, self.values, strict=True):
            bound = float(point[limit] if isinstance(limit, str) else limit or 0.0)
            flags.append(value <= bound + slack if most is not None else value >= bound - slack)
        return self._answer(np.mean(flags, axis=0))

    def monotone(self, along: str, falls: bool = False, slack: float = 0.0) -> Answer:
        """The share of steps along an axis at which the metric rises, or falls; `slack` is relative."""
        return self._answer(np.mean([_steps(group.values, falls, slack) for group in self.groups(along)], axis=0))

    def order(self, axis: str, labels: Sequence[Any], slack: float = 0.0) -> Answer:
        """The share of neighbours in `labels` of an axis, from most to least, in the right order."""
        shares = []
        for group in self.where({axis: list(labels)}).groups(axis):
            places = [group.labels(axis).index(label) for label in labels if label in group.labels(axis)]
            shares.append(_steps(group.values[places], True, slack))
        return self._answer(np.mean(shares, axis=0))

    def correlation(self, other: Metric, along: str) -> Answer:
        """The correlation with another metric along an axis."""
        found = []
        for mine, theirs in zip(self.groups(along), other.groups(along), strict=True):
            found.append([np.corrcoef(x, y)[0, 1] for x, y in zip(mine.values.T, theirs.values.T, strict=True)])
        return self._answer(np.mean(found, axis=0))

    def _answer(self, values: np.ndarray) -> Answer:
        return Answer(np.asarray(values), self.seeds)

    def _pairs(self, a: Labels, b: Labels, best: str) -> tuple[np.ndarray, np.ndarray]:
        pick: Callable[..., Any] = np.argmin if best == "low" else np.argmax
        mine, theirs = self.where(a), []
        for point in mine.points:
            here = {axis: label for axis, label in point.items() if axis not in {*a, *b}}
            others = self.where({**here, **b}).values
            theirs.append(others[int(pick(others.mean(axis=1)))])
        return mine.values, np.array(theirs)


def _taken(values: np.ndarray, take: str) -> np.ndarray:
    """Returns the mean of values (points, seeds) over points, or those of the point with the extreme mean."""
    if take == "mean":
        return values.mean(axis=0)
    means = np.where(np.isfinite(values.mean(axis=1)), values.mean(axis=1), np.nan)
    return values[int(np.nanargmax(means) if take == "most" else np.nanargmin(means))]


def _steps(values: np.ndarray, falls: bool, slack: float) -> np.ndarray:
    """Returns the share of steps of values (points, seeds) in the right direction."""
    before, after = (values[1:], values[:-1]) if falls else (values[:-1], values[1:])
    return (after >= before - slack * np.abs(before)).mean(axis=0)
