"""Whether the fits are any good: errors and verdicts on the terminal, and a page with plots that needs no network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ooco_gym import report
from ooco_gym.calibrate.fitting import sample
from ooco_gym.report import Column, Section, Table, layout

GOOD, FAIR = (5.0, 15.0), (10.0, 30.0)
"""Greatest median and 90th percentile of the errors, in percent, of a fit that is good, and of one that is fair."""
COUNTED = ("Relative errors |predicted / measured − 1| in percent, on what the fits have not seen. Good: a median of "
           f"at most {GOOD[0]:g} % and a P90 of at most {GOOD[1]:g} %; fair: {FAIR[0]:g} and {FAIR[1]:g} %; poor "
           "beyond.")
_WHOLE = {"held_out_architecture": "iterations, unseen architecture", "whole_steps": "iterations, unseen sizes",
          "held_out_iterations": "engine's iterations, unseen"}
_POINTS = 2500
_COLOURS = {"ooco": "#f58518", "extended": "#4c78a8"}


class Points(NamedTuple):
    """What is plotted of an operator or of iterations: measured seconds, and seconds by form, float64[n] each."""

    seconds: np.ndarray
    predicted: dict[str, np.ndarray]


def word(median: float, p90: float) -> str:
    """The verdict on a median and a 90th percentile of errors in percent."""
    return next((name for name, (middle, most) in (("good", GOOD), ("fair", FAIR)) if median <= middle and p90 <= most),
                "poor")


def judged(figures: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every fit of a calibration with its errors and a verdict, and where that is poor, advice.

    Args:
        figures: `held_out_shapes`, `held_out_architecture`, `whole_steps`, `held_out_iterations` of its summary.
    """
    operators = [(op, form, errors) for op, forms in figures["held_out_shapes"].items()
                 for form, errors in forms.items()]
    kinds = [(f"{op}: {kind}", form, part) for op, form, errors in operators
             for kind, part in errors.get("by_kind", {}).items()]
    whole = [(what, form, errors) for key, what in _WHOLE.items() for form, errors in figures[key].items()]
    found = []
    for operation, form, errors in [*operators, *kinds, *whole]:
        verdict = word(errors["median"], errors["p90"])
        advice = "measure more sizes, or take timing=measured, which looks up what was measured"
        if operation.startswith("iterations"):
            better = "extended or measured" if form == "ooco" else "measured"
            advice = f"take timing={better}, or measure the engine's own iterations (ooco-gym calibrate measure)"
        elif operation.startswith("engine"):
            advice = "measure more passes on a machine with nothing else to do"
        found.append({"operation": operation, "form": form, "verdict": verdict, "bias": errors["median_bias"],
                      "advice": advice if verdict == "poor" else "",
                      **{key: errors[key] for key in ("median", "p90", "mape", "p95", "worst", "rows")}})
    return found


def table(figures: Mapping[str, Any]) -> Table:
    """Errors with verdicts of `run.summary_of`, poor ones marked."""
    fits = judged(figures)
    columns = [Column("what", "operation", align="l"), Column("form", "form", align="l"), Column("rows", "rows", ","),
               *(Column(name, key, ".1f") for name, key in (
                   ("median", "median"), ("P90", "p90"), ("MAPE", "mape"), ("worst", "worst"))),
               Column("verdict", "verdict", align="l")]
    title = f"Errors of {figures['device']} on what the fits have not seen, percent"
    return replace(Table.of(columns, fits, title), marked=[
        number for number, one in enumerate(fits) if one["advice"]])


def notes(figures: Mapping[str, Any]) -> list[str]:
    """What else is to be known: poor fits and what to do, left out, not fitted, not read."""
    lines = [f"poor: {one['operation']} in timing={one['form']} is {one['median']:.0f} % off in the median and "
             f"{one['p90']:.0f} % at the 90th percentile ({one['bias']:+.0f} % in the median): {one['advice']}"
             for one in judged(figures) if one["advice"]]
    lines += [f"left out: {one['rows']:,} rows of {one['op']}: {one['reason']}"
              + "".join(f" (such as {first})" for first in one["first"][:1]) for one in figures["excluded"]]
    lines += [f"not fitted: {text}" for text in figures["not_fitted"]]
    lines += [f"not read: {count:,} rows ({reason})" for reason, count in figures["skipped_by_readers"].items()]
    spread = figures["iterations"]["engine_noise"]
    if spread is not None:
        lines.append(f"the engine's iterations of the same batch lie {spread:.1f} % from their median on average: no "
                     "form can be nearer")
    return lines + [f"note: {text}" for text in figures["notes"]]


def write_page(points: Mapping[str, Points], figures: Mapping[str, Any], path: Path) -> None:
    """Writes the page: the table, and a plot for each operator and for iterations."""
    report.write_page(path, f"Calibration of {figures['device']}", [
        Section("Errors", tables=[table(figures)], notes=notes(figures), note=COUNTED),
        Section("Points", figures=[build_figure(points)])])


def build_figure(points: Mapping[str, Points]) -> Any:
    """Draws predicted by measured time, of what the fits have not seen, two plots a row."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    rows = max(-(-len(points) // 2), 1)
    figure = make_subplots(rows=rows, cols=2, subplot_titles=[f"{name}: predicted by measured time (µs)"
                                                              for name in points] or None,
                           vertical_spacing=0.25 / rows, horizontal_spacing=0.09)
    shown: set[str] = set()
    for number, one in enumerate(points.values()):
        row, column = number // 2 + 1, number % 2 + 1
        ends = [1e6 * float(one.seconds.min()), 1e6 * float(one.seconds.max())]
        figure.add_trace(go.Scatter(x=ends, y=ends, mode="lines", line={"color": "#999", "dash": "dot"},
                                    showlegend=False, hoverinfo="skip"), row=row, col=column)
        index = sample(len(one.seconds), _POINTS, 0)
        for form, predicted in one.predicted.items():
            figure.add_trace(go.Scattergl(
                x=1e6 * one.seconds[index], y=1e6 * predicted[index], mode="markers", name=form, legendgroup=form,
                marker={"color": _COLOURS[form], "size": 4, "opacity": 0.5}, showlegend=form not in shown),
                row=row, col=column)
            shown.add(form)
    figure.update_xaxes(type="log")
    figure.update_yaxes(type="log")
    return layout(figure, 380 * rows + 120, legend="side", top=80, legend_itemsizing="constant")
