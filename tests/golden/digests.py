"""Digests of values, the files that hold them, and how two sets differ."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FOLDER = HERE / "digests"  # one JSON file for each group
LENGTH = 12  # hexadecimal digits of a SHA-256 that are kept
Digests = dict[str, dict[str, str]]  # by case (a run, an episode, a page), then by part (a column, a key)


def digest(value: Any) -> str:
    """The digest of a value: an array, text, bytes, or what JSON can hold.

    Booleans enter as bytes, integers as int64, floats as they are.
    """
    if isinstance(value, (bytes, str)):
        data = value.encode() if isinstance(value, str) else value
    elif isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        data = str(value.shape).encode() + array_bytes(value)
    else:
        data = json.dumps(plain(value), sort_keys=True, allow_nan=True).encode()
    return hashlib.sha256(data).hexdigest()[:LENGTH]


def array_bytes(array: np.ndarray) -> bytes:
    """An array of numbers as bytes that do not depend on the machine."""
    if array.dtype.kind == "b":
        return array.astype(np.uint8).tobytes()
    if array.dtype.kind in "iu":
        return array.astype("<i8").tobytes()
    return array.astype(f"<f{array.dtype.itemsize}").tobytes()


def plain(value: Any) -> Any:
    """A value as JSON can hold it."""
    if isinstance(value, (np.ndarray, np.generic)):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value


def group_file(group: str) -> Path:
    return FOLDER / f"{group}.json"


def read(group: str) -> dict[str, Any]:
    """A group's file: `recorded` (from which commit and why, newest last) and `digests`."""
    path = group_file(group)
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"recorded": [], "digests": {}}


def write(group: str, digests: Digests, recorded: list[dict[str, str]]) -> None:
    """Writes a group's file, a case a line."""
    FOLDER.mkdir(exist_ok=True)
    cases = ",\n".join(f"  {json.dumps(case)}: {json.dumps(parts)}" for case, parts in sorted(digests.items()))
    text = f'{{"recorded": {json.dumps(recorded, indent=1)},\n"digests": {{\n{cases}\n}}}}\n'
    group_file(group).write_text(text, encoding="utf-8")


def count(digests: Digests) -> int:
    """How many digests a group has."""
    return sum(len(parts) for parts in digests.values())


def differences(expected: Digests, got: Digests) -> list[str]:
    """A line for each digest that differs, is missing, or is new."""
    lines = []
    for case in _both(expected, got):
        one, other = expected.get(case, {}), got.get(case, {})
        for part in _both(one, other):
            if one.get(part) != other.get(part):
                lines.append(f"{case} · {part}: expected {one.get(part, 'nothing')}, got {other.get(part, 'nothing')}")
    return lines


def _both(one: Iterable[str], other: Iterable[str]) -> list[str]:
    return list(dict.fromkeys([*one, *other]))
