"""Writes the leaderboard of `docs/suite.md` from `results/suite`; a test compares.

`python -m docs.generators.suite` writes it below the current folder.
"""

from __future__ import annotations

import json
from pathlib import Path

from agents.suite import tables_of

RESULTS, PAGE = Path("results") / "suite", Path("docs") / "suite.md"
BEGIN, END = "<!-- Table written by `python -m docs.generators.suite` from results/suite; a test compares it. -->", (
    "<!-- End of the table. -->")


def page(text: str, results: Path) -> str:
    """The page with the tables of all complete results; those that score nothing in any task are a sentence."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))]
    scored = [one for one in found if any(task["feasible"] for task in one["by_task"].values())]
    tables = "\n\n".join(f"### {one.title}\n\n{one.markdown()}" for one in tables_of(scored))
    zero = ", ".join(f"`{one['title']}`" for one in found if one not in scored)
    tables += f"\n\nThese score 0 in every task of their track (violation rate above 3 %): {zero}."
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{tables}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), RESULTS), encoding="utf-8")
