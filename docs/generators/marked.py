"""A page that people and a generator write: what stands outside the marked part stays."""

from __future__ import annotations

from pathlib import Path

END = "<!-- end of results -->"


def merged(path: Path, results: str, begin: str) -> str:
    """The page with new results, Markdown, between the lines `begin` and `END`; a new page has nothing else."""
    before, rest = (path.read_text(encoding="utf-8") if path.is_file() else f"{begin}{END}\n").split(begin, 1)
    return f"{before}{begin}\n\n{results}\n\n{END}{rest.split(END, 1)[1]}"
