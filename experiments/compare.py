"""`ooco-gym compare`: policies on the same seeds, and what differs between them beyond chance (docs/protocol.md).

Each policy runs on the cluster of its kind: the one that is given, or its twin of equal hardware. With `sustain=true`
each runs at the highest offline rate that it sustains (`experiments.studies.field`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.common.output import bars
from experiments.common.policies import base_policy, baseline_of, names_of, seeds_of
from experiments.common.runner import Jobs
from experiments.common.store import Store
from experiments.studies import field
from ooco_gym.commands.simulate import scenario_of
from ooco_gym.errors import UserError, unknown
from ooco_gym.metrics.statistics import interval, interval_words, paired_interval, within
from ooco_gym.metrics.summary import keeps_prefixes
from ooco_gym.peak import short_name
from ooco_gym.report import Column, Table, as_text, console, layout, show_notes, write_figure
from ooco_gym.report.pages import COLOURS
from ooco_gym.report.tables import missing

if TYPE_CHECKING:
    from omegaconf import DictConfig

SCHEMA = "ooco-gym/compare/1"
# Shown besides where a policy keeps blocks of prompts that begin alike.
CACHE_METRICS = ("online.hit_rate", "offline.hit_rate", "offline.prompt_tokens_per_s",
                 "offline.computed_prompt_tokens_per_s")


def main(cfg: DictConfig) -> dict[str, Any]:
    """Runs the command; returns its summary (`docs/outputs.md`)."""
    from omegaconf import OmegaConf

    options: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    if options["sustain"]:
        return field.main(cfg, options)
    for key in ("page", "glance", "figures", "claims", "cells"):
        if options[key] is not None:
            raise UserError(f"{key} is of sustain=true, which measures the rate that each policy sustains; add that, "
                            f"or leave {key} out")
    policies, seeds = names_of(options, "policies", "policy"), seeds_of(options["seeds"])
    baseline = baseline_of(options, policies)
    scenario = scenario_of(cfg)
    note = scenario.scale_note()
    scenario = scenario.with_(rate_scale=scenario.online_scale())
    placed = {name: scenario.on_kind(base_policy(name).mixed) for name in policies}
    with Jobs(options["workers"], Store(on=bool(options["cache"]))) as jobs, jobs.progress("compare"):
        asked = {name: [jobs.submit(placed[name].with_(seed=seed), name) for seed in seeds] for name in policies}
        summaries = {name: [future.result() for future in futures] for name, futures in asked.items()}
    metrics = metrics_of(options["metrics"], policies)
    rows = compare(summaries, metrics, baseline, float(options["violation_budget"]))
    title = f"{short_name(scenario.workload)} on {scenario.load_cluster().name}, seeds {list(seeds)}"
    compare_table(rows, baseline, title, _caption(rows, summaries))
    show_notes([f"{note}."] if note else [])
    write_figure(Path(options["out"]) / "compare.html", compare_figure(rows, metrics, baseline), title)
    return {"schema": SCHEMA, "baseline": baseline, "seeds": list(seeds), "scenario": scenario.describe(),
            "results": rows, "runs": summaries}


def metrics_of(wanted: Sequence[str], policies: Sequence[str]) -> list[str]:
    """The metrics to compare: those wanted, and what the prefix cache found where a policy has one."""
    cached = any(keeps_prefixes(base_policy(name).values) for name in policies)
    return list(dict.fromkeys([*wanted, *(CACHE_METRICS if cached else ())]))


def compare(summaries: Mapping[str, Sequence[Mapping[str, Any]]], metrics: Sequence[str], baseline: str,
            budget: float) -> list[dict[str, Any]]:
    """Compares summaries of policies on the same seeds.

    Args:
        summaries: of each policy, one summary a seed, in one order of seeds.
        metrics: dotted names in a summary, such as `online.violation_rate`.
        baseline: the policy that the others are compared with.
        budget: violation rate that a policy's upper limit must not exceed to be ranked.

    Returns:
        One row for each metric and policy: `metric`, `policy`, `mean`, `ci_low`, `ci_high`, `difference`,
        `difference_low`, `difference_high` (paired, to the baseline; None for itself), `values` (one a seed),
        `feasible`.

    Raises:
        UserError: a metric that summaries have not.
    """
    feasible = {name: within([one["online"]["violation_rate"] for one in runs], budget)
                for name, runs in summaries.items()}
    rows = []
    for metric in metrics:
        values = {name: np.array([figure(one, metric) for one in runs]) for name, runs in summaries.items()}
        for name, mine in values.items():
            mean, low, high = interval(mine)
            difference = (None, None, None) if name == baseline else paired_interval(mine, values[baseline])
            rows.append({"metric": metric, "policy": name, "mean": mean, "ci_low": low, "ci_high": high,
                         **dict(zip(("difference", "difference_low", "difference_high"), difference, strict=True)),
                         "values": mine.tolist(), "feasible": feasible[name]})
    return rows


def figure(summary: Mapping[str, Any], metric: str) -> float:
    """Reads a dotted metric from a summary; NaN where it has no value.

    Raises:
        UserError: the summary has no such metric.
    """
    value: Any = summary
    for part in metric.split("."):
        if not isinstance(value, Mapping) or part not in value:
            known = [f"{kind}.{name}" for kind in ("online", "offline") for name in summary[kind]]
            raise unknown("metric", metric, known)
        value = value[part]
    if value is None:
        return float("nan")
    if not isinstance(value, (int, float)):
        raise UserError(f"metric '{metric}' is not a single number; expected such as 'online.violation_rate'")
    return float(value)


def _caption(rows: Sequence[Mapping[str, Any]], summaries: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    text = f"Differences are paired by seed. {interval_words(len(next(iter(summaries.values()))))}"
    if any(one["online"]["violation_rate"] is None for runs in summaries.values() for one in runs):
        return f"{text} No online request arrived in the window of at least one seed: no policy is ranked."
    out = sorted({row["policy"] for row in rows if not row["feasible"]})
    return text if not out else f"{text} Not to be ranked, more violations than allowed: {', '.join(out)}."


def compare_table(rows: Sequence[Mapping[str, Any]], baseline: str, title: str, caption: str) -> None:
    """Prints the results of `compare`: a block for each metric, means and paired differences."""
    columns = (
        Column("metric", "metric", align="l"), Column("policy", "policy", align="l"), Column("mean", "mean", ",.3g"),
        Column(f"difference to {baseline}",
               lambda row: "" if row["policy"] == baseline else as_text(row["difference"], "+,.3g")),
        Column("95 % interval", lambda row: "" if missing(row["difference_low"]) else
               f"{row['difference_low']:+,.3g} to {as_text(row['difference_high'], '+,.3g')}"))
    begins = [index for index, row in enumerate(rows) if index == 0 or row["metric"] != rows[index - 1]["metric"]]
    shown = [row if index in begins else {**row, "metric": ""} for index, row in enumerate(rows)]
    Table.of(columns, shown, title, caption).show(console(), new_sections=begins[1:])


def compare_figure(rows: Sequence[dict[str, Any]], metrics: Sequence[str], baseline: str) -> Any:
    """Paired differences against one policy with their intervals, one panel for each metric."""
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=len(metrics), cols=1, subplot_titles=tuple(metrics),
                           vertical_spacing=0.35 / len(metrics))
    for index, metric in enumerate(metrics, start=1):
        mine = [row for row in rows if row["metric"] == metric and row["policy"] != baseline]
        shown = [row for row in mine if row["difference"] is not None]
        figure.add_scatter(
            x=[row["difference"] for row in shown], y=[row["policy"] for row in shown], mode="markers",
            marker={"size": 10, "color": COLOURS[0]}, showlegend=False, row=index, col=1,
            error_x=bars(shown, "difference", "difference_low", "difference_high"))
        figure.add_vline(x=0, line_dash="dot", line_color="#888", row=index, col=1)  # type: ignore[arg-type]
    return layout(figure, 170 * len(metrics) + 120, legend=False)
