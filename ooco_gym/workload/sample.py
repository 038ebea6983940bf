"""What a file says of a workload: a whole trace, or only lengths; for describing, importing and fitting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ooco_gym.errors import UserError, nearest, unknown
from ooco_gym.workload.catalogue import Dataset
from ooco_gym.workload.formats import FORMATS
from ooco_gym.workload.formats.base import output_tokens, prompt_tokens
from ooco_gym.workload.formats.own import OPTIONAL, REQUIRED, UNITS, mapped_format
from ooco_gym.workload.reading import read_trace, trace_of
from ooco_gym.workload.tables import Table, open_table
from ooco_gym.workload.trace import Trace

TIME_UNITS = ("auto", *UNITS, "date")


@dataclass(frozen=True)
class Sample:
    """What is known of requests; at least one field is not None.

    Attributes:
        name: for messages and reports.
        trace: the whole requests, or None where there are only lengths.
        prompt_tokens: int64[n], >= 1, or None.
        output_tokens: int64[n], >= 1, or None.
        notes: repairs and drops, one sentence each.
    """

    name: str
    trace: Trace | None
    prompt_tokens: np.ndarray | None
    output_tokens: np.ndarray | None
    notes: tuple[str, ...] = ()

    @property
    def requests(self) -> int:
        """How many."""
        return len(next(x for x in (self.prompt_tokens, self.output_tokens) if x is not None))


def sample_of(trace: Trace) -> Sample:
    """Returns a trace as a sample."""
    return Sample(trace.name, trace, trace.prompt_tokens, trace.output_tokens, trace.notes)


def read_sample(path: Path, format: str = "auto", columns: Mapping[str, str | None] | None = None,
                time_unit: str = "auto", dataset: Dataset | None = None) -> Sample:
    """Reads a trace or a set of lengths from CSV, JSON lines or Parquet.

    Args:
        path: the file.
        format: as `read_trace` takes it; `auto` recognises formats by their columns, and sets of lengths too.
        columns: our column names (docs/traces.md) to the file's; what is not named is looked for under our own name.
            Without arrivals the file is a set of lengths.
        time_unit: `s`, `ms`, `us`, `ns`, `date`, or `auto` (dates are recognised, numbers are seconds).
        dataset: says format and columns where the user does not.

    Raises:
        UserError: an unknown name, or whatever `read_trace` refuses.
    """
    given = {key: str(value) for key, value in (columns or {}).items() if value is not None}
    if time_unit not in TIME_UNITS:
        raise unknown("time_unit", time_unit, TIME_UNITS)
    for key in given:
        if key not in REQUIRED + OPTIONAL:
            raise unknown("column", key, REQUIRED + OPTIONAL)
    if dataset is not None and not given and path.name == dataset.file:
        given, format = dict(dataset.columns), dataset.format if format == "auto" else format
    if given and format != "auto":
        raise UserError(f"format={format} and columns.{next(iter(given))} exclude each other: a format "
                        "knows its columns")
    if not given and format != "auto":
        return sample_of(read_trace(path, format))
    table = open_table(path)
    if not given and time_unit == "auto" and not _is_lengths(table):
        return sample_of(read_trace(path))
    return _read_named(table, {**{key: key for key in REQUIRED + OPTIONAL if key in table.columns}, **given}, time_unit)


def _is_lengths(table: Table) -> bool:
    """Tells whether a table has lengths under our names, but no arrivals."""
    if any(set(form.required) <= set(table.columns) for name, form in FORMATS.items() if name != "ooco_gym"):
        return False
    return bool({"prompt_tokens", "output_tokens"} & set(table.columns)) and _no_arrivals(table, "arrival_s")


def _no_arrivals(table: Table, field: str) -> bool:
    return field not in table.columns or (table.rows > 0 and not table.holds_dates(field) and bool(
        np.isnan(table.numbers(field, "a number", missing=np.nan)).all()))


def _read_named(table: Table, columns: dict[str, str], time_unit: str) -> Sample:
    for field in columns.values():
        if field not in table.columns:
            raise UserError(f"trace file '{table.path}' has no column '{field}'{nearest(field, table.columns)}; found: "
                            f"{', '.join(table.columns)}")
    if "arrival_s" in columns and not _no_arrivals(table, columns["arrival_s"]):
        for name in REQUIRED:
            if name not in columns:
                raise UserError(f"trace file '{table.path}': which column holds {name}? Expected columns.{name}=NAME, "
                                f"one of: {', '.join(table.columns)}")
        return sample_of(trace_of(table, mapped_format(columns, time_unit)))
    lengths = {"prompt_tokens": prompt_tokens, "output_tokens": output_tokens}
    if not set(lengths) & set(columns):
        raise UserError(f"trace file '{table.path}': which columns hold what? Expected such as columns.arrival_s=NAME "
                        f"columns.prompt_tokens=NAME columns.output_tokens=NAME; found: {', '.join(table.columns)}")
    return _lengths(table, columns)


def _lengths(table: Table, columns: Mapping[str, str]) -> Sample:
    if table.rows == 0:
        raise UserError(f"trace file '{table.path}' holds no request")
    prompt = prompt_tokens(table, columns["prompt_tokens"]) if "prompt_tokens" in columns else None
    notes: tuple[str, ...] = ("lengths only: the file has no arrivals",)
    output = None
    if "output_tokens" in columns:
        output = output_tokens(table, columns["output_tokens"], zero_allowed=True)
        keep = output > 0
        if not keep.any():
            raise UserError(f"trace file '{table.path}' holds no request with output tokens")
        if not keep.all():
            notes += (f"dropped {int((~keep).sum())} of {table.rows} requests with zero output tokens (failed), the "
                      f"first at {table.place(int(np.argmin(keep)))}",)
            output, prompt = output[keep], None if prompt is None else prompt[keep]
    return Sample(table.path.name.split(".")[0], None, prompt, output, notes)
