"""What a section's figures are kept as: one JSON file beside the page, with the run and the data they come from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ooco_gym.errors import UserError
from ooco_gym.files import write_json

SCHEMA = "ooco-gym/validity/1"
FOLDER = "validity"
DIGITS = 6


def read(out: Path, name: str) -> dict[str, Any] | None:
    """The record of a section, or None where there is none.

    Raises:
        UserError: the file is no record.
    """
    path = out / FOLDER / f"{name}.json"
    if not path.is_file():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"'{path}' is not valid JSON ({error}); remove it to have the section measured anew") from error
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise UserError(f"'{path}' is no record of the validity page (schema {SCHEMA}); remove it")
    return record


def measured(name: str, figures: Mapping[str, Any], data: Mapping[str, str], run: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a section that was measured."""
    return {"schema": SCHEMA, "section": name, "run": dict(run), "data": dict(sorted(data.items())), "kept": None,
            "figures": short(figures)}


def kept(name: str, before: Mapping[str, Any] | None, reason: str, date: str) -> dict[str, Any]:
    """The record of a section that could not be measured: its last figures, and why they are not new."""
    same = dict(before) if before else {"schema": SCHEMA, "section": name, "run": None, "data": {}, "figures": None}
    return same | {"kept": {"date": date, "reason": reason}}


def write(out: Path, name: str, record: Mapping[str, Any]) -> None:
    """Writes a record."""
    write_json(out / FOLDER / f"{name}.json", record)


def short(value: Any) -> Any:
    """Figures to six digits, JSON-able, with text keys: more would only make differences of nothing."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, bool) or value is None or isinstance(value, (int, str)):
        return value
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if value == value and abs(value) != float("inf") else None
    if isinstance(value, Mapping):
        return {str(key): short(item) for key, item in value.items()}
    return [short(item) for item in value]
