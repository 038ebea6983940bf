"""Published figures: every file is JSON that says nothing of the machine that made it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

FILES = sorted((Path(__file__).parents[1] / "results").rglob("*.json"))


def texts(value: Any) -> Iterator[str]:
    """All strings of a value, keys too."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield key
            yield from texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from texts(one)
    elif isinstance(value, str):
        yield value


def test_there_are_results() -> None:
    assert len(FILES) >= 10


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_folder_of_a_machine_is_published(path: Path) -> None:
    found = [text for text in texts(json.loads(path.read_text(encoding="utf-8")))
             if PurePosixPath(text).is_absolute() or "/home/" in text or "/tmp/" in text or ":\\" in text]
    assert not found, f"{path.name} names folders of one machine: {found[:3]}"
