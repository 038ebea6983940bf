"""`ooco-gym zoo ship=true`: exports the best run of each environment into the package, and writes its card."""

from __future__ import annotations

import contextlib
import io
import math
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agents.environments import split_seeds, windows
from agents.evaluation import scoring
from agents.evaluation.heuristics import play_heuristic
from agents.evaluation.players import SEEDS, load_learned, play, runs_of
from agents.evaluation.tables import under_shift
from agents.learning.algorithms import recipe_of
from agents.learning.runs import SUMMARY_FILE, read_config
from agents.settings import plain
from ooco_gym.again import command_line
from ooco_gym.documents import read_json, read_mapping, read_yaml
from ooco_gym.errors import UserError, nearest
from ooco_gym.files import atomic_write, write_json
from ooco_gym.report import Table, as_text, with_interval
from ooco_gym.version import __version__
from ooco_gym.zoo import CARD_FILE, CARD_SCHEMA

CARD_TEXT = "card.md"
CHECKS = 1000  # random observations on which graph and trained policy must agree
_INTERVAL = ("mean", "ci_low", "ci_high")
_OF_TABLE = ("best_tuned", "learned_minus_best_tuned", "learned_minus_best_tuned_reward", "share_of_gap_closed",
             "clairvoyant_minus_best_tuned", "no_headroom", "verdict", "n_seeds", "n_windows", "window_s", "warmup_s")


def ship(config: Mapping[str, Any], entries: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Puts the best run on validation of each environment that `zoo` has into the package, or the folder `into`.

    Raises:
        UserError: no zoo or table, an environment that one of them lacks, or a run that does not export.
    """
    import ooco_gym.zoo

    zoo, table = Path(str(config.get("zoo"))), _table(config.get("table"))
    if not zoo.is_dir():
        raise UserError(f"zoo={config.get('zoo')} does not exist; expected the 'out' of 'ooco-gym zoo'")
    if config.get("into") and Path(config["into"]).is_file():
        raise UserError(f"into={config['into']} is a file; expected the folder that gets one folder a policy")
    into = Path(config["into"]) if config.get("into") else Path(ooco_gym.zoo.__file__).parent
    there = [env for env in entries if config.get("envs") is not None or any((zoo / env).glob(SEEDS))]
    measured = {env: _of_table(table, env) for env in there}  # all of them, before the first is exported
    made = read_yaml(zoo / "config.yaml") if (zoo / "config.yaml").is_file() else config
    shipped = {str(entries[env]["name"]): shipped_one(env, entries[env], zoo / env, one, into / entries[env]["name"],
                                                      made) for env, one in measured.items()}
    if not shipped:
        raise UserError(f"zoo={zoo} has none of the environments {', '.join(entries)}; expected the 'out' of "
                        "'ooco-gym zoo'")
    return {"command": "zoo", "ship": True, "into": str(into), "policies": shipped}


def _table(path: Any) -> dict[str, Any]:
    if path is None:
        raise UserError("ship=true needs table=FILE: the learned_table.json of 'ooco-gym evaluate "
                        "+preset=learned_table zoo=ZOO'")
    table = read_json(str(path), f"table={path}", "; expected the learned_table.json of 'ooco-gym evaluate "
                                                  "+preset=learned_table zoo=ZOO'")
    if not isinstance(table, dict) or not isinstance(table.get("environments"), dict):
        raise UserError(f"table={path} has no 'environments'; expected the learned_table.json of 'ooco-gym evaluate "
                        "+preset=learned_table zoo=ZOO'")
    return table


def _of_table(table: Mapping[str, Any], env: str) -> dict[str, Any]:
    for key, one in table["environments"].items():
        if env in (key, one.get("name")) or key.lower() == f"ooco_gym/{env}-v0":
            return one
    raise UserError(f"the table has no environment '{env}'{nearest(env, table['environments'])}; measure it first: "
                    "ooco-gym evaluate +preset=learned_table zoo=ZOO")


def best_run(folder: Path) -> tuple[Path, dict[str, Any], dict[str, dict[str, Any]]]:
    """The run that was best on validation (`scoring.feasible_first`, by reward).

    Returns:
        (its folder, its validation, those of all complete runs).

    Raises:
        UserError: no run is complete.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, path in runs_of(folder).items():
        if (Path(path) / SUMMARY_FILE).is_file():
            summary = read_mapping(Path(path) / SUMMARY_FILE)
            if summary.get("best"):
                found[name] = {**summary["best"], "folder": path,
                               "limit": read_config(Path(path))["validation"]["violation_limit"]}
    if not found:
        raise UserError(f"'{folder}' has no complete run with a validation; expected seed_<n> of 'ooco-gym zoo'")

    best = max(found, key=lambda name: scoring.feasible_first(found[name]["violation_rate"], found[name]["reward"],
                                                      found[name]["limit"]))
    shown = {name: {key: one[key] for key in ("reward", "violation_rate", "windows", "timesteps") if key in one}
            for name, one in found.items()}
    return Path(found[best]["folder"]), shown[best], shown


def shipped_one(env: str, entry: Mapping[str, Any], runs: Path, measured: Mapping[str, Any], folder: Path,
                made: Mapping[str, Any]) -> dict[str, Any]:
    """Exports one policy with its card; the folder is replaced when all of it is there. `made` configured the zoo.

    Returns what the summary says of it.
    """
    from agents.learning import export

    run, validation, all_runs = best_run(runs)
    _check_same_runs(env, all_runs, measured)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
        new = Path(temporary) / folder.name
        with contextlib.redirect_stdout(io.StringIO()):
            exported = export.main({"policy": str(run), "out": str(new), "checks": CHECKS, "seed": 1,
                                    "forms": ["onnx", "npz"], "name": entry["name"]})
        card = card_of(entry, env, read_config(run), measured, {
            "run": run.name, "chosen_by": "reward on validation windows, among the feasible", "validation": validation,
            "validation_of_all": all_runs}, scores_of(new, read_config(run), measured),
            shifts_of(new, read_config(run), measured), exported, made)
        write_json(new / CARD_FILE, card)
        with atomic_write(new / CARD_TEXT) as text:
            text.write_text(markdown(card), encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        new.rename(folder)
    scores = card["scores"]
    print(f"{entry['name']}: {run.name}, {exported['bytes']:,} bytes, {exported['action_agreement']:.2%} of "
          f"{exported['checks']:,} actions agree with the trained policy; {folder}")
    return {"run": run.name, "bytes": exported["bytes"], "service": scores["this_policy"]["service"],
            "violation_rate": scores["this_policy"]["violation_rate"], "verdict": scores["verdict"],
            "not_for": card["not_for"]}


def _check_same_runs(env: str, runs: Mapping[str, Any], measured: Mapping[str, Any]) -> None:
    """Refuses a table that was made of other training runs than the zoo has."""
    of_table = {one["run"] for one in measured.get("each_run") or []} or None
    if of_table is not None and of_table != set(runs):
        raise UserError(f"the table's runs of {env} are {', '.join(sorted(of_table))}, the zoo's "
                        f"{', '.join(sorted(runs))}; make the table of this zoo: ooco-gym evaluate "
                        "+preset=learned_table zoo=ZOO")


def scores_of(bundle: Path, config: Mapping[str, Any], measured: Mapping[str, Any]) -> dict[str, Any]:
    """What the exported policy itself scores on the table's windows: service and violations with intervals."""
    env = _as_measured(config, measured)
    games = windows(split_seeds(env, "test"), int(measured["n_windows"]))
    records = play(env, load_learned(str(bundle)).player(bundle.name), games)
    service, violations = (dict(zip(_INTERVAL, scoring.mean_interval(scoring.grid(records, metric)), strict=True))
                           for metric in (scoring.HEADLINE, "violation_rate"))
    return {"service": service, "violation_rate": {**violations, "upper_limit": scoring.upper_violation_limit(records)},
            "n_windows": len(games)}


def _as_measured(config: Mapping[str, Any], measured: Mapping[str, Any]) -> dict[str, Any]:
    """The environment of the training, with the table's windows."""
    return {**plain(config["env"]), **{key: measured[key] for key in ("window_s", "warmup_s")}}


def shifts_of(bundle: Path, config: Mapping[str, Any], measured: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What each distribution shift of the table does to the exported policy itself, beside the best heuristic."""
    found = []
    for one in measured.get("shifts") or []:
        env = {**_as_measured(config, measured), "shift": one["shift"]}
        games = windows(split_seeds(env, "test"), int(one["n_windows"]))
        mine = play(env, load_learned(str(bundle)).player(bundle.name), games)
        other = play_heuristic(env, measured["best_tuned"], games)
        found.append({"shift": one["shift"], "n_windows": len(games),
                      **under_shift(one["shift"], mine, other, measured["best_tuned"]),
                      "service": dict(zip(_INTERVAL, scoring.mean_interval(scoring.grid(mine, scoring.HEADLINE)),
                                          strict=True)),
                      "all_seeds": {key: one.get(key) for key in ("holds_budget", "behind", "words")}})
    return found


def card_of(entry: Mapping[str, Any], env: str, config: Mapping[str, Any], measured: Mapping[str, Any],
            choice: Mapping[str, Any], own: Mapping[str, Any], shifts: Sequence[Mapping[str, Any]],
            exported: Mapping[str, Any], made: Mapping[str, Any]) -> dict[str, Any]:
    """The card: everything that one should know before using a policy."""
    rows = {row["policy"]: row for row in measured["rows"]}
    kinds = {row["kind"]: row for row in measured["rows"]}
    learned, imitates = kinds.get("learned", {}), plain(config["agent"].get("imitate") or {}).get("rule")
    seeds = sorted(int(run.rpartition("_")[2]) for run in choice["validation_of_all"])
    itself = next((one for one in measured.get("each_run") or [] if one["run"] == choice["run"]), None)
    upper = own["violation_rate"]["upper_limit"]
    doubts = [] if upper is not None and upper <= scoring.VIOLATION_LIMIT else [
        "Where the violation budget must hold: on its own held-out windows it is not shown to, at "
        f"{_figure(own['violation_rate'], '.2%')} (upper limit {as_text(upper, '.2%')}, budget "
        f"{scoring.VIOLATION_LIMIT:.0%})."]
    return {
        "schema": CARD_SCHEMA, "name": entry["name"], "environment": config["env"]["id"], "ooco_gym": __version__,
        "decides": exported["decisions"], "bytes": exported["bytes"],
        "data": {"scenario": config["env"]["scenario"], "partner": config["env"].get("partner"),
                 "training_seeds_of_windows": split_seeds(config["env"], "train"),
                 "validation_seeds_of_windows": split_seeds(config["env"], "validation"),
                 "test_seeds_of_windows": split_seeds(config["env"], "test"),
                 "training_window_s": config.get("window_s") or config["env"].get("window_s")},
        "training": {"agent": recipe_of(config["agent"]), "imitates": imitates, "decisions": config["total_timesteps"],
                     "seeds": seeds, **choice},
        "scores": {"this_policy": own,
                   "by_itself": itself,
                   "all_seeds": {key: learned[key] for key in ("service", "violation_rate", "reward")
                                 if key in learned},
                   "heuristics": {name: {key: row[key] for key in ("service", "violation_rate", "feasible")}
                                  for name, row in rows.items() if row["kind"] in ("heuristic", "tuned")},
                   **{key: measured.get(key) for key in _OF_TABLE}},
        "plays_as": _alike(own, measured["rows"]), "shifts": list(shifts),
        "not_for": doubts + [one["words"] for one in shifts if not one["holds_budget"] or one["behind"]],
        "tried": list(entry.get("tried") or []),
        "reproduce": [command_line("zoo", {**made, **dict.fromkeys(("zoo", "table", "into")), "ship": False,
                                           "envs": [env], "seeds": seeds}, "ZOO"),
                      "ooco-gym evaluate +preset=learned_table zoo=ZOO out=TABLE",
                      f"ooco-gym zoo ship=true envs=[{env}] zoo=ZOO table=TABLE/learned_table.json"],
    }


def _alike(own: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The heuristics that serve and miss just as much: in so many windows, what decides as the policy does."""
    return [row["policy"] for row in rows if row["kind"] in ("heuristic", "tuned") and all(
        row[key]["mean"] is not None and math.isclose(row[key]["mean"], own[key]["mean"], rel_tol=1e-12, abs_tol=1e-15)
        for key in ("service", "violation_rate"))]


def markdown(card: Mapping[str, Any]) -> str:
    """The card for people."""
    scores, training, data = card["scores"], card["training"], card["data"]
    gain, closed = scores["learned_minus_best_tuned"], scores["share_of_gap_closed"]
    start = f"starts from a copy of `{_said(training['imitates'])}`" if training["imitates"] else "from random play"
    ranked = sorted(scores["heuristics"].items(), key=lambda pair: -(pair[1]["service"]["mean"] or 0.0))
    lines = [
        f"# {card['name']}", "",
        f"Decides {', '.join(card['decides'])} in `{card['environment']}`. Load it with "
        f"`ooco_gym.load_policy(\"{card['name']}\")`.", "",
        f"* **Data.** Windows of the environment's training seeds ({_span(data['training_seeds_of_windows'])}), of "
        f"{data['training_window_s']:g} s, with `{data['partner']}` as the partner. Test seeds "
        f"({_span(data['test_seeds_of_windows'])}) were never trained or chosen on.",
        f"* **Training.** `{training['agent']}`, {training['decisions']:,} decisions, {start}; "
        f"seeds {_span(training['seeds'])}. This is {training['run'].replace('_', ' ')}, the best by "
        f"{training['chosen_by']}, as it was after {training['validation']['timesteps']:,} decisions"
        f"{' (the copy itself)' if not training['validation']['timesteps'] and training['imitates'] else ''}.",
        f"* **Scores** on {scores['n_windows']} held-out windows of {scores['window_s']:g} s, with 95 % intervals.",
        ""]
    rows = [_row("this policy", scores["this_policy"])]
    if scores["all_seeds"]:
        seeds = f"all {scores['n_seeds']} training seeds" if scores["n_seeds"] > 1 else "its one training seed"
        rows.append(_row(seeds, scores["all_seeds"]))
    rows += [_row(f"`{name}`{' (best tuned)' if name == scores['best_tuned'] else ''}", row) for name, row in ranked]
    table = Table("", ["policy", "offline ref. GPU-s/s", "violations", "upper limit"], rows, align="l")
    lines += [table.markdown(), "",
              f"Learned (every seed) minus the best tuned heuristic, `{scores['best_tuned']}`: "
              f"{_figure(gain)} reference GPU-s/s: {scores['verdict']}."
              + (f" It closes {_figure(closed)} of the gap to the clairvoyant rollout." if closed else "")
              + (" The clairvoyant rollout itself shows no headroom here." if scores["no_headroom"] else "")]
    if scores["by_itself"]:
        own = scores["by_itself"]
        lines[-1] += f" This one by itself: {_figure(own['service_minus_best_tuned'])}: {own['verdict']}."
    if card["plays_as"]:
        lines += ["", "On these windows its figures are, to the last digit, those of "
                  + ", ".join(f"`{name}`" for name in card["plays_as"]) + ": it does what they do."]
    if card["shifts"]:
        lines += ["", "## Under other conditions", ""] + [f"* {one['words']}" for one in card["shifts"]]
    lines += ["", "## Where not to use it", "", *(f"* {one}" for one in card["not_for"]),
              "* On another cluster, workload or partner than above and beyond these shifts: nothing is known."]
    if card["tried"]:
        lines += ["", "## What was tried", "", *(f"* {one}" for one in card["tried"])]
    lines += ["", "## Make it anew", "", "```", *card["reproduce"], "```", ""]
    return "\n".join(lines)


def _row(name: str, row: Mapping[str, Any]) -> list[str]:
    limit = row["violation_rate"].get("upper_limit")
    return [name, _figure(row["service"]), _figure(row["violation_rate"], ".2%"), as_text(limit, ".2%")]


def _figure(figure: Mapping[str, Any] | None, spec: str = ".4g") -> str:
    return as_text(None) if figure is None else with_interval(*(figure[key] for key in _INTERVAL), form=spec)


def _span(seeds: Sequence[int]) -> str:
    """`1000 to 1015` of consecutive ones, else all of them."""
    listed = list(seeds)
    if len(listed) > 2 and listed == list(range(listed[0], listed[0] + len(listed))):
        return f"{listed[0]} to {listed[-1]}"
    return ", ".join(map(str, listed))


def _said(rule: Any) -> str:
    return rule if isinstance(rule, str) else ", ".join(f"{key}: {value}" for key, value in rule.items())
