"""BROS's evaluation (arXiv 2504.09590, 7.2 and 7.4.1) on the simulator: latency, best-effort throughput, attainment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.bros.closed_loop import batch_summary, jobs_for
from experiments.bros.figure import bros_figure
from experiments.jobs import Jobs
from experiments.options import names_of, seeds_of
from experiments.plots import write_page
from experiments.tables import console, show_notes, waiting
from ooco_gym.errors import UserError
from ooco_gym.metrics.statistics import interval, interval_words
from ooco_gym.scenario import Scenario

if TYPE_CHECKING:
    from omegaconf import DictConfig

SCHEMA = "ooco-gym/bros/1"
METRICS = {  # where each figure is in a run's summary
    "normalized_latency_s": ("online", "normalized_latency_s"),
    "ttft_attainment": ("online", "ttft_attainment"),
    "tpot_attainment": ("online", "tpot_attainment"),
    "best_effort_per_s": ("offline", "finished"),
    "finished_share": ("online", "finished"),
}
# Figures 10 and 11 of the paper, averages over its rates and models: changes against each baseline, attainments.
PAPER = {
    "bros_sharegpt": {"vllm_v0": (-0.7420, -0.1129), "round_robin": (-0.5431, -0.0880),
                      "ttft": {"vllm_v0": 0.0128, "round_robin": 0.1055},
                      "tpot": {"bros": 0.6549, "round_robin": 0.4734}},
    "bros_lmsys": {"vllm_v0": (-0.6961, -0.1767), "round_robin": (-0.2577, -0.1518), "ttft": {},
                   "tpot": {"bros": 0.7538, "round_robin": 0.4281}},
}


def main(cfg: DictConfig) -> dict[str, Any]:
    """Runs every policy at every rate on every seed; writes tables and `bros.html`.

    Raises:
        UserError: a list that is empty, or a setting that no scenario can have.
    """
    from omegaconf import OmegaConf

    options: dict[str, Any] = OmegaConf.to_container(cfg.bros, resolve=True)  # type: ignore[assignment]
    policies, seeds = names_of({**options, "policy": None}, "policies", "policy"), seeds_of(options["seeds"])
    for key in ("clusters", "workloads", "rates"):
        if not isinstance(options[key], list) or not options[key]:
            raise UserError(f"bros.{key} must be a list, such as {key}=[…], got {options[key]!r}")
    differences: list[dict[str, Any]] = []
    run = partial(batch_summary, batch=int(options["batch"]))
    with Jobs(options["workers"], run=run) as jobs, waiting("bros", jobs):
        asked = {(cluster, workload, rate, policy): [
            jobs.submit(scenario_of(options, cluster, workload, rate, seed), policy) for seed in seeds]
            for cluster in options["clusters"] for workload in options["workloads"] for rate in options["rates"]
            for policy in policies}
        found = {key: [figures(one.result(), float(options["duration_s"])) for one in futures]
                 for key, futures in asked.items()}
    rows = [row_of(key, summaries) for key, summaries in found.items()]
    for cluster in options["clusters"]:
        for workload in options["workloads"]:
            mine = {(rate, policy): found[cluster, workload, rate, policy] for rate in options["rates"]
                    for policy in policies}
            differences += [{"cluster": cluster, "workload": workload, **change_of(mine, *pair, options["rates"])}
                            for pair in pairs_of(policies)]
    show(rows, differences, interval_words(len(seeds)))
    write_page(bros_figure(rows, interval_words(len(seeds))), Path(str(cfg.out)) / "bros.html")
    return {"schema": SCHEMA, "seeds": list(seeds), "batch": options["batch"], "results": rows, "changes": differences,
            "paper": PAPER}


def scenario_of(options: Mapping[str, Any], cluster: str, workload: str, rate: float, seed: int) -> Scenario:
    """One run's conditions: real-time requests at `rate` a second, best-effort ones without end."""
    simulated_s = float(options["duration_s"]) + float(options["warmup_s"])
    jobs = jobs_for(simulated_s, int(options["batch"]))
    return Scenario(cluster=cluster, workload=workload, slo="bros", seed=seed, duration_s=float(options["duration_s"]),
                    warmup_s=float(options["warmup_s"]), drain_s=float(options["drain_s"]), start_s=0.0,
                    online_rate=float(rate), timing=str(options["timing"]),
                    offline={"mode": "jobs", "jobs": jobs, "dataset": "bros_be"})


def figures(summary: Mapping[str, Any], window_s: float) -> dict[str, float]:
    """The figures of one run; NaN where it has no value."""
    one = {name: summary[part][key] for name, (part, key) in METRICS.items()}
    one["best_effort_per_s"] /= window_s
    one["finished_share"] /= max(1, summary["online"]["arrived"])
    return {name: float("nan") if value is None else float(value) for name, value in one.items()}


def row_of(key: tuple[str, str, float, str], found: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Means over seeds with their intervals."""
    cluster, workload, rate, policy = key
    row: dict[str, Any] = {"cluster": cluster, "workload": workload, "rate": rate, "policy": policy}
    for name in METRICS:
        row[name], row[f"{name}_low"], row[f"{name}_high"] = interval([one[name] for one in found])
        row[f"{name}_values"] = [one[name] for one in found]
    return row


def pairs_of(policies: Sequence[str]) -> list[tuple[str, str]]:
    """Who is compared with whom: every form of BROS with every other system, the first policy with its other forms."""
    forms = [policy for policy in policies if policy.partition(":")[0] == "bros"]
    others = [policy for policy in policies if policy not in forms]
    return [(form, other) for form in forms for other in others] + [(forms[0], form) for form in forms[1:]]


def change_of(found: Mapping[tuple[float, str], Sequence[Mapping[str, float]]], policy: str, other: str,
              rates: Sequence[float]) -> dict[str, Any]:
    """Relative change of a policy's figures against another one's, paired by seed.

    `mean_of_changes` averages the rates' own changes, as the paper words it; `change_of_means` compares the averages
    over rates, in which the most loaded rate counts most.
    """
    row: dict[str, Any] = {"policy": policy, "against": other}
    for name in ("normalized_latency_s", "best_effort_per_s", "ttft_attainment", "tpot_attainment"):
        mine, theirs = (np.array([[one[name] for one in found[rate, who]] for rate in rates])
                        for who in (policy, other))
        with np.errstate(divide="ignore", invalid="ignore"):
            each, whole = (mine / theirs - 1.0).mean(axis=0), mine.mean(axis=0) / theirs.mean(axis=0) - 1.0
            by_rate = mine.mean(axis=1) / theirs.mean(axis=1) - 1.0
        row[name] = {"mean_of_changes": interval(each), "change_of_means": interval(whole),
                     "by_rate": by_rate.tolist()}
    return row


def show(rows: Sequence[Mapping[str, Any]], differences: Sequence[Mapping[str, Any]], words: str) -> None:
    """Prints the tables."""
    from rich.table import Table

    screen = console()
    for cluster, workload in dict.fromkeys((row["cluster"], row["workload"]) for row in rows):
        table = Table(title=f"{workload} on {cluster}", title_justify="left")
        for column in ("requests/s", "policy", "normalised latency, s", "TTFT kept, %", "TPOT kept, %",
                       "best effort/s", "finished, %"):
            table.add_column(column, justify="left" if column == "policy" else "right", no_wrap=column == "policy")
        for row in (row for row in rows if (row["cluster"], row["workload"]) == (cluster, workload)):
            table.add_row(f"{row['rate']:g}", row["policy"], _cell(row, "normalized_latency_s", 1.0, 3),
                          _cell(row, "ttft_attainment", 100.0, 1), _cell(row, "tpot_attainment", 100.0, 1),
                          _cell(row, "best_effort_per_s", 1.0, 2),
                          _spread(100 * row["finished_share"], np.nan, np.nan, ".1f"))
        screen.print(table)
    show_notes([*(_sentence(row) for row in differences), words])


def _cell(row: Mapping[str, Any], name: str, factor: float, digits: int) -> str:
    mean, low, high = (factor * row[f"{name}{end}"] for end in ("", "_low", "_high"))
    return _spread(mean, low, high, f".{digits}f")


def _spread(mean: float, low: float, high: float, form: str, unit: str = "", more: str = "") -> str:
    """A mean with its interval and what else is in the brackets; one seed gives no interval, no value a dash."""
    if not np.isfinite(mean):
        return "–"
    inside = [*([f"{low:{form}} to {high:{form}}"] if np.isfinite(low) else []), *([more] if more else [])]
    return f"{mean:{form}}{unit}" + (f" ({'; '.join(inside)})" if inside else "")


def _sentence(row: Mapping[str, Any]) -> str:
    """The first policy against another over all rates, beside the paper where that has the pair."""
    latency, work = (row[name]["mean_of_changes"] for name in ("normalized_latency_s", "best_effort_per_s"))
    paper = PAPER.get(row["workload"], {}).get(row["against"].partition(":")[0])
    beside = f" (paper: {100 * paper[0]:+.1f} % and {100 * paper[1]:+.1f} %)" if paper else ""
    whole = row["normalized_latency_s"]["change_of_means"]
    averages = f"of the averages {100 * whole[0]:+.1f} %" if np.isfinite(whole[0]) else ""
    changes = [_spread(100 * one[0], 100 * one[1], 100 * one[2], "+.1f", " %", more)
               for one, more in ((latency, averages), (work, ""))]
    return (f"{row['cluster']}, {row['workload']}: {row['policy']} against {row['against']}, mean over rates: "
            f"normalised latency {changes[0]}, best-effort throughput {changes[1]}{beside}.")
