"""What one day's or one week's tide says of the next: Azure 2024 within its week, ServeGen over two weeks."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from experiments.validity.columns import read_csv
from experiments.validity.markdown import minus, table
from experiments.validity.section import Context, Figures, Missing, Section
from experiments.validity.svg import Axis, Panel, Series

HOUR_S, STEP_S, WEEK_HOURS = 3600.0, 600, 168
SILENT = 0.01
"""Share of the mean rate below which ten minutes count as not recorded."""
SERVEGEN = ("language/m-large", "language/m-mid", "language/m-small")
AZURE = ("conv", "code")


def measure(context: Context) -> dict[str, Any]:
    """Hourly rates relative to their mean, and how well one period's predict the next one's."""
    azure = {f"azure_2024_{service}": _days(read_csv(context.file(f"traces/azure_2024_{service}_rate_digitised.csv")))
             for service in AZURE}
    root = context.folders("servegen")[-1]
    weeks = {}
    for name in SERVEGEN:
        files = sorted((root / "data" / name).glob("chunk-*-trace.csv"))
        if not files:
            raise Missing(f"`servegen=` has no `data/{name}/chunk-*-trace.csv`")
        context.rest_on(f"servegen/data/{name}/chunk-*-trace.csv ({len(files)} files)", files)
        weeks[name] = _weeks(_total(files))
    return {"days": azure, "weeks": weeks}


def said(before: np.ndarray, after: np.ndarray) -> float:
    """R² of the next period's rates where the last one's, both relative to their means, are the prediction.

    1: the same course; 0: no better than a flat one; below 0: worse than that.
    """
    before, after = before / before.mean(), after / after.mean()
    return 1.0 - float(np.sum((after - before) ** 2) / np.sum((after - 1.0) ** 2))


def _days(curve: dict[str, np.ndarray]) -> dict[str, Any]:
    """R² from each day of the week to the next."""
    hour = (curve["t_s"] // HOUR_S).astype(int)
    hourly = np.bincount(hour, curve["rate_rps"]) / np.maximum(np.bincount(hour), 1)
    days = hourly[:7 * 24].reshape(-1, 24)
    return {"r2": [said(a, b) for a, b in pairwise(days)]}


def _total(files: list[Path]) -> np.ndarray:
    """Requests per second of all clients, in steps of ten minutes."""
    total: dict[int, float] = {}
    for path in files:
        for line in path.read_text(encoding="utf-8").splitlines():
            step, rate = line.split(",")[:2]
            total[int(float(step)) // STEP_S] = total.get(int(float(step)) // STEP_S, 0.0) + float(rate or 0.0)
    return np.array([total.get(step, 0.0) for step in range(max(total) + 1)])


def _weeks(rate: np.ndarray) -> dict[str, Any]:
    """Two weeks by the hour; hours in which either week has ten minutes all but without requests are left out."""
    steps = rate[:len(rate) // (6 * WEEK_HOURS) * (6 * WEEK_HOURS)].reshape(-1, WEEK_HOURS, 6)
    if len(steps) < 2:
        raise Missing("`servegen=` has less than two weeks")
    known = (steps[:2] > SILENT * steps.mean()).all(axis=(0, 2))
    first, second = (week.mean(axis=1) / week[known].mean() for week in steps[:2])
    return {"r2": said(first[known], second[known]), "hours": int(known.sum()),
            "r2_line": float(np.corrcoef(first[known], second[known])[0, 1] ** 2),
            "first": np.where(known, first, np.nan).tolist(), "second": np.where(known, second, np.nan).tolist()}


def write(figures: Figures) -> str:
    """One table."""
    rows = [[f"ServeGen `{name}`", f"week to week, {item['hours']} of {WEEK_HOURS} hours", minus(f"{item['r2']:.2f}"),
             f"{item['r2_line']:.2f}"] for name, item in figures["weeks"].items()]
    rows += [[f"`{name}`", "day to day within a week", minus(f"{min(item['r2']):.2f} to {max(item['r2']):.2f}"), "–"]
             for name, item in figures["days"].items()]
    return "\n\n".join([
        "Hourly rates of one period, relative to their mean, taken as the prediction of the next (R²: 1 the same, 0 no "
        "better than a flat line, negative worse), and the R² of the best straight line between them. A tide must not "
        "be taken for granted: policies should be judged on weeks that they were not tuned on (`drift` of a workload "
        "gives such weeks). Hours with ten minutes below 1 % of the mean rate count as not recorded. (ServeGen: github "
        "alibaba/ServeGen, rates of clients summed.)",
        table(["service", "from … to", "R² as prediction", "R² of a line"], rows)])


def draw(figures: Figures) -> list[Panel]:
    """The two weeks of two services of ServeGen."""
    hours = list(range(WEEK_HOURS))
    return [Panel(f"ServeGen {name}: hourly rate over the week's mean", Axis("hour of the week", limits=(0, 168),
                  ticks=[(24 * day, f"day {day + 1}") for day in range(7)]), Axis(),
                  [Series(f"{week} week", hours, [np.nan if rate is None else rate for rate in item[week]],
                          colour=place) for place, week in enumerate(("first", "second"))])
            for name, item in list(figures["weeks"].items())[:2]]


def glance(figures: Figures) -> list[tuple[str, str, str]]:
    """One week against the next."""
    values = [item["r2"] for item in figures["weeks"].values()]
    return [("What one week's tide says of the next (ServeGen, R² as prediction)",
             minus(f"{min(values):.2f} to {max(values):.2f}"), "near zero")]


SECTION = Section(230, "What one week's tide says of the next", measure, write, draw, glance)
