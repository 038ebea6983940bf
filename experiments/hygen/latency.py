"""Figures 3 and 4 of HyGen: what online latency costs in offline throughput; and what the paper leaves open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.hygen.bench import SETTING, Bench, all_tokens, at_once, excesses, offline_tokens, ratio, spread

# Other readings of what the paper leaves open, one at a time (baselines/hygen.py, baselines/sarathi.py).
READINGS: tuple[Mapping[str, Any], ...] = (
    {}, {"budget_binds_online": 1}, {"decodes_use_chunk": 0}, {"reserve": "chunk"}, {"preempted": "retain"},
    {"preempted": "swap"}, {"decode_tokens": "new"}, {"chunk_size": 256}, {"chunk_size": 1024}, {"profile_seed": -1},
)


def compared(bench: Bench, metrics: Sequence[str], tolerances: Sequence[float]) -> list[dict[str, Any]]:
    """HyGen and HyGen*, each profiled for one metric and tolerance, beside Sarathi++ and pure online Sarathi.

    Returns:
        A row for each metric and tolerance: how far each policy exceeds pure online service (`…_excess`), whether
        HyGen keeps the tolerance on each seed, offline and overall tokens a second and their ratios.
    """
    alone, free = at_once([lambda: bench.runs("sarathi"), lambda: bench.runs("sarathi_pp")])
    cells = [(metric, float(tolerance)) for metric in metrics for tolerance in tolerances]
    return at_once([lambda one=one, share=share: _cell(bench, one, share, alone, free) for one, share in cells])


def _cell(bench: Bench, metric: str, tolerance: float, alone: list[dict[str, Any]],
          free: list[dict[str, Any]]) -> dict[str, Any]:
    slo = {"slo_metric": metric, "tolerance": tolerance}
    found = {name: bench.profiled(name, slo) for name in SETTING}
    runs = {name: one.runs for name, one in found.items()}
    mine = excesses(metric, runs["hygen"], alone)
    return {
        "metric": metric, "tolerance": tolerance,
        **{SETTING[name]: one.setting for name, one in found.items()},
        "hygen_excess": spread(mine), "kept": int((mine <= tolerance).sum()), "seeds": len(mine),
        "star_excess": spread(excesses(metric, runs["hygen_star"], alone)),
        "sarathi_pp_excess": spread(excesses(metric, free, alone)),
        "hygen_offline": spread(offline_tokens(runs["hygen"])),
        "star_offline": spread(offline_tokens(runs["hygen_star"])),
        "sarathi_pp_offline": spread(offline_tokens(free)),
        "overall_ratio": ratio(all_tokens(runs["hygen"]), all_tokens(alone)),
        "offline_ratio": ratio(offline_tokens(runs["hygen"]), offline_tokens(runs["hygen_star"])),
    }


def rates(bench: Bench, metric: str, tolerance: float, online_rates: Sequence[float]) -> list[dict[str, Any]]:
    """The same comparison for one SLO at several online loads (Figures 10 and 15).

    Returns:
        The rows of `compared`, with `online_rate`.
    """
    own = bench.scenario.online_scale() / bench.online_rate
    benches = [bench.at(scale=own * rate, online_rate=rate) for rate in online_rates]
    rows = at_once([lambda one=one: compared(one, [metric], [tolerance])[0] for one in benches])
    return [{"online_rate": float(rate), **row} for rate, row in zip(online_rates, rows, strict=True)]


def readings(bench: Bench, metric: str, tolerance: float) -> list[dict[str, Any]]:
    """HyGen under each other reading of what is open, profiled anew for one SLO.

    Returns:
        A row for each reading: `changed`, the budget found, the excess, offline and overall throughput.
    """
    return at_once([lambda changed=changed: _reading(bench, changed, metric, tolerance) for changed in READINGS])


def _reading(bench: Bench, changed: Mapping[str, Any], metric: str, tolerance: float) -> dict[str, Any]:
    # The tolerance is over the same engine's own service, so its chunk and its count of decodes stay with it.
    own = {key: value for key, value in changed.items() if key in ("chunk_size", "decodes_use_chunk", "reserve")}
    alone = bench.runs("sarathi", own)
    found = bench.profiled("hygen", {"slo_metric": metric, "tolerance": tolerance}, changed)
    runs = found.runs
    return {
        "changed": dict(changed), "latency_budget_s": found.setting,
        "excess": spread(excesses(metric, runs, alone)), "offline": spread(offline_tokens(runs)),
        "overall_ratio": ratio(all_tokens(runs), all_tokens(alone)),
        "evictions": float(np.mean([one["offline"]["evictions"] for one in runs])),
        "wasted": float(np.mean([one["offline"]["wasted_tokens_per_s"] for one in runs])),
    }
