"""`ooco-gym experiment deadline`: the latency budget of each iteration from deadlines, beside published policies.

Parts: `tune` searches the parameters of `deadline` for each workload with Optuna's TPE, `compare` plays all policies on
other seeds, with more offline work than can be served (docs/deadline.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from baselines.hygen_profile import longest_iteration_s, search
from experiments.common.output import check_page, merged, rounded, spread, spread_column, write_texts
from experiments.common.policies import seeds_of
from experiments.common.runner import Jobs
from experiments.common.store import Store
from ooco_gym.errors import UserError, unknown
from ooco_gym.files import write_json
from ooco_gym.metrics.statistics import interval_words, paired_interval, within
from ooco_gym.policy import get_policy, spelled
from ooco_gym.report import Column, Table, console, percent, with_interval
from ooco_gym.report.tables import TO
from ooco_gym.scenario import Scenario
from ooco_gym.version import __version__

if TYPE_CHECKING:
    from omegaconf import DictConfig

PARTS = ("tune", "compare")
BEGIN = "<!-- results: written by ooco-gym experiment deadline; what stands outside is not touched -->"
OURS, SEARCHED = "deadline", "hygen"  # the latter's budget is searched on the tuning seeds
PENALTY = 20.0  # of the objective, reference GPU-s/s for each unit of violations over the limit
Summaries = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Bench:
    """Where policies are measured: a workload at its peak, with more offline work than can be served."""

    jobs: Jobs
    scenario: Scenario
    seeds: tuple[int, ...]
    tuning: tuple[int, ...]

    def play(self, policy: str, seeds: Sequence[int]) -> list[dict[str, Any]]:
        """Summaries of a policy, one a seed."""
        return self.jobs.all([self.scenario.with_(seed=seed) for seed in seeds], policy)


def service(runs: Summaries) -> np.ndarray:
    """Offline service of runs in reference GPU-s/s, float64[seeds]."""
    return np.array([run["offline"]["reference_gpu_s_per_s"] for run in runs])


def violations(runs: Summaries) -> np.ndarray:
    """Share of online requests that violate, float64[seeds]."""
    return np.array([run["online"]["violation_rate"] for run in runs], float)


# --- Tuning ---------------------------------------------------------------------------------------------------------
def tune(bench: Bench, space: Mapping[str, Any], trials: int, limit: float) -> dict[str, Any]:
    """Searches the parameters of `deadline` on the tuning seeds.

    Args:
        bench: the workload.
        space: by parameter, a list of choices or `{low, high}`.
        trials: of Optuna's TPE; the first is the policy as it ships.
        limit: mean violations above which a setting is worse than any that keeps it.

    Returns:
        The best setting that keeps the limit: `policy`, its `service` and `violations` on the tuning seeds.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=1, n_startup_trials=15))
    shipped, found = get_policy(OURS).values, []
    study.enqueue_trial({name: shipped[name] for name in space})
    for _ in range(trials):
        trial = study.ask()
        drawn = {name: _suggest(trial, name, values) for name, values in space.items()}
        name = spelled(OURS, {key: value for key, value in drawn.items() if value != shipped[key]})
        runs = bench.play(name, bench.tuning)
        one = {"policy": name, "service": float(service(runs).mean()), "violations": float(violations(runs).mean())}
        study.tell(trial, one["service"] - PENALTY * max(0.0, one["violations"] - limit))
        found.append(one)
    kept = [one for one in found if one["violations"] <= limit] or found[:1]
    return max(kept, key=lambda one: one["service"])


def _suggest(trial: Any, name: str, values: Any) -> Any:
    if isinstance(values, Mapping):
        return float(f"{trial.suggest_float(name, values['low'], values['high']):.3g}")
    return trial.suggest_categorical(name, list(values))


def searched_budget(bench: Bench, policy: str, limit: float) -> str:
    """HyGen with the largest budget under which the tuning seeds have at most `limit` violations in their mean."""
    base = get_policy(policy).with_values({"profile": "protocol", "profile_violations": limit})

    def run(trial: Scenario, value: float) -> Mapping[str, Any]:
        named = f"{policy}:latency_budget_s={min(value, longest):.6f}"
        return bench.jobs.submit(trial, named).result()

    longest = longest_iteration_s(base, bench.scenario)
    trials = [bench.scenario.with_(seed=seed) for seed in bench.tuning]
    found = search("latency_budget_s", base.values, lambda _: longest, run, trials)
    return f"{policy}:latency_budget_s={found['latency_budget_s']:.4f}"


# --- Comparing ------------------------------------------------------------------------------------------------------
def compare(bench: Bench, policies: Sequence[str], limit: float) -> list[dict[str, Any]]:
    """A row of figures for each policy, the last of `policies` ours; differences are paired by seed."""
    runs = {policy: bench.play(policy, bench.seeds) for policy in policies}
    ours = service(runs[policies[-1]])
    rows = []
    for policy, played in runs.items():
        lead = paired_interval(ours, service(played))
        rows.append({
            "policy": policy, "condition": bench.scenario.workload, "n_seeds": len(bench.seeds),
            "service": spread(service(played)), "violations": spread(violations(played)),
            "ttft": float(np.mean([1.0 - run["online"]["ttft_attainment"] for run in played])),
            "tpot": float(np.mean([1.0 - run["online"]["tpot_attainment"] for run in played])),
            "broken": float(np.mean(violations(played) > limit)), "feasible": within(violations(played), limit),
            "lead": {"mean": lead[0], "low": lead[1], "high": lead[2]}})
    return rows


def table_of(rows: Sequence[Mapping[str, Any]]) -> Table:
    """One workload's table."""
    columns = [
        Column("policy", lambda one: f"`{one['policy']}`{'' if one['feasible'] else ' †'}", align="l"),
        spread_column("offline reference GPU-s/s", "service", ".3f"),
        spread_column("violations", "violations", percent),
        Column("seeds over the limit", "broken", lambda one: percent(one, 0)),
        Column("TTFT missed", "ttft", percent), Column("TPOT missed", "tpot", percent),
        Column("ours is ahead by", "lead", lambda one: with_interval(one["mean"], one["low"], one["high"], "+.3f", TO)),
    ]
    return Table.of(columns, rows, str(rows[0]["condition"]))


# --- The command ----------------------------------------------------------------------------------------------------
def main(cfg: DictConfig) -> dict[str, Any]:
    """Runs the parts that `cfg.deadline` names; writes the page and the figures.

    Raises:
        UserError: an unknown part or policy, or a scenario that cannot be played.
    """
    from omegaconf import OmegaConf

    options: dict[str, Any] = OmegaConf.to_container(cfg.deadline, resolve=True)  # type: ignore[assignment]
    for part in options["parts"]:
        if part not in PARTS:
            raise unknown("part (deadline.parts)", part, PARTS)
    check_page("deadline.page", options["page"])
    limit = float(options["violations"])
    tuned = {workload: dict(options["tuned"].get(workload) or {}) for workload in options["workloads"]}
    found, rows, budgets = {}, [], {}
    with Jobs(options["workers"], Store(on=bool(options["cache"]))) as jobs, jobs.progress("experiment deadline"):
        for workload in options["workloads"]:
            bench = _bench(jobs, options, workload)
            if "tune" in options["parts"]:
                found[workload] = tune(bench, options["space"], int(options["trials"]), float(options["tuned_to"]))
            if "compare" in options["parts"]:
                budgets[workload] = searched_budget(bench, SEARCHED, limit)
                ours = [spelled(OURS, tuned[workload])] if tuned[workload] else []
                rows.append(compare(bench, [*options["policies"], budgets[workload], OURS, *ours], limit))
    page = Path(options["page"] or Path(cfg.out) / "deadline.md")
    text = "\n\n".join([_markdown(one) for one in rows] + [_found(found)] * bool(found))
    words = interval_words(len(seeds_of(options["seeds"], "deadline.seeds")))
    text += f"\n\n{words} † the upper 95 % limit of the violations is over {percent(limit, 0)}. Version {__version__}."
    write_texts({page: merged(page, "Deadline", text, BEGIN)})
    figures = Path(options["figures"] or page.with_name("deadline.json"))
    results = {"results": [one for table in rows for one in table], "tuned": found, "version": __version__}
    write_json(figures, rounded(results))
    for one in rows:
        table_of(one).show(console())
    for workload, one in found.items():
        print(f"{workload}: {one['policy']}, {one['service']:.4g} reference GPU-s/s, {percent(one['violations'])}")
    return {**rounded(results), "page": str(page), "figures": str(figures)}


def _markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    return f"### {rows[0]['condition']}\n\n{table_of(rows).markdown()}"


def _found(found: Mapping[str, Mapping[str, Any]]) -> str:
    columns = [Column("workload", "workload"), Column("best setting on the tuning seeds", "policy"),
               Column("offline reference GPU-s/s", "service", ".3f"), Column("violations", "violations", percent)]
    return Table.of(columns, [{"workload": name, **one} for name, one in found.items()]).markdown()


def _bench(jobs: Jobs, options: Mapping[str, Any], workload: str) -> Bench:
    for policy in options["policies"]:
        if not get_policy(policy).mixed:
            raise UserError(f"deadline.policies: '{policy}' is none of mixed instances")
    scenario = Scenario.from_config({"workload": workload, "cluster": options["cluster"],
                                     "duration_s": options["duration_s"], "offline": {"mode": "backlog"}})
    return Bench(jobs, scenario, seeds_of(options["seeds"], "deadline.seeds"),
                 seeds_of(options["tuning_seeds"], "deadline.tuning_seeds"))
