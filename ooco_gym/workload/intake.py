"""A file's pieces become checked requests, with an account of what was repaired and what looks odd.

Reading into memory and converting on disk both go through here, so that both have the same rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from ooco_gym.errors import UserError, nearest
from ooco_gym.workload.classes import CLASS_WORDS
from ooco_gym.workload.formats import UNITS, TraceFormat
from ooco_gym.workload.table_reader import Table, reason_of
from ooco_gym.workload.trace import MOST_CLASSES

LONGEST_USUAL = 1_000_000
SPARSE_S, DENSE_S = 20.0, 1e-4      # mean gaps beyond which a unit is doubted
FEWEST_TO_DOUBT = 20
LOOKED_AT = 10_000      # values of a column that is not read
LATE_S = 1e6            # eleven days: a trace that begins so late counts from somewhere else


class Intake:
    """Checks the pieces of one file.

    Attributes:
        rows: requests read, dropped ones among them.
        kept: requests that went on.
        clock: how the file tells time.
        lengths: whether the file has no arrivals.
        first, last: earliest and latest tick of what was kept.
    """

    def __init__(self, path: Path, form: TraceFormat) -> None:
        self.path, self.form = path, form
        self.rows = self.kept = self._late = 0
        self.clock, self.lengths = form.clock, "arrival_s" not in form.columns
        self.first, self.last, self._before = np.inf, -np.inf, -np.inf
        self._whole = True
        self._left_out: dict[str, set[str]] = {}  # columns, each with its values where these are few texts
        self._classed = False
        self._dropped = self._long = 0
        self._first_dropped = self._first_long = ""

    def requests(self, pieces: Iterable[Table]) -> Iterator[pa.Table]:
        """Yields the requests of each piece (`TraceFormat.read`) in the file's order, failed ones dropped.

        Raises:
            UserError: a column is missing, a value is impossible, or there is no request.
        """
        for table in pieces:
            if self.rows == 0:
                self._check_columns(table)
            read = self.form.there(table)
            self._classed |= "class" in read
            for name in table.columns:
                if name not in read.values() and name not in self.form.unused:
                    self._left_out[name] = _values(table, name) | self._left_out.get(name, set())
            if table.rows:
                requests = self._without_failed(table, self._read(table))
                if requests.num_rows:
                    self._count(requests)
                    yield requests
        if self.rows == 0:
            raise UserError(f"trace file '{self.path}' holds no request")
        if self.kept == 0:
            raise UserError(f"trace file '{self.path}' holds no request with output tokens")

    @property
    def origin(self) -> float | int:
        """The tick that becomes second 0; known when all pieces are read."""
        return self.clock.origin(self.first)

    def seconds(self, ticks: np.ndarray) -> np.ndarray:
        """Returns float64[n] seconds; when all pieces are read."""
        return self.clock.seconds(ticks, self.origin)

    def notes(self) -> tuple[str, ...]:
        """Returns what was repaired and what looks odd, one sentence each; when all pieces are read."""
        notes = []
        if self.lengths:
            notes.append("lengths only: the file has no arrivals")
        elif self.origin:
            kind = "times" if self.clock.unit == "date" else "times since 1970: they"
            notes.append(f"{kind} count from the first request")
        notes += self._doubts()
        notes += self._unread_classes()
        if self._left_out:
            notes.append(f"columns left out: {few(self._left_out)}")
        if self._dropped:
            notes.append(f"dropped {self._dropped} of {self.rows} requests with zero output tokens (failed), the first "
                         f"at {self._first_dropped}")
        if self._late:
            notes.append(f"sorted by time: {self._late} of {self.kept} requests were earlier than the one before")
        return tuple(notes)

    def _unread_classes(self) -> list[str]:
        """Columns that look like classes of requests, where none is read as such."""
        found = [] if self._classed else [(name, sorted(values)) for name, values in self._left_out.items()
                                          if len(values) <= MOST_CLASSES and any(
                                              one.casefold() in CLASS_WORDS for one in values)]
        return [f"warning: column '{name}' looks like classes of requests ({few(values)}) and is not read: all "
                f"requests count as online; columns.class={name} reads it (of a file that is played, "
                f"workload.columns.class={name})" for name, values in found]

    def _read(self, table: Table) -> pa.Table:
        try:
            return self.form.read(table)
        except (pa.ArrowException, UnicodeError) as error:  # as where a Parquet's content is corrupt
            raise UserError(f"trace file '{self.path}' cannot be read: {reason_of(error)}") from None

    def _check_columns(self, table: Table) -> None:
        known = {*self.form.columns.values(), *self.form.unused}
        for column in self.form.required:
            if column not in table.columns:
                others = [name for name in table.columns if name not in known]
                trouble = _header_trouble(list(table.columns))
                if not trouble and self.form.name == "ooco_gym":
                    trouble = (f"; say which of them it is: columns.{column}=NAME (of a file that is played, "
                               f"workload.columns.{column}=NAME)")
                raise UserError(f"trace file '{self.path}' has no column '{column}'{similar(column, others)}; format "
                                f"'{self.form.name}' needs: {', '.join(self.form.required)}; found: "
                                f"{few(table.columns)}{trouble}")

    def _without_failed(self, table: Table, requests: pa.Table) -> pa.Table:
        self.rows += table.rows
        lengths = [requests[name].to_numpy() for name in ("prompt_tokens", "output_tokens")
                   if name in requests.column_names]
        longest = np.max(lengths, axis=0)
        if not self._long and longest.max() > LONGEST_USUAL:
            row = int(np.argmax(longest > LONGEST_USUAL))
            self._first_long = f"{longest[row]:,} at {table.place(row)}"
        self._long += int(np.count_nonzero(longest > LONGEST_USUAL))
        failed = lengths[-1] == 0
        if not failed.any():
            return requests
        if not self._dropped:
            self._first_dropped = table.place(int(np.argmax(failed)))
        self._dropped += int(np.count_nonzero(failed))
        return requests.filter(pa.array(~failed))

    def _count(self, requests: pa.Table) -> None:
        self.kept += requests.num_rows
        if self.lengths:
            return
        ticks = requests["tick"].to_numpy()
        self._late += int(ticks[0] < self._before) + int(np.count_nonzero(ticks[1:] < ticks[:-1]))
        self._before = ticks[-1]
        self.first, self.last = min(self.first, ticks.min()), max(self.last, ticks.max())
        self._whole = self._whole and bool(np.all(ticks == np.rint(ticks)))

    def _doubts(self) -> list[str]:
        """Lengths that no model has, and times whose unit looks like another one."""
        doubts = []
        if self._long:
            doubts.append(f"suspicious lengths: {self._long} of {self.rows} requests have more than {LONGEST_USUAL:,} "
                          f"tokens, the first {self._first_long}; are they characters or bytes?")
        if self.lengths or self.kept <= FEWEST_TO_DOUBT or self.clock.unit == "date":
            return doubts
        first_s, last_s = (float(tick) / self.clock.per_second for tick in (self.first, self.last))
        gap_s = (last_s - first_s) / (self.kept - 1)
        if not self.origin and first_s > LATE_S and last_s - first_s < first_s / 10:
            doubts.append(f"the first request arrives at {first_s:.6g} s: if times should count from it, or are in "
                          f"another unit, import the file with columns.arrival_s=NAME and time_unit=…")
        word = UNITS[self.clock.unit][0]
        order = list(UNITS)
        here = order.index(self.clock.unit)
        if self._whole and gap_s >= SPARSE_S and here + 1 < len(order):
            unit = order[min(here + (1 if gap_s < 1e3 * SPARSE_S else 2), len(order) - 1)]
            doubts.append(f"all times are whole numbers, and read as {word} the mean gap is {gap_s:.4g} s: if they are "
                          f"{UNITS[unit][0]}, import the file with time_unit={unit}")
        elif 0 < gap_s < DENSE_S and here > 0:
            unit = order[here - 1]
            doubts.append(f"read as {word} the mean gap is {gap_s:.4g} s: if the times are {UNITS[unit][0]}, import "
                          f"the file with time_unit={unit}")
        return doubts


def _values(table: Table, field: str) -> set[str]:
    """The different texts among the first values of a column, one more than classes can be at most."""
    column = table.columns[field]
    if not isinstance(column, list):
        texts = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        column = column.slice(0, LOOKED_AT).unique().to_pylist() if texts else []
    return set([*dict.fromkeys(one for one in column[:LOOKED_AT] if isinstance(one, str))][: MOST_CLASSES + 1])


def similar(name: str, known: Iterable[str]) -> str:
    """Returns ` (did you mean 'x'?)` as `nearest` does, letter case aside."""
    cases = {item.casefold(): item for item in known}
    if name.casefold() in cases:
        return f" (did you mean '{cases[name.casefold()]}'? Letter case counts)"
    return nearest(name, cases.values())


def _header_trouble(names: list[str]) -> str:
    """Says what is wrong with a header that is none, or whose columns are not separated by commas."""
    if len(names) == 1:
        mark = next((mark for mark in ";\t|" if names[0].count(mark) >= 2), None)
        return f"; the header holds {mark!r}: expected commas between columns" if mark else ""
    if names and all(name[:1].isdigit() or name[:1] == "-" for name in names):
        return "; the first line looks like a request: expected a line with the columns' names before it"
    return ""


def few(names: Iterable[str]) -> str:
    """Returns names for a message: at most 12, long ones cut."""
    texts = [name if len(name) <= 40 else name[:37] + "..." for name in names]
    return ", ".join(repr(text) if text != text.strip() or not text.isprintable() else text
                     for text in texts[:12]) + (f" and {len(texts) - 12} more" if len(texts) > 12 else "")
