"""What a file says of a workload: a whole trace, or only lengths; for describing, importing and fitting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.workload.catalogue import Dataset
from ooco_gym.workload.formats import TraceFormat, output_tokens, prompt_tokens
from ooco_gym.workload.pieces import Table
from ooco_gym.workload.reading import no_arrivals, recognised, trace_of
from ooco_gym.workload.trace import Trace


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
    if dataset is not None and not given and path.name == dataset.file:
        given, format = dict(dataset.columns), dataset.format if format == "auto" else format
    form, pieces, named = recognised(path, format, given, time_unit, lengths=True)
    return Source(path, pieces, form, named)


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
    if field is not None and table.rows and not no_arrivals(table, field):
        values = table.numbers(field, "a number", missing=np.nan)
        table.demand(np.isnan(values), field, "nothing, as in the rows before: this is a set of lengths")
