"""Writes the table of `docs/learned.md` from `results/learned.json`; a test compares.

`python -m docs.generators.learned` writes it below the current folder. A row of `table` says which of the `claims` it
stands for, by the fields that only this one has.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from docs.generators.environments import table

RESULTS, PAGE = Path("results") / "learned.json", Path("docs") / "learned.md"
BEGIN = ("<!-- Table written by `python -m docs.generators.learned` from results/learned.json; a test compares it. "
         "-->")
END = "<!-- End of the table. -->"
_HEAD = ("decision", "policy", "method", "best tuned heuristic with the same information", "gain (95 %)",
         "held-out windows", "live engine", "where it fails")


def claim_of(row: Mapping[str, Any], results: Mapping[str, Any]) -> dict[str, Any] | None:
    """The claim that a row stands for; None where the search found nothing that was worth a test.

    Raises:
        ValueError: none, or several, are meant.
    """
    if row["claim"] is None:
        return None
    found = [one for one in results["claims"] if all(one.get(key) == value for key, value in row["claim"].items())]
    if len(found) != 1:
        raise ValueError(f"{len(found)} claims are {row['claim']}")
    return found[0]


def wins(claim: Mapping[str, Any] | None) -> bool:
    """Whether the interval over the opponent is clear of none."""
    return claim is not None and claim["ci_low"] > 0.0


def gain(claim: Mapping[str, Any]) -> str:
    """A claim in a reader's unit: per cent of service or of violations, or service itself where that was compared."""
    mean, low, high = (float(claim[key]) for key in ("mean", "ci_low", "ci_high"))
    if claim["unit"].startswith("log ratio of online violation"):
        return f"{1 - math.exp(-mean):.1%} [{1 - math.exp(-low):.1%}, {1 - math.exp(-high):.1%}] fewer violations"
    if claim["unit"].startswith("log ratio"):
        return f"{math.expm1(mean):+.1%} [{math.expm1(low):+.1%}, {math.expm1(high):+.1%}]"
    return f"{mean:+.4f} [{low:+.4f}, {high:+.4f}] of {claim['opponent_service']:.4g} reference GPU-s/s"


def rows(results: Mapping[str, Any]) -> str:
    """The table."""
    lines = []
    for row in results["table"]:
        claim, name = claim_of(row, results), f"`{row['policy']}`" if row["policy"] else "–"
        opponent = "–" if claim is None else f"`{str(claim['opponent']).partition(':')[0]}`"
        held, gained = "none played", "none found"
        if claim is not None:
            held, gained = f"{row['conditions']}; {claim['n_windows']} of {claim['window_s']:g} s", gain(claim)
        lines.append([row["decision"], name, row["method"], opponent, gained, held,
                      "yes" if row["live_engine"] else "no", row["fails"]])
    return table(_HEAD, lines)


def page(text: str, results: Mapping[str, Any]) -> str:
    """The page with its table as the results have it."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{rows(results)}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), json.loads(RESULTS.read_text(encoding="utf-8"))),
                    encoding="utf-8")
