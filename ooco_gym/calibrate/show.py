"""What a calibration found, as tables on the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ooco_gym.report import Column, Table


def tables(figures: Mapping[str, Any]) -> list[Table]:
    """Errors, rows left out, and the roofline's parameters of `run.summary_of`."""
    found = [_errors(figures)]
    if figures["excluded"]:
        found.append(_excluded(figures))
    if figures["parameters"]["ooco"]:
        found.append(_roofline(figures["parameters"]["ooco"]))
    return found


def notes(figures: Mapping[str, Any]) -> list[str]:
    """What else is to be known: not fitted, not read, several kernels."""
    lines = [f"not fitted: {text}" for text in figures["not_fitted"]]
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
    figure = [Column(head, lambda row, key=key: row[2][key], form) for head, key, form in (
        ("MAPE", "mape", ".1f"), ("P95", "p95", ".1f"), ("worst", "worst", ".1f"), ("rows", "rows", ","))]
    return Table.of([Column("what", lambda row: row[0], align="l"), Column("form", lambda row: row[1], align="l"),
                     *figure], rows, f"Errors of {figures['device']} on what the fits have not seen, percent")


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
