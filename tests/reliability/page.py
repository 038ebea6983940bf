"""The tables of docs/reliability.md. Apart: each command writes its own rows, and leaves those of other runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ooco_gym.files import atomic_write

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"


def write_rows(section: str, head: Sequence[str], rows: Sequence[Sequence[str]], page: str | Path = PAGE) -> None:
    """Puts rows into the table between `<!-- section -->` and `<!-- end of section -->`.

    Args:
        section: which table; a page without one is refused.
        head: its columns.
        rows: each takes the place of the row that begins with the same cell, or comes last.
        page: the Markdown file.
    """
    begin, end = f"<!-- {section} -->", f"<!-- end of {section} -->"
    before, rest = Path(page).read_text(encoding="utf-8").split(begin, 1)
    old, after = rest.split(end, 1)
    kept = {row[0]: row for row in map(_cells, old.strip().splitlines()[2:])}
    kept |= {row[0]: list(row) for row in rows}
    lines = [_line(head), _line(["---"] * len(head)), *map(_line, kept.values())]
    with atomic_write(page) as temporary:
        temporary.write_text(before + begin + "\n\n" + "\n".join(lines) + "\n\n" + end + after, encoding="utf-8")


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
