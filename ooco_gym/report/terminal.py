"""The terminal: consoles, progress bars on stderr, and warnings as one line each."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ooco_gym.errors import printable

if TYPE_CHECKING:
    from rich.console import Console

FIRST_LINE_S, LINE_EVERY_S = 2.0, 30.0  # progress without a terminal
WIDTH = 160  # columns of a table in a file or pipe
Item = TypeVar("Item")


# --- Output ------------------------------------------------------------------------------------------------------
def console() -> Console:
    """Returns a console for wide tables: as wide as the terminal, or `WIDTH` columns without one."""
    from rich.console import Console

    screen = Console()
    return screen if screen.is_terminal else Console(width=WIDTH)


def show_notes(notes: Sequence[str], screen: Console | None = None) -> None:
    """Prints important remarks, one line each, as notes or as warnings."""
    from rich.markup import escape

    screen = screen or console()
    for note in notes:
        kind = "warning" if note.startswith("warning: ") else "note"
        said = printable(note.removeprefix("warning: "))
        screen.print(f"[yellow]{kind}[/yellow] {escape(said)}", highlight=False)


# --- Progress --------------------------------------------------------------------------------------------------------
class Bar:
    """A progress bar; this base class keeps its state and draws nothing."""

    def __init__(self, text: str = "") -> None:
        self.label, self.done = text, 0.0

    def advance(self, steps: float = 1.0) -> None:
        """Moves the bar forward by `steps` of its total."""
        self.done += steps
        self.draw()

    def text(self, text: str) -> None:
        """Sets the bar's text."""
        self.label = text
        self.draw()

    def draw(self) -> None:
        """Draws the bar."""


def watched() -> bool:
    """Returns whether progress is shown: stderr is a terminal, and this is no CI run."""
    return sys.stderr.isatty() and not os.environ.get("CI")


@contextmanager
def progress(text: str, total: float | None = None) -> Iterator[Bar]:
    """Shows a bar while the block runs, or occasional lines if stderr is no terminal; for work of
    over two seconds.

    `total` is the number of steps, None if unknown. Worker processes show nothing.
    """
    bar = Bar(text)
    if watched():
        from rich import progress as bars
        from rich.console import Console

        columns = [bars.TextColumn("{task.description}"), bars.BarColumn(), bars.MofNCompleteColumn(),
                   bars.TimeElapsedColumn(), *([bars.TextColumn("left:"), bars.TimeRemainingColumn()] if total else [])]
        with bars.Progress(*columns, console=Console(stderr=True), transient=True) as display:
            task = display.add_task(text, total=total)
            bar.draw = lambda: display.update(task, completed=bar.done, description=bar.label)
            yield bar
        return
    if multiprocessing.parent_process() is not None:
        yield bar
        return
    with following(partial(_tell, bar, total, time.monotonic()), FIRST_LINE_S):
        yield bar


def _tell(bar: Bar, total: float | None, begun_s: float) -> float:
    """Prints a line, with the remaining time if steps are counted; returns the seconds until the next one."""
    of = f"/{total:,.0f}" if total else ""
    done = f", {bar.done:,.0f}{of}" if of or bar.done else ""
    passed_s = time.monotonic() - begun_s
    left = f", {_clock(passed_s / bar.done * (total - bar.done))} left" if total and bar.done else ""
    print(f"{bar.label}{done} ({_clock(passed_s)}{left})", file=sys.stderr, flush=True)
    return LINE_EVERY_S


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


@contextmanager
def following(look: Callable[[], float], wait_s: float) -> Iterator[None]:
    """Calls `look` in a thread during the block, first after `wait_s`, then after the seconds that it returns."""
    over = threading.Event()

    def follow() -> None:
        seconds = wait_s
        while not over.wait(seconds):
            seconds = look()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def track(items: Iterable[Item], text: str, total: int | None = None) -> Iterator[Item]:
    """Yields from `items` with a bar; `total` is their number if `len` is not available."""
    count = total if total is not None else len(items) if hasattr(items, "__len__") else None  # type: ignore[arg-type]
    with progress(text, count) as bar:
        for item in items:
            yield item
            bar.advance()


# --- Warnings --------------------------------------------------------------------------------------------------------
def plain_warnings() -> Any:
    """Prints `UserWarning`s of this process as `note: …`; returns the former format function."""
    before = warnings.formatwarning

    def one_line(message: Any, category: type[Warning], filename: str, lineno: int, line: str | None = None) -> str:
        said = printable(str(message))
        return f"note: {said}\n" if category is UserWarning else before(message, category, filename, lineno, line)

    warnings.formatwarning = one_line
    return before


_remarks: dict[str, str] = {}
_said: set[str] | None = None  # while a command runs


def remark(sentence: str, what: str = "") -> None:
    """Reports a fact about a command's inputs: prints a line on stderr, once per `what`, while a
    command runs.

    Outside a command, as in Python or in a worker process, nothing is printed. There the facts are
    in `ResolvedScenario.remarks`, `RunRecord.range_warnings` or `info["notes"]` of an environment's
    reset.
    """
    _remarks.setdefault(what or sentence, sentence)
    if _said is not None and (what or sentence) not in _said and multiprocessing.parent_process() is None:
        _said.add(what or sentence)
        print(f"note: {printable(sentence)}", file=sys.stderr, flush=True)


@contextmanager
def remarks() -> Iterator[dict[str, str]]:
    """Collects the remarks of this process within the block, in order, for a command's `summary.json`."""
    global _remarks
    before, _remarks = _remarks, {}
    try:
        yield _remarks
    finally:
        before.update(_remarks)
        _remarks = before


@contextmanager
def notes() -> Iterator[None]:
    """Activates `plain_warnings` and `remark`s while a command runs."""
    global _said
    before, _said = plain_warnings(), set()
    try:
        yield
    finally:
        warnings.formatwarning, _said = before, None
