"""`ooco-gym experiment information`: what a length predictor is worth to a rule, by how poor the predictor is.

The question, set down before the test windows were played: by how much more offline service does a rule that goes by
predicted output lengths have, at the decisions of Eviction and of Migration, than the best rule that knows none?
Opponents and rules are those of `information.environments` in conf/experiment.yaml, as many as are tried on either side
are listed there, and `part: tune` chooses one of each on the tuning seeds (rules at the error `tuned_at`). `part:
compare` plays the chosen ones on seeds that nothing was chosen on, once, with predictors of each error. The unit is a
window of `window_s`; the metric is offline reference GPU-seconds a second; differences are paired by window, with a
bootstrap interval and Wilcoxon's signed-rank test beside it; violations of the SLO are beside the mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents.environments import Window
from agents.evaluation import scoring
from agents.evaluation.heuristics import play_heuristic
from experiments.common.output import keep_claims, merged, p_wilcoxon, rounded, write_texts
from ooco_gym.errors import UserError
from ooco_gym.report import Column, Table, percent, with_interval
from ooco_gym.resources import load_yaml

if TYPE_CHECKING:
    from omegaconf import DictConfig

BEGIN = "<!-- results: written by ooco-gym experiment information; what stands outside is not touched -->"
UNIT = "offline reference GPU-s/s"
Records = list[dict[str, Any]]


def predictor(error: Any) -> Any:
    """A scenario's `lengths` for a predictor error: a number, or none."""
    if error == "none":
        return "none"
    return {"predictor": "lognormal", "error": float(error)} if error else "true"


def play(env: str, rule: str, error: Any, seeds: Sequence[int], options: Mapping[str, Any]) -> Records:
    """Plays the first window of each seed with a rule, under a predictor."""
    config = load_yaml("env", env)
    config |= {"window_s": float(options["window_s"]), "scenario": {**config["scenario"], "lengths": predictor(error)}}
    return play_heuristic(config, rule, [Window(seed, 0) for seed in seeds])


def tune(env: str, sides: Mapping[str, Sequence[str]], options: Mapping[str, Any]) -> dict[str, Any]:
    """The best of the opponents, and the best of the rules at `tuned_at`, on the tuning seeds; all their means."""
    found: dict[str, Any] = {"tuned": {}}
    for side, error in (("opponents", "none"), ("rules", options["tuned_at"])):
        played = {rule: play(env, rule, error, options["tuning_seeds"], options) for rule in sides[side]}
        best = scoring.best_heuristic(played)
        found[side] = best
        found["tuned"] |= {rule: {"service": float(scoring.values(records, scoring.HEADLINE).mean()),
                                  "violations": float(scoring.values(records, "violation_rate").mean())}
                           for rule, records in played.items()}
    return found


def claim(env: str, rule: str, error: Any, opponent: str, ours: Records, theirs: Records,
          options: Mapping[str, Any]) -> dict[str, Any]:
    """A row of `results/learned.json`: what a rule has over the opponent, paired by window."""
    service, base = scoring.values(ours, scoring.HEADLINE), scoring.values(theirs, scoring.HEADLINE)
    mean, low, high = scoring.mean_interval((service - base)[None])
    return {"environment": load_yaml("env", env)["id"], "kind": "information", "learned": rule, "opponent": opponent,
            "predictor_error": error, "unit": UNIT, "mean": mean, "ci_low": low, "ci_high": high,
            "relative": mean / float(base.mean()), "p_wilcoxon": p_wilcoxon(service - base),
            "service": float(service.mean()), "opponent_service": float(base.mean()),
            "violation_rate": float(scoring.values(ours, "violation_rate").mean()),
            "opponent_violation_rate": float(scoring.values(theirs, "violation_rate").mean()),
            "worst_window": float((service - base).min()), "n_windows": len(service),
            "window_s": float(options["window_s"]), "n_training_runs": 0}


def table_of(claims: Sequence[Mapping[str, Any]]) -> Table:
    """All claims, a row each."""
    columns = [
        Column("environment", lambda one: one["environment"].split("/")[1], align="l"),
        Column("rule", lambda one: f"`{one['learned']}`", align="l"),
        Column("over", lambda one: f"`{one['opponent']}`", align="l"),
        Column("predictor error", lambda one: str(one["predictor_error"])),
        Column(f"gain, {UNIT}", lambda one: with_interval(one["mean"], one["ci_low"], one["ci_high"], "+.3f")),
        Column("relative", lambda one: percent(one["relative"], 1, "+")),
        Column("Wilcoxon p", lambda one: f"{one['p_wilcoxon']:.2g}"),
        Column("violations", lambda one: percent(one["violation_rate"])),
        Column("of the opponent", lambda one: percent(one["opponent_violation_rate"])),
    ]
    return Table.of(columns, claims)


def main(cfg: DictConfig) -> dict[str, Any]:
    """Runs the part that `cfg.information` names; `compare` writes the page and the claims.

    Raises:
        UserError: no such part, or `compare` before something was chosen.
    """
    from agents.settings import plain

    options = plain(cfg.information)
    if options["part"] not in ("tune", "compare"):
        raise UserError(f"information.part={options['part']!r} must be tune or compare")
    if options["part"] == "tune":
        return {env: rounded(tune(env, sides, options)) for env, sides in options["environments"].items()}
    seeds = list(range(options["first_seed"], options["first_seed"] + options["windows"]))
    claims = []
    for env, chosen in options["chosen"].items():
        theirs = play(env, chosen["opponents"], "none", seeds, options)
        claims += [claim(env, chosen["rules"], error, chosen["opponents"],
                         play(env, chosen["rules"], error, seeds, options), theirs, options)
                   for error in options["errors"]]
    page = Path(options["page"] or Path(cfg.out) / "information.md")
    write_texts({page: merged(page, "What length predictions are worth", table_of(claims).markdown(), BEGIN)})
    figures = Path(options["figures"] or Path(cfg.out) / "learned.json")
    keep_claims(figures, claims, lambda one: one["kind"] != "information", first=True)
    return {"claims": rounded(claims), "page": str(page), "figures": str(figures)}
