"""One table for the terminal, Markdown and HTML, and the format of numbers in tables and sentences."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple

from ooco_gym.errors import printable
from ooco_gym.report.terminal import console

if TYPE_CHECKING:
    from rich.console import Console

NONE = "–"  # stands for a missing value
NUMERIC = "0123456789-+−–<>±"  # a cell with a number begins with one of these
Form = str | Callable[[Any], str]  # a format specification (".4g") or a function


# --- Numbers --------------------------------------------------------------------------------------------------------
def as_text(value: Any, form: Form = "") -> str:
    """Returns a value as text in a form; `NONE` for None, NaN and infinity."""
    if missing(value):
        return NONE
    return form(value) if callable(form) else format(value, form)


def missing(value: Any) -> bool:
    """Returns whether a value is missing: None, NaN or infinity."""
    return value is None or (isinstance(value, Real) and not math.isfinite(value))


def percent(share: float | None, digits: int = 2, sign: str = "", whole: float = 100.0) -> str:
    """Returns a share in percent: `3.12 %`; `sign="+"` for differences, `whole=1` for percentages."""
    return as_text(share, lambda value: f"{whole * value:{sign}.{digits}f} %")


def number(value: float | None, digits: int = 3, sign: str = "") -> str:
    """Returns a number with `digits` significant digits; integers and large ones with separators."""
    if missing(value):
        return NONE
    assert value is not None
    plain = abs(value) >= 10 ** (digits - 1) or float(value).is_integer()
    return f"{value:{sign},.0f}" if plain else f"{value:{sign}.{digits}g}"


def duration(seconds: float | None) -> str:
    """Returns a time, in milliseconds below a second, else in seconds."""
    return as_text(seconds, lambda s: f"{1000 * s:.1f} ms" if s < 1 else f"{s:.2f} s" if s < 1000 else f"{s:,.0f} s")


def at_least(text: str, bound: bool = True) -> str:
    """Marks a lower bound: `> 23.0 s`."""
    return f"> {text}" if bound and text != NONE else text


def with_interval(mean: float | None, low: float | None, high: float | None, form: Form = ".4g",
                  none: str = NONE) -> str:
    """Returns a value with its interval, as `mean [low, high]`.

    Without an interval the value stands alone; a missing value becomes `none`.
    """
    if missing(mean):
        return none
    if missing(low) or missing(high):
        return as_text(mean, form)
    return "{} [{}, {}]".format(*(as_text(value, form) for value in (mean, low, high)))


def minus(text: str) -> str:
    """Replaces hyphens of negative numbers by minus signs."""
    return text.replace("-", "−")


def joined(words: Sequence[str]) -> str:
    """Returns a list in a sentence: `a, b and c`."""
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else "".join(words)


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flattens nested mappings to dotted keys."""
    found: dict[str, Any] = {}
    for key, one in values.items():
        found |= flat(one, f"{prefix}{key}.") if isinstance(one, Mapping) else {f"{prefix}{key}": one}
    return found


# --- Tables ---------------------------------------------------------------------------------------------------------
class Column(NamedTuple):
    """A column of a table of records.

    Attributes:
        head: its title.
        value: a record's value: a key, or a function of the record.
        form: of the value.
    """

    head: str
    value: str | Callable[[Any], Any]
    form: Form = ""

    def cell(self, record: Any) -> str:
        """Returns the column's text for a record."""
        return as_text(self.value(record) if callable(self.value) else record[self.value], self.form)


@dataclass(frozen=True)
class Table:
    """Rows of text under a head.

    Attributes:
        title: above the table, except in Markdown.
        head: a title per column; if all are empty, none is shown at the terminal.
        rows: of cells; other values than strings are formatted by `as_text`.
        note: an explanation below the table, except in Markdown.
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[Any]]
    note: str = ""

    def __post_init__(self) -> None:
        for name in ("title", "note"):
            object.__setattr__(self, name, printable(getattr(self, name)))
        object.__setattr__(self, "head", tuple(map(printable, self.head)))
        object.__setattr__(self, "rows", tuple(tuple(map(printable, map(as_text, row))) for row in self.rows))
        for row in self.rows:
            if len(row) != len(self.head):
                raise ValueError(f"table '{self.title}': a row has {len(row)} cells, its head {len(self.head)}")

    @classmethod
    def of(cls, columns: Sequence[Column], records: Sequence[Any], title: str = "", note: str = "") -> Table:
        """Returns the table of records: a row per record, a cell per column."""
        rows = []
        for record in records:
            rows.append([column.cell(record) for column in columns])
        return cls(title, [column.head for column in columns], rows, note)

    def turned(self) -> Table:
        """Returns the table transposed if it has more columns than rows, because terminals are narrow."""
        if len(self.head) <= len(self.rows) + 1:
            return self
        head, *rows = zip(self.head, *self.rows, strict=True)
        return replace(self, head=head, rows=rows)

    def markdown(self) -> str:
        """Returns the table in Markdown, without title and note."""
        lines = [self.head, ["---:" if side == "r" else "---" for side in self.sides], *self.rows]
        return "\n".join(map(_markdown_line, lines))

    def show(self, screen: Console | None = None, unbroken: int = 0) -> None:
        """Prints the table; the first `unbroken` columns never break a cell over lines."""
        from rich.box import HEAVY_HEAD
        from rich.markup import escape
        from rich.table import Table as RichTable

        view = RichTable(title=escape(self.title) or None, title_justify="left", caption=escape(self.note) or None,
                         caption_justify="left", show_header=any(self.head), box=HEAVY_HEAD if any(self.head) else None)
        for index, (name, side) in enumerate(zip(self.head, self.sides, strict=True)):
            view.add_column(escape(name), justify="right" if side == "r" else "left", overflow="fold",
                            no_wrap=index < unbroken)
        for row in self.rows:
            view.add_row(*map(escape, row))
        (screen or console()).print(view, highlight=False)

    @property
    def sides(self) -> str:
        """`l` or `r` for each column: those with more numbers than words stand at the right, except the first. Of two
        columns the second has only numbers to stand there."""
        sides = "l"
        for cells in [*zip(*self.rows, strict=True)][1:]:
            filled = [cell[0] in NUMERIC for cell in cells if cell]
            needed = len(filled) // 2 + 1 if len(self.head) > 2 else len(filled)
            sides += "r" if sum(filled) >= max(1, needed) else "l"
        return sides.ljust(len(self.head), "l")


def _markdown_line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
