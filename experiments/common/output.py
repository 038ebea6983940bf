"""What commands and studies show and write: tables in the terminal, pages with a marked part, Plotly pages."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ooco_gym.errors import UserError
from ooco_gym.files import atomic_write
from ooco_gym.report.terminal import progress

if TYPE_CHECKING:
    from rich.console import Console

    from experiments.common.runner import Jobs

NO_TERMINAL_WIDTH = 160


@contextmanager
def waiting(what: str, jobs: Jobs) -> Iterator[None]:
    """Shows how many simulations have been asked for and are done, while the body runs."""
    over = threading.Event()
    with progress(what) as bar:

        def follow() -> None:
            while not over.wait(0.25):
                bar.text(f"{what}: {jobs.finished} of {jobs.asked} simulations asked for so far")

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def console() -> Console:
    """Where tables are printed: as wide as the terminal, wide enough for them where there is none."""
    from rich.console import Console

    screen = Console()
    return screen if screen.is_terminal else Console(width=NO_TERMINAL_WIDTH)


def show_notes(notes: Sequence[str]) -> None:
    """Prints what a reader should not overlook, one line each."""
    for note in notes:
        console().print(f"[yellow]note[/yellow] {note}", highlight=False)


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


COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")


def write_page(figure: Any, path: str | os.PathLike[str]) -> None:
    """Writes a Plotly figure as one HTML file that needs no network, atomically."""
    with atomic_write(path) as temporary:
        figure.write_html(temporary, include_plotlyjs=True, full_html=True)
