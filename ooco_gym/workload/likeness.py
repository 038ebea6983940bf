"""How like a generator is to a trace: gaps, counts, dispersion, lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooco_gym.workload.arrivals import Arrivals
from ooco_gym.workload.describe import DISPERSION_S, counts_in_windows, dispersion
from ooco_gym.workload.generate import play as play_workload
from ooco_gym.workload.lengths import Constant, LengthModel, Lengths
from ooco_gym.workload.sessions import Chat
from ooco_gym.workload.spec import WorkloadSpec

COUNT_WINDOWS_S = (0.5, 1.0, 3.0)
MOST_REQUESTS, MOST_SPAN_S, FEWEST_SEEDS, MOST_SEEDS = 2_000_000, 1_200_000.0, 4, 12


@dataclass(frozen=True)
class Likeness:
    """A generator beside a trace; all measured in the same way, the generator's over several seeds.

    Attributes:
        ks_gaps: Kolmogorov and Smirnov's distance of the gaps between arrivals.
        ks_counts: mean of the distances of counts in windows of 0.5 to 3 s.
        window_s: windows of the two next.
        trace: index of dispersion of the trace.
        model: the same of the generator, mean over seeds.
        seeds: how many.
    """

    ks_gaps: float
    ks_counts: float
    window_s: tuple[float, ...]
    trace: tuple[float, ...]
    model: tuple[float, ...]
    seeds: int

    def describe(self) -> dict[str, Any]:
        """Returns the figures, JSON-able."""
        return {"ks_gaps": self.ks_gaps, "ks_counts": self.ks_counts, "seeds": self.seeds,
                "dispersion": {f"{w:g}": {"trace": a, "model": b, "ratio": b / a if a else None}
                               for w, a, b in zip(self.window_s, self.trace, self.model, strict=True)}}


def ks(a: np.ndarray, b: np.ndarray) -> float:
    """Returns the largest difference between two samples' distribution functions; ties are handled."""
    a, b = np.sort(a), np.sort(b)
    places = np.concatenate([a, b])
    return float(np.max(np.abs(np.searchsorted(a, places, side="right") / len(a)
                               - np.searchsorted(b, places, side="right") / len(b))))


def ks_lengths(lengths: Lengths, tokens: np.ndarray, seed: int, draws: int = 200_000) -> float:
    """Returns the distance between a length model's draws and measured lengths int[n]."""
    generator = np.random.default_rng(seed)
    return ks(lengths.tokens(generator.random(draws), generator.standard_normal(draws)), tokens)


def play(arrivals: Arrivals, start_s: float, duration_s: float, seed: int, chat: Chat | None = None) -> np.ndarray:
    """Returns the arrival times of one realisation, float64[n]."""
    model = WorkloadSpec("fit", arrivals, LengthModel(Constant(1), Constant(1)), 0.0, chat)
    return play_workload(model, start_s=start_s, duration_s=duration_s, seed=seed, stream="fit").arrival_s


def likeness(arrivals: Arrivals, arrival_s: np.ndarray, seed: int, most: int = MOST_SEEDS,
             windows_s: Sequence[float] = DISPERSION_S, chat: Chat | None = None) -> Likeness:
    """Plays a generator over the trace's own span, with up to `most` seeds, and measures both alike."""
    start_s, span_s = float(arrival_s[0]), float(arrival_s[-1] - arrival_s[0])
    seeds = int(np.clip(min(MOST_REQUESTS // len(arrival_s), MOST_SPAN_S // max(span_s, 1.0)), FEWEST_SEEDS, most))
    runs = [play(arrivals, start_s, span_s, seed * 1000 + i, chat) for i in range(seeds)]
    runs = [run for run in runs if len(run) > 1]
    trace = [(window_s, dispersion(arrival_s, window_s)) for window_s in windows_s]
    known = [(window_s, value) for window_s, value in trace if value is not None]
    model = []
    for window_s, _ in known:
        values = [dispersion(run, window_s, span_s - (run[0] - start_s)) for run in runs]
        model.append(float(np.mean([value for value in values if value is not None] or [0.0])))
    gaps = np.concatenate([np.diff(run) for run in runs] or [np.zeros(1)])
    counts = [ks(counts_in_windows(arrival_s, window_s), np.concatenate(
        [counts_in_windows(run, window_s, span_s - (run[0] - start_s)) for run in runs]))
        for window_s in COUNT_WINDOWS_S if runs and span_s >= 50 * window_s]
    return Likeness(ks(np.diff(arrival_s), gaps), float(np.mean(counts or [0.0])), tuple(w for w, _ in known),
                    tuple(value for _, value in known), tuple(model), len(runs))
