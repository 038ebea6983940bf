"""The table of `docs/reproduction.md` and `results/reproduction.json`, of what `ooco-gym figure` found.

`python -m docs.generators.reproduction F/summary.json` puts the figures of a run in the place of their earlier
verdicts; those that were not played stay.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from docs.generators.pages import filled, markdown
from experiments.figure import VERDICTS, by_number
from ooco_gym.documents import read_json
from ooco_gym.files import write_json
from ooco_gym.report import number

PAGE, FIGURES = Path("docs/reproduction.md"), Path("results/reproduction.json")
BEGIN = "<!-- figures: of ooco-gym figure, written by docs/generators/reproduction.py -->"


def body(figures: Sequence[Mapping[str, Any]]) -> str:
    """The marked part of `docs/reproduction.md`; our own tables are claims."""
    figures = [one for one in figures if one["paper"] != "This project"]
    counts = Counter(one["verdict"] for one in figures)
    words = [f"{counts[one]} {one}" for one in (*VERDICTS, "not comparable") if counts[one]]
    return markdown("reproduction", figures=figures, counts=words, deciding=deciding, number=number)


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


if __name__ == "__main__":
    earlier, found = (read_json(path)["figures"] for path in (FIGURES, Path(sys.argv[1])))
    every = sorted({one["name"]: one for one in [*earlier, *found]}.values(), key=lambda one: by_number(one["name"]))
    write_json(FIGURES, {"schema": "ooco-gym/reproduction/1", "figures": every})
    PAGE.write_text(filled(PAGE, BEGIN, body(every)), encoding="utf-8")
