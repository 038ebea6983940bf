"""What a sweep leaves behind: a table of its points with their scores, `multirun.json`, one Parquet of all of it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ooco_gym.cli.task import BUG, MISTAKE, OK, Outcome
from ooco_gym.documents import SEAL, read_mapping
from ooco_gym.errors import UserError
from ooco_gym.files import atomic_write, write_json
from ooco_gym.report import Table

POINTS_FILE = "points.parquet"
STATUS = {OK: "done", MISTAKE: "refused", BUG: "failed"}
MOST_SCORES = 5  # columns of the table
RESULT = "result."  # before the summary's columns in the Parquet file
# What of a summary is a point's score; of other commands, the first figures that they sum up.
SCORES = {
    "simulate": ("online.violation_rate", "online.ttft_p99_s", "online.tpot_p99_s", "offline.output_tokens_per_s",
                 "offline.reference_gpu_s_per_s"),
    "train": ("best.reward", "best.offline_reference_gpu_s_per_s", "best.violation_rate", "timesteps", "stopped_by"),
}


def write_index(command: str, swept: Sequence[str], folder: Path, outcomes: Sequence[Outcome]) -> None:
    """Prints the table of a sweep's points and writes `multirun.json` and `points.parquet` to its folder.

    Args:
        command: what was swept.
        swept: the keys that were.
        folder: the sweep's.
        outcomes: how each point ended, in their order.
    """
    points = [_point(outcome) for outcome in outcomes]
    scores = _scores(command, points)
    jobs, rows = [], []
    for number, (outcome, (config, summary)) in enumerate(zip(outcomes, points, strict=True)):
        figures = {name: summary.get(name) for name in scores}
        name, status = Path(outcome.out).name, STATUS[outcome.code]
        error = outcome.error.strip().splitlines()[-1] if outcome.error else None
        jobs.append({"job": name, "out": os.path.relpath(outcome.out, folder), "status": status, "error": error,
                     "kept": outcome.kept, "scores": figures})
        said = f"{status}, was there" if outcome.kept else status
        if name == str(number):  # folders by number do not say what is swept
            name = ", ".join(f"{key}={_shown(config.get(key))}" for key in swept) or name
        rows.append((name, *(_shown(figures[one]) for one in scores), said))
    Table("", ("point", *scores, "result"), rows, align="l").show()
    write_json(folder / "multirun.json", {"schema": "ooco-gym/multirun/1", "command": command, "swept": list(swept),
                                          "jobs": jobs})
    _write_points(folder, outcomes, points)


def _point(outcome: Outcome) -> tuple[dict[str, Any], dict[str, Any]]:
    """(Configuration, summary) of a point, by dotted keys; empty where it has none."""
    return _flat(_read(outcome, "config.yaml")), _flat(_read(outcome, "summary.json"))


def _read(outcome: Outcome, name: str) -> Any:
    if outcome.code != OK:
        return {}
    try:
        return {key: value for key, value in read_mapping(Path(outcome.out, name)).items() if key != SEAL}
    except UserError:
        return {}


def _flat(value: Any, key: str = "") -> dict[str, Any]:
    """Nested mappings by dotted keys; what else is no plain value becomes JSON text."""
    if isinstance(value, Mapping):
        found: dict[str, Any] = {}
        for name, item in value.items():
            found |= _flat(item, f"{key}.{name}" if key else str(name))
        return found
    return {key: value if value is None or isinstance(value, (str, int, float)) else json.dumps(value, default=str)}


def _scores(command: str, points: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> list[str]:
    """The figures of a summary that the table shows."""
    there = [summary for _, summary in points if summary]
    if command in SCORES:
        return [name for name in SCORES[command] if any(name in summary for summary in there)]
    figures = [name for summary in there[:1] for name, value in summary.items()
               if isinstance(value, (int, float)) and not isinstance(value, bool) and "." not in name]
    return [name for name in figures if name not in ("wall_s", "seed", "pid")][:MOST_SCORES]


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _write_points(folder: Path, outcomes: Sequence[Outcome],
                  points: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> None:
    """One row a point: its number, folder and status, the configuration, and under `result.` its summary."""
    import pyarrow as pa
    from pyarrow import parquet

    rows = [{"point": number, "folder": os.path.relpath(outcome.out, folder), "status": STATUS[outcome.code],
             **config, **{f"{RESULT}{key}": value for key, value in summary.items()}}
            for number, (outcome, (config, summary)) in enumerate(zip(outcomes, points, strict=True))]
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: _column([row.get(name) for row in rows]) for name in names}
    with atomic_write(folder / POINTS_FILE) as temporary:
        parquet.write_table(pa.table(columns), temporary, write_page_checksum=True)


def _column(values: Sequence[Any]) -> list[Any]:
    """Values of one kind: whole numbers become fractions beside such, everything becomes text beside text."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) <= 1:
        return list(values)
    kind = float if kinds == {int, float} else str
    return [None if value is None else kind(value) for value in values]
