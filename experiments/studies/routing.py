"""`ooco-gym experiment routing`: routers of unequal instances at the knee, published rules and a learned score.

The question, set down before the test seeds were played: by how many fewer online requests violate their SLO, at the
same load, under a learned score (`baselines/router.py`) than under the best of five published routers, tuned with as
many windows on the same conditions and with the same information? Iterations are filled alike by all, offline requests
go the same way, and figures lag alike. Conditions, loads, budgets and test are those of `routing` in
conf/experiment.yaml. A load is a share of the knee: the largest online rate at which the default router violates at
most `knee_violations` (`part: knees`). `part: tune` tunes the published routers and `part: learn` the score, both by
CMA-ES over whole windows (`routing_search`); `part: compare` plays all of them on seeds that nothing was chosen on.

The unit is a window of `duration_s` under one condition. The metric is the logarithm of the ratio of violation rates,
`floor` added to both as a window may have none, so that conditions count alike. Differences are paired by window, the
interval resamples windows within each condition, and Wilcoxon's signed-rank test on the seeds' means over conditions
stands beside it. Guards: offline service, time to first token, the worst condition and window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.common.output import check_page, keep_claims, merged, p_wilcoxon, rounded, write_texts
from experiments.common.policies import seeds_of
from experiments.common.runner import Jobs
from experiments.common.store import Store
from experiments.studies import routing_search
from experiments.studies.generalist import over_conditions
from experiments.studies.routing_search import LEAST, played_as, scenario_of
from ooco_gym.errors import UserError
from ooco_gym.files import write_json
from ooco_gym.policy import get_policy
from ooco_gym.report import Column, Table, console, percent, with_interval
from ooco_gym.version import __version__

if TYPE_CHECKING:
    from omegaconf import DictConfig

BEGIN = "<!-- results: written by ooco-gym experiment routing; what stands outside is not touched -->"
KIND, ENVIRONMENT, ALL = "learning", "ooco_gym/Routing-v0 on mixed instances", "all"
PARTS = ("knees", "tune", "learn", "compare")
Figures = dict[str, np.ndarray]


# --- Claims ---------------------------------------------------------------------------------------------------------
def figures_of(runs: Sequence[Mapping[str, Any]]) -> Figures:
    """What a router came to in each window of a condition."""
    def online(key: str) -> np.ndarray:
        return np.array([run["online"][key] or 0.0 for run in runs], float)

    return {"violations": online("violation_rate"), "worst_10min": online("worst_10min_violation_rate"),
            "ttft_mean_s": online("ttft_mean_s"), "ttft_p99_s": online("ttft_p99_s"),
            "service": np.array([run["offline"]["reference_gpu_s_per_s"] for run in runs], float)}


def gain(ours: Figures, theirs: Figures, floor: float) -> np.ndarray:
    """Logarithm of the ratio of violation rates, theirs over ours, window by window: above 0 where ours has fewer."""
    return np.log(theirs["violations"] + floor) - np.log(ours["violations"] + floor)


def over_all(key: str, title: str, played: Mapping[str, Mapping[str, Figures]]) -> float:
    """Mean of a figure of a router over all windows."""
    return float(np.mean([figures[title][key].mean() for figures in played.values()]))


def claim(learned: str, opponent: str, group: str, played: Mapping[str, Mapping[str, Figures]],
          policies: Mapping[str, str], options: Mapping[str, Any]) -> dict[str, Any]:
    """A row of `results/learned.json`: by how many fewer violations a router has than another."""
    gains = [gain(figures[learned], figures[opponent], float(options["floor"])) for figures in played.values()]
    mean, low, high = over_conditions(gains)
    means, of_seeds = [float(one.mean()) for one in gains], np.mean(gains, axis=0)
    ours, theirs = (over_all("violations", title, played) for title in (learned, opponent))
    services = [float(np.log(np.maximum(LEAST, figures[learned]["service"])
                             / np.maximum(LEAST, figures[opponent]["service"])).mean()) for figures in played.values()]
    return {"environment": ENVIRONMENT, "kind": KIND, "learned": policies[learned], "opponent": policies[opponent],
            "title": learned, "opponent_title": opponent, "group": group,
            "unit": f"log ratio of online violation rates, {float(options['floor']):g} added to both", "mean": mean,
            "ci_low": low, "ci_high": high, "relative": float(-np.expm1(-mean)),
            "smallest_seen": (high - low) / 2.0, "p_wilcoxon": p_wilcoxon(of_seeds),
            "violation_rate": ours, "opponent_violation_rate": theirs,
            "service_log_ratio": float(np.mean(services)), "worst_service_log_ratio": min(services),
            "ttft_p99_s": over_all("ttft_p99_s", learned, played),
            "opponent_ttft_p99_s": over_all("ttft_p99_s", opponent, played),
            "conditions": len(gains), "conditions_ahead": int(sum(one > 0 for one in means)),
            "worst_condition": min(means), "worst_window": float(min(one.min() for one in gains)),
            "n_windows": int(sum(len(one) for one in gains)), "window_s": float(options["duration_s"]),
            "n_training_runs": int(options["training_runs"])}


# --- The page -------------------------------------------------------------------------------------------------------
def rows_of(played: Mapping[str, Mapping[str, Figures]]) -> list[dict[str, Any]]:
    """A row for each condition: violations, and the 99th percentile of the time to first token, of each router."""
    return [{"condition": name, **{title: f"{percent(float(one['violations'].mean()))} "
                                          f"({one['ttft_p99_s'].mean():.2f} s)" for title, one in figures.items()}}
            for name, figures in played.items()]


def claims_table(claims: Sequence[Mapping[str, Any]]) -> Table:
    """All claims, a row each."""
    def fewer(one: Mapping[str, Any]) -> str:
        mean, low, high = (float(-np.expm1(-one[key])) for key in ("mean", "ci_low", "ci_high"))
        return with_interval(mean, low, high, lambda value: percent(value, 1, "+"))

    columns = [Column("conditions", "group", align="l"), Column("router", "title", align="l"),
               Column("over", "opponent_title", align="l"), Column("fewer violations", fewer),
               Column("ahead in", lambda one: f"{one['conditions_ahead']} of {one['conditions']}"),
               Column("Wilcoxon p", lambda one: f"{one['p_wilcoxon']:.2g}"),
               Column("violations", lambda one: percent(one["violation_rate"])),
               Column("of the opponent", lambda one: percent(one["opponent_violation_rate"])),
               Column("offline service", lambda one: percent(float(np.expm1(one["service_log_ratio"])), 1, "+")),
               Column("P99 TTFT", lambda one: f"{one['ttft_p99_s']:.2f} s"),
               Column("of the opponent", lambda one: f"{one['opponent_ttft_p99_s']:.2f} s")]
    return Table.of(columns, claims)


# --- Parts ----------------------------------------------------------------------------------------------------------
def main(cfg: DictConfig) -> dict[str, Any]:
    """Runs the part that `cfg.routing` names; `compare` writes the page and the claims.

    Raises:
        UserError: no such part, a policy that is no router, or a condition that cannot be played.
    """
    from agents.settings import plain

    options, out = plain(cfg.routing), Path(cfg.out)
    if options["part"] not in PARTS:
        raise UserError(f"routing.part={options['part']!r} must be one of {', '.join(PARTS)}")
    if options["part"] == "compare":
        return compared(options, out)
    found = getattr(routing_search, options["part"])(options, out)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / f"{options['part']}.json", {**rounded(found), "version": __version__})
    return rounded({key: value for key, value in found.items() if key != "rows"})


def check_routers(policies: Mapping[str, str]) -> None:
    """Refuses what lag and prefix caching cannot be set of.

    Raises:
        UserError: one is no router.
    """
    for title, policy in policies.items():
        if not {"lag_s", "rule"} <= {one.name for one in get_policy(policy).params}:
            raise UserError(f"routing.policies: '{title}' ({policy}) is no router; expected 'router' or what extends "
                            "it")


def compared(options: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """Plays all routers under all conditions; writes the page and the claims."""
    check_page("routing.page", options["page"])
    policies = {str(one["title"]): str(one["policy"]) for one in options["policies"]}
    check_routers(policies)
    learned = options["learned"]
    if len(policies) < 2 or learned not in (None, *policies):
        raise UserError(f"routing.learned={learned!r} must be null or the title of one of routing.policies, of which "
                        "there must be two or more")
    seeds, played = seeds_of(options["seeds"], "routing.seeds"), {}
    conditions = {str(one["name"]): one for one in options["conditions"]}
    with Jobs(options["workers"], Store(on=bool(options["cache"]))) as jobs, jobs.progress("experiment routing"):
        asked = {(name, title): [jobs.submit(scenario_of(one, options).with_(seed=seed), played_as(policy, one))
                                 for seed in seeds]
                 for name, one in conditions.items() for title, policy in policies.items()}
        for name in conditions:
            played[name] = {title: figures_of([run.result() for run in asked[name, title]]) for title in policies}
    groups = {ALL: list(played)}
    for name, one in conditions.items():
        if "group" in one:
            groups.setdefault(str(one["group"]), []).append(name)
    claims = [claim(learned, title, group, {name: played[name] for name in members}, policies, options)
              for group, members in groups.items() for title in policies if learned and title != learned]
    rows, verdict = rows_of(played), claims_table(claims)
    table = Table.of([Column(key, key) for key in rows[0]], rows)
    page = Path(options["page"] or out / "routing_knee.md")
    text = ("Online violations (99th percentile of the time to first token) by condition, means of "
            f"{len(seeds)} windows of {float(options['duration_s']):g} s:\n\n{table.markdown()}\n\n"
            f"Version {__version__}.")
    if claims:
        text = (f"{verdict.markdown()}\n\nFewer violations: geometric means over the conditions, with 95 % intervals "
                f"by resampling windows.\n\n{text}")
    write_texts({page: merged(page, "Routing at the knee", text, BEGIN)})
    if not claims:  # rules among themselves
        table.show(console())
        return {"rows": rows, "page": str(page)}
    figures = Path(options["figures"] or out / "learned.json")
    keep_claims(figures, claims, lambda one: (one["kind"], one["environment"]) != (KIND, ENVIRONMENT))
    verdict.show(console())
    return {"claims": rounded(claims), "rows": rows, "page": str(page), "figures": str(figures)}
