"""What happened over time, as plots: latency and lateness by arrival, and what waited and was held in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ooco_gym.render.record import RunRecord
from ooco_gym.report import Table, percent
from ooco_gym.report.svg import Axis, Panel, Series
from ooco_gym.workload import from_file

BINS_S = (1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0, 14400.0)
MOST_BINS = 60
LEAST_BIN_S = 120.0  # where the window has five of them
HOURS_FROM_S = 7200.0  # windows that long have the time of day as their axis
WORK = ("busy", "online_prefill", "offline_prefill", "decode")


def panels_of(records: Sequence[RunRecord], budget: float) -> list[Panel]:
    """One plot a figure, a curve a record, in the colours of their order.

    Args:
        records: one of each policy, with requests.
        budget: share of online requests that may be late.
    """
    judged = [online_quality(record) for record in records]
    slos = _slos(records[0])
    panels = [
        _panel(records, "TTFT P99 by arrival (s); dashed: SLO", [
            _by_bin(edges, which, one["ttft_s"], _p99) for edges, which, one in judged],
            [slo["ttft_s"] for slo in slos], log=True),
        _panel(records, "TPOT P99 by arrival (ms); dashed: SLO", [
            _by_bin(edges, which, 1000 * one["tpot_s"], _p99) for edges, which, one in judged],
            [1000 * slo["tpot_s"] for slo in slos], log=True),
        _panel(records, "late online requests by arrival (%); dashed: what is allowed", [
            _by_bin(edges, which, 100.0 * one["violated"], np.mean) for edges, which, one in judged], [100 * budget])]
    for title, keys, factor in (("online arrivals (requests/s)", ("online_arrivals_per_s",), 1.0),
                                ("waiting for their prefill (requests)", ("online_waiting", "offline_waiting"), 1.0),
                                ("KV memory in use, mean of the instances (%)", ("kv_share",), 100.0)):
        if all(record.samples and len(record.samples["t_s"]) for record in records):
            panels.append(_panel(records, title, [_sampled(record, keys, factor) for record in records]))
    return [panel for panel in panels if panel.series]


def work_table(records: Sequence[RunRecord]) -> Table:
    """What the instances of each role did, in the mean over the whole run, warm-up and drain included."""
    rows = []
    for record in records:
        for role in dict.fromkeys(one["role"] for one in record.summary["instances"]):
            mine = [one for one in record.summary["instances"] if one["role"] == role]
            shares = [float(np.mean([one[f"{key}_share"] for one in mine])) for key in (*WORK, "kv_mean")]
            rows.append((record.label, f"{len(mine)} {role}", *(percent(share, 1) for share in shares)))
    head = ("policy", "instances", *(key.replace("_", " ") for key in WORK), "KV memory in use")
    return Table("What the instances did", head, rows,
                 "Shares of the whole run's time, warm-up and drain included, mean over the instances of a role.", "")


def bin_s(window_s: float) -> float:
    """Width of the bins over time: the smallest usual one with enough requests in it and at most `MOST_BINS`."""
    least_s = min(LEAST_BIN_S, window_s / 5)
    return next((width for width in BINS_S if width >= least_s and window_s / width <= MOST_BINS),
                max(BINS_S[-1], window_s / MOST_BINS))


def online_quality(record: RunRecord) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Times of the counted online requests, and in which bin of the window each arrived. What was unfinished at the
    run's end enters with the time that it had waited by then.

    Returns:
        Edges of the bins (b + 1,) in seconds since the window's start, the bin of each request (n,), and `ttft_s`,
        `tpot_s` and `violated`, each (n,). TPOT counts from the first token; it is NaN for single tokens and for what
        never began.
    """
    assert record.requests is not None
    mine = {key: values[record.requests["online"]] for key, values in record.requests.items()}
    first, steps = mine["first_token_s"], mine["output_tokens"] - 1.0
    ttft_s = np.where(np.isnan(first), record.end_s, first) - mine["arrival_s"]
    until = np.where(np.isnan(mine["finish_s"]), record.end_s, mine["finish_s"])
    tpot_s = np.where(steps > 0, (until - first) / np.maximum(steps, 1.0), np.nan)
    width = bin_s(record.window_s)
    edges = np.append(np.arange(0.0, record.window_s - 1e-9, width), record.window_s)
    which = np.clip((mine["arrival_s"] // width).astype(int), 0, len(edges) - 2)
    return edges, which, {"ttft_s": ttft_s, "tpot_s": tpot_s, "violated": mine["violated"].astype(bool)}


def _panel(records: Sequence[RunRecord], title: str, curves: Sequence[tuple[np.ndarray, np.ndarray]],
           limits: Sequence[float] = (), log: bool = False) -> Panel:
    long = records[0].window_s >= HOURS_FROM_S
    begin_s, unit_s = (records[0].day_start_s, 3600.0) if long else (0.0, 60.0)
    clock = "time in the trace" if from_file(records[0].scenario["workload"]) else "time of day"
    ends = [begin_s / unit_s, (begin_s + records[0].window_s) / unit_s]
    series = [Series("", ((begin_s + at) / unit_s).tolist(), values.tolist(), colour=colour)
              for colour, (at, values) in enumerate(curves) if np.isfinite(values).any()]
    dashed = [Series("", ends, [limit] * 2, "dashes", colour=-1) for limit in dict.fromkeys(limits)]
    axis = Axis(f"{clock} (h)" if long else "time since the window's start (min)", limits=(ends[0], ends[1]))
    return Panel(title, axis, Axis(log=log), [*dashed, *series] if series else [])


def _p99(values: np.ndarray) -> float:
    return float(np.quantile(values, 0.99))


def _by_bin(edges: np.ndarray, which: np.ndarray, values: np.ndarray,
            of: Callable[[np.ndarray], Any]) -> tuple[np.ndarray, np.ndarray]:
    """Middles of the bins, and a figure of the values in each, NaN where it is empty: float64[bins] both."""
    known = ~np.isnan(values)
    inside = [values[known & (which == place)] for place in range(len(edges) - 1)]
    return (edges[:-1] + edges[1:]) / 2, np.array([of(some) if some.size else np.nan for some in inside], float)


def _sampled(record: RunRecord, keys: Sequence[str], factor: float) -> tuple[np.ndarray, np.ndarray]:
    """Samples averaged over bins, sums of several keys; a share is the mean over instances, anything else their sum."""
    assert record.samples is not None
    ends = record.samples["t_s"]
    values = factor * np.sum([record.samples[key] for key in keys], axis=0).astype(float)
    if values.ndim == 2:
        values = values.mean(axis=1) if keys[0].endswith("share") else values.sum(axis=1)
    interval = float(ends[1] - ends[0]) if len(ends) > 1 else float(ends[0])
    width = max(bin_s(record.window_s), interval)
    bins, place = np.unique(((ends - interval / 2) // width).astype(int), return_inverse=True)
    return (bins + 0.5) * width, np.bincount(place, values) / np.bincount(place)


def _slos(record: RunRecord) -> list[Mapping[str, Any]]:
    """The SLOs that online requests were held against: of each class where the scenario names some."""
    classes, scenario = record.summary.get("classes", {}), record.scenario
    return [scenario["classes"][name] for name, one in classes.items() if one["online"]] or [scenario["slo"]]
