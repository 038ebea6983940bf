"""What a calibration found: tables on the terminal, and a page of errors and plots that needs no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ooco_gym import report
from ooco_gym.calibrate import engine_fits, step_fits
from ooco_gym.calibrate.fitting import sample
from ooco_gym.calibrate.operators import FORMS, elementwise_kinds
from ooco_gym.calibrate.rows import Rows
from ooco_gym.calibrate.verdict import FAIR, GOOD, word
from ooco_gym.report import Column, Section, Table, layout, percent

if TYPE_CHECKING:
    from ooco_gym.calibrate.run import Calibration

FEW = 6  # points below which sizes are not distinguished
ALIKE = 1.5  # ratio of the errors at both ends of the sizes below which neither is called worse
COUNTED = ("Relative errors |predicted / measured − 1|, each point predicted by a fit that has not seen its shape "
           f"(iterations: by the final fit). Good: a median of at most {GOOD[0]:g} % and a P90 of at most "
           f"{GOOD[1]:g} %; fair: {FAIR[0]:g} and {FAIR[1]:g} %; poor, and commented, beyond; + is predicted too long.")
POINTS = 2500
COLOURS = {"ooco": "#f58518", "extended": "#4c78a8"}
_SIZE = {"gemm": ("tokens", lambda rows: rows["n_tokens"]),
         "attn_prefill": ("new tokens of a prompt", lambda rows: rows["q_len"]),
         "attn_decode": ("tokens of context in the batch", lambda rows: rows["batch"] * rows["context_len"]),
         "all_reduce": ("bytes", lambda rows: rows["bytes"]),
         "elementwise": ("bytes", lambda rows: rows["bytes"])}
_LABELS = {"gemm": ("n_tokens", "d_in", "d_out"), "attn_prefill": ("batch", "q_len", "prefix", "h_q", "h_kv", "d_h"),
           "attn_decode": ("batch", "context_len", "h_q", "h_kv", "d_h"), "all_reduce": ("n_gpus", "bytes"),
           "elementwise": ("n_tokens", "d_in", "bytes")}


def tables(figures: Mapping[str, Any]) -> list[Table]:
    """Errors with verdicts, rows left out, and the roofline's parameters of `run.summary_of`."""
    found = [_errors(figures)]
    kinds = [one for one in figures["verdicts"] if ":" in one["operation"]]
    if kinds:
        found.append(_kinds(kinds))
    if figures["excluded"]:
        found.append(_excluded(figures))
    if figures["parameters"]["ooco"]:
        found.append(_roofline(figures["parameters"]["ooco"]))
    return found


def notes(figures: Mapping[str, Any]) -> list[str]:
    """What else is to be known: poor fits and what to do, not fitted, not read, several kernels."""
    lines = [f"poor: {one['operation']} in timing={one['form']} is {one['median']:.0f} % off in the median and "
             f"{one['p90']:.0f} % at the 90th percentile ({one['bias']:+.0f} % in the median): {one['advice']}"
             for one in figures["verdicts"] if one["advice"]]
    lines += [f"not fitted: {text}" for text in figures["not_fitted"]]
    lines += [f"not read: {count:,} rows ({reason})" for reason, count in figures["skipped_by_readers"].items()]
    for op, item in figures["kernels"].items():
        fastest = ", ".join(f"{name} {count}" for name, count in item["fastest"].items())
        lines.append(f"{op}: of several kernels the fastest counts, by shapes: {fastest}")
    spread = figures["iterations"]["engine_noise"]
    if spread is not None:
        lines.append(f"the engine's iterations of the same batch lie {spread:.1f} % from their median on average: no "
                     "form can be nearer")
    return lines + [f"note: {text}" for text in figures["notes"]]


def _errors(figures: Mapping[str, Any]) -> Table:
    kinds = [*figures["held_out_shapes"].items(), *((said, figures[key]) for key, said in (
        ("held_out_architecture", "iterations, unseen architecture"), ("whole_steps", "iterations, unseen sizes"),
        ("held_out_iterations", "engine's iterations, unseen")))]
    rows = [(what, form, item) for what, forms in kinds for form, item in forms.items()]
    verdicts = {(one["operation"], one["form"]): one["verdict"] for one in figures["verdicts"]}
    figure = [Column(head, lambda row, key=key: row[2][key], form) for head, key, form in (
        ("MAPE", "mape", ".1f"), ("P95", "p95", ".1f"), ("worst", "worst", ".1f"), ("rows", "rows", ","))]
    return Table.of([Column("what", lambda row: row[0], align="l"), Column("form", lambda row: row[1], align="l"),
                     *figure, Column("verdict", lambda row: verdicts.get(row[:2], ""), align="l")], rows,
                    f"Errors of {figures['device']} on what the fits have not seen, percent")


def _kinds(verdicts: Sequence[Mapping[str, Any]]) -> Table:
    return Table.of([Column("what", "operation", align="l"), Column("median", "median", ".1f"),
                     Column("P90", "p90", ".1f"), Column("verdict", "verdict", align="l")], verdicts,
                    "Errors by kind of operator, percent")


def _excluded(figures: Mapping[str, Any]) -> Table:
    return Table.of([Column("operator", "op", align="l"), Column("rows", "rows", ","),
                     Column("reason", "reason", align="l"),
                     Column("first", lambda item: "; ".join(item["first"][:1]), align="l")],
                    figures["excluded"], "Rows left out")


def _roofline(parameters: Mapping[str, float]) -> Table:
    units = (("flops_per_s", 1e12, "TFLOP/s"), ("bytes_per_s", 1e9, "GB/s"), ("", 1e-6, "µs"))
    rows = []
    for key, value in parameters.items():
        size, unit = next((size, unit) for ending, size, unit in units if key.endswith(ending))
        rows.append((key, f"{value / size:,.4g} {unit}"))
    return Table("Parameters of timing=ooco", ("parameter", "value"), rows)


class ErrorRow(NamedTuple):
    """The relative errors of one form on one operation: number, median, 90th percentile, verdict, and a comment."""

    operation: str
    form: str
    points: int
    median: float
    p90: float
    verdict: str
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
            verdict = word(100.0 * median, 100.0 * p90)
            comment = _comment(signed, panel["size"], panel["by"]) if verdict == "poor" else ""
            rows.append(ErrorRow(panel["name"], form, len(signed), median, p90, verdict, comment))
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
    return Table("", ("operation", "form", "points", "median error", "P90 error", "verdict", "comment"),
                 [(row.operation, row.form, f"{row.points:,}", percent(row.median, 1), percent(row.p90, 1), row.verdict,
                   row.comment) for row in rows], align="llrrrll",
                 marked=[i for i, row in enumerate(rows) if row.comment])


def write_page(result: Calibration, path: Path) -> None:
    """Writes the page: a table of errors, then a row of two panels for each operator, and for iterations."""
    report.write_page(path, f"Calibration of {result.device}", [
        Section("Errors", tables=[error_table(error_rows([*_panels(result, None), *_kind_panels(result)]))],
                note=COUNTED),
        Section("Points", figures=[build_figure(result)],
                note="Each point is predicted by a fit that has not seen its shape (iterations: by the final fit).")])


def build_figure(result: Calibration) -> Any:
    """Draws every operator's rows, predicted by fits that have not seen their shapes, and the iterations."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    panels = _panels(result, POINTS)
    titles = [title for panel in panels for title in (
        f"{panel['name']}: predicted by measured time (µs)", f"{panel['name']}: error (%) by {panel['by']}")]
    figure = make_subplots(rows=max(len(panels), 1), cols=2, subplot_titles=titles or None,
                           vertical_spacing=0.25 / max(len(panels), 1), horizontal_spacing=0.09)
    shown: set[str] = set()
    for number, panel in enumerate(panels, start=1):
        measured = 1e6 * panel["seconds"]
        ends = [float(measured.min()), float(measured.max())]
        figure.add_trace(go.Scatter(x=ends, y=ends, mode="lines", line={"color": "#999", "dash": "dot"},
                                    showlegend=False, hoverinfo="skip"), row=number, col=1)
        for form, predicted in panel["predicted"].items():
            marker = {"color": COLOURS[form], "size": 4, "opacity": 0.5}
            common: dict[str, Any] = {"mode": "markers", "marker": marker, "name": form, "legendgroup": form,
                                      "text": panel["labels"]}
            figure.add_trace(go.Scattergl(x=measured, y=1e6 * predicted, showlegend=form not in shown, **common),
                             row=number, col=1)
            figure.add_trace(go.Scattergl(x=panel["size"], y=100 * (predicted / panel["seconds"] - 1),
                                          showlegend=False, **common), row=number, col=2)
            shown.add(form)
        figure.update_xaxes(type="log", row=number)
        figure.update_yaxes(type="log", row=number, col=1)
        spread = [100 * np.abs(predicted / panel["seconds"] - 1) for predicted in panel["predicted"].values()]
        limit = float(np.clip(max(np.percentile(values, 98) for values in spread), 20, 200))
        figure.update_yaxes(range=[-limit, limit], row=number, col=2)
    return layout(figure, 380 * max(len(panels), 1) + 120, legend="side", top=80, legend_itemsizing="constant")


def _panels(result: Calibration, most: int | None) -> list[dict[str, Any]]:
    """What is shown of each operator and of iterations: at most so many points of each, None for all."""
    panels = []
    for op in result.shapes:
        if op not in _SIZE:
            continue
        rows = result.rows.of_kind(op)
        if op == "elementwise":
            rows = rows.select(rows["bytes"] > 0)
        index = sample(len(rows), most or len(rows), 0)
        part = rows.select(index)
        panels.append({
            "name": op, "by": _SIZE[op][0], "size": _SIZE[op][1](part), "seconds": part.seconds,
            "labels": _labels(part, op),
            "predicted": {form: result.unseen[form][op][index] for form in FORMS if op in result.unseen[form]}})
    if result.steps is not None:
        panels.append(_step_panel(result, most))
    if result.engine:
        panels.append(_engine_panel(result, most))
    return panels


def _kind_panels(result: Calibration) -> list[dict[str, Any]]:
    """Each kind of element-wise operators by itself, for the table."""
    if "elementwise" not in result.unseen["extended"]:
        return []
    rows = result.rows.of_kind("elementwise")
    rows = rows.select(rows["bytes"] > 0)
    kinds, predicted = elementwise_kinds(rows), result.unseen["extended"]["elementwise"]
    return [{"name": f"elementwise: {kind or 'other'}", "by": "bytes", "size": rows["bytes"][kinds == kind],
             "seconds": rows.seconds[kinds == kind], "predicted": {"extended": predicted[kinds == kind]}}
            for kind in sorted(set(kinds))]


def _engine_panel(result: Calibration, most: int | None) -> dict[str, Any]:
    from ooco_gym.calibrate.run import engine_s

    rows = [one.rows for one in result.engine]
    seconds = engine_fits.measured(result.engine)
    index = sample(len(seconds), most or len(seconds), 0)
    tokens = np.concatenate([part.tokens for part in rows])
    labels = [f"{one.model.name}, tp {one.tp}<br>{decodes:g} decode, {prompts:g} prompts<br>{label}"
              for one in result.engine for decodes, prompts, label in zip(
                  one.rows.n_decode, one.rows.prompts, one.rows.label, strict=True)]
    return {"name": "engine", "by": "tokens of the iteration", "size": tokens[index], "seconds": seconds[index],
            "labels": [labels[number] for number in index],
            "predicted": {form: engine_s(result, form)[index] for form in FORMS if "engine" in result.fits[form]}}


def _step_panel(result: Calibration, most: int | None) -> dict[str, Any]:
    steps = result.steps
    assert steps is not None
    start = {item.name: item.start for item in step_fits.roofline_free(result.base)}
    predicted = {"ooco": step_fits.roofline_s(start | result.fits["ooco"]["steps"].found, steps)}
    fits = {op: item for op, item in result.fits["extended"].items() if op not in ("overhead", "engine")}
    found = step_fits.parameters(fits)
    if step_fits.complete_for(found, steps):
        predicted["extended"] = step_fits.extended_s(found, steps)
    labels = [f"{steps.architectures[arch].name}, {'prefill' if prefill else 'decode'}<br>batch {batch:g}, {q:g} new "
              f"tokens, context {context:g}" for arch, prefill, batch, q, context in zip(
                  steps.arch, steps.prefill, steps.batch, steps.q, steps.context, strict=True)]
    index = sample(len(steps), most or len(steps), 0)
    return {"name": "iterations", "by": "tokens of the iteration", "size": steps.tokens[index],
            "seconds": steps.seconds[index], "labels": [labels[number] for number in index],
            "predicted": {form: values[index] for form, values in predicted.items()}}


def _labels(rows: Rows, op: str) -> list[str]:
    names = _LABELS[op]
    return ["<br>".join(f"{name} {value:g}" for name, value in zip(names, row, strict=True))
            for row in zip(*(rows[name] for name in names), strict=True)]
