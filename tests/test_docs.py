"""The documentation: every page is reached, the site is built without a warning, and the glossary's words are used."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"


def pages_of(nav: object) -> list[str]:
    """The pages of a part of the navigation."""
    if isinstance(nav, str):
        return [nav]
    values = nav.values() if isinstance(nav, dict) else nav
    return [page for value in values for page in pages_of(value)]  # type: ignore[union-attr]


def test_every_page_is_in_the_navigation() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert sorted(pages_of(config["nav"])) == sorted(
        path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


@pytest.mark.slow
def test_the_site_is_built_strictly_and_fetches_nothing(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    built = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
                           cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr[-2000:]
    for page in tmp_path.rglob("*.html"):
        fetched = re.findall(r'<(?:script|img|link|iframe)[^>]*(?:src|href)="(https?:[^"]*)"',
                             page.read_text(encoding="utf-8"))
        assert not fetched, page.name


def test_data_beside_pages_is_in_results() -> None:
    assert not list(DOCS.rglob("*.json"))
