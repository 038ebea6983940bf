"""Summary for decisions about cost: conditions in a sentence, costs, percentiles by class, queue depths."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ooco_gym.render.outcome import Row
from ooco_gym.report import Table, at_least, curve, duration, joined, number, plot
from ooco_gym.report.pages import Plot

if TYPE_CHECKING:
    from ooco_gym.scenario import ResolvedScenario
    from ooco_gym.simulation import Run

PERCENTILES = {"ttft_p50_s": "TTFT P50", "ttft_p90_s": "TTFT P90", "ttft_p99_s": "TTFT P99",
               "tpot_p50_s": "TPOT P50", "tpot_p90_s": "TPOT P90", "tpot_p99_s": "TPOT P99"}


def conditions(known: ResolvedScenario, price: float | None = None, chips: int | None = None) -> str:
    """Returns chips, model, SLOs, window and price, in a sentence.

    Args:
        known: the scenario.
        price: of a chip-hour, in any currency.
        chips: number of chips, if not that of the scenario's cluster.
    """
    model, _, names = known.cluster.hardware()
    kinds = list(dict.fromkeys(names))
    counted = f"{chips} {joined(kinds)}" if chips else joined([f"{names.count(one)} {one}" for one in kinds])
    said = _slo_words(known)
    if known.batch and known.workload.span_s[1] == 0.0:
        said.append("all requests arrive at the start")
    else:
        said.append(f"{known.duration_s / 60:,.3g} min of arrivals from {known.start_s:,.0f} s on")
    if price is not None:
        said.append(f"one chip-hour costs {number(price)}")
    return f"Cluster: {counted} with {model}; {'; '.join(said)}."


def _slo_words(known: ResolvedScenario) -> list[str]:
    """Returns the SLOs of online classes, or deadlines if all requests are offline, one phrase each."""
    if known.batch:
        return [f"{one.name}: done within {duration(one.deadline_s)}" for one in known.classes if one.deadline_s]
    online = [one for one in known.classes[2:] if one.online]
    if not online:
        return [f"TTFT {known.slo.ttft_s:g} s, TPOT {1000 * known.slo.tpot_s:g} ms"]
    return [f"{one.name}: TTFT {one.ttft_s:g} s, TPOT {1000 * (one.tpot_s or 0.0):g} ms" for one in online]


def paid_words(costs: Mapping[str, Row], kept: Collection[str]) -> str:
    """Returns the cost of the cluster, and of a million tokens with the cheapest and dearest policy
    within the SLOs.

    If no policy is within them, all are compared. The sentence is empty without a price.
    """
    each = sorted((cost["per_million_tokens"], name) for name, cost in costs.items()
                  if cost.get("per_million_tokens") and (name in kept or not kept))
    if not each:
        return ""
    low, high = (f"{number(paid)} (`{name}`)" for paid, name in (each[0], each[-1]))
    tokens = f"{low} to {high}" if number(each[0][0]) != number(each[-1][0]) else number(each[0][0])
    return f" The cluster costs {number(costs[each[0][1]]['per_hour'])} an hour; a million tokens cost {tokens}."


def percentiles(runs: Mapping[str, Sequence[Row]]) -> Table | None:
    """Returns TTFT and TPOT by policy and online class, means over seeds; None without online arrivals."""
    rows = []
    for policy, each in runs.items():
        named = set[str]()
        for one in each:
            named |= {name for name, about in one.get("classes", {}).items() if about["online"]}
        for name in sorted(named) or ["online"]:
            parts = [one["classes"][name] if named else one["online"] for one in each]
            if not any(part["arrived"] for part in parts):
                continue
            cells = []
            for key in PERCENTILES:
                values = np.array([part[key] for part in parts], float)
                cells.append(at_least(duration(float(values.mean())), any(key in part["censored"] for part in parts)))
            rows.append((policy, name, *cells))
    head = ("policy", "class", *PERCENTILES.values())
    return Table("Percentiles by class", head, rows, align="llr") if rows else None


def depths(run: Run) -> list[Plot]:
    """Returns plots of waiting and running requests, and KV memory, over the window."""
    if not len(run.samples.get("t_s", ())):
        return []
    start_s, end_s = run.window_s
    t_s = run.samples["t_s"] - start_s
    inside = (t_s >= 0) & (t_s <= end_s - start_s)
    unit, unit_s = ("h", 3600.0) if end_s - start_s >= 7200.0 else ("min", 60.0)
    x, axis = t_s[inside] / unit_s, f"time since the window's start ({unit})"
    counts = {name: run.samples[key][inside].sum(axis=1) for name, key in (
        ("online, waiting", "online_waiting"), ("online, running", "urgent"),
        ("offline, waiting", "offline_waiting"), ("offline, running", "offline"))}
    shown = [curve(name, x, values, colour) for colour, (name, values) in enumerate(counts.items()) if values.any()]
    share = [curve(f"instance {index}", x, 100 * values, index)
             for index, values in enumerate(run.samples["kv_share"][inside].T[:8])]
    return [plot("Waiting and running requests", shown, axis), plot("KV memory in use (%)", share, axis,
                                                                  yaxis_range=[0, 100])] if len(x) else []


def saved(rows: Sequence[Mapping[str, Any]], chip: str) -> str:
    """Returns a sentence on the policy with the fewest chips in a plan, and its savings over the
    one with the most.

    Only policies within the SLOs are compared.
    """
    short, rows = rows[0], [row for row in rows if row["holds"]]
    if not rows:
        return f"{short['chips']} {chip} are too few for the SLOs or deadlines."
    best, most = (pick(rows, key=lambda row: row["chips"]) for pick in (min, max))
    if len(rows) == 1:
        return f"`{best['policy']}` needs {best['chips']} {chip}{_hourly(best)}."
    if best["chips"] == most["chips"]:
        return f"All policies need {best['chips']} {chip}{_hourly(best)}."
    price = None if best["cost_per_hour"] is None else most["cost_per_hour"] - best["cost_per_hour"]
    less = "" if price is None else f", {number(price)} an hour less"
    return f"`{best['policy']}` needs {best['chips']} {chip} instead of {most['chips']} (`{most['policy']}`){less}."


def _hourly(row: Mapping[str, Any]) -> str:
    return "" if row["cost_per_hour"] is None else f", {number(row['cost_per_hour'])} an hour"
