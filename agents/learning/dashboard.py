"""`ooco-gym dashboard runs=…`: the charts of training (`agents.learning.charts`) of a run or a sweep, as a page.

They are drawn from the runs' own tables. Runs that differ in nothing but the seed are one curve, their mean, in a band
from the least to the most. Weights & Biases draws each logged series by itself.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agents.evaluation.players import groups_of, runs_of
from agents.learning.charts import CHARTS, LIMIT, STEP, Chart
from agents.policies.runs import GENERATIONS_FILE
from agents.settings import plain
from ooco_gym.commands.sweep import FILE as SWEEP_FILE
from ooco_gym.errors import UserError
from ooco_gym.report import Section, curve, plot, write_page
from ooco_gym.report.pages import Plot

PAGE_FILE = "dashboard.html"
TRAINING_FILE, STEPS, VALIDATED = "progress.csv", "time/total_timesteps", "validation/timesteps"
DASHES = {"solid": "—", "dash": "– –", "dot": "· · ·", "dashdot": "– ·"}  # of the series of a chart, and as text
Curves = dict[str, np.ndarray]  # by series: float64[rows], NaN where a row says nothing of it


def main(cfg: Any) -> dict[str, Any]:
    """Draws the page of `cfg.runs` to `cfg.out`.

    Raises:
        UserError: no runs are named, or a folder is none.
    """
    config = plain(cfg)
    if not config.get("runs"):
        raise UserError("ooco-gym dashboard needs runs=FOLDER: a run of ooco-gym train, a sweep of it, or "
                        "a list of them")
    runs, path = config["runs"], Path(config["out"]) / PAGE_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    shown = draw(path, [runs] if isinstance(runs, str) else list(runs), str(config["title"]))
    print(f"the page: {path}")
    return {"command": "dashboard", "shown": shown, "files": [PAGE_FILE]}


def curves_of(folder: Path) -> Curves:
    """What a run logged, by the names of the charts, `decisions` among them: of a search these are candidates.

    Raises:
        UserError: the folder has no table of a training.
    """
    path = next((folder / name for name in (TRAINING_FILE, GENERATIONS_FILE) if (folder / name).is_file()), None)
    if path is None:
        raise UserError(f"runs: '{folder}' has neither {TRAINING_FILE} nor {GENERATIONS_FILE}; expected the out of "
                        "'ooco-gym train', or of a sweep of it")
    searched = path.name == GENERATIONS_FILE
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    found = {f"search/{key}" if searched else key: np.array([_number(row[key]) for row in rows])
             for key in (rows[0] if rows else {})}
    return {**found, STEP: found.get("search/candidates" if searched else STEPS, np.zeros(0))}


def _number(text: str | None) -> float:
    try:
        return float({"True": "1", "False": "0"}.get(text or "", text or "nan"))
    except ValueError:
        return np.nan


def draw(path: Path, folders: Sequence[str], title: str) -> list[str]:
    """Writes the page; returns the labels of the settings in it.

    Args:
        folders: of runs, of several seeds (`seed_*`), or of a sweep of the command line.

    Raises:
        UserError: a folder is none of them.
    """
    settings: dict[str, list[Curves]] = {}
    for folder in folders:
        groups = groups_of(folder) if (Path(folder) / SWEEP_FILE).is_file() else {Path(folder).name: runs_of(folder)}
        for label, runs in groups.items():
            settings.setdefault(label, []).extend(curves_of(Path(run)) for run in runs.values())
    parts: dict[str, list[Chart]] = {}
    for chart in CHARTS:
        if any(name in curves for name in chart.series for runs in settings.values() for curves in runs):
            parts.setdefault(chart.section, []).append(chart)
    seeds = {label: len(runs) for label, runs in settings.items()}
    write_page(path, title, [Section(name, plots=[_plot(chart, settings) for chart in charts])
                             for name, charts in parts.items()],
               "; ".join(f"`{label}`: {count} run{'s' if count > 1 else ''}" for label, count in seeds.items())
               + ". A band goes from the least to the most of a setting's seeds.")
    return list(settings)


def _plot(chart: Chart, settings: Mapping[str, Sequence[Curves]]) -> Plot:
    """A chart: a colour a setting, a dash a series, and a band where a setting has several seeds."""
    traces = []
    for place, (label, runs) in enumerate(settings.items()):
        for series, dash in zip(chart.series, itertools.cycle(DASHES)):
            x, mean, low, high = _banded(runs, chart.x, series)
            colour = -1 if series == LIMIT else place
            if len(runs) > 1 and chart.x == STEP:
                traces.append(curve("", [*x, *x[::-1]], [*high, *low[::-1]], colour, fill="toself", opacity=0.2,
                                    hoverinfo="skip", legendgroup=label))
            kind = "lines+markers" if chart.x != STEP or len(x) < 12 else "lines"
            traces.append(curve(label if series == chart.series[0] else "", x, mean, colour, kind, legendgroup=label))
            traces[-1]["line"]["dash"] = dash
    return plot(f"{chart.title}: {_told(chart)}", traces, chart.x.rpartition("/")[2])


def _told(chart: Chart) -> str:
    """The unit of a chart, and which line of several is which."""
    if len(chart.series) == 1:
        return chart.unit
    return ", ".join(f"{dash} {name.rpartition('/')[2].removesuffix('_per_s')}" for dash, name in zip(
        [*DASHES.values()] * len(chart.series), chart.series, strict=False)) + f" ({chart.unit})" * bool(chart.unit)


def _banded(runs: Sequence[Curves], by: str, series: str) -> tuple[np.ndarray, ...]:
    """What is on the x-axis, and mean, least and most of runs there: as far as all of them have come."""
    pairs = []
    for curves in runs:
        validated = by == STEP and series.startswith("validation/")  # it has a number of decisions of its own
        x = curves.get(VALIDATED if validated and VALIDATED in curves else by, np.zeros(0))
        y = curves.get(series, np.zeros(0))
        if len(x) == len(y):
            known = np.isfinite(x) & np.isfinite(y)
            pairs.append((x[known], y[known]))
    shortest = min((len(x) for x, _ in pairs), default=0)
    if not shortest:
        return np.zeros(0), np.zeros(0), np.zeros(0), np.zeros(0)
    xs, ys = (np.array([pair[part][:shortest] for pair in pairs]) for part in (0, 1))
    return xs.mean(axis=0), ys.mean(axis=0), ys.min(axis=0), ys.max(axis=0)
