"""`ooco-gym experiment specialist`: a policy learned in one environment, beside the rule that it adjusts, tuned there.

The question, set down before the test windows were played: by how much more offline service has a policy that was
learned in an environment than the same rule with its best constants, when both were searched there by the same method
with as many windows (`ooco-gym train agent=cma`, docs/search.md)? Policies, windows and limit are those of `specialist`
in conf/experiment.yaml or of a preset.

The unit is a window of the environment's test split, from number `first_window` of each seed on; the metric is the
logarithm of the ratio of offline reference GPU-seconds a second. Of several training runs of the learned policy the
claim is of their mean: intervals resample runs and windows, crossed. A policy that violates more than `violations` in
the mean is marked. Guards: the worst window, the worst ten minutes, the age of the oldest offline request. The same
under each distribution shift of the environment, which decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agents.environments import make_env, split_seeds
from agents.evaluation.scoring import mean_interval
from experiments.common.output import check_page, keep_claims, merged, p_wilcoxon, rounded, write_texts
from experiments.common.runner import Jobs
from experiments.common.store import Store
from experiments.studies.generalist import log_ratio
from ooco_gym.errors import UserError, unknown
from ooco_gym.policy import get_policy
from ooco_gym.report import Column, Table, console, percent, with_interval
from ooco_gym.resources import load_yaml
from ooco_gym.scenario import Scenario
from ooco_gym.version import __version__

if TYPE_CHECKING:
    from omegaconf import DictConfig

BEGIN = "<!-- results in {}: written by ooco-gym experiment specialist; what stands outside is not touched -->"
END = "<!-- end of results in {} -->"
KINDS, AS_IT_IS = ("learning", "rule", "information"), "as trained"
FIGURES = {"service": ("offline", "reference_gpu_s_per_s"), "violations": ("online", "violation_rate"),
           "worst_10min": ("online", "worst_10min_violation_rate"), "ttft_p99_s": ("online", "ttft_p99_s"),
           "oldest_s": ("offline", "age_max_s")}
Figures = dict[str, np.ndarray]  # float64[runs, windows] each


# --- Windows --------------------------------------------------------------------------------------------------------
def windows_of(options: Mapping[str, Any], shift: str | None = None) -> list[Scenario]:
    """Windows of the environment's test split, under a shift or none.

    Raises:
        UserError: an unknown environment or shift.
    """
    config = {**load_yaml("env", options["env"]), **({} if shift is None else {"shift": shift}),
              **({} if options["window_s"] is None else {"window_s": options["window_s"]})}
    env: Any = make_env(config)
    episodes = env.unwrapped.config
    env.close()
    seeds, count = split_seeds(config, "test"), int(options["windows" if shift is None else "shift_windows"])
    told = {} if options["lengths"] is None else {"lengths": options["lengths"]}
    return [episodes.window(int(seeds[i % len(seeds)]), int(options["first_window"]) + i // len(seeds)).with_(**told)
            for i in range(count)]


def figures_of(runs: Sequence[Sequence[Mapping[str, Any]]]) -> Figures:
    """What the training runs of a policy (one, of a rule) came to, from the summaries of their windows."""
    return {name: np.array([[one[part][key] or 0.0 for one in windows] for windows in runs], float)
            for name, (part, key) in FIGURES.items()}


# --- Claims ---------------------------------------------------------------------------------------------------------
def named(policy: str, title: str) -> str:
    """A policy by the name that every command takes, or, of a file that others do not have, by its title."""
    return title if policy.split(":", 1)[0].endswith((".yaml", ".yml")) else policy


def claim(env: str, ours: tuple[str, Figures], theirs: tuple[str, Figures], options: Mapping[str, Any],
          policies: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """A row of `results/learned.json`: how much more offline service the learned policy has than an opponent."""
    (title, mine), (opponent, other) = ours, theirs
    found = log_ratio(mine, other)  # float64[runs, windows]: the opponent is one run
    mean, low, high = mean_interval(found)
    assert low is not None and high is not None
    by_window = found.mean(0)
    return {"environment": env, "kind": str(options["kind"]), "attempt": int(options["attempt"]),
            "learned": named(policies[title][0], f"{title} in {env}"),
            "opponent": named(policies[opponent][0], opponent), "title": title,
            "opponent_title": opponent, "unit": "log ratio of offline reference GPU-s/s", "mean": mean, "ci_low": low,
            "ci_high": high, "relative": float(np.expm1(mean)), "smallest_seen": (high - low) / 2.0,
            "p_wilcoxon": p_wilcoxon(by_window),
            "violation_rate": float(mine["violations"].mean()),
            "opponent_violation_rate": float(other["violations"].mean()),
            "worst_10min": float(mine["worst_10min"].max()),
            "opponent_worst_10min": float(other["worst_10min"].max()), "worst_window": float(by_window.min()),
            "windows_ahead": int((by_window > 0).sum()), "runs_ahead": int((found.mean(1) > 0).sum()),
            "holds": bool(mine["violations"].mean() <= float(options["violations"])),
            "n_windows": found.shape[1], "window_s": float(options["window_s"]),
            "n_training_runs": found.shape[0],
            **({} if options["lengths"] is None else {"lengths": options["lengths"]})}


# --- The page -------------------------------------------------------------------------------------------------------
def claims_table(claims: Sequence[Mapping[str, Any]]) -> Table:
    """All claims, a row each."""
    def gain(one: Mapping[str, Any]) -> str:
        mean, low, high = (float(np.expm1(one[key])) for key in ("mean", "ci_low", "ci_high"))
        return with_interval(mean, low, high, lambda value: percent(value, 1, "+"))

    columns = [Column("policy", "title", align="l"), Column("over", "opponent_title", align="l"), Column("gain", gain),
               Column("windows ahead", lambda one: f"{one['windows_ahead']} of {one['n_windows']}"),
               Column("runs ahead", lambda one: f"{one['runs_ahead']} of {one['n_training_runs']}"),
               Column("Wilcoxon p", lambda one: f"{one['p_wilcoxon']:.2g}"),
               Column("violations", lambda one: percent(one["violation_rate"])),
               Column("of the opponent", lambda one: percent(one["opponent_violation_rate"]))]
    return Table.of(columns, claims)


def rows_of(played: Mapping[str, Mapping[str, Figures]], limit: float) -> list[dict[str, Any]]:
    """A row for each policy and shift: means over runs and windows."""
    return [{"windows": shift, "policy": title, "service": float(one["service"].mean()),
             "violations": float(one["violations"].mean()), "worst_10min": float(one["worst_10min"].mean(0).max()),
             "ttft_p99_s": float(one["ttft_p99_s"].mean()), "oldest_s": float(one["oldest_s"].max()),
             "over": bool(one["violations"].mean() > limit)}
            for shift, figures in played.items() for title, one in figures.items()]


def rows_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """All policies under all shifts, a row each."""
    return Table.of([
        Column("windows", "windows", align="l"), Column("policy", "policy", align="l"),
        Column("offline ref. GPU-s/s", "service", ".3f"),
        Column("violations", lambda one: percent(one["violations"]) + (" †" if one["over"] else "")),
        Column("worst window", lambda one: percent(one["worst_10min"])),
        Column("P99 TTFT, mean", lambda one: f"{one['ttft_p99_s']:.2f} s"),
        Column("oldest offline request", lambda one: f"{one['oldest_s']:,.0f} s")], rows)


# --- The command ----------------------------------------------------------------------------------------------------
def main(cfg: DictConfig) -> dict[str, Any]:
    """Plays the test windows with all policies; writes the page and the claims.

    Raises:
        UserError: no learned policy or no opponent, one that the environment's instances cannot play, or an unknown
            environment.
    """
    from agents.settings import plain

    options = plain(cfg.specialist)
    check_page("specialist.page", options["page"])
    if int(options["windows"]) < 2:
        raise UserError(f"specialist.windows={options['windows']}: expected two or more, as intervals are over windows")
    if options["kind"] not in KINDS:
        raise unknown("specialist.kind", options["kind"], KINDS)
    env = load_yaml("env", options["env"])
    policies = _policies(options, get_policy(env["partner"]).mixed)
    learned = next(iter(policies))
    options["window_s"] = float(options["window_s"] or env["window_s"])
    shifts: list[str | None] = [None, *(env.get("shifts", {}) if int(options["shift_windows"]) else ())]
    played: dict[str, dict[str, Figures]] = {}
    with Jobs(options["workers"], Store(on=bool(options["cache"]))) as jobs, jobs.progress("experiment specialist"):
        listed = {shift: windows_of(options, shift) for shift in shifts}
        asked = {shift: {title: [[jobs.submit(one, policy) for one in windows] for policy in runs]
                         for title, runs in policies.items()} for shift, windows in listed.items()}
        for shift, of_titles in asked.items():
            played[shift or AS_IT_IS] = {title: figures_of([[one.result() for one in windows] for windows in runs])
                                         for title, runs in of_titles.items()}
    own = played[AS_IT_IS]
    claims = [claim(env["id"], (learned, own[learned]), (title, own[title]), options, policies)
              for title in policies if title != learned]
    rows = rows_of(played, float(options["violations"]))
    page, figures = (Path(options[key] or Path(cfg.out) / name)
                     for key, name in (("page", "specialist.md"), ("figures", "learned.json")))
    verdict = claims_table(claims)
    text = (f"{verdict.markdown()}\n\nGeometric means over {claims[0]['n_windows']} windows of "
            f"{options['window_s']:g} s and the training runs, with 95 % intervals by resampling both.\n\n"
            f"{rows_table(rows).markdown()}\n\n† more than {percent(float(options['violations']), 0)} of the online "
            f"requests. *Worst window* is of its worst ten minutes. Version {__version__}.")
    told = "" if options["lengths"] is None else ", lengths " + " ".join(map(str, options["lengths"].values()))
    begin, end = (mark.format(env["id"] + told) for mark in (BEGIN, END))
    write_texts({page: merged(page, f"A policy learned in {env['id']}", text, begin, end)})
    keep_claims(figures, claims, lambda one: (one["kind"], one["environment"], one.get("attempt"), one.get("lengths"))
                != (options["kind"], env["id"], int(options["attempt"]), options["lengths"]))
    verdict.show(console())
    return {"claims": rounded(claims), "rows": rounded(rows), "page": str(page), "figures": str(figures)}


def _policies(options: Mapping[str, Any], mixed: bool) -> dict[str, list[str]]:
    """Policies by title, the one that is asked about, with all of its runs, first: of mixed instances, or of pools."""
    learned = options["learned"]
    runs = [learned] if isinstance(learned, str) else [str(one) for one in learned or ()]
    opponents = {str(one["title"]): [str(one["policy"])] for one in options["policies"] or ()}
    if len({str(options["title"]), *opponents}) <= len(options["policies"] or ()):
        raise UserError("specialist: a title stands twice in specialist.title and specialist.policies; expected each "
                        "once")
    policies = {str(options["title"]): runs, **opponents}
    if not runs or len(policies) < 2:
        raise UserError("specialist.learned must name one policy or more, the training runs of one, and "
                        "specialist.policies its opponents: [{title: tuned, policy: RUN/policy.yaml}]")
    for title, listed in policies.items():
        for policy in listed:
            if get_policy(policy).mixed != mixed:
                kind = "mixed instances" if mixed else "pools"
                raise UserError(f"specialist: '{title}' ({policy}) is no policy of {kind}, "
                                f"which the partner of {options['env']} is")
    return policies
