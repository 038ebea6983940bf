"""What a file says of a workload: a whole trace, or only lengths; for describing, importing and fitting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ooco_gym.errors import UserError, nearest, unknown
from ooco_gym.workload.catalogue import Dataset
from ooco_gym.workload.formats import (
    FORMATS,
    OPTIONAL,
    REQUIRED,
    UNITS,
    TraceFormat,
    mapped_format,
    output_tokens,
    prompt_tokens,
)
from ooco_gym.workload.intake import few
from ooco_gym.workload.pieces import Table, read_pieces
from ooco_gym.workload.reading import check_format, peek, recognise, trace_of
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


@dataclass(frozen=True)
class Source:
    """A file that was opened: its pieces, and what they are.

    Attributes:
        path: the file.
        pieces: all of them, to be read once.
        form: how to read them; None where they are lengths without arrivals.
        columns: of lengths, our names to the file's.
    """

    path: Path
    pieces: Iterator[Table]
    form: TraceFormat | None
    columns: Mapping[str, str]


def read_sample(path: Path, format: str = "auto", columns: Mapping[str, str | None] | None = None,
                time_unit: str = "auto", dataset: Dataset | None = None) -> Sample:
    """Reads a trace or a set of lengths from CSV, JSON lines or Parquet; arguments as `open_source` takes them.

    Raises:
        UserError: an unknown name, or whatever `read_trace` refuses.
    """
    return sample_in(open_source(path, format, columns, time_unit, dataset))


def sample_in(source: Source) -> Sample:
    """Reads what was opened."""
    if source.form is None:
        return _lengths(source)
    return sample_of(trace_of(source.pieces, source.form, source.path))


def open_source(path: Path, format: str = "auto", columns: Mapping[str, str | None] | None = None,
                time_unit: str = "auto", dataset: Dataset | None = None) -> Source:
    """Looks at a file's first piece and says what the file is.

    Args:
        path: the file.
        format: as `read_trace` takes it; `auto` recognises formats by their columns, and sets of lengths too.
        columns: our column names (docs/traces.md) to the file's; what is not named is looked for under our own name.
            Without arrivals the file is a set of lengths.
        time_unit: `s`, `ms`, `us`, `ns`, `date`, or `auto` (dates are recognised, numbers are seconds).
        dataset: says format and columns where the user does not.

    Raises:
        UserError: an unknown name, or a column that the file does not have.
    """
    given = {key: str(value) for key, value in (columns or {}).items() if value is not None}
    if time_unit not in TIME_UNITS:
        raise unknown("time_unit", time_unit, TIME_UNITS)
    check_format(format)
    for key in given:
        if key not in REQUIRED + OPTIONAL:
            raise unknown("column", key, REQUIRED + OPTIONAL)
    if dataset is not None and not given and path.name == dataset.file:
        given, format = dict(dataset.columns), dataset.format if format == "auto" else format
    if given and format != "auto":
        raise UserError(f"format={format} and columns.{next(iter(given))} exclude each other: a format "
                        "knows its columns")
    first, pieces = peek(read_pieces(path))
    if not given and format != "auto":
        return Source(path, pieces, FORMATS[format], {})
    if not given and time_unit == "auto" and not _is_lengths(first):
        return Source(path, pieces, recognise(first), {})
    named = {**{key: key for key in REQUIRED + OPTIONAL if key in first.columns}, **given}
    return Source(path, pieces, _named_format(first, named, time_unit), named)


def _is_lengths(table: Table) -> bool:
    """Tells whether a table has lengths under our names, but no arrivals."""
    if any(set(form.required) <= set(table.columns) for name, form in FORMATS.items() if name != "ooco_gym"):
        return False
    return bool({"prompt_tokens", "output_tokens"} & set(table.columns)) and _no_arrivals(table, "arrival_s")


def _no_arrivals(table: Table, field: str) -> bool:
    if field not in table.columns:
        return True
    if table.rows == 0 or table.holds_dates(field):
        return False
    try:
        return bool(np.isnan(table.numbers(field, "a number", missing=np.nan)).all())
    except UserError:       # the format's own reader says better what it expected
        return False


def _named_format(table: Table, columns: dict[str, str], time_unit: str) -> TraceFormat | None:
    """Returns the format that the user's columns make, or None where they are lengths only."""
    for field in columns.values():
        if field not in table.columns:
            raise UserError(f"trace file '{table.path}' has no column '{field}'{nearest(field, table.columns)}; found: "
                            f"{few(table.columns)}")
    if "arrival_s" in columns and not _no_arrivals(table, columns["arrival_s"]):
        for name in REQUIRED:
            if name not in columns:
                raise UserError(f"trace file '{table.path}': which column holds {name}? Expected columns.{name}=NAME, "
                                f"one of: {few(table.columns)}")
        if time_unit == "auto":
            time_unit = "date" if table.holds_dates(columns["arrival_s"]) else "s"
        return mapped_format(columns, time_unit)
    if not {"prompt_tokens", "output_tokens"} & set(columns):
        raise UserError(f"trace file '{table.path}': which columns hold what? Expected such as columns.arrival_s=NAME "
                        f"columns.prompt_tokens=NAME columns.output_tokens=NAME; found: {few(table.columns)}")
    return None


def _lengths(source: Source) -> Sample:
    parts: dict[str, list[np.ndarray]] = {"prompt_tokens": [], "output_tokens": []}
    rows = dropped = 0
    first_dropped = ""
    for table in source.pieces:
        _check_no_arrivals(table, source.columns.get("arrival_s"))
        rows += table.rows
        keep = np.ones(table.rows, bool)
        found: dict[str, np.ndarray] = {}
        if "prompt_tokens" in source.columns and table.rows:
            found["prompt_tokens"] = prompt_tokens(table, source.columns["prompt_tokens"])
        if "output_tokens" in source.columns and table.rows:
            found["output_tokens"] = output_tokens(table, source.columns["output_tokens"], zero_allowed=True)
            keep = found["output_tokens"] > 0
        if not keep.all():
            first_dropped = first_dropped or table.place(int(np.argmin(keep)))
            dropped += int((~keep).sum())
        for name, values in found.items():
            parts[name].append(values[keep])
    if rows == dropped:
        raise UserError(f"trace file '{source.path}' holds no request{' with output tokens' if rows else ''}")
    notes: tuple[str, ...] = ("lengths only: the file has no arrivals",)
    if dropped:
        notes += (f"dropped {dropped} of {rows} requests with zero output tokens (failed), the first at "
                  f"{first_dropped}",)
    prompt, output = (np.concatenate(values) if values else None for values in parts.values())
    return Sample(source.path.name.split(".")[0], None, prompt, output, notes)


def _check_no_arrivals(table: Table, field: str | None) -> None:
    if field is not None and table.rows and not _no_arrivals(table, field):
        values = table.numbers(field, "a number", missing=np.nan)
        table.demand(np.isnan(values), field, "nothing, as in the rows before: this is a set of lengths")
