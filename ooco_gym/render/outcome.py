"""Outcome of runs: metrics of each policy with intervals and differences, and the sentence that
answers.

Terminal and page show the same `Outcome`. Its rows are those of `compare`'s `results[]`, one per
metric and policy, with `cluster`, `mean`, `ci_low`, `ci_high`, the paired `difference`,
`difference_low`, `difference_high` to the baseline, `censored` (the value is a lower bound) and
`feasible` (the upper 95 % limit of the violation rate is within the budget; None if undecided
requests could change that).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ooco_gym.errors import unknown
from ooco_gym.metrics.statistics import apart, interval, paired_interval, verdict
from ooco_gym.metrics.summary import keeps_prefixes
from ooco_gym.report import (
    Table,
    as_text,
    console,
    curve,
    duration,
    errors,
    joined,
    minus,
    number,
    percent,
    plot,
    show_notes,
)
from ooco_gym.report.pages import Plot
from ooco_gym.report.tables import BRACKETS, at_least, flat, missing
from ooco_gym.resources import load_yaml

LATE, SERVED = "online.violation_rate", "offline.output_tokens_per_s"
MAKESPAN, BATCH_TOKENS, LEFT, DUE = (f"batch.{key}" for key in (
    "makespan_s", "total_tokens_per_s", "left", "late"))  # for offline requests alone
COMPUTED = "offline.computed_tokens_per_s"  # in the window, for finished and unfinished requests
# Title and unit of metrics with their own title.
TITLES = {
    LATE: ("SLO violations", "%"), SERVED: ("offline output", "tokens/s"),
    COMPUTED: ("offline computed", "tokens/s"),
    "online.worst_10min_violation_rate": ("SLO violations, worst 10 minutes", "%"),
    "online.ttft_p50_s": ("TTFT P50", "s"), "online.ttft_p99_s": ("TTFT P99", "s"),
    "online.tpot_p50_s": ("TPOT P50", "ms"), "online.tpot_p99_s": ("TPOT P99", "ms"),
    "online.tpot_decode_p99_s": ("TPOT P99 from the first decode", "ms"),
    MAKESPAN: ("makespan", "s"), BATCH_TOKENS: ("total throughput", "tokens/s"),
    LEFT: ("unfinished at the end", "requests"), DUE: ("missed deadlines", "requests"),
    "cost.goodput_per_s": ("online goodput", "1/s"),
    "cost.chip_hours_per_million_tokens": ("chip-hours per million tokens", ""),
    "cost.per_million_tokens": ("cost per million tokens", ""),
    "offline.reference_gpu_s_per_s": ("offline work", "reference GPU-s/s"),
    "offline.wasted_tokens_per_s": ("recomputed", "tokens/s"), "offline.age_p99_s": ("offline queueing P99", "s"),
    "kv_offloading.hit_rate": ("hits in host memory only", "%"),
    "utilization.compute_share": ("compute utilization", "%"),
    "utilization.kv_mean_share": ("KV memory in use", "%"),
    "utilization.busy_share": ("busy time", "%"),
    "sustained.rate": ("sustained offline load", "requests/s"),
    "sustained.total_tokens_per_s": ("offline total", "tokens/s"),
}
UNITS = {"tokens_per_s": "tokens/s", "_s_per_s": "s/s", "_per_s": "1/s", "_s": "s", "_rate": "%", "_share": "%",
         "_attainment": "%"}  # for other metrics, by the end of their names
FACTORS = {"%": 100.0, "ms": 1000.0}
# Of a single run.
RUN_METRICS = (
    "online.arrived", "online.finished", "online.unserved", "online.worst_10min_violation_rate", "online.ttft_p50_s",
    "online.ttft_p99_s", "online.tpot_p50_s", "online.tpot_p99_s", "online.tpot_decode_p99_s", "offline.arrived",
    "offline.finished", "offline.reference_gpu_s_per_s", "offline.wasted_tokens_per_s", "offline.evictions",
    "offline.interruptions", "offline.migrations", "offline.age_p99_s", "kv_offloading.hit_rate",
    "utilization.compute_share", "utilization.kv_mean_share", "utilization.busy_share",
    "cost.chip_hours_per_million_tokens", "cost.per_million_tokens")
# Also shown for policies with prefix caching.
CACHE_METRICS = ("online.hit_rate", "offline.hit_rate", "offline.prompt_tokens_per_s",
                 "offline.computed_prompt_tokens_per_s")
ENDS = ("mean", "ci_low", "ci_high")
LEAST_LATE = 1e-4  # smallest value on a logarithmic axis
Row = Mapping[str, Any]
Key = tuple[str, Any]  # policy, cluster


# --- Metrics of summaries -------------------------------------------------------------------------------------------
def compare(summaries: Mapping[Any, Sequence[Row]], metrics: Sequence[str], baseline: Any,
            budget: float) -> list[dict[str, Any]]:
    """Compares summaries of policies, or of (policy, cluster), one per seed; returns a row per
    metric and policy.

    A row has `metric` (dotted name), `policy`, `cluster`, `mean`, `ci_low`, `ci_high`, `values`
    (one per seed), `censored` (some values are lower bounds) and `feasible` (the violation rate's
    upper limit is within `budget`; None: undecided). It has `difference`, `difference_low` and
    `difference_high` to the key `baseline`; these are None for the baseline itself, for lower
    bounds, and if the seeds differ.

    Raises:
        UserError: a metric that summaries do not have.
    """
    feasible = {}
    for key, runs in summaries.items():
        online = [one["online"] for one in runs]
        at_most = [one.get("violation_rate_at_most", one["violation_rate"]) for one in online]
        feasible[key] = verdict([one["violation_rate"] for one in online], at_most, budget)
    seeds = {key: _seeds(runs) for key, runs in summaries.items()}
    rows = []
    for metric in metrics:
        values, bounds = {}, {}
        for key, runs in summaries.items():
            values[key] = np.array([figure(one, metric) for one in runs])
            bounds[key] = any(_is_bound(one, metric) for one in runs)
        for key, mine in values.items():
            policy, cluster = key if isinstance(key, tuple) else (key, None)
            mean, low, high = interval(mine)
            paired = key != baseline and seeds[key] == seeds[baseline] and not (bounds[key] or bounds[baseline])
            difference = paired_interval(mine, values[baseline]) if paired else (None, None, None)
            rows.append({"metric": metric, "policy": policy, "cluster": cluster, "mean": mean, "ci_low": low,
                         "ci_high": high,
                         **dict(zip(("difference", "difference_low", "difference_high"), difference, strict=True)),
                         "values": mine.tolist(), "censored": bounds[key], "feasible": feasible[key]})
    return rows


def _seeds(runs: Sequence[Row]) -> list[Any]:
    return [one.get("seed") for one in runs]


def _is_bound(summary: Row, metric: str) -> bool:
    """Returns whether a dotted metric of a summary is a lower bound."""
    part, _, name = metric.rpartition(".")
    return name in flat(summary).get(f"{part}.censored", ())


def figure(summary: Row, metric: str) -> float:
    """Returns a dotted metric of a summary; NaN if it has no value.

    Raises:
        UserError: the summary has no such number.
    """
    known = flat(summary)
    value = known.get(metric, "")
    if isinstance(value, str):
        raise unknown("metric", metric, [name for name in known if name.startswith(("online.", "offline."))])
    return math.nan if value is None else float(value)


def metrics_of(params: Sequence[Row], wanted: Sequence[str] = (), batch: bool = False) -> list[str]:
    """Returns the metrics to show: `wanted` (default: `compare`'s), and cache metrics if policies
    use prefix caching.

    For a `batch` of offline requests alone, the metrics of its completion are added.
    """
    cached = CACHE_METRICS if any(map(keeps_prefixes, params)) else ()
    first = [LATE, *((MAKESPAN, BATCH_TOKENS, LEFT, DUE) * batch), SERVED, COMPUTED]
    return list(dict.fromkeys([*first, *(wanted or load_yaml("", "compare")["metrics"]), *cached]))


# --- Presentation ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Outcome:
    """Outcome of policies on one load.

    Attributes:
        title: the load.
        rows: as described above.
        baseline: the policy to which differences are computed; None: no differences.
        budget: share of online requests that may violate.
        served: the metric that ranks.
        intervals: a sentence that describes the intervals.
        more: further columns by title: a text for each (policy, cluster).
        sentence: an answer instead of the ranking.
        notes: important remarks, one sentence each.
        plots: further plots, with policies in the colours of their order.
    """

    title: str
    rows: Sequence[Row]
    baseline: str | None
    budget: float
    served: str = SERVED
    intervals: str = ""
    more: Mapping[str, Mapping[Key, str]] = field(default_factory=dict)
    sentence: str = ""
    notes: Sequence[str] = ()
    plots: Sequence[Plot] = ()

    @property
    def found(self) -> dict[Key, dict[str, Row]]:
        """The rows by (policy, cluster) and metric."""
        found: dict[Key, dict[str, Row]] = {}
        for row in self.rows:
            found.setdefault((row["policy"], row.get("cluster")), {})[row["metric"]] = row
        return found

    def tables(self) -> list[Table]:
        """Returns the metrics with units and intervals, and the differences to the baseline, if any."""
        found = self.found
        metrics = list(dict.fromkeys(row["metric"] for row in self.rows if not self.batch or not missing(row["mean"])))
        ranks = not (self.sentence or self.batch)
        names = 2 if any(cluster for _, cluster in found) else 1
        head = ("policy", "cluster")[:names]
        body = []
        for key, one in found.items():
            cells = [_cell(one[metric], metric) for metric in metrics]
            cells += [column[key] for column in self.more.values()]
            body.append((*key[:names], *cells, *([_ranked(one)] if ranks else [])))
        words = "" if not ranks else (
            "SLO violations include rejected requests and requests unfinished past their SLO. A policy is ranked if "
            f"its interval's upper limit is at most {percent(self.budget, 0)}. ")
        if any(row.get("censored") for row in self.rows):
            words += ("Latencies cover all arrived requests; > marks a lower bound, because some had not reached that "
                      "point when the run ended. ")
        tables = [Table(self.title, (*head, *map(heading, metrics), *self.more, *(["ranked"] if ranks else [])),
                        body, f"{words}{self.intervals}".rstrip(), "")]
        apart = []
        for key, one in found.items():
            if any(not missing(row.get("difference")) for row in one.values()):
                apart.append((*key[:names], *(_cell(one[metric], metric, "difference") for metric in metrics)))
        if apart:
            shown_apart = any(not missing(row.get("difference_low")) for one in found.values() for row in one.values())
            tables.append(Table(f"Difference to {self.baseline}", (*head, *map(heading, metrics)), apart,
                                "Paired differences on the same requests; percentages differ in points."
                                + " An interval that contains 0 shows no difference." * shown_apart, ""))
        return tables

    def answer(self) -> str:
        """Returns a sentence on the policy that serves most within the SLOs."""
        found, promise = self.found, f"the SLOs (at most {100 * self.budget:g} % violations)"
        late = {key: one[LATE] for key, one in found.items() if not missing(one[LATE]["mean"])}
        if self.sentence or not late:
            return self.sentence or self._done() or (
                "No online request arrived in the window of at least one seed, so no policy is ranked.")
        kept = [key for key, one in late.items() if one["feasible"]]
        undecided = [key for key, one in late.items() if one["feasible"] is None]
        more = (f" It is undecided whether {_names(undecided)} would: too many online requests had neither violated "
                "their SLO nor finished when the run ended; a larger drain_s decides it.") if undecided else ""
        if not kept and undecided:
            return f"No policy is known to meet {promise}.{more}"
        if not kept:
            best = min(late, key=lambda key: late[key]["mean"])
            if len(late) == 1:
                return f"`{best[0]}` does not meet {promise}: {_late_words(late[best])}."
            return f"No policy meets {promise}; `{best[0]}` comes closest ({_late_words(late[best])})."
        return f"{self._ahead(kept, promise)}{self._ahead_computed(kept)}{more}"

    @property
    def batch(self) -> bool:
        """Whether the rows are about offline requests alone."""
        return any(row["metric"] == MAKESPAN for row in self.rows)

    def _done(self) -> str:
        """Returns sentences on the completion of a batch of offline requests, and its missed deadlines."""
        if not self.batch:
            return ""
        said = []
        ends = {key: one[MAKESPAN]["mean"] for key, one in self.found.items() if not missing(one[MAKESPAN]["mean"])}
        if ends:
            said.append(self._ends(ends))
        left = {key: one[LEFT]["mean"] for key, one in self.found.items() if key not in ends}
        if left:
            said.append(f"Offline requests were unfinished when the run ended: {self._each(left)}; leave out "
                        "duration_s or raise drain_s to run longer.")
        late = {key: one[DUE]["mean"] for key, one in self.found.items() if not missing(one[DUE]["mean"])}
        if any(late.values()):
            said.append(f"Missed deadlines: {self._each(late)}.")
        elif late:
            said.append("All deadlines are met.")
        return " ".join(said)

    @staticmethod
    def _each(counts: Mapping[Key, float]) -> str:
        """Returns each policy's count, in words."""
        return ", ".join(f"{number(count)} with `{key[0]}`" for key, count in counts.items())

    def _ends(self, ends: Mapping[Key, float]) -> str:
        """Returns a sentence on the first and the last policy to finish."""
        best, last = min(ends, key=ends.__getitem__), max(ends, key=ends.__getitem__)
        begin = f"`{best[0]}` completes all offline requests in {duration(ends[best])}"
        text = f"{begin}, at {self._amount(best, BATCH_TOKENS).partition(' of ')[0]} (prompt and output)"
        if not self._level(best, last, MAKESPAN):
            return f"{text}; `{last[0]}` takes longest, {duration(ends[last])}."
        return f"{text}{'; the others are level' * (len(ends) > 1)}."

    def _ahead(self, kept: Sequence[Key], promise: str) -> str:
        """Returns a sentence on the policy that serves most among those within the SLOs, or on a tie."""
        found = self.found
        best, level = self._most(kept, self.served)
        late, amount = _late_words(found[best][LATE]), self._amount(best, self.served)
        if len(kept) == 1:
            completes = f" and completes {amount}" if found[best][self.served]["mean"] > 0 else ""
            return f"`{best[0]}` ({late}) meets {promise}{completes}."
        begin = f"{_names(kept)} meet {promise}"
        if not found[best][self.served]["mean"] > 0:
            return f"{begin}; none completes any offline work, so this load does not distinguish them."
        if len(level) == len(kept):
            return f"{begin} and complete equally much, {amount}: this load does not distinguish them."
        if len(level) > 1:
            return f"{begin}; {_names(level)} complete most and are tied ({amount})."
        return f"{begin}; `{best[0]}` ({late}) completes most, {amount}."

    def _ahead_computed(self, kept: Sequence[Key]) -> str:
        """Returns a sentence if another policy is ahead by tokens computed in the window, finished or not."""
        if self.served == COMPUTED or any(COMPUTED not in self.found[key] or missing(self.found[key][COMPUTED]["mean"])
                                          for key in kept):
            return ""
        best, level = self._most(kept, COMPUTED)
        if set(level) & set(self._most(kept, self.served)[1]):
            return ""
        return (f" By tokens computed in the window, unfinished requests included, `{best[0]}` is ahead "
                f"({self._amount(best, COMPUTED)}).")

    def _amount(self, key: Key, metric: str) -> str:
        return f"{shown(metric, self.found[key][metric])} {unit(metric)} of {TITLES[metric][0]}"

    def _most(self, keys: Sequence[Key], metric: str) -> tuple[Key, list[Key]]:
        """Returns the policy with the most, and all tied with it; where rows have ranks, those that share the first."""
        rows = {key: self.found[key][metric] for key in keys}
        best = max(keys, key=lambda key: rows[key]["mean"])
        return best, [key for key, row in rows.items() if (
            row["rank"] == 1 if "rank" in row else self._level(best, key, metric))]

    def _level(self, one: Key, other: Key, metric: str) -> bool:
        """Returns whether two policies are tied."""
        rows = [self.found[key][metric] for key in (one, other)]
        ours, theirs = (row.get("values") or [row["mean"]] for row in rows)
        if len(ours) != len(theirs):
            ours, theirs = ([row["mean"]] for row in rows)
        return not apart(paired_interval(ours, theirs), max(row["mean"] for row in rows))

    def chart(self) -> list[Plot]:
        """Returns a plot of offline service over violation rate, if there are several policies."""
        found = self.found
        most = max((one[self.served]["mean"] for one in found.values()), default=0.0)
        if len(found) < 2 or self.sentence or not most > 0:
            return []
        traces = [curve("", [100 * self.budget] * 2, [0.0, 1.1 * most], -1, "dashes")]
        for colour, (key, one) in enumerate(found.items()):
            late = [one[LATE][end] for end in ENDS]
            served = [one[self.served][end] for end in ENDS]
            late = [value if missing(value) else 100 * max(value, LEAST_LATE) for value in late]
            traces.append(curve(key[0], late[:1], served[:1], colour, "markers", cliponaxis=False,
                                error_x=errors(*([value] for value in late)),
                                error_y=errors(*([value] for value in served))))
        return [plot("Offline throughput over SLO violations; dashed: "
                     "limit", traces, f"{heading(LATE)}, ≤ 0.01 at the edge",
                     heading(self.served), "x", xaxis_range=[-2, 2])]

    def show(self) -> None:
        """Prints the outcome."""
        console().print(self.answer(), highlight=False)
        for table in self.tables():
            table.turned().show()
        show_notes(self.notes)


def unit(metric: str) -> str:
    """Returns the unit in which a metric is shown; empty if it has none."""
    return TITLES[metric][1] if metric in TITLES else next(
        (one for end, one in UNITS.items() if metric.endswith(end)), "")


def heading(metric: str) -> str:
    """Returns a metric's title with its unit."""
    title = TITLES[metric][0] if metric in TITLES else re.sub(r"[._]", " ", metric)
    return f"{title} ({unit(metric)})" if unit(metric) else title


def shown(metric: str, row: Row, key: str = "mean", sign: str = "") -> str:
    """Returns a metric in its unit, without the unit's name."""
    value = None if missing(row[key]) else FACTORS.get(unit(metric), 1.0) * row[key]
    return minus(as_text(value, f"{sign}.2f") if unit(metric) == "%" else number(value, 3, sign))


def _cell(row: Row, metric: str, key: str = "mean") -> str:
    low, high = ("ci_low", "ci_high") if key == "mean" else ("difference_low", "difference_high")
    sign, bound = "" if key == "mean" else "+", key == "mean" and bool(row.get("censored"))
    if missing(row[low]) or missing(row[high]):
        return at_least(shown(metric, row, key, sign), bound)
    return at_least(BRACKETS.format(*(shown(metric, row, one, sign) for one in (key, low, high))), bound)


def _late_words(row: Row) -> str:
    high = "" if missing(row["ci_high"]) else f", {shown(LATE, row, 'ci_high')} % at its upper limit"
    return f"{shown(LATE, row)} % violations{high}"


def _ranked(one: Mapping[str, Row]) -> str:
    if one[LATE]["feasible"]:
        return str(one[LATE].get("rank") or "yes")
    if one[LATE]["feasible"] is None:
        return "undecided"
    return "no: no online request" if missing(one[LATE]["mean"]) else "no: too many violations"


def _names(keys: Sequence[Key]) -> str:
    return joined([f"`{key[0]}`" for key in keys])
