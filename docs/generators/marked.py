"""A page that people and a generator write: what stands outside the marked part stays."""

from __future__ import annotations

from pathlib import Path

END = "<!-- end of results -->"


def merged(path: Path, results: str, begin: str, end: str = END) -> str:
    """The page with new results, Markdown, between the lines `begin` and `end`; a new page has nothing else."""
    before, rest = (path.read_text(encoding="utf-8") if path.is_file() else f"{begin}{end}\n").split(begin, 1)
    return f"{before}{begin}\n\n{results}\n\n{end}{rest.split(end, 1)[1]}"
