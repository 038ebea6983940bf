"""Input-dependent advantages: what the arrivals cause is learned from siblings that met the same arrivals.

Most of the variance of a return here is due to which requests arrive, not to what is decided, and a critic that sees
the present cannot know which will. Episodes of one group play the same window; what befell the siblings at the same
simulated time, beyond what their critic expected, is subtracted. It depends on the input and on the siblings' actions,
never on the action that is judged, so that the policy gradient keeps its mean (Mao et al. 2019, arXiv 1807.02264,
theorem 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from agents.learning.callbacks import Callback, Kept


class Timeline(Kept):
    """At which simulated time of which episode each transition of a rollout began."""

    KEPT = ("clock", "episode")

    def __init__(self, places: int) -> None:
        self.clock, self.episode = np.zeros(places), np.zeros(places, np.int64)

    def of(self, starts: np.ndarray, elapsed_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Seconds since the episode's start, and its ordinal number: (steps, places) each. The clocks go on.

        Args:
            starts: whether an episode begins at a step, (steps, places).
            elapsed_s: duration of each step, (steps, places).
        """
        times, episodes = np.zeros(elapsed_s.shape), np.zeros(elapsed_s.shape, np.int64)
        for step in range(len(elapsed_s)):
            begins = starts[step] > 0
            self.clock[begins] = 0.0
            self.episode += begins
            times[step], episodes[step] = self.clock, self.episode
            self.clock += elapsed_s[step]
        return times, episodes


def of_siblings(times: np.ndarray, episodes: np.ndarray, residuals: np.ndarray, group: int) -> np.ndarray:
    """The mean of the siblings' residuals at the same time of the same episode; NaN where there is none.

    Decisions are unevenly spaced and each sibling has its own: between two of its decisions its residual is
    interpolated, before its first and after its last in this rollout it has none.

    Args:
        times, episodes: as of `Timeline.of`.
        residuals: what came beyond what the critic expected, (steps, places).
        group: neighbouring places that play the same windows.
    """
    total, count = np.zeros(times.shape), np.zeros(times.shape)
    for first in range(0, times.shape[1], group):
        places = range(first, first + group)
        for episode in np.unique(episodes[:, first : first + group]):
            rows = {place: np.flatnonzero(episodes[:, place] == episode) for place in places}
            for mine in places:
                at = times[rows[mine], mine]
                for other in places:
                    theirs = rows[other]
                    if other == mine or not len(theirs) or not len(at):
                        continue
                    found = np.interp(at, times[theirs, other], residuals[theirs, other], left=np.nan, right=np.nan)
                    there = ~np.isnan(found)
                    total[rows[mine][there], mine] += found[there]
                    count[rows[mine][there], mine] += 1.0
    return np.where(count > 0, total / np.maximum(count, 1.0), np.nan)


class InputBaseline(Callback):
    """Subtracts, between a rollout and its update, the siblings' mean from the buffer's advantages.

    The mean of few siblings is noisy itself; of it as much is subtracted as has lowered the variance so far, the
    coefficient of a control variate, cov / var, over earlier rollouts alone, so that nothing of this rollout is in it.

    Args:
        group: neighbouring places that play the same windows, at least 2.
        places: of all groups.

    Logged: `input/coefficient`; `input/covered`, the share of decisions with siblings; `input/share_explained`, what
    the subtraction took of these decisions' variance.
    """

    KEPT = ("timeline", "moments")
    KEEP = 0.9  # of the moments, from rollout to rollout

    def __init__(self, group: int, places: int) -> None:
        super().__init__()
        self.group, self.timeline = group, Timeline(places)
        self.moments = np.zeros(2)  # covariance with the siblings' mean, and its variance

    @property
    def coefficient(self) -> float:
        """How much of the siblings' mean is subtracted; 0 before the first rollout."""
        return float(np.clip(self.moments[0] / self.moments[1], 0.0, 1.0)) if self.moments[1] > 0.0 else 0.0

    def _on_rollout_end(self) -> None:
        buffer = self.buffer
        times, episodes = self.timeline.of(buffer.episode_starts, buffer.elapsed_s)
        siblings = of_siblings(times, episodes, buffer.advantages, self.group)
        there, coefficient, explained = ~np.isnan(siblings), self.coefficient, 0.0
        if there.any():
            mine, theirs = buffer.advantages[there].astype(np.float64), siblings[there]
            variance = mine.var()
            self.moments = self.KEEP * self.moments + (1.0 - self.KEEP) * np.array(
                [np.mean((mine - mine.mean()) * (theirs - theirs.mean())), theirs.var()])
            left = mine - coefficient * theirs
            buffer.advantages[there] = left
            explained = 1.0 - left.var() / max(variance, 1e-12)
        for key, value in (("coefficient", coefficient), ("covered", there.mean()), ("share_explained", explained)):
            self.logger.record(f"input/{key}", float(value))


def group_of(agent: Mapping[str, Any]) -> int:
    """How many episodes side by side play the same windows, from an agent's configuration: 1 without a baseline."""
    settings = agent.get("input_baseline")
    return int(settings["group"]) if settings else 1
