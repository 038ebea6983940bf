"""Whether the fits are any good: errors and verdicts on the terminal, and a page with plots that needs no network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ooco_gym import report
from ooco_gym.calibrate.fitting import sample
from ooco_gym.report import Column, Section, Table, layout

if TYPE_CHECKING:
    from ooco_gym.calibrate.run import Calibration, Points

GOOD, FAIR = (5.0, 15.0), (10.0, 30.0)
"""Greatest median and 90th percentile of the errors, in percent, of a fit that is good, and of one that is fair."""
COUNTED = ("Relative errors |predicted / measured − 1| in percent, on what the fits have not seen. Good: a median of "
           f"at most {GOOD[0]:g} % and a P90 of at most {GOOD[1]:g} %; fair: {FAIR[0]:g} and {FAIR[1]:g} %; poor "
           "beyond.")
_MORE = {
    "gemm": "measure more numbers of tokens of your model's widths",
    "attn_prefill": "measure more lengths, with and without tokens before them",
    "attn_decode": "measure more batch sizes and contexts that a server reaches",
    "all_reduce": "measure 1 kB to 100 MB over as many chips as are used",
    "elementwise": "measure each kind at two widths and up to the largest iteration",
}
_WHOLE = {"held_out_architecture": "iterations, unseen architecture", "whole_steps": "iterations, unseen sizes",
          "held_out_iterations": "engine's iterations, unseen"}
_POINTS = 2500
_COLOURS = {"ooco": "#f58518", "extended": "#4c78a8"}


def word(median: float, p90: float) -> str:
    """The verdict on a median and a 90th percentile of errors in percent."""
    return next((name for name, (middle, most) in (("good", GOOD), ("fair", FAIR)) if median <= middle and p90 <= most),
                "poor")


def judged(figures: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every fit of a calibration with its errors, and a verdict and advice where it is judged.

    The roofline's operators (`timing=ooco`) are not judged one by one where its rates were fitted to whole iterations:
    these are what it is for.

    Args:
        figures: `held_out_shapes`, `held_out_architecture`, `whole_steps`, `held_out_iterations` of its summary.
    """
    composed = any(figures[key] for key in _WHOLE)
    operators = [(op, form, errors, not (form == "ooco" and composed)) for op, forms in
                 figures["held_out_shapes"].items() for form, errors in forms.items()]
    kinds = [(f"{op}: {kind}", form, part, True) for op, form, errors, _ in operators
             for kind, part in errors.get("by_kind", {}).items()]
    whole = [(what, form, errors, True) for key, what in _WHOLE.items() for form, errors in figures[key].items()]
    return [_judged(*one) for one in [*operators, *kinds, *whole]]


def _judged(operation: str, form: str, errors: Mapping[str, Any], judge: bool) -> dict[str, Any]:
    verdict = word(errors["median"], errors["p90"]) if judge else ""
    return {"operation": operation, "form": form, "verdict": verdict, "bias": errors["median_bias"],
            "advice": _advice(operation, form) if verdict == "poor" else "",
            **{key: errors[key] for key in ("median", "p90", "mape", "p95", "worst", "rows")}}


def _advice(operation: str, form: str) -> str:
    first = operation.partition(":")[0]
    if first.startswith("iterations"):
        better = "take timing=extended or measured" if form == "ooco" else "take timing=measured"
        return f"{better}, or measure iterations of the engine itself (ooco-gym calibrate measure)"
    if first.startswith("engine"):
        return "measure more passes on a machine with nothing else to do"
    return (f"{_MORE.get(first, 'measure more sizes')}, or take timing=measured, which looks up what was measured in "
            "place of this fit")


def error_table(figures: Mapping[str, Any]) -> Table:
    """The errors of every fit, poor ones marked."""
    fits = judged(figures)
    columns = [Column("what", "operation", align="l"), Column("form", "form", align="l"), Column("rows", "rows", ","),
               Column("median", "median", ".1f"), Column("P90", "p90", ".1f"), Column("MAPE", "mape", ".1f"),
               Column("worst", "worst", ".1f"), Column("verdict", "verdict", align="l")]
    table = Table.of(columns, fits, f"Errors of {figures['device']} on what the fits have not seen, percent")
    return Table(table.title, table.head, table.rows, align=table.align,
                 marked=[number for number, one in enumerate(fits) if one["advice"]])


def tables(figures: Mapping[str, Any]) -> list[Table]:
    """Errors with verdicts, rows left out, and the roofline's parameters of `run.summary_of`."""
    found = [error_table(figures)]
    if figures["excluded"]:
        found.append(Table("Rows left out", ("operator", "rows", "reason", "first"), [
            (one["op"], f"{one['rows']:,}", one["reason"], "; ".join(one["first"][:1])) for one in figures["excluded"]],
            align="lrl"))
    units = (("flops_per_s", 1e12, "TFLOP/s"), ("bytes_per_s", 1e9, "GB/s"), ("", 1e-6, "µs"))
    rows = [(key, next(f"{value / size:,.4g} {unit}" for ending, size, unit in units if key.endswith(ending)))
            for key, value in figures["parameters"]["ooco"].items()]
    return [*found, *([Table("Parameters of timing=ooco", ("parameter", "value"), rows)] if rows else [])]


def notes(figures: Mapping[str, Any]) -> list[str]:
    """What else is to be known: poor fits and what to do, not fitted, not read, several kernels."""
    lines = [f"poor: {one['operation']} in timing={one['form']} is {one['median']:.0f} % off in the median and "
             f"{one['p90']:.0f} % at the 90th percentile ({one['bias']:+.0f} % in the median): {one['advice']}"
             for one in judged(figures) if one["advice"]]
    lines += [f"not fitted: {text}" for text in figures["not_fitted"]]
    lines += [f"not read: {count:,} rows ({reason})" for reason, count in figures["skipped_by_readers"].items()]
    lines += [f"{op}: of several kernels the fastest counts, by shapes: "
              + ", ".join(f"{name} {count}" for name, count in item["fastest"].items())
              for op, item in figures["kernels"].items()]
    spread = figures["iterations"]["engine_noise"]
    if spread is not None:
        lines.append(f"the engine's iterations of the same batch lie {spread:.1f} % from their median on average: no "
                     "form can be nearer")
    return lines + [f"note: {text}" for text in figures["notes"]]


def write_page(result: Calibration, figures: Mapping[str, Any], path: Path) -> None:
    """Writes the page: the tables, and a row of two plots for each operator and for iterations."""
    report.write_page(path, f"Calibration of {result.device}", [
        Section("Errors", tables=tables(figures), notes=notes(figures), note=COUNTED),
        Section("Points", figures=[build_figure(result.points)])])


def build_figure(points: Mapping[str, Points]) -> Any:
    """Draws predicted by measured time, and errors by size, of what the fits have not seen."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    titles = [title for name, one in points.items() for title in (
        f"{name}: predicted by measured time (µs)", f"{name}: error (%) by {one.by}")]
    figure = make_subplots(rows=max(len(points), 1), cols=2, subplot_titles=titles or None,
                           vertical_spacing=0.25 / max(len(points), 1), horizontal_spacing=0.09)
    shown: set[str] = set()
    for number, one in enumerate(points.values(), start=1):
        ends = [1e6 * float(one.seconds.min()), 1e6 * float(one.seconds.max())]
        figure.add_trace(go.Scatter(x=ends, y=ends, mode="lines", line={"color": "#999", "dash": "dot"},
                                    showlegend=False, hoverinfo="skip"), row=number, col=1)
        for form, column, x, y in _traces(one):
            marker = {"color": _COLOURS[form], "size": 4, "opacity": 0.5}
            figure.add_trace(go.Scattergl(x=x, y=y, mode="markers", marker=marker, name=form, legendgroup=form,
                                          showlegend=form not in shown), row=number, col=column)
            shown.add(form)
        figure.update_xaxes(type="log", row=number)
        figure.update_yaxes(type="log", row=number, col=1)
        limit = max(np.percentile(100 * np.abs(values / one.seconds - 1), 98) for values in one.predicted.values())
        figure.update_yaxes(range=np.clip(limit, 20, 200) * np.array([-1, 1]), row=number, col=2)
    return layout(figure, 380 * max(len(points), 1) + 120, legend="side", top=80, legend_itemsizing="constant")


def _traces(points: Points) -> Iterator[tuple[str, int, np.ndarray, np.ndarray]]:
    """Form, column, and points of each plot, at most so many of them."""
    index = sample(len(points.seconds), _POINTS, 0)
    seconds = points.seconds[index]
    for form, predicted in points.predicted.items():
        yield form, 1, 1e6 * seconds, 1e6 * predicted[index]
        yield form, 2, points.size[index], 100 * (predicted[index] / seconds - 1)
