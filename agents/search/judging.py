"""A candidate's value: its service relative to a reference's in the same windows, within the violation budget.

Each window is compared with the reference's service in that very window, so that windows of all conditions count
alike. A candidate is feasible if the upper 95 % limit of its violation rate is within the limit, and so is the rate in
each condition (or within the reference's rate, if that is higher). With the score `violations` (such as for a router
at a load that breaks SLOs anyway), no limit counts, and lost service has a price.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from agents.evaluation.scoring import feasible_first, interval_of, upper_violation_limit

Score = Literal["log_ratio", "violations"]
SCORES: tuple[Score, ...] = get_args(Score)
FLOOR = 0.05  # share of a condition's mean reference service that is added to both sides: a window may have none
LEAST = 1e-3  # reference GPU-s/s, added if the reference has no service in a whole condition
FEW = 1e-3  # added to both violation rates, whose logarithms are compared
LOST, LOST_PRICE = 0.01, 10.0  # logarithm of service that may be lost for free; price of further loss
BEHIND = 10.0  # penalty of infeasible candidates; no feasible score is as low
UNPLAYED = 1e4  # penalty of dropped candidates per missed step


def format_score(kind: str, score: float, reference: str = "") -> str:
    """A score in words: `log_ratio` as a multiple of the reference's service, the geometric mean of windows."""
    if kind == "log_ratio":
        return f"{math.exp(score):.3f}" + (f" times the service of {reference}" if reference else "")
    return f"{score:+.4f}" if not reference else f"{kind} {score:+.4f}"


@dataclass(frozen=True)
class Judged:
    """The result of a candidate on some windows.

    `score` is relative to the reference (0: as good), with 95 % interval `low` and `high` over windows (None for a
    single one). `service` (reference GPU-s/s) and `violation_rate` are means of windows. `violation_upper_limit` is
    the rate's upper 95 % limit, `excess` how far the limit is exceeded: at most 0 if the candidate is feasible.
    """

    score: float
    low: float | None
    high: float | None
    service: float
    violation_rate: float
    violation_upper_limit: float
    excess: float

    @property
    def order(self) -> tuple[bool, float]:
        """Orders feasible results first, by score; then others, by least excess."""
        return feasible_first(self.excess, self.score, 0.0)


class Judge:
    """Scores outcomes on the windows of one split.

    Args:
        reference: OUTCOME[windows] of the policy that candidates are compared with.
        conditions: int64[windows], the condition of each window, from 0 on.
        limit: highest violation rate.
        kind: name of the score, one of `SCORES`.
    """

    def __init__(self, reference: np.ndarray, conditions: np.ndarray, limit: float, kind: str = SCORES[0]) -> None:
        self.conditions, self.limit, self.kind = conditions, limit, kind
        mine = [reference[conditions == one] for one in range(conditions.max() + 1)]
        self._added = np.maximum(FLOOR * np.array([one["service"].mean() for one in mine]), LEAST)[conditions]
        self._reference, self._rates = reference["service"] + self._added, rates_of(reference)
        self._limits = np.maximum(limit, [_rate(one) for one in mine])

    def scores(self, outcome: np.ndarray, places: Any = slice(None)) -> np.ndarray:
        """The score of each window, float64[…, windows]; `places`: their indices."""
        ratio = (outcome["service"] + self._added[places]) / self._reference[places]
        if self.kind == "violations":
            fewer = np.log((self._rates[places] + FEW) / (rates_of(outcome) + FEW))
            return fewer - LOST_PRICE * np.maximum(0.0, -np.log(ratio) - LOST)
        return np.log(ratio)

    def quick(self, outcome: np.ndarray, places: np.ndarray, windows: int) -> np.ndarray:
        """The values of candidates after few of `windows`: OUTCOME[candidates, few] → float64[candidates]; feasibility
        uses the upper limit predicted for all `windows`, as that of the few would be too wide."""
        return np.array([_worth(float(score), self._excess(one, places, foreseen_limit(one, windows)))
                         for one, score in zip(outcome, self.scores(outcome, places).mean(axis=1), strict=True)])

    def worth(self, found: Judged) -> float:
        """The value of a candidate's result on all windows: more is better."""
        return _worth(found.score, found.excess)

    def judged(self, outcome: np.ndarray) -> Judged:
        """The result of one candidate, OUTCOME[windows]."""
        rates = rates_of(outcome)
        upper = upper_violation_limit(rates[None], outcome["violated"], outcome["arrived"]) or 0.0
        return Judged(*interval_of(self.scores(outcome)[None]), float(outcome["service"].mean()),
                      float(rates.mean()), upper, self._excess(outcome, slice(None), upper))

    def by_condition(self, names: Sequence[str], outcome: np.ndarray) -> dict[str, Any]:
        """Mean score and violation rate of one candidate, OUTCOME[windows], in each condition."""
        scores, mine = self.scores(outcome), [self.conditions == one for one in range(len(names))]
        return {name: {"score": float(scores[here].mean()), "violation_rate": _rate(outcome[here])}
                for name, here in zip(names, mine, strict=True)}

    def _excess(self, outcome: np.ndarray, places: Any, upper: float) -> float:
        """How far the upper limit, or a condition's rate, exceeds its limit."""
        if self.kind == "violations":
            return 0.0
        conditions = self.conditions[places]
        return max(upper - self.limit, *(_rate(outcome[conditions == one]) - float(self._limits[one])
                                         for one in np.unique(conditions)))


def foreseen_limit(outcome: np.ndarray, windows: int) -> float:
    """Predicts the upper 95 % limit of a violation rate after `windows`, from OUTCOME[few]: the rate and 1.96 standard
    errors, from the sample or the binomial distribution, whichever is larger."""
    rates, arrived = rates_of(outcome), float(outcome["arrived"].mean())
    rate = float(rates.mean())
    spread = float(rates.std(ddof=1)) if len(rates) > 1 else 0.0
    binomial = np.sqrt(rate * (1.0 - rate) / max(arrived, 1.0))
    return rate + 1.96 * max(spread, float(binomial)) / float(np.sqrt(windows))


def rates_of(outcome: np.ndarray) -> np.ndarray:
    """The violation rate of each window; 0 where no online request arrived."""
    return outcome["violated"] / np.maximum(outcome["arrived"], 1)


def _rate(outcome: np.ndarray) -> float:
    return float(rates_of(outcome).mean()) if outcome.size else 0.0


def _worth(score: float, excess: float) -> float:
    return score if excess <= 0.0 else -BEHIND - float(excess)
