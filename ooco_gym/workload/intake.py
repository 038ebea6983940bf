"""A file's pieces become checked requests, with an account of what was repaired and what looks odd.

Reading into memory and converting on disk both go through here, so that both have the same rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ooco_gym.errors import UserError, nearest
from ooco_gym.workload.classes import CLASS_WORDS
from ooco_gym.workload.formats import UNITS, Clock, Draft, TraceFormat
from ooco_gym.workload.pieces import Table, reason_of
from ooco_gym.workload.trace import MOST_CLASSES, NO_SESSION, SECONDS, Hashes, join_classes, take_hashes

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
        first, last: earliest and latest tick of what was kept.
    """

    def __init__(self, path: Path, form: TraceFormat) -> None:
        self.path, self.form = path, form
        self.rows = self.kept = self._late = 0
        self.clock = Clock()
        self.first, self.last, self._before = np.inf, -np.inf, -np.inf
        self._whole = True
        self._left_out: dict[str, set[str]] = {}  # columns, each with its values where these are few texts
        self._classed = False
        self._dropped = self._long = 0
        self._first_dropped = self._first_long = ""

    def drafts(self, pieces: Iterable[Table]) -> Iterator[Draft]:
        """Yields the requests of each piece in the file's order, those without output dropped where that is the rule.

        Raises:
            UserError: a column is missing, a value is impossible, or there is no request.
        """
        for table in pieces:
            if self.rows == 0:
                self._check_columns(table)
            known = self.form.required + self.form.optional
            for name in table.columns:
                if name not in known:
                    self._left_out[name] = _values(table, name) | self._left_out.get(name, set())
            if table.rows:
                draft = self._without_failed(table, self._read(table))
                self._classed |= draft.online is not None
                if len(draft.ticks):
                    self._count(draft)
                    yield draft
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
        if self.origin:
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

    def _read(self, table: Table) -> Draft:
        try:
            return self.form.read(table)
        except (pa.ArrowException, UnicodeError) as error:  # as where a Parquet's content is corrupt
            raise UserError(f"trace file '{self.path}' cannot be read: {reason_of(error)}") from None

    def _check_columns(self, table: Table) -> None:
        known = self.form.required + self.form.optional
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

    def _without_failed(self, table: Table, draft: Draft) -> Draft:
        self.rows += table.rows
        longest = np.maximum(draft.prompt_tokens, draft.output_tokens)
        if not self._long and longest.max() > LONGEST_USUAL:
            row = int(np.argmax(longest > LONGEST_USUAL))
            self._first_long = f"{longest[row]:,} at {table.place(row)}"
        self._long += int(np.count_nonzero(longest > LONGEST_USUAL))
        keep = draft.output_tokens > 0
        if not draft.drop_without_output or keep.all():
            return draft
        if not self._dropped:
            self._first_dropped = table.place(int(np.argmin(keep)))
        self._dropped += int(np.count_nonzero(~keep))
        return take(draft, np.flatnonzero(keep))

    def _count(self, draft: Draft) -> None:
        ticks = draft.ticks
        self.clock = draft.clock
        self.kept += len(ticks)
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
        if self.kept <= FEWEST_TO_DOUBT or self.clock.unit == "date":
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
    if isinstance(column, pa.ChunkedArray):
        texts = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        column = column.slice(0, LOOKED_AT).unique().to_pylist() if texts else []
    return set([*dict.fromkeys(one for one in column[:LOOKED_AT] if isinstance(one, str))][: MOST_CLASSES + 1])


def take(draft: Draft, rows: np.ndarray) -> Draft:
    """Returns the draft's requests at the positions int[m]."""
    arrays = {item.name: value[rows] for item in fields(Draft)
              if isinstance(value := getattr(draft, item.name), np.ndarray)}
    hashes = None if draft.prefix_hashes is None else take_hashes(draft.prefix_hashes, rows)
    return replace(draft, prefix_hashes=hashes, **arrays)


def join(drafts: Sequence[Draft]) -> Draft:
    """Returns the requests of several drafts in a row; what only some of them have is filled as `merge` does."""
    missing: dict[str, Any] = {"online": True, **dict.fromkeys(SECONDS, np.nan), "session": NO_SESSION}
    if len(drafts) == 1:
        return drafts[0]
    joined = {}
    for name in ("ticks", "prompt_tokens", "output_tokens", *missing):
        values = [getattr(draft, name) for draft in drafts]
        if any(value is not None for value in values):
            joined[name] = np.concatenate([np.full(len(draft.ticks), missing[name]) if value is None else value
                                           for draft, value in zip(drafts, values, strict=True)])
    ids, names = join_classes(drafts)
    return replace(drafts[0], prefix_hashes=_join_hashes(drafts), class_id=ids, class_names=names, **joined)


def _join_hashes(drafts: Sequence[Draft]) -> Hashes | None:
    if all(draft.prefix_hashes is None for draft in drafts):
        return None
    parts = [draft.prefix_hashes or (np.zeros(len(draft.ticks) + 1, np.int64), np.zeros(0, np.int64))
             for draft in drafts]
    counts = np.concatenate([np.diff(offsets) for offsets, _ in parts])
    return np.concatenate([[0], np.cumsum(counts)]), np.concatenate([values for _, values in parts])


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
