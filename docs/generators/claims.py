"""Writes the results of claims: `results/claims.json`, and a line for each claim in one of two pages.

Claims that anyone can play and that are explained in `docs/learned.md` stand there, all others in
`docs/results/index.md`. Those of the section *What is worth deciding* stand in it, each test in a row.

`python -m docs.generators.claims C/summary.json …` takes the runs of `ooco-gym claim name=… out=C`; without one it
writes the page anew from the figures on record. A claim that was not run on its two blocks has its earlier result.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from docs.generators.pages import filled, markdown
from experiments.claim import by_blocks, name_of
from experiments.figure import chosen, ours, ranges
from experiments.registry import CLAIMS as MODULE
from experiments.registry import Figure
from ooco_gym.documents import read_json
from ooco_gym.files import write_json

CLAIMS = Path("results/claims.json")
BEGIN = "<!-- {}: of experiments/papers/claims.py and results/claims.json, written by docs/generators/claims.py -->"
LEARNED = Path("docs/learned.md")
PAGES = {"claims": Path("docs/results/index.md"), "learned": LEARNED, "deciding": LEARNED}


def page_of(claim: Figure) -> str:
    """The page, of `PAGES`, that has the line of a claim."""
    if claim.page == "learned.md#what-is-worth-deciding":
        return "deciding"
    return "learned" if claim.page.startswith("learned.md") and not claim.data else "claims"


def body(which: str, played: Mapping[str, Mapping[str, Any]]) -> str:
    """The marked part of a page: claims that anyone can play, then those that name their data."""
    claims = [one for one in chosen("all", (MODULE,)) if page_of(one) == which]
    if which == "deciding":
        return markdown("deciding", claims=claims, played=played, name_of=name_of, ours=ours, ranges=ranges)
    return markdown("claims", claims=sorted(claims, key=lambda one: bool(one.data)), played=played, name_of=name_of,
                    by_blocks=by_blocks, beside={"claims": "results/", "learned": "learned.md"}[which])


if __name__ == "__main__":
    claims = [one for path in (CLAIMS, *map(Path, sys.argv[1:])) if path.is_file() for one in read_json(path)["claims"]]
    record = {one["name"]: one for one in claims}
    write_json(CLAIMS, {"schema": "ooco-gym/claim/1", "claims": [record[name] for name in sorted(record)]})
    for which, path in PAGES.items():
        path.write_text(filled(path, BEGIN.format(which), body(which, record)), encoding="utf-8")
