"""Figures as words: tables and numbers of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; all columns but the first are aligned to the right where they hold numbers."""
    def right(column: int) -> bool:
        cells = [row[column] for row in rows if row[column]]
        return column > 0 and bool(cells) and all(cell[:1] in "0123456789-+−–<±" for cell in cells)

    marks = ["---:" if right(column) else "---" for column in range(len(header))]
    lines = [header, marks, *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def percent(value: float | None, digits: int = 1) -> str:
    """A figure in percent; an en dash where there is none."""
    return "–" if value is None else f"{value:.{digits}f} %"


def signed(value: float | None, digits: int = 1) -> str:
    """A difference in percent, with its sign."""
    if value is None:
        return "–"
    return minus(f"{value:+.{digits}f} %")


def minus(text: str) -> str:
    """Hyphens as minus signs."""
    return text.replace("-", "−")


def number(value: float | None, digits: int = 3) -> str:
    """A number to so many figures; whole ones from 1,000 on with separators."""
    if value is None:
        return "–"
    if abs(value) >= 1000 or float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def errors(item: Mapping[str, Any] | None) -> str:
    """MAPE, and P95 and the worst case in brackets, in percent."""
    if not item:
        return "–"
    return f"{item['mape']:.1f} % ({item['p95']:.0f}, {item['worst']:.0f})"


def details(summary: str, body: str) -> str:
    """What is shown only when it is asked for."""
    return f"<details><summary>{summary}</summary>\n\n{body}\n\n</details>"


def joined(words: Sequence[str]) -> str:
    """A list in a sentence."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else ""
