"""Outcome of runs: metrics of each policy with intervals and differences, and the sentence that
answers.

Terminal and page show the same `Outcome`. Its rows are those of `compare`'s `results[]`, one per
metric and policy (`render.metrics.compare`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ooco_gym.metrics.statistics import apart, paired_interval
from ooco_gym.render.metrics import (
    COMPUTED,
    DIFFERENCE,
    ESTIMATE,
    LATE,
    MAKESPAN,
    SERVED,
    TITLES,
    Row,
    cell,
    heading,
    shown,
    unit,
)
from ooco_gym.report import Table, console, curve, errors, plot, show_notes
from ooco_gym.report.pages import Plot
from ooco_gym.report.tables import missing
from ooco_gym.report.templates import sentence

WORDS = Path(__file__).with_name("words.j2")
LEAST_LATE = 1e-4  # smallest value on a logarithmic axis
MOST_COLUMNS = 9  # of a page; wider tables are transposed


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
        more: further columns by title: a text for each policy.
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
    more: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    sentence: str = ""
    notes: Sequence[str] = ()
    plots: Sequence[Plot] = ()

    @cached_property
    def found(self) -> dict[str, dict[str, Row]]:
        found: dict[str, dict[str, Row]] = {}
        for row in self.rows:
            found.setdefault(row["policy"], {})[row["metric"]] = row
        return found

    @property
    def batch(self) -> bool:
        """Whether the rows are about offline requests alone."""
        return any(row["metric"] == MAKESPAN for row in self.rows)

    # --- Tables and plots ---------------------------------------------------------------------------------------------
    def tables(self) -> list[Table]:
        """Returns the metrics with units and intervals, and the differences to the baseline, if any."""
        metrics = list(dict.fromkeys(row["metric"] for row in self.rows if not self.batch or not missing(row["mean"])))
        ranks = not (self.sentence or self.batch)
        titles = [*map(heading, metrics), *self.more, *(["ranked"] if ranks else [])]
        means, differences = [], []
        for policy, one in self.found.items():
            cluster = one[metrics[0]].get("cluster")
            names = [policy, cluster] if cluster else [policy]
            means.append([*names, *(cell(one[metric], metric) for metric in metrics),
                            *(column[policy] for column in self.more.values()), *([_ranked(one[LATE])] * ranks)])
            if any(not missing(row.get("difference")) for row in one.values()):
                differences.append([policy, *(cell(one[metric], metric, DIFFERENCE) for metric in metrics)])
        head = ["policy", "cluster"][: len(means[0]) - len(titles)]
        notes = [sentence(WORDS, name, o=self, ranks=ranks) for name in ("figures_note", "differences_note")]
        tables = [Table(self.title, [*head, *titles], means, notes[0])]
        if differences:
            tables.append(Table(f"Difference to {self.baseline}", ["policy", *titles[: len(metrics)]], differences,
                                notes[1]))
        return tables

    def chart(self) -> list[Plot]:
        """Returns a plot of offline service over violation rate, if there are several policies."""
        most = max(one[self.served]["mean"] for one in self.found.values())
        if len(self.found) < 2 or self.sentence or not most > 0:
            return []
        traces = [curve("", [100 * self.budget] * 2, [0.0, 1.1 * most], -1, "dashes")]
        for colour, (policy, one) in enumerate(self.found.items()):
            late, served = (list[Any](map(one[metric].get, ESTIMATE)) for metric in (LATE, self.served))
            late = [value if missing(value) else 100 * max(value, LEAST_LATE) for value in late]
            traces.append(curve(policy, late[:1], served[:1], colour, "markers", cliponaxis=False,
                                error_x=errors(*([value] for value in late)),
                                error_y=errors(*([value] for value in served))))
        return [plot("Offline throughput over SLO violations; dashed: limit", traces,
                     f"{heading(LATE)}, ≤ 0.01 at the edge", heading(self.served), "x", xaxis_range=[-2, 2])]

    def show(self) -> None:
        console().print(self.answer(), highlight=False)
        for table in self.tables():
            table.turned().show()
        show_notes(self.notes)

    # --- The answer, whose words are in words.j2 ----------------------------------------------------------------------
    def answer(self) -> str:
        """Returns a sentence on the policy that serves most within the SLOs, or completes a batch first."""
        return self.sentence or sentence(WORDS, "batch" if self.batch else "answer", o=self)

    def known(self, metric: str) -> dict[str, float]:
        """Returns the means of the policies that have one."""
        return {policy: one[metric]["mean"] for policy, one in self.found.items()
                if metric in one and not missing(one[metric]["mean"])}

    def verdicts(self, feasible: bool | None) -> list[str]:
        """Returns the policies within the budget (True), beyond it, or undecided (None)."""
        return [policy for policy in self.known(LATE) if self.found[policy][LATE]["feasible"] is feasible]

    def level(self, policies: Iterable[str], metric: str) -> list[str]:
        """Returns the policies with the most, best first: all that are tied; where rows have ranks, the first."""
        rows = {policy: self.found[policy][metric] for policy in policies}
        best = max(rows, key=lambda policy: rows[policy]["mean"])
        tied = [policy for policy, row in rows.items() if (
            row["rank"] == 1 if "rank" in row else self.tied(best, policy, metric))]
        return [best, *(policy for policy in tied if policy != best)]

    def tied(self, one: str, other: str, metric: str) -> bool:
        """Returns whether two policies are tied."""
        rows = [self.found[policy][metric] for policy in (one, other)]
        ours, theirs = (row.get("values") or [row["mean"]] for row in rows)
        if len(ours) != len(theirs):
            ours, theirs = ([row["mean"]] for row in rows)
        return not apart(paired_interval(ours, theirs), max(row["mean"] for row in rows))

    def ahead(self, policies: Sequence[str]) -> str | None:
        """Returns the policy ahead by tokens computed, if it is none of those that complete most."""
        if self.served == COMPUTED or not set(policies) <= set(self.known(COMPUTED)):
            return None
        best, *others = self.level(policies, COMPUTED)
        return None if {best, *others} & set(self.level(policies, self.served)) else best

    def amount(self, policy: str, metric: str) -> str:
        """Returns a policy's mean with its unit."""
        return f"{shown(metric, self.found[policy][metric]['mean'])} {unit(metric)}"

    def serves(self, policy: str) -> str:
        """Returns what a policy completes, in the metric that ranks."""
        return f"{self.amount(policy, self.served)} of {TITLES[self.served][0]}"

    def late(self, policy: str) -> str:
        """Returns a policy's violations, with the interval's upper end."""
        row = self.found[policy][LATE]
        high = "" if missing(row["ci_high"]) else f", {shown(LATE, row['ci_high'])} % at its upper limit"
        return f"{shown(LATE, row['mean'])} % violations{high}"


def _ranked(late: Row) -> str:
    if late["feasible"]:
        return str(late.get("rank") or "yes")
    if late["feasible"] is None:
        return "undecided"
    return "no: no online request" if missing(late["mean"]) else "no: too many violations"
