"""Draws where in the cluster an environment's decisions are taken: SVG text, the same bytes for the same code.

`cluster.svg` beside this file is the scheme of the cluster, `engine.svg` that of a mixed instance. Of the first the
groups `many` and `one` show pools of several instances or of one, its group `knobs` shows the base policy's parameters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from ooco_gym.envs.decision import BASE, kinds

WIDTH, HEIGHT, LINE = 860, 344, 20  # of the scheme, and of a row below it
ASKED = "#D55E00"
ENGINES = {"batch", "admit", "target", "reclaim"}  # decisions of mixed instances, whose scheme is another one


def picture(title: str, decisions: Sequence[str]) -> str:
    """The scheme of a co-located cluster with a mark where each of the given decisions is taken, and their actions.

    Args:
        title: above the picture.
        decisions: names of their kinds.
    """
    rows, several = _key(decisions), len(decisions) > 1
    drawn = "engine.svg" if set(decisions) <= ENGINES else "cluster.svg"
    scheme = Path(__file__).with_name(drawn).read_text(encoding="utf-8")
    for group, shown in (("many", "route" in decisions), ("one", "route" not in decisions),
                         ("knobs", "control" in decisions)):
        scheme = re.sub(rf'<g id="{group}">\n(.*?)</g>\n', r"\1" if shown else "", scheme, flags=re.DOTALL)
    scheme = scheme.replace("HEIGHT", str(HEIGHT + LINE * len(rows) + 8)).removesuffix("</svg>\n")
    marks = [_disc(x, y, str(number) if several else "?") for number, name in enumerate(decisions, start=1)
             for x, y in kinds()[name].marks]
    below = [_row(HEIGHT + LINE * index, *row) for index, row in enumerate(rows)]
    return scheme + "\n".join([_text(16, 26, title, 'font-size="15" font-weight="bold"'), *marks, *below, "</svg>", ""])


def _key(decisions: Sequence[str]) -> list[tuple[str, str, bool]]:
    """Rows below the picture: (mark, text, whether it is the question)."""
    rows: list[tuple[str, str, bool]] = []
    for number, kind in enumerate((kinds()[name] for name in decisions), start=1):
        rows.append((str(number) if len(decisions) > 1 else "?", kind.question, True))
        if len(decisions) == 1 and kind.take:
            rows += [("0", kind.no, False), ("1", BASE, False),
                     ("2 + k", f"{kind.take} (k: {kind.candidates})", False)]
    return rows


def _row(y: float, mark: str, words: str, question: bool) -> str:
    if question:
        return _disc(28, y - 4, mark) + _text(44, y, words, 'font-weight="bold"')
    return _text(44, y, mark, 'font-weight="bold"', ASKED) + _text(92, y, words)


def _disc(x: float, y: float, label: str) -> str:
    return (f'<circle cx="{x:g}" cy="{y:g}" r="10" fill="{ASKED}" stroke="#fff" stroke-width="1.5"/>'
            + _text(x, y + 4.5, label, 'text-anchor="middle" font-weight="bold"', "#fff"))


def _text(x: float, y: float, words: str, look: str = "", fill: str = "#222") -> str:
    return f'<text x="{x:g}" y="{y:g}" fill="{fill}"{look and " " + look}>{escape(words)}</text>'
