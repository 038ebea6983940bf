"""`ooco-gym experiment hygen`: HyGen beside its paper's figures (arXiv 2501.14808, section 5; docs/baselines/hygen.md).

Parts: Figures 3 and 4 (latency), 10 and 15 (rates), what the paper leaves open (readings), Figure 6 (sharing), and the
fairness ratio of Algorithm 4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from baselines.hygen_profile import METRICS, PROFILE_NAMES, excess, longest_iteration_s, search, served_rate, trials_of
from experiments.common.output import offline_tokens, spread, spread_column, write_texts
from experiments.common.policies import seeds_of
from experiments.common.runner import Jobs
from experiments.common.store import Store
from ooco_gym.errors import UserError, check_keys, unknown
from ooco_gym.policy import get_policy
from ooco_gym.report import Column, Table, console, percent
from ooco_gym.resources import load_yaml, names
from ooco_gym.scenario import Scenario

if TYPE_CHECKING:
    from omegaconf import DictConfig

SETTING = {"hygen": "latency_budget_s", "hygen_star": "offline_qps"}  # what the profiler finds for each
Summaries = Sequence[Mapping[str, Any]]


def named(policy: str, values: Mapping[str, Any]) -> str:
    """A policy with parameters as one name: `hygen:latency_budget_s=0.041000000,utility=0.500000000`."""
    parts = [f"{key}={_written(value)}" for key, value in values.items()]
    return f"{policy}:{','.join(parts)}" if parts else policy


def _written(value: Any) -> str:
    if isinstance(value, float):
        return ".inf" if math.isinf(value) else f"{value:.9f}"
    return f'"{value}"' if value in ("on", "off") else str(value)  # bare, YAML takes these for flags


@dataclass(frozen=True)
class Bench:
    """Where policies are measured.

    Attributes:
        jobs: runs simulations.
        scenario: the load; its seed is not used.
        seeds: of the measured runs.
        online_rate: online requests a second of the scenario.
        windows: test runs of the profiler (`profile_windows`).
    """

    jobs: Jobs
    scenario: Scenario
    seeds: tuple[int, ...]
    online_rate: float
    windows: int

    def at(self, scale: float, online_rate: float) -> Bench:
        """The same bench at another online load."""
        return replace(self, scenario=self.scenario.with_(rate_scale=scale), online_rate=online_rate)

    def runs(self, policy: str, values: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """Summaries of a policy, one a seed."""
        name = named(policy, values or {})
        asked = [self.jobs.submit(self.scenario.with_(seed=seed), name) for seed in self.seeds]
        return [one.result() for one in asked]

    def profiled(self, policy: str, slo: Mapping[str, Any], values: Mapping[str, Any] | None = None) -> Profiled:
        """A policy's runs with what its profiler finds for an SLO, by test runs that all SLOs share.

        Args:
            policy: `hygen` or `hygen_star`.
            slo: `slo_metric`, `tolerance`, and the second ones where there are two.
            values: other parameters.
        """
        found = at_once([lambda seed=seed: self._search(policy, slo, values or {}, seed) for seed in self.seeds])
        asked = [self.jobs.submit(self.scenario.with_(seed=seed), named(policy, {**_run_values(values or {}), **one}))
                 for seed, one in zip(self.seeds, found, strict=True)]
        return Profiled(float(np.mean([one[SETTING[policy]] for one in found])), [one.result() for one in asked])

    def _search(self, policy: str, slo: Mapping[str, Any], values: Mapping[str, Any], seed: int) -> dict[str, float]:
        base = get_policy(policy).with_values({"profile_windows": self.windows, **values, **slo})
        setting = SETTING[policy]
        highest = served_rate if policy == "hygen_star" else lambda _: longest_iteration_s(base, self.scenario)

        def run(trial: Scenario, value: float) -> Mapping[str, Any]:
            return self.jobs.submit(trial, named(policy, {**_run_values(values), setting: value})).result()

        return search(setting, base.values, highest, run, trials_of(self.scenario.with_(seed=seed), base.values))


@dataclass(frozen=True)
class Profiled:
    """What the profiler found (its mean over the seeds, where it searched for each) and the runs with it."""

    setting: float
    runs: list[dict[str, Any]]


def _run_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters that change a run, not only how it is profiled: test runs are shared by all that profile alike."""
    return {key: value for key, value in values.items() if key not in PROFILE_NAMES}


def at_once(calls: Sequence[Any], workers: int = 8) -> list[Any]:
    """Results of calls without arguments, made side by side: what waits for one leaves the simulator to others."""
    with ThreadPoolExecutor(workers) as pool:
        return [one.result() for one in [pool.submit(call) for call in calls]]


# --- Figures of runs ------------------------------------------------------------------------------------------------
def served_tokens(runs: Summaries) -> np.ndarray:
    """Offline prompt and output tokens completed a second, one a seed."""
    return np.array([offline_tokens(run) for run in runs])


def all_tokens(runs: Summaries) -> np.ndarray:
    """Prompt and output tokens completed a second, of both classes."""
    online = [one["online"]["prompt_tokens_per_s"] + one["online"]["output_tokens_per_s"] for one in runs]
    return served_tokens(runs) + np.array(online)


def excesses(metric: str, runs: Summaries, alone: Summaries) -> np.ndarray:
    """By how much each run exceeds the one without offline work on the same seed, as a share."""
    return np.array([excess(metric, one["online"], other["online"]) for one, other in zip(runs, alone, strict=True)])


def ratio(values: np.ndarray, other: np.ndarray) -> dict[str, Any]:
    """Ratio of two policies' figures on the same seeds, with its interval; None where the other has nothing."""
    return spread(values / np.where(other > 0, other, np.nan))


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
        "hygen_offline": spread(served_tokens(runs["hygen"])),
        "star_offline": spread(served_tokens(runs["hygen_star"])),
        "sarathi_pp_offline": spread(served_tokens(free)),
        "overall_ratio": ratio(all_tokens(runs["hygen"]), all_tokens(alone)),
        "offline_ratio": ratio(served_tokens(runs["hygen"]), served_tokens(runs["hygen_star"])),
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
        "excess": spread(excesses(metric, runs, alone)), "offline": spread(served_tokens(runs)),
        "overall_ratio": ratio(all_tokens(runs), all_tokens(alone)),
        "evictions": float(np.mean([one["offline"]["evictions"] for one in runs])),
        "wasted": float(np.mean([one["offline"]["wasted_tokens_per_s"] for one in runs])),
    }


MARGIN = 1.5  # how many times the requests that would just have lasted are advised
CACHED = {"prefix_caching": "on"}
ORDERS: Mapping[str, Mapping[str, Any]] = {
    "FCFS, no cache": {"waiting_order": "arrival", "prefix_caching": "off"},
    "FCFS": {"waiting_order": "arrival", **CACHED},
    "PSM": {"waiting_order": "prefix", "utility": 1.0, **CACHED},
}


def shared(bench: Bench, budget_s: float, metric: str) -> list[dict[str, Any]]:
    """Offline throughput by order, at one latency budget, on work that shares prefixes.

    Returns:
        A row for each order: throughput, its ratio to FCFS with the cache and without, the online excess.

    Raises:
        UserError: the offline work ran out.
    """
    alone = bench.runs("sarathi")
    runs = dict(zip(ORDERS, at_once([lambda changed=changed: bench.runs("hygen", {
        **changed, "latency_budget_s": budget_s}) for changed in ORDERS.values()]), strict=True))
    check_lasts(bench, runs)
    tokens = {name: served_tokens(mine) for name, mine in runs.items()}
    return [{"order": name, "latency_budget_s": budget_s, "offline": spread(tokens[name]),
             "requests": spread(_served(mine)), "ratio": ratio(tokens[name], tokens["FCFS"]),
             "ratio_without_cache": ratio(tokens[name], tokens["FCFS, no cache"]),
             "excess": spread(excesses(metric, mine, alone))} for name, mine in runs.items()]


def fairness(full: Bench, steady: Bench, budget_s: float, utilities: Sequence[float]) -> list[dict[str, Any]]:
    """Starvation against throughput over the fairness ratio u, at one latency budget.

    Args:
        full: with more offline work than can be served: what is served of it is the throughput.
        steady: with offline work that goes on arriving, at a rate that every order can serve: how long requests wait.
        budget_s: latency budget of an iteration.
        utilities: values of u.

    Returns:
        A row for each u: throughput, P99 and longest age of offline requests (seconds to their first token).

    Raises:
        UserError: the offline work that was to be more than can be served ran out.
    """
    values = [{"waiting_order": "prefix", "utility": float(u), "latency_budget_s": budget_s, **CACHED}
              for u in utilities]
    most, waits = (at_once([lambda bench=bench, one=one: bench.runs("hygen", one) for one in values])
                   for bench in (full, steady))
    check_lasts(full, {f"u = {float(u):g}": mine for u, mine in zip(utilities, most, strict=True)})
    return [{"utility": float(u), "offline": spread(served_tokens(mine)), "requests": spread(_served(mine)),
             **{key: spread(np.array([one["offline"][key] for one in waiting], float))
                for key in ("age_p99_s", "age_max_s")}}
            for u, mine, waiting in zip(utilities, most, waits, strict=True)]


def check_lasts(bench: Bench, runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Refuses runs whose offline work, which is to be more than can be served, ran out before the window ended.

    Raises:
        UserError: says how many requests would have lasted, at the mean rate at which they were served at most.
    """
    over = [(one["offline"]["last_finish_s"] or 0.0, name, one) for name, some in runs.items() for one in some
            if not one["offline"]["left"]]
    if not over:
        return
    last_s, name, run = min(over, key=lambda one: one[0])
    jobs, warmup_s = int(bench.scenario.offline["jobs"]), float(bench.scenario.load_protocol().warmup_s)
    total_s, served_s = warmup_s + run["window_s"], warmup_s + last_s
    least = MARGIN * jobs * total_s / max(served_s, 1.0)
    raise UserError(f"hygen.shared_jobs={jobs} are too few: under '{name}' on seed {run['seed']} all were served "
                    f"{served_s:,.0f} s after the start, and the window ends at {total_s:,.0f} s; expected more "
                    f"than can be served, such as hygen.shared_jobs={math.ceil(least / 1000) * 1000}")


def _served(runs: Sequence[Mapping[str, Any]]) -> np.ndarray:
    return np.array([one["offline"]["finished"] / one["window_s"] for one in runs])


Row = Mapping[str, Any]
NAMES = {"mean_ttft": "mean TTFT", "p99_ttft": "P99 TTFT", "mean_tbt": "mean TBT", "p99_tbt": "P99 TBT"}


SHARE = partial(percent, digits=1)
BUDGET = Column("budget ms", lambda row: 1000 * row["latency_budget_s"], ".1f")
EXCESSES = (
    BUDGET, spread_column("HyGen", "hygen_excess", SHARE),
    Column("kept", lambda row: f"{row['kept']} of {row['seeds']}"), spread_column("HyGen*", "star_excess", SHARE),
    spread_column("Sarathi++", "sarathi_pp_excess", SHARE), spread_column("HyGen offline", "hygen_offline", ",.0f"),
    spread_column("HyGen* offline", "star_offline", ",.0f"), spread_column("× HyGen*", "offline_ratio", ".2f"),
    spread_column("overall × Sarathi", "overall_ratio", ".2f"))
# Title and columns of each part.
TABLES: dict[str, tuple[str, Sequence[Column]]] = {
    "latency": ("Online latency above pure online service, and throughput in tokens/s (Figures 3 and 4; paper: overall "
                "up to 3.87 × Sarathi, offline up to 5.84 × HyGen*)",
                (Column("SLO", "metric", NAMES.__getitem__), Column("tolerance", "tolerance", SHARE), *EXCESSES)),
    "rates": ("Online load (Figures 10 and 15), one SLO", (Column("online requests/s", "online_rate", "g"), *EXCESSES)),
    "readings": ("Other readings of what the paper leaves open, each profiled anew", (
        Column("changed", lambda row: ", ".join(f"{key}={value}" for key, value in row["changed"].items())
               or "as shipped"), BUDGET,
        spread_column("excess", "excess", SHARE), spread_column("offline tokens/s", "offline", ",.0f"),
        spread_column("overall × Sarathi", "overall_ratio", ".2f"), Column("evictions", "evictions", ",.0f"),
        Column("recomputed tokens/s", "wasted", ",.0f"))),
    "sharing": ("Prefix sharing maximisation on few-shot work (Figure 6; paper: up to 4 ×, simulated)", (
        Column("work", "work"), Column("order", "order"), BUDGET,
        spread_column("offline tokens/s", "offline", ",.0f"), spread_column("requests/s", "requests", ".2f"),
        spread_column("× FCFS", "ratio", ".2f"), spread_column("× FCFS without cache", "ratio_without_cache", ".2f"),
        spread_column("excess", "excess", SHARE))),
    "fairness": ("The fairness ratio u (Algorithm 4)", (
        Column("u", "utility", "g"), spread_column("offline tokens/s", "offline", ",.0f"),
        spread_column("requests/s", "requests", ".2f"), spread_column("age P99 s", "age_p99_s", ",.0f"),
        spread_column("longest wait s", "age_max_s", ",.0f"))),
}


def table_of(part: str, rows: Sequence[Row]) -> Table:
    """A part's table."""
    title, columns = TABLES[part]
    return replace(Table.of(columns, rows, title), align="")


def markdown(part: str, rows: Sequence[Row]) -> str:
    """A part's table in Markdown, under its title."""
    table = table_of(part, rows)
    return f"## {table.title}\n\n{table.markdown()}"


SCHEMA = "ooco-gym/hygen/1"


def main(cfg: DictConfig) -> dict[str, Any]:
    """Runs the parts that `cfg.hygen.parts` names.

    Raises:
        UserError: an unknown part or metric, or a scenario that cannot be played.
    """
    from omegaconf import OmegaConf

    options: dict[str, Any] = OmegaConf.to_container(cfg.hygen, resolve=True)  # type: ignore[assignment]
    parts = list(options["parts"])
    for part in parts:
        if part not in TABLES:
            raise unknown("part (hygen.parts)", part, TABLES)
    for metric in options["metrics"]:
        if metric not in METRICS:
            raise unknown("metric (hygen.metrics)", metric, METRICS)
    with Jobs(options["workers"], Store(on=bool(options["cache"]))) as jobs, jobs.progress("experiment hygen"):
        results = {part: _part(part, jobs, options) for part in parts}
    page = Path(cfg.out) / "hygen.md"
    write_texts({page: "\n\n".join(markdown(part, rows) for part, rows in results.items()) + "\n"})
    for part, rows in results.items():
        table_of(part, rows).show(console())
    return {"schema": SCHEMA, "results": results, "options": options, "page": str(page)}


def _part(part: str, jobs: Jobs, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    if part == "latency":
        return compared(_bench(jobs, options, options["offline"]), options["metrics"], options["tolerances"])
    if part == "rates":
        return rates(_bench(jobs, options, options["offline"]), options["metric"], float(options["tolerance"]),
                     options["rates"])
    if part == "readings":
        return readings(_bench(jobs, options, options["offline"]), options["metric"], float(options["tolerance"]))
    full = {work: _bench(jobs, options, work, {"mode": "backlog", "jobs": int(options["shared_jobs"])})
            for work in options["shared"]}
    if part == "sharing":
        return [{"work": work, **row} for work, bench in full.items() for row in
                shared(bench, float(options["shared_budget_s"]), options["metric"])]
    work = options["shared"][0]
    steady = _bench(jobs, options, work, {"mode": "rate", "rate": float(options["shared_rate"])})
    return fairness(full[work], steady, float(options["shared_budget_s"]), options["utilities"])


def _work(name: str) -> dict[str, Any]:
    """Offline work by name: of a dataset of conf/offline, or with the prompts of an online workload that share."""
    if name in names("offline"):
        return {"dataset": name}
    spec = load_yaml("workload", name)
    return {"name": name, "lengths": spec["lengths"], "sharing": spec["sharing"]}


def _bench(jobs: Jobs, options: Mapping[str, Any], offline: str, load: Mapping[str, Any] | None = None) -> Bench:
    given = {"cluster": options["cluster"], "workload": options["online"], "online_rate": options["online_rate"],
             "duration_s": options["duration_s"], "offline": {**(load or {"mode": "backlog"}), **_work(offline)}}
    check_keys("hygen scenario", given, Scenario.__dataclass_fields__)
    scenario = Scenario.from_config(given)
    if options["online_rate"] is None:
        raise UserError("hygen.online_rate is missing: online requests a second, such as 1.5")
    return Bench(jobs, scenario.with_(rate_scale=scenario.online_scale()), seeds_of(options["seeds"], "hygen.seeds"),
                 float(options["online_rate"]), int(options["windows"]))



