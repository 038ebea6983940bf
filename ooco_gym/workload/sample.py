"""What a file says of a workload: a whole trace, or only lengths; for describing, importing and fitting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from ooco_gym.workload.catalogue import Dataset
from ooco_gym.workload.formats import TraceFormat
from ooco_gym.workload.intake import Intake
from ooco_gym.workload.pieces import Table
from ooco_gym.workload.reading import recognised, trace_of
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
    """A file that was opened: its pieces, to be read once, and how to read them."""

    path: Path
    pieces: Iterator[Table]
    form: TraceFormat


def read_sample(path: Path, format: str = "auto", columns: Mapping[str, str | None] | None = None,
                time_unit: str = "auto", dataset: Dataset | None = None) -> Sample:
    """Reads a trace or a set of lengths from CSV, JSON lines or Parquet; arguments as `open_source` takes them.

    Raises:
        UserError: an unknown name, or whatever `read_trace` refuses.
    """
    return sample_in(open_source(path, format, columns, time_unit, dataset))


def sample_in(source: Source) -> Sample:
    """Reads what was opened."""
    if "arrival_s" in source.form.columns:
        return sample_of(trace_of(source.pieces, source.form, source.path))
    intake = Intake(source.path, source.form)
    requests = pa.concat_tables(list(intake.requests(source.pieces)))
    prompt, output = (requests[name].to_numpy() if name in requests.column_names else None
                      for name in ("prompt_tokens", "output_tokens"))
    return Sample(source.path.name.split(".")[0], None, prompt, output, intake.notes())


def open_source(path: Path, format: str = "auto", columns: Mapping[str, str | None] | None = None,
                time_unit: str = "auto", dataset: Dataset | None = None) -> Source:
    """Looks at a file's first piece and says what the file is: a trace, or without arrivals a set of lengths.

    Args:
        path: the file.
        format: as `read_trace` takes it; `auto` recognises formats by their columns, and sets of lengths too.
        columns: as `read_trace` takes them.
        time_unit: as `read_trace` takes it.
        dataset: says format and columns where the user does not.

    Raises:
        UserError: an unknown name, or a column that the file does not have.
    """
    given = {key: str(value) for key, value in (columns or {}).items() if value is not None}
    if dataset is not None and not given and path.name == dataset.file:
        given, format = dict(dataset.columns), dataset.format if format == "auto" else format
    form, pieces = recognised(path, format, given, time_unit, lengths=True)
    return Source(path, pieces, form)
