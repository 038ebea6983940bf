"""Pages that a person and a command both write: the command's part stands between two marks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ooco_gym.errors import UserError


def check_page(key: str, page: Any) -> None:
    """Refuses a page that cannot be written, before hours of work are done for it.

    Raises:
        UserError: it is a folder, or no name of a file.
    """
    if page is not None and (not isinstance(page, str) or not page or Path(page).is_dir()):
        what = "is a folder" if isinstance(page, str) and page else "names no file"
        raise UserError(f"{key}={page} {what}; expected a Markdown file, such as {key}=results.md")


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
