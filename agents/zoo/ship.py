"""`ooco-gym zoo ship=true`: exports the best run of each environment into the package, and writes its card."""

from __future__ import annotations

import contextlib
import io
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agents.environments import make_env, split_seeds
from agents.evaluation import evaluate, scoring
from agents.evaluation.heuristics import heuristics_of
from agents.evaluation.players import SEEDS, runs_of
from agents.learning.algorithms import recipe_of
from agents.learning.runs import SUMMARY_FILE, read_config
from agents.search.tune import POLICY_FILE, read_tuned
from agents.settings import plain, whole
from ooco_gym.again import command_line
from ooco_gym.documents import read_mapping, read_yaml
from ooco_gym.errors import UserError
from ooco_gym.files import write_json
from ooco_gym.report import Table, as_text, with_interval
from ooco_gym.version import __version__
from ooco_gym.zoo import CARD_FILE, CARD_SCHEMA

_INTERVAL = ("mean", "ci_low", "ci_high")


def ship(config: Mapping[str, Any], entries: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Puts the best run on validation of each environment that `zoo` has into the package, or the folder `into`.

    Raises:
        UserError: no zoo, an environment that it lacks, or a run that does not export.
    """
    import ooco_gym.zoo

    zoo, into = Path(str(config.get("zoo"))), Path(config.get("into") or Path(ooco_gym.zoo.__file__).parent)
    if not zoo.is_dir():
        raise UserError(f"zoo={config.get('zoo')} does not exist; expected the 'out' of 'ooco-gym zoo'")
    if into.is_file():
        raise UserError(f"into={into} is a file; expected the folder that gets one folder a policy")
    made = read_yaml(zoo / "config.yaml") if (zoo / "config.yaml").is_file() else config
    how = {key: whole(config, key, 1) for key in ("episodes", "workers")}
    into.mkdir(parents=True, exist_ok=True)
    shipped = {str(entry["name"]): shipped_one(env, entry, zoo / env, into / entry["name"], made, how)
               for env, entry in entries.items() if config.get("envs") is not None or any((zoo / env).glob(SEEDS))}
    if not shipped:
        raise UserError(f"zoo={zoo} has none of the environments {', '.join(entries)}; expected the 'out' of "
                        "'ooco-gym zoo'")
    return {"command": "zoo", "ship": True, "into": str(into), "policies": shipped}


def best_run(folder: Path) -> tuple[Path, dict[str, Any], dict[str, dict[str, Any]]]:
    """The run that was best on validation (`scoring.feasible_first`, by reward): its folder, its validation, and those
    of all complete runs.

    Raises:
        UserError: no run is complete.
    """
    found: dict[str, dict[str, Any]] = {}
    ranks: dict[str, tuple[bool, float]] = {}
    runs = runs_of(folder)
    for name, path in runs.items():
        summary = read_mapping(Path(path) / SUMMARY_FILE) if (Path(path) / SUMMARY_FILE).is_file() else {}
        if best := summary.get("best"):
            found[name] = {key: best.get(key) for key in ("reward", "violation_rate", "windows", "timesteps")}
            ranks[name] = scoring.feasible_first(best["violation_rate"], best["reward"],
                                                 read_config(Path(path))["validation"]["violation_limit"])
    if not found:
        raise UserError(f"'{folder}' has no complete run with a validation; expected seed_<n> of 'ooco-gym zoo'")
    best = max(found, key=lambda name: ranks[name])
    return Path(runs[best]), found[best], found


def shipped_one(env: str, entry: Mapping[str, Any], runs: Path, folder: Path, made: Mapping[str, Any],
                how: Mapping[str, int]) -> dict[str, Any]:
    """Exports one policy with its card, for which `evaluate` plays it beside all training runs, every heuristic and
    what was tuned, under each distribution shift; the folder is replaced when all of it is there."""
    from agents.learning import export

    run, validation, all_runs = best_run(runs)
    config = read_config(run)
    tuned = [read_tuned(path)["policy"] for path in sorted(runs.glob(f"tuned/*/{POLICY_FILE}"))]
    with contextlib.closing(make_env(config["env"])) as inside:
        heuristics = [one.name for one in heuristics_of(inside.unwrapped, None)]
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
        new = Path(temporary) / folder.name
        with contextlib.redirect_stdout(io.StringIO()):
            exported = export.main({"policy": str(run), "out": str(new), "checks": 1000, "seed": 1,
                                    "forms": ["onnx", "npz"], "name": entry["name"]})
            played = evaluate.main({"env": plain(config["env"]), "policies": [str(new), str(runs), *dict.fromkeys(
                (*heuristics, *tuned))], "shift": "all", "out": str(Path(temporary) / "scores"), **how})
        card = card_of(entry, env, config, played.get("suites") or [played], exported, made, {
            "run": run.name, "chosen_by": "reward on validation windows, among the feasible", "validation": validation,
            "validation_of_all": all_runs})
        write_json(new / CARD_FILE, card)
        (new / "card.md").write_text(markdown(card), encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        new.rename(folder)
    print(f"{entry['name']}: {run.name}, {exported['bytes']:,} bytes, {exported['action_agreement']:.2%} of "
          f"{exported['checks']:,} actions agree with the trained policy; {folder}")
    own = card["scores"]["this_policy"]
    return {"run": run.name, "bytes": exported["bytes"], "service": own["service"],
            "violation_rate": own["violation_rate"], "verdict": card["scores"]["verdict"], "not_for": card["not_for"]}


# --- The card ---------------------------------------------------------------------------------------------------------
def card_of(entry: Mapping[str, Any], env: str, config: Mapping[str, Any], suites: Sequence[Mapping[str, Any]],
            exported: Mapping[str, Any], made: Mapping[str, Any], choice: Mapping[str, Any]) -> dict[str, Any]:
    """The card: everything that one should know before using a policy."""
    name, suite = str(entry["name"]), suites[0]
    rows = {one["policy"]: _figures(suite, one) for one in suite["policies"]}
    shifts = [_shift(name, one) for one in suites[1:]]
    own = rows.pop(name)
    upper = own["violation_rate"]["upper_limit"]
    doubts = [] if upper is not None and upper <= scoring.VIOLATION_LIMIT else [
        "Where the violation budget must hold: on its own held-out windows it is not shown to, at "
        f"{_figure(own['violation_rate'], '.2%')} (upper limit {as_text(upper, '.2%')}, budget "
        f"{scoring.VIOLATION_LIMIT:.0%})."]
    seeds = sorted(int(run.rpartition("_")[2]) for run in choice["validation_of_all"])
    return {
        "schema": CARD_SCHEMA, "name": name, "environment": config["env"]["id"], "ooco_gym": __version__,
        "decides": exported["decisions"], "bytes": exported["bytes"],
        "data": {"scenario": config["env"]["scenario"], "partner": config["env"].get("partner"),
                 **{f"{key}_seeds_of_windows": split_seeds(config["env"], split) for key, split in (
                     ("training", "train"), ("validation", "validation"), ("test", "test"))},
                 "training_window_s": config.get("window_s") or config["env"].get("window_s")},
        "training": {"agent": recipe_of(config["agent"]), "decisions": config["total_timesteps"], "seeds": seeds,
                     "imitates": plain(config["agent"].get("imitate") or {}).get("rule"), **choice},
        "scores": {"this_policy": own, "all_seeds": rows.pop(env, None), "heuristics": rows,
                   "best_heuristic": suite["reference"], **_difference(name, suite),
                   "n_windows": suite["episodes"], "window_s": config["env"].get("window_s")},
        "shifts": shifts, "tried": list(entry.get("tried") or []),
        "not_for": doubts + [one["words"] for one in shifts if not one["holds_budget"] or one["behind"]],
        "reproduce": [command_line("zoo", {**made, **dict.fromkeys(("zoo", "into")), "ship": False, "envs": [env],
                                           "seeds": seeds}, "ZOO"), f"ooco-gym zoo ship=true envs=[{env}] zoo=ZOO"],
    }


def _figures(suite: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    """Service and violations of one policy of a suite, with intervals."""
    rows = {row["metric"]: {key: row[key] for key in _INTERVAL} for row in suite["results"]
            if row["policy"] == entry["policy"]}
    return {"service": rows[scoring.HEADLINE], "feasible": entry["feasible"],
            "violation_rate": {**rows["violation_rate"], "upper_limit": entry["violation_upper_limit"]}}


def _difference(name: str, suite: Mapping[str, Any]) -> dict[str, Any]:
    """A policy's service less that of the suite's best heuristic, window by window, and the verdict."""
    row = next(one for one in suite["paired"] if (one["policy"], one["metric"]) == (name, scoring.HEADLINE))
    return {"minus_best_heuristic": {"mean": row["mean_difference"], **{key: row[key] for key in _INTERVAL[1:]}},
            "verdict": row["verdict"]}


def _shift(name: str, suite: Mapping[str, Any]) -> dict[str, Any]:
    """What a distribution shift does to a policy, and in words."""
    entry = next(one for one in suite["policies"] if one["policy"] == name)
    difference = _difference(name, suite)
    high = difference["minus_best_heuristic"]["ci_high"]
    behind = high is not None and high < 0.0
    words = f"Under '{suite['shift']}': {scoring.budget_words(entry, suite['results'], suite['violation_limit'])}"
    if behind:
        words += (f" It serves less than {suite['reference']}: "
                  f"{_figure(difference['minus_best_heuristic'], '+.4f')} reference GPU-s/s.")
    return {"shift": suite["shift"], "n_windows": suite["episodes"], "holds_budget": entry["feasible"],
            "behind": behind, "words": words, **_figures(suite, entry), **difference}


def markdown(card: Mapping[str, Any]) -> str:
    """The card for people."""
    scores, training, data = card["scores"], card["training"], card["data"]
    start = f"starts from a copy of `{_said(training['imitates'])}`" if training["imitates"] else "from random play"
    ranked = sorted(scores["heuristics"].items(), key=lambda pair: -(pair[1]["service"]["mean"] or 0.0))
    rows = [_row("this policy", scores["this_policy"])]
    rows += [_row(f"all {len(training['seeds'])} training seeds", scores["all_seeds"])] if scores["all_seeds"] else []
    rows += [_row(f"`{name}`{' (the best)' if name == scores['best_heuristic'] else ''}", row) for name, row in ranked]
    table = Table("", ["policy", "offline ref. GPU-s/s", "violations", "upper limit"], rows, align="l")
    lines = [
        f"# {card['name']}", "",
        f"Decides {', '.join(card['decides'])} in `{card['environment']}`. Load it with "
        f"`ooco_gym.load_policy(\"{card['name']}\")`.", "",
        f"* **Data.** Windows of the environment's training seeds ({_span(data['training_seeds_of_windows'])}), of "
        f"{data['training_window_s']:g} s, with `{data['partner']}` as the partner. Test seeds "
        f"({_span(data['test_seeds_of_windows'])}) were never trained or chosen on.",
        f"* **Training.** `{training['agent']}`, {training['decisions']:,} decisions, {start}; "
        f"seeds {_span(training['seeds'])}. This is {training['run'].replace('_', ' ')}, the best by "
        f"{training['chosen_by']}, as it was after {training['validation']['timesteps']:,} decisions.",
        f"* **Scores** on {scores['n_windows']} held-out windows of {scores['window_s']:g} s, with 95 % intervals.",
        "", table.markdown(), "",
        f"Less the best heuristic of these very windows, `{scores['best_heuristic']}`: "
        f"{_figure(scores['minus_best_heuristic'])} reference GPU-s/s: {scores['verdict']}."]
    if card["shifts"]:
        lines += ["", "## Under other conditions", ""] + [f"* {one['words']}" for one in card["shifts"]]
    lines += ["", "## Where not to use it", "", *(f"* {one}" for one in card["not_for"]),
              "* On another cluster, workload or partner than above and beyond these shifts: nothing is known."]
    if card["tried"]:
        lines += ["", "## What was tried", "", *(f"* {one}" for one in card["tried"])]
    return "\n".join([*lines, "", "## Make it anew", "", "```", *card["reproduce"], "```", ""])


def _row(name: str, row: Mapping[str, Any]) -> list[str]:
    return [name, _figure(row["service"]), _figure(row["violation_rate"], ".2%"),
            as_text(row["violation_rate"]["upper_limit"], ".2%")]


def _figure(figure: Mapping[str, Any], spec: str = ".4g") -> str:
    return with_interval(*(figure[key] for key in _INTERVAL), form=spec)


def _span(seeds: Sequence[int]) -> str:
    """`1000 to 1015` of consecutive ones, else all of them."""
    listed = list(seeds)
    if len(listed) > 2 and listed == list(range(listed[0], listed[0] + len(listed))):
        return f"{listed[0]} to {listed[-1]}"
    return ", ".join(map(str, listed))


def _said(rule: Any) -> str:
    return rule if isinstance(rule, str) else ", ".join(f"{key}: {value}" for key, value in rule.items())
