"""Progress bars: one look, on stderr, silent where nobody watches."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")


class Bar:
    """A bar to push forward; of the silent kind where `progress` found nobody watching."""

    def __init__(self, display: object = None, task: object = None):
        self._display, self._task = display, task

    def advance(self, steps: float = 1.0) -> None:
        """Moves the bar forward by `steps` of its total."""
        if self._display is not None:
            self._display.advance(self._task, steps)  # pyright: ignore[reportAttributeAccessIssue]

    def text(self, text: str) -> None:
        """Says what is being done."""
        if self._display is not None:
            self._display.update(self._task, description=text)  # pyright: ignore[reportAttributeAccessIssue]


def watched() -> bool:
    """Whether somebody watches: stderr is a terminal, and this is no CI run."""
    return sys.stderr.isatty() and not os.environ.get("CI")


@contextmanager
def progress(text: str, total: float | None = None) -> Iterator[Bar]:
    """Shows a bar while the block runs; for work of more than about two seconds.

    Args:
        text: what is being done.
        total: steps until done; None where unknown.
    """
    if not watched():
        yield Bar()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as display:
        yield Bar(display, display.add_task(text, total=total))


def track(items: Iterable[Item], text: str, total: int | None = None) -> Iterator[Item]:
    """Yields from `items` with a bar; `total` is their number where `len` does not tell."""
    count = total if total is not None else len(items) if hasattr(items, "__len__") else None  # type: ignore[arg-type]
    with progress(text, count) as bar:
        for item in items:
            yield item
            bar.advance()
