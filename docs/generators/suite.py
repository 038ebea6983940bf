"""Writes the leaderboard of `docs/suite.md` from `results/suite`; a test compares.

`python -m docs.generators.suite` writes it.
"""

from __future__ import annotations

import json

from agents.suite import tables_of
from docs.generators.pages import ROOT, filled, markdown

PAGE = ROOT / "docs" / "suite.md"
BEGIN = "<!-- Table written by `python -m docs.generators.suite` from results/suite; a test compares it. -->"


def body() -> str:
    """The tables of all complete results; those that score nothing in any task are a sentence. Tracks of version 1 have
    the same tasks in version 2."""
    files = sorted((ROOT / "results" / "suite").glob("v*/*.json"))
    found = [json.loads(path.read_text(encoding="utf-8")) for path in files]
    scored = [one for one in found if any(task["feasible"] for task in one["by_task"].values())]
    return markdown("suite", tables=tables_of(scored), zero=[one["title"] for one in found if one not in scored])


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE, BEGIN, body()), encoding="utf-8")
