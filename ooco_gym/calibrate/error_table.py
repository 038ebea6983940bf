"""The page's table of errors: each operation and form, how far off its predictions are, and where the poor ones are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ooco_gym.report import Table, percent

POOR_MEDIAN, POOR_P90 = 0.10, 0.30  # relative errors above which a fit is called poor
FEW = 6  # points below which sizes are not told apart
ALIKE = 1.5  # ratio of the errors at both ends of the sizes below which neither is called worse


class ErrorRow(NamedTuple):
    """The relative errors of one form on one operation: their number, median and 90th percentile, and a comment."""

    operation: str
    form: str
    points: int
    median: float
    p90: float
    comment: str


def error_rows(panels: Sequence[Mapping[str, Any]]) -> list[ErrorRow]:
    """Errors of each operation under each form.

    Args:
        panels: each with `name`, `by` (what its size is), `size` and `seconds` (measured), float64[n], and `predicted`,
            seconds by form, float64[n].
    """
    rows = []
    for panel in panels:
        for form, predicted in panel["predicted"].items():
            signed = predicted / panel["seconds"] - 1.0
            median, p90 = (float(np.quantile(np.abs(signed), share)) for share in (0.5, 0.9))
            poor = median > POOR_MEDIAN or p90 > POOR_P90
            rows.append(ErrorRow(panel["name"], form, len(signed), median, p90,
                                 _comment(signed, panel["size"], panel["by"]) if poor else ""))
    return rows


def _comment(signed: np.ndarray, size: np.ndarray, by: str) -> str:
    """Where a poor fit is wrong: its tendency over the smallest and the largest third of sizes, and which is worse."""
    text = f"poor: {percent(float(np.median(signed)), 1, '+')} in the median"
    low, high = np.quantile(size, [1 / 3, 2 / 3])
    if len(signed) < FEW or low >= high:
        return text
    ends = [signed[size <= low], signed[size >= high]]
    small, large = (float(np.median(np.abs(end))) for end in ends)
    worst = ("scattered at all sizes" if max(small, large) < ALIKE * min(small, large)
             else f"worst at {'small' if small > large else 'large'} sizes")
    tendency = [percent(float(np.median(end)), 1, "+") for end in ends]
    return f"{text}, {tendency[0]} up to {low:,.0f} and {tendency[1]} from {high:,.0f} {by}; {worst}"


def error_table(rows: Sequence[ErrorRow]) -> Table:
    """The table, poor fits marked."""
    return Table("", ("operation", "form", "points", "median error", "P90 error", "comment"),
                 [(row.operation, row.form, f"{row.points:,}", percent(row.median, 1), percent(row.p90, 1), row.comment)
                  for row in rows], align="llrrrl", marked=[i for i, row in enumerate(rows) if row.comment])


COUNTED = ("Relative errors |predicted / measured − 1|, each point predicted by a fit that has not seen its shape "
           "(iterations: by the final fit). Poor, and commented: a median over "
           f"{100 * POOR_MEDIAN:g} % or a P90 over {100 * POOR_P90:g} %; + is predicted too long.")
