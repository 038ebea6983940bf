"""The table of `docs/reproduction.md` and `results/reproduction.json`, of what `ooco-gym figure` found.

`python -m docs.generators.reproduction F/summary.json` puts the figures of a run in the place of their earlier
verdicts; those that were not played stay.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from docs.generators.marked import merged
from experiments.figure import by_number
from ooco_gym.documents import read_json
from ooco_gym.files import write_json
from ooco_gym.report import Column, Table, number, with_interval

PAGE, FIGURES = Path("docs/reproduction.md"), Path("results/reproduction.json")
BEGIN = "<!-- figures: of ooco-gym figure, written by docs/generators/reproduction.py -->"


def body(figures: Sequence[Mapping[str, Any]]) -> str:
    """The marked part of `docs/reproduction.md`: counts, then a table for each paper (our own tables are claims)."""
    figures = [one for one in figures if one["paper"] != "This project"]
    counts = {verdict: sum(one["verdict"] == verdict for one in figures)
              for verdict in ("reproduced", "direction only", "not", "not comparable")}
    words = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    parts = [f"{len(figures)} figures and tables: {words}."]
    columns = (Column("figure", lambda one: f"`{one['name']}`", align="l"),
               Column("the paper states", "statement", align="l"),
               Column("simulated (95 %)", lambda one: "; ".join(map(_with_number, deciding(one))), align="l"),
               Column("verdict", lambda one: f"**{one['verdict']}**" + (f": {one['why']}" if one["why"] else ""),
                      align="l"))
    for paper in dict.fromkeys(one["paper"] for one in figures):
        parts += [f"## {paper}", Table.of(columns, [one for one in figures if one["paper"] == paper]).markdown()]
    return "\n\n".join(parts)


def deciding(figure: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The tests that have the figure's verdict; of one that is reproduced, or not comparable, the first. A test of the
    same thing as the one before it says what that is."""
    subject, tests = "", []
    for test in figure["tests"]:
        subject = test["what"].partition(" where ")[0].replace("the same", subject)
        tests.append({**test, "what": test["what"].replace("the same", subject)})
    if figure["verdict"] not in ("direction only", "not"):
        return tests[:1]
    return [test for test in tests if test["verdict"] == figure["verdict"]]


def _with_number(test: Mapping[str, Any]) -> str:
    return f"{test['what']}: {with_interval(test['ours'], test['ci_low'], test['ci_high'], number)}"


if __name__ == "__main__":
    earlier, found = (read_json(path)["figures"] for path in (FIGURES, Path(sys.argv[1])))
    every = sorted({one["name"]: one for one in [*earlier, *found]}.values(), key=lambda one: by_number(one["name"]))
    write_json(FIGURES, {"schema": "ooco-gym/reproduction/1", "figures": every})
    PAGE.write_text(merged(PAGE, body(every), BEGIN), encoding="utf-8")
