"""One table for the terminal, Markdown and HTML, and how numbers are written in it and in sentences."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple

from ooco_gym.report.terminal import console

if TYPE_CHECKING:
    from rich.console import Console

NONE = "–"  # stands where there is no figure
BRACKETS, TO, RANGE = "{} [{}, {}]", "{} ({} to {})", "{} ({}–{})"  # a mean with its interval
Form = str | Callable[[Any], str]  # how a value is written: a format specification (".4g") or a function


# --- Numbers --------------------------------------------------------------------------------------------------------
def as_text(value: Any, form: Form = "") -> str:
    """A value as text in a form; `NONE` for None, NaN and infinity."""
    if missing(value):
        return NONE
    return form(value) if callable(form) else format(value, form)


def missing(value: Any) -> bool:
    """Whether there is no figure: None, NaN or infinity."""
    return value is None or (isinstance(value, Real) and not math.isfinite(value))


def percent(share: float | None, digits: int = 2, sign: str = "", whole: float = 100.0) -> str:
    """A share in percent: 0.0312 is `3.12 %`. With `sign="+"` a difference; `whole=1` where the figure is in percent
    already."""
    return as_text(share, lambda value: f"{whole * value:{sign}.{digits}f} %")


def number(value: float | None, digits: int = 3, sign: str = "") -> str:
    """A number to so many significant digits; whole ones and large ones with separators and without a fraction."""
    if missing(value):
        return NONE
    assert value is not None
    plain = abs(value) >= 10 ** (digits - 1) or float(value).is_integer()
    return f"{value:{sign},.0f}" if plain else f"{value:{sign}.{digits}g}"


def duration(seconds: float | None) -> str:
    """A time in milliseconds below a second, in seconds from there on."""
    return as_text(seconds, lambda s: f"{1000 * s:.1f} ms" if s < 1 else f"{s:.2f} s" if s < 1000 else f"{s:,.0f} s")


def at_least(text: str, bound: bool = True) -> str:
    """A figure that is but a lower bound is marked as one: `> 23.0 s`."""
    return f"> {text}" if bound and text != NONE else text


def with_interval(mean: float | None, low: float | None, high: float | None, form: Form = ".4g",
                  between: str = BRACKETS, none: str = NONE) -> str:
    """A figure with its interval, `mean [low, high]` or as `between` has the three; alone where it has none, and `none`
    where there is no figure."""
    if missing(mean):
        return none
    if missing(low) or missing(high):
        return as_text(mean, form)
    return between.format(*(as_text(value, form) for value in (mean, low, high)))


def minus(text: str) -> str:
    """Hyphens of negative numbers as minus signs."""
    return text.replace("-", "−")


def joined(words: Sequence[str]) -> str:
    """A list in a sentence: `a, b and c`."""
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
        value: what a record has in it: a key, or a function of the record.
        form: how that is written.
        align: `l` or `r`.
    """

    head: str
    value: str | Callable[[Any], Any]
    form: Form = ""
    align: str = "r"

    def cell(self, record: Any) -> str:
        """The column's text of one record."""
        return as_text(self.value(record) if callable(self.value) else record[self.value], self.form)


@dataclass(frozen=True)
class Table:
    """Rows of text under a head.

    Attributes:
        title: stands above it, except in Markdown.
        head: a title for each column; at the terminal none is shown where all are empty.
        rows: of cells; what is no string is written by `as_text`.
        note: how to read it, below it; except in Markdown.
        align: `l` or `r` for each column, the last one for all that follow; empty: the first column `l`, the others
            `r` where they hold numbers.
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[Any]]
    note: str = ""
    align: str = "lr"

    def __post_init__(self) -> None:
        object.__setattr__(self, "head", tuple(self.head))
        object.__setattr__(self, "rows", tuple(tuple(map(as_text, row)) for row in self.rows))
        for row in self.rows:
            if len(row) != len(self.head):
                raise ValueError(f"table '{self.title}': a row has {len(row)} cells, its head {len(self.head)}")

    @classmethod
    def of(cls, columns: Sequence[Column], records: Sequence[Any], title: str = "", note: str = "") -> Table:
        """The table of records: a row each, a cell for each column."""
        rows = []
        for record in records:
            rows.append([column.cell(record) for column in columns])
        align = "".join(column.align for column in columns)
        return cls(title, [column.head for column in columns], rows, note, align)

    def turned(self) -> Table:
        """Returns the table transposed where it has more columns than rows, as a terminal is narrow."""
        if len(self.head) <= len(self.rows) + 1:
            return self
        head, *rows = zip(self.head, *self.rows, strict=True)
        return replace(self, head=head, rows=rows)

    def markdown(self) -> str:
        """The table in Markdown, without title and note."""
        lines = [self.head, ["---:" if side == "r" else "---" for side in self._sides()], *self.rows]
        return "\n".join(map(_markdown_line, lines))

    def html(self) -> str:
        """The table in HTML, with title and note; an interval in brackets stands on a line of its own."""
        head, kinds = "", []
        for index, (name, side) in enumerate(zip(self.head, self._sides(), strict=True)):
            kind = " class=text" if index > 0 and side == "l" else ""
            head += f"<th{kind}>{html.escape(name)}</th>"
            kinds.append(f'{kind} data-head="{html.escape(name)}"' if len(self.head) > 3 else kind)
        rows = "".join(_html_row(row, kinds) for row in self.rows)
        title = f"<h3>{html.escape(self.title)}</h3>" if self.title else ""
        note = f'<p class="note">{html.escape(self.note)}</p>' if self.note else ""
        kind = ""
        if len(self.head) == 2:
            kind = ' class="words"'
        elif len(self.head) > 3:
            kind = ' class="wide"'
        table = f"<table{kind}><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        return f'{title}<div class="scroll">{table}</div>{note}'

    def show(self, screen: Console | None = None, unbroken: int = 0) -> None:
        """Prints the table; the first `unbroken` columns never break a cell over lines."""
        from rich.box import HEAVY_HEAD
        from rich.markup import escape
        from rich.table import Table as RichTable

        view = RichTable(title=escape(self.title) or None, title_justify="left", caption=escape(self.note) or None,
                         caption_justify="left", show_header=any(self.head), box=HEAVY_HEAD if any(self.head) else None)
        for index, (name, side) in enumerate(zip(self.head, self._sides(), strict=True)):
            view.add_column(escape(name), justify="right" if side == "r" else "left", overflow="fold",
                            no_wrap=index < unbroken)
        for row in self.rows:
            view.add_row(*map(escape, row))
        (screen or console()).print(view, highlight=False)

    def _sides(self) -> str:
        if not self.align:
            return "l" + "".join("r" if _numeric(cells) else "l" for cells in list(zip(*self.rows, strict=True))[1:])
        return self.align[: len(self.head)] + self.align[-1] * (len(self.head) - len(self.align))


def _numeric(cells: Sequence[str]) -> bool:
    some = [cell for cell in cells if cell]
    return bool(some) and all(cell[0] in "0123456789-+−–<±" for cell in some)


def _markdown_line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _html_row(cells: Sequence[str], kinds: Sequence[str]) -> str:
    columns = [f"<td{kind}>{_html_cell(cell)}</td>" for cell, kind in zip(cells, kinds, strict=True)]
    return f"<tr>{''.join(columns)}</tr>"


def _html_cell(text: str) -> str:
    value, bracket, interval = text.partition(" [")
    return html.escape(value) + (f'<br><span class="ci">[{html.escape(interval)}</span>' if bracket else "")


def plain_table(values: Mapping[str, Any]) -> Table:
    """Texts and numbers of mappings within mappings, a row each."""
    return Table("", ("", ""), [(key, one if isinstance(one, str) else as_text(one, ".6g"))
                                for key, one in flat(values).items() if isinstance(one, (str, int, float))])
