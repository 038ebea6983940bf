"""CONTRIBUTING.md names functions with their files: each stands where the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAIRS = re.findall(r"`(\w+)`(?: and `\w+`)? in\s+`([\w/]+\.py)`", (ROOT / "CONTRIBUTING.md").read_text("utf-8"))


@pytest.mark.parametrize(("name", "file"), sorted(set(PAIRS)))
def test_a_name_stands_in_the_file_that_the_page_says(name: str, file: str) -> None:
    text = (ROOT / file).read_text("utf-8")
    assert re.search(rf"^\s*(def|class) {name}\b|^{name}\b.* = |\"{name}\"", text, re.M), f"{file} defines no {name}"


def test_the_page_has_its_walks() -> None:
    assert len(PAIRS) > 40
