"""Published figures: every file is JSON that says nothing of the machine that made it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

FILES = sorted((Path(__file__).parents[1] / "results").rglob("*.json"))
TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')  # a string of JSON, its backslashes doubled


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_folder_of_a_machine_is_published(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert json.loads(text)
    found = [one for one in TEXT.findall(text)
             if one.startswith("/") or any(place in one for place in ("/home/", "/tmp/", ":\\\\"))]
    assert not found, f"{path.name} names folders of one machine: {found[:3]}"
