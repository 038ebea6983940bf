"""Moves the parameters of shared prefixes until the generator, played over the trace's span, measures as the trace.

A trace of finite length does not see the prefixes of before, nor long times between turns, nor does the generator's
own: so both are measured alike, over the same span.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ooco_gym.workload.arrivals import Arrivals
from ooco_gym.workload.find_sharing import (
    LONGEST_S,
    SHORTEST_S,
    WIDEST,
    Found,
    Prefixes,
    chat_of,
    documents_of,
    follow,
)
from ooco_gym.workload.generate import WorkloadSpec, play
from ooco_gym.workload.lengths import LengthModel
from ooco_gym.workload.reuse import curve_sizes, hit_rates
from ooco_gym.workload.sharing import sharing_ratio
from ooco_gym.workload.trace import Trace

STEPS, WHOLE_STEPS = 8, 3       # after the whole ones each is shorter, so that one play's chance counts less and less
PLAYS = 4                       # of the curve that is reported


def fit_sharing(found: Found, trace: Trace, process: Arrivals, model: LengthModel, seed: int) -> Found:
    """Returns the form with its parameters moved; bursts of `process` make no difference to them."""
    wanted = dict(found.spec) | {"shares": found.prefixes.shares if found.prefixes else None}
    for step in range(STEPS if found.ratio is not None else 0):
        played = _play(found, trace, process, model, seed + step)
        found, wanted = _moved(found, wanted, played, model, 1 / (1 + max(0, step - WHOLE_STEPS)))
    return found


def compare_sharing(found: Found, trace: Trace, process: Arrivals, model: LengthModel,
                    seed: int) -> tuple[dict[str, Any], Trace]:
    """Returns (how like the fitted form is, by other seeds than it was fitted with; the last play)."""
    runs = [_play(found, trace, process, model, seed + STEPS + number) for number in range(PLAYS)]
    ratios = [sharing_ratio(run) or 0.0 for run in runs]
    return {"form": found.spec["form"], "trace": found.ratio, "model": float(np.mean(ratios)),
            "hit_rates": hit_table(trace, runs)}, runs[-1]


def _play(found: Found, trace: Trace, process: Arrivals, model: LengthModel, seed: int) -> Trace:
    return play(WorkloadSpec("fit", process, model, 0.0, found.sharing), start_s=float(trace.arrival_s[0]),
                duration_s=float(trace.arrival_s[-1] - trace.arrival_s[0]), seed=seed, stream="fit")


def hit_table(trace: Trace, runs: list[Trace]) -> dict[str, dict[str, float]] | None:
    """Returns the hit rates of LRU caches by their size in tokens, as text: `trace` and `model`, the mean of the plays.

    None where the trace has no hashes.
    """
    if trace.prefix_hashes is None:
        return None
    sizes = curve_sizes(trace)
    model = np.mean([hit_rates(run, sizes) or [0.0] * len(sizes) for run in runs], axis=0)
    return {str(size): {"trace": one, "model": float(other)}
            for size, one, other in zip(sizes, hit_rates(trace, sizes) or [], model, strict=True)}


def _moved(found: Found, wanted: dict[str, Any], played: Trace, model: LengthModel,
           gain: float) -> tuple[Found, dict[str, Any]]:
    """Moves each parameter by `gain` times what its own measure is off."""
    assert found.ratio is not None and found.prefixes is not None
    there = found.prefixes
    off = found.ratio - (sharing_ratio(played) or 0.0)
    wanted = wanted | {"ratio": float(np.clip(wanted["ratio"] + gain * off, 0.01, 0.99))}
    if found.spec["form"] != "chat":
        return documents_of(wanted["ratio"], found.spec["groups"], found.spec["zipf"], found.ratio, there), wanted
    if played.prefix_hashes is None or len(played) == 0:
        return found, wanted
    here = follow(played)
    wanted["shares"] = float(np.clip(wanted["shares"] + gain * (there.shares - here.shares), 0.0, 0.95))
    wanted |= _think(wanted, there, here, gain)
    return chat_of(wanted["ratio"], wanted["think_s"], wanted.get("think_sigma", 0.0), wanted["shares"],
                   there.common_blocks, model, found.ratio, there), wanted


def _think(wanted: dict[str, Any], there: Prefixes, here: Prefixes, gain: float) -> dict[str, float]:
    """Returns the times between turns, moved towards gaps whose logarithms have the trace's mean and spread."""
    if not len(there.gap_s) or not len(here.gap_s):
        return {}
    (mean, spread), (found_mean, found_spread) = there.log_gaps(), here.log_gaps()
    longer = wanted["think_s"] * np.exp(gain * np.clip(mean - found_mean, -1.0, 1.0))
    sigma = wanted.get("think_sigma", 0.0)
    if not sigma:
        return {"think_s": float(np.clip(longer, SHORTEST_S, LONGEST_S))}
    wider = float(np.clip(sigma * (spread / max(found_spread, 0.05)) ** gain, 0.05, WIDEST))
    # The logarithms tell the median; a lognormal's mean grows with its spread.
    longer *= np.exp((wider**2 - sigma**2) / 2)
    return {"think_s": float(np.clip(longer, SHORTEST_S, LONGEST_S)), "think_sigma": wider}
