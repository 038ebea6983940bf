"""`ooco-gym experiment bros`: BROS's evaluation (arXiv 2504.09590, 7.2 and 7.4.1) on the simulator.

Latency, best-effort throughput and attainments beside the paper's. Runs are as the paper's (7.1): a trace that ends,
and best-effort requests in batches, each submitted when the last one is done.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.common.output import bars
from experiments.common.policies import names_of, seeds_of
from experiments.common.runner import Jobs
from ooco_gym.errors import UserError
from ooco_gym.metrics.statistics import interval, interval_words
from ooco_gym.report import Column, Table, console, layout, show_notes, write_figure
from ooco_gym.report.pages import COLOURS
from ooco_gym.scenario import Scenario
from ooco_gym.sim import state as s
from ooco_gym.simulation import Run, Simulation

if TYPE_CHECKING:
    from omegaconf import DictConfig

POLL_S = 0.2  # how soon a batch that is done is noticed
JOBS_PER_S = 12.0  # more than any system here gets done


class BatchedWork:
    """The requests of a simulation that has not begun, the offline ones to be submitted batch by batch.

    They are moved behind all online ones of the trace, to arrive never; `submit` moves the next ones to the slots where
    the event loop looks for arrivals. Online requests after the window never arrive. Nothing but the deadlines knows of
    rows that have not arrived.

    Args:
        state: the episode.
        batch: offline requests in a batch.
        window_s: the measured window: requests that arrive in it count, and none arrive after it.
    """

    def __init__(self, state: s.State, batch: int, window_s: tuple[float, float]) -> None:
        self.state, self.batch = state, batch
        self.start_ps, self.end_ps = (round(edge * s.PS_PER_S) for edge in window_s)
        requests = state.requests
        online, late = requests["online"] == 1, requests["arrival_ps"] >= self.end_ps
        self.next_slot, self.left = int((online & ~late).sum()), int((~online).sum())  # of the next ones, and how many
        self._reorder(np.concatenate([np.flatnonzero(online & ~late), np.flatnonzero(~online),
                                      np.flatnonzero(online & late)]))
        requests["arrival_ps"][self.next_slot :] = s.NEVER
        self.running = slice(0, 0)
        # The loop ends once every SLO is kept or missed; here latencies count to the last token.
        state.gauges.open_online += 1

    def _reorder(self, order: np.ndarray) -> None:
        """Moves row order[i] of the requests to slot i, with the slots that deadlines name."""
        slots = np.empty(len(order), np.int64)
        slots[order] = np.arange(len(order))
        self.state.requests[:] = self.state.requests[order]
        self.state.deadlines[:] = slots[self.state.deadlines]

    def submit_if_due(self) -> None:
        """Lets the next batch arrive now if the last one is done."""
        done = self.state.requests["status"][self.running] >= s.FINISHED
        if self.left and done.all() and self.state.clock.now_ps < self.end_ps:
            self._submit(min(self.batch, self.left))

    def _submit(self, count: int) -> None:
        state, now = self.state, int(self.state.clock.now_ps)
        at, total = int(state.clock.next_arrival), state.requests.size
        mine = np.arange(self.next_slot, self.next_slot + count)
        others = np.concatenate([np.arange(at, self.next_slot), np.arange(self.next_slot + count, total)])
        self._reorder(np.concatenate([np.arange(at), mine, others]))
        self.running = slice(at, at + count)
        rows = state.requests[self.running]
        rows["arrival_ps"] = now
        rows["counted"] = now >= self.start_ps
        self.next_slot, self.left = self.next_slot + count, self.left - count

    def over(self) -> bool:
        """Whether the window is over and all online requests that count have finished."""
        requests = self.state.requests
        counted = (requests["online"] == 1) & (requests["counted"] == 1)
        return bool(self.state.clock.now_ps >= self.end_ps
                    and (requests["status"][counted] >= s.FINISHED).all())


def simulate_batches(scenario: Scenario, policy: str, batch: int) -> Run:
    """Plays a scenario whose offline part is `{mode: jobs, jobs: …}`, the jobs in batches.

    Args:
        scenario: with more offline requests than will be served (`jobs_for`).
        policy: a name, or `name:param=value,…`.
        batch: offline requests that are submitted as soon as the last ones are done.
    """
    begun = time.perf_counter()
    simulation = Simulation(scenario, policy)
    work = BatchedWork(simulation.state, batch, simulation.window_s)
    until_s, end_s = 0.0, simulation.end_ps / s.PS_PER_S
    while until_s < end_s and not work.over():
        work.submit_if_due()
        until_s += POLL_S
        simulation.advance(until_s)
    state = simulation.state
    state.gauges.open_online -= 1
    policy_values = dict(simulation.policy.values)
    return Run(simulation.scenario, simulation.policy.name, policy_values, state.requests, state.instances, state.itl,
               simulation.window_s, state.totals.as_dict(), {}, np.zeros(0, s.LOG), simulation.now_s,
               time.perf_counter() - begun, simulation.notes)


def jobs_for(simulated_s: float, batch: int) -> int:
    """More offline requests than a run of so many seconds gets done."""
    return math.ceil(JOBS_PER_S * simulated_s / batch) * batch


def batch_summary(scenario: Scenario, policy: str, *, batch: int) -> dict[str, Any]:
    """Summary of such a run; this is what a worker process runs."""
    from ooco_gym.metrics.summary import summarise

    run = simulate_batches(scenario, policy, batch)
    spec = run.instances[0]
    return {**summarise(run), "iterations": int(spec["steps_begun"]), "swapped_tokens": int(spec["swapped_tokens"])}


PANELS = {"normalized_latency_s": "normalised latency, s", "best_effort_per_s": "best-effort requests/s",
          "ttft_attainment": "TTFT kept", "tpot_attainment": "TPOT kept"}


def bros_figure(rows: Sequence[Mapping[str, Any]]) -> Any:
    """A row of panels for each cluster and workload, a curve for each policy, seeds' intervals as bars.

    Args:
        rows: `results[]` of the study.
    """
    from plotly.subplots import make_subplots

    cells = list(dict.fromkeys((row["cluster"], row["workload"]) for row in rows))
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    figure = make_subplots(rows=len(cells), cols=len(PANELS), vertical_spacing=0.4 / (len(cells) + 1),
                           subplot_titles=[f"{title}<br>{' on '.join(cell[::-1])}" for cell in cells
                                           for title in PANELS.values()])
    for line, cell in enumerate(cells, start=1):
        for column, name in enumerate(PANELS, start=1):
            for policy in policies:
                mine = [row for row in rows if (row["cluster"], row["workload"]) == cell and row["policy"] == policy]
                figure.add_scatter(
                    x=[row["rate"] for row in mine], y=[row[name] for row in mine], name=policy, legendgroup=policy,
                    showlegend=line == column == 1, mode="lines+markers", row=line, col=column,
                    line={"color": COLOURS[policies.index(policy) % len(COLOURS)]},
                    error_y=bars(mine, name, f"{name}_low", f"{name}_high"))
            figure.update_xaxes(title_text="real-time requests/s", row=line, col=column)
        figure.update_yaxes(type="log", row=line, col=1)
    return layout(figure, 330 * len(cells) + 120, "side", top=90)


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
    with Jobs(options["workers"], run=run) as jobs, jobs.progress("bros"):
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
    write_figure(Path(str(cfg.out)) / "bros.html", bros_figure(rows), "BROS beside its baselines",
                 interval_words(len(seeds)))
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
    """Pairs of policies to compare: each form of BROS with each other system, the first policy with its other forms."""
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
        mine, theirs = (np.array([[one[name] for one in found[rate, compared]] for rate in rates])
                        for compared in (policy, other))
        with np.errstate(divide="ignore", invalid="ignore"):
            each, whole = (mine / theirs - 1.0).mean(axis=0), mine.mean(axis=0) / theirs.mean(axis=0) - 1.0
            by_rate = mine.mean(axis=1) / theirs.mean(axis=1) - 1.0
        row[name] = {"mean_of_changes": interval(each), "change_of_means": interval(whole),
                     "by_rate": by_rate.tolist()}
    return row


def show(rows: Sequence[Mapping[str, Any]], differences: Sequence[Mapping[str, Any]], words: str) -> None:
    """Prints the tables."""
    columns = (Column("requests/s", "rate", "g"), Column("policy", "policy", align="l"),
               _of("normalised latency, s", "normalized_latency_s", 1.0, 3),
               _of("TTFT kept, %", "ttft_attainment", 100.0, 1), _of("TPOT kept, %", "tpot_attainment", 100.0, 1),
               _of("best effort/s", "best_effort_per_s", 1.0, 2),
               Column("finished, %", lambda row: 100 * row["finished_share"], ".1f"))
    for cluster, workload in dict.fromkeys((row["cluster"], row["workload"]) for row in rows):
        mine = [row for row in rows if (row["cluster"], row["workload"]) == (cluster, workload)]
        Table.of(columns, mine, f"{workload} on {cluster}").show(console(), unbroken=2)
    show_notes([*(_sentence(row) for row in differences), words])


def _of(head: str, name: str, factor: float, digits: int) -> Column:
    return Column(head, lambda row: _spread(*(factor * row[f"{name}{end}"] for end in ("", "_low", "_high")),
                                            form=f".{digits}f"))


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



