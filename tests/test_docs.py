"""The documentation: every page is reached, the site is built without a warning, and the glossary's words are used."""

from __future__ import annotations

import json
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
FOLDERS = "ooco_gym|baselines|agents|experiments|conf|tests|docs|examples|results"
# Entry points; an example; what is there only beside vLLM (tests/oracle/test_in_vllm.py).
NOT_MODULES = ("ooco_gym.policies", "ooco_gym.commands", "baselines.shortest_first",
               "ooco_gym.runtime.vllm.OocoScheduler")


def pages_of(nav: object) -> list[str]:
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
    assert "<svg xmlns" in (tmp_path / "index.html").read_text(encoding="utf-8"), "the picture of the first page"
    for page in tmp_path.rglob("*.html"):
        fetched = re.findall(r'<(?:script|img|link|iframe)[^>]*(?:src|href)="(https?:[^"]*)"',
                             page.read_text(encoding="utf-8"))
        assert not fetched, page.name


def test_data_beside_pages_is_in_results() -> None:
    assert not list(DOCS.rglob("*.json"))


def glossary() -> list[tuple[str, list[str], Path]]:
    """Each term of the glossary with its identifiers and the place that it names."""
    rows = [line.strip("| ").split(" | ") for line in (DOCS / "glossary.md").read_text(encoding="utf-8").splitlines()
            if line.startswith("| ") and not line.startswith("| term")]
    found = [(row[0], row[-1].partition(" in ")) for row in rows]
    return [(term, re.findall(r"`([^`]+)`", names), ROOT / place.strip("`")) for term, (names, _, place) in found]


@pytest.mark.parametrize(("term", "names", "place"), glossary())
def test_every_term_of_the_glossary_is_used_where_it_says(term: str, names: list[str], place: Path) -> None:
    assert names and place.exists(), f"{term}: {place} is not there"
    files = [place] if place.is_file() else [path for path in place.rglob("*") if path.suffix in (".py", ".yaml")]
    code = "\n".join(path.read_text(encoding="utf-8") for path in files)
    for name in names:
        assert re.search(rf"\b{re.escape(name)}\b", code), f"{term}: {name} is not used in {place.relative_to(ROOT)}"


def test_every_path_that_a_page_names_is_there() -> None:
    missing = []
    for page in [*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        for path in re.findall(rf"`((?:{FOLDERS})/[\w./-]*)`", page.read_text(encoding="utf-8")):
            if not (ROOT / path).exists() and not re.search(r"-v\d$|NAME", path):
                missing.append(f"{page.relative_to(ROOT)}: {path}")
    assert not missing, "\n".join(missing)


def test_every_module_that_a_page_names_is_there() -> None:
    missing = []
    for page in [*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        for name in re.findall(r"\b((?:ooco_gym|baselines|agents|experiments)(?:\.\w+)+)",
                               page.read_text(encoding="utf-8")):
            if name in NOT_MODULES:
                continue
            try:
                pkgutil.resolve_name(name)
            except (ImportError, AttributeError):
                missing.append(f"{page.relative_to(ROOT)}: {name}")
    assert not missing, "\n".join(missing)


# --- Published figures: every file is JSON that says nothing of the machine that made it -----------------------------
FILES = sorted((Path(__file__).parents[1] / "results").rglob("*.json"))
TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')  # a string of JSON, its backslashes doubled


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_folder_of_a_machine_is_published(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert json.loads(text)
    found = [one for one in TEXT.findall(text)
             if one.startswith("/") or any(place in one for place in ("/home/", "/tmp/", ":\\\\"))]
    assert not found, f"{path.name} names folders of one machine: {found[:3]}"
