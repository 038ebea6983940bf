"""Pages that a person and a command both write: the command's part stands between two marks."""

from __future__ import annotations

from pathlib import Path


def merged(path: Path, title: str, results: str, marks: tuple[str, str]) -> str:
    """The page with new results: what a person wrote outside the marked part stays.

    Args:
        path: the page; it need not be there yet.
        title: of a new page.
        results: what comes between the marks, Markdown.
        marks: the lines before and after it. A page that lacks one gets the marked part at its end.
    """
    begin, end = marks
    block = f"{begin}\n\n{results}\n\n{end}"
    if not path.is_file():
        return f"# {title}\n\n{block}\n"
    text = path.read_text(encoding="utf-8")
    if begin not in text or end not in text:
        return f"{text.rstrip()}\n\n{block}\n"
    before, rest = text.split(begin, 1)
    return before + block + rest.split(end, 1)[1]
