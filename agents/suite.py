"""`ooco-gym suite`: ten frozen tasks, a result file, and a leaderboard (docs/suite.md).

A simulated policy runs whole windows; a network or a function takes the decisions of the track's environment. A
window's score is its offline service relative to the mean of the track's reference in the same task, or 0 if the task
breaks the violation limit. A track's result is the interquartile mean over its tasks with a stratified bootstrap, and
the probability that a window beats the reference's (Agarwal et al. 2021, arXiv 2108.13264).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agents.score.command import score
from agents.score.program import write_program
from agents.score.windows import scores
from ooco_gym.documents import read_json, read_mapping
from ooco_gym.errors import UserError, unknown
from ooco_gym.files import as_json, atomic_write, write_json
from ooco_gym.report import Table, percent
from ooco_gym.report.terminal import track
from ooco_gym.resources import conf_root, load_yaml
from ooco_gym.schema import plain, whole
from ooco_gym.version import __version__

SCHEMA, RESULT_FILE, TABLE_FILE = "ooco-gym/suite/1", "result.json", "leaderboard.md"
# Results of a suite by its name: here, and in a wheel.
OURS = (Path(__file__).parents[1] / "results" / "suite", conf_root() / "suite" / "results")


def main(cfg: Any) -> dict[str, Any]:
    """Runs the suite, or makes the leaderboard.

    Raises:
        UserError: an unknown action or task, a policy that cannot run, or a file that is no result.
    """
    config = plain(cfg)
    actions: dict[str, Any] = {"run": _run, "table": _table, "score": score, "program": write_program}
    if config["action"] not in actions:
        raise unknown("action of ooco-gym suite", config["action"], actions)
    return {"command": "suite", "action": config["action"], **actions[config["action"]](config, Path(config["out"]))}


# --- Running ----------------------------------------------------------------------------------------------------------
def _run(config: dict[str, Any], out: Path) -> dict[str, Any]:
    from agents.evaluation.suite import play, tasks_of  # with environments and players, which scores need not

    suite, policy = config["suite"], str(config["policy"] or "")
    if not policy:
        raise UserError("ooco-gym suite run needs a policy, such as policy=learned_gate or policy=my_rule.yaml")
    if config["task"] is not None:
        raise UserError(f"task={config['task']} is of suite score; suite run takes tasks={config['task']}")
    count = whole("windows", config["windows"] or suite["windows"], 1, int(suite["windows"]))
    tasks = tasks_of(config, policy)
    played, references = {}, {}
    workers, cache = int(config["workers"]), bool(config.get("cache"))
    for name in track(tasks, "simulating the suite"):
        reference = suite["tracks"][suite["tasks"][name]["track"]]["reference"]
        played[name] = play(suite, name, policy, count, workers, cache)
        references[name] = play(suite, name, reference, count, workers, cache)
    result = {"schema": SCHEMA, "suite": suite["name"], "suite_sha256": _digest(suite), "ooco_gym": __version__,
              "title": str(config["title"] or policy), "policy": policy,
              "complete": count == int(suite["windows"]) and config["tasks"] is None, "tasks": played,
              "references": references, **scores(suite, played, references)}
    write_json(out / RESULT_FILE, result)
    tables_of([result])[0].show()
    print(f"result: {out / RESULT_FILE}" + ("" if result["complete"] else "; only a part of the suite, so not on the "
                                                                          "leaderboard"))
    return {"result": RESULT_FILE, **{key: result[key] for key in ("title", "track", "iqm", "improvement", "complete")}}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


# --- The leaderboard --------------------------------------------------------------------------------------------------
def read_result(path: Path, suite: Mapping[str, Any]) -> dict[str, Any]:
    """Reads a result file of this suite.

    Raises:
        UserError: the file is no result, is of another suite, or has scores that do not follow from its windows.
    """
    result = read_mapping(path)
    if result.get("schema") != SCHEMA:
        raise UserError(f"'{path}' is no result of 'ooco-gym suite run' (schema {result.get('schema')}; expected "
                        f"{SCHEMA})")
    if result.get("suite_sha256") != _digest(suite):
        raise UserError(f"'{path}' is of suite {result.get('suite')}, whose tasks differ from suite {suite['name']} "
                        "here")
    try:
        said = as_json(scores(suite, result["tasks"], result["references"]))
        same = _nine_digits(said) == _nine_digits({key: result[key] for key in said})
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # missing entries, or no numbers
        same = False
    if not same:
        raise UserError(f"'{path}': its scores do not match its windows; it was edited")
    return result


def _nine_digits(value: Any) -> Any:
    return json.loads(json.dumps(value), parse_float=lambda text: f"{float(text):.9g}")


def _is_result(path: Path) -> bool:
    """Whether a file is a result; others may lie beside it, such as a run's summary."""
    value = read_json(path)
    return isinstance(value, dict) and value.get("schema") == SCHEMA and "suite_sha256" in value


def _table(config: dict[str, Any], out: Path) -> dict[str, Any]:
    ours = next((one for one in OURS if one.is_dir()), OURS[0]) / str(config["suite"]["name"])
    folders = [ours, *([Path(str(config["results"]))] if config["results"] else [])]
    found = [read_result(path, config["suite"]) for folder in folders for path in sorted(folder.rglob("*.json"))
             if path.parent == ours or _is_result(path)]
    whole_ones = [one for one in found if one["complete"]]
    if not whole_ones:
        raise UserError(f"no complete result lies in {', '.join(map(str, folders))}; 'ooco-gym suite run' makes one")
    tables, parts = tables_of(whole_ones), len(found) - len(whole_ones)
    for table in tables:
        table.show()
    with atomic_write(out / TABLE_FILE) as temporary:
        temporary.write_text("\n\n".join(f"## {one.title}\n\n{one.markdown()}" for one in tables) + "\n", "utf-8")
    print(f"leaderboard: {out / TABLE_FILE}" + (f"; {parts} parts of the suite left out" if parts else ""))
    return {"results": len(whole_ones), "table": TABLE_FILE}


def tables_of(results: Sequence[Mapping[str, Any]]) -> list[Table]:
    """The table of each track, the best first."""
    tables, played = [], {result["track"] for result in results}
    for name in [name for name in dict.fromkeys([*load_yaml("suite", "v2")["tracks"], *played]) if name in played]:
        rows = sorted((result for result in results if result["track"] == name), key=lambda one: -one["iqm"]["value"])
        tasks = list(rows[0]["by_task"])
        heads = ("policy", "IQM (95 %)", "better than the reference", *(task.partition("_")[2] for task in tasks))
        cells = [[row["title"], _estimate(row["iqm"]), _estimate(row["improvement"]),
                  *map(_cell, map(row["by_task"].get, tasks))] for row in rows]
        tables.append(Table(f"Track {name}", heads, cells))
    return tables


def _estimate(found: Mapping[str, float]) -> str:
    return f"{found['value']:.3f} [{found['ci_low']:.3f}, {found['ci_high']:.3f}]"


def _cell(task: Mapping[str, Any] | None) -> str:
    if task is None:
        return "–"
    return f"{task['score']:.2f}" if task["feasible"] else f"0 ({percent(task['violation_rate'], 0)} violations)"
