"""What a calibration found, as tables on the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD

if TYPE_CHECKING:
    from rich.table import Table


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
    from rich.table import Table

    table = Table(title=f"Errors of {figures['device']} on what the fits have not seen, percent", title_justify="left",
                  box=SIMPLE_HEAD)
    for name in ("what", "form", "MAPE", "P95", "worst", "rows"):
        table.add_column(name, justify="left" if name in ("what", "form") else "right", no_wrap=True)
    for op, forms in figures["held_out_shapes"].items():
        for form, item in forms.items():
            _row(table, op, form, item)
    for key, said in (("held_out_architecture", "iterations, unseen architecture"),
                      ("whole_steps", "iterations, unseen sizes"),
                      ("held_out_iterations", "engine's iterations, unseen")):
        for form, item in figures[key].items():
            _row(table, said, form, item)
    return table


def _row(table: Table, what: str, form: str, item: Mapping[str, Any]) -> None:
    table.add_row(what, form, f"{item['mape']:.1f}", f"{item['p95']:.1f}", f"{item['worst']:.1f}", f"{item['rows']:,}")


def _excluded(figures: Mapping[str, Any]) -> Table:
    from rich.table import Table

    table = Table(title="Rows left out", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("operator", no_wrap=True)
    table.add_column("rows", justify="right")
    table.add_column("reason")
    table.add_column("first")
    for item in figures["excluded"]:
        table.add_row(item["op"], f"{item['rows']:,}", item["reason"], "; ".join(item["first"][:1]))
    return table


def _roofline(parameters: Mapping[str, float]) -> Table:
    from rich.table import Table

    table = Table(title="Parameters of timing=ooco", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("parameter")
    table.add_column("value", justify="right")
    for key, value in parameters.items():
        if key.endswith("flops_per_s"):
            text = f"{value / 1e12:,.4g} TFLOP/s"
        elif key.endswith("bytes_per_s"):
            text = f"{value / 1e9:,.4g} GB/s"
        else:
            text = f"{value * 1e6:,.4g} µs"
        table.add_row(key, text)
    return table
