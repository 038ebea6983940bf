"""What the command line does when whoever reads its output, or lets it run, has had enough."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ooco_gym.errors import Terminated
from ooco_gym.files import FULL


class Outlet:
    """A text stream that drops what is written once its reader is gone (`ooco-gym perf | head`), or the disk that it
    goes to is full: files are made."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Writes, or drops the text once the reader is gone."""
        try:
            return self._stream.write(text)
        except OSError as error:
            self._close(error)
            return len(text)

    def flush(self) -> None:
        """Flushes, or drops the text once the reader is gone."""
        try:
            self._stream.flush()
        except OSError as error:
            self._close(error)

    def _close(self, error: OSError) -> None:
        """Lets all that follows, what is buffered included, go nowhere; says so where a disk is full.

        Raises:
            OSError: it failed for another reason.
        """
        if not isinstance(error, BrokenPipeError):
            if error.errno not in FULL:
                raise error
            with suppress(OSError):  # where stderr goes there, too
                print(f"note: no more is printed: {error.strerror}", file=sys.__stderr__, flush=True)
        with suppress(OSError):  # a stream without a descriptor of its own
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


@contextmanager
def quiet_pipes() -> Iterator[None]:
    """Output and errors of this process may be read to their end, or not."""
    before = sys.stdout, sys.stderr
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr's are: what a terminal cannot show is no failure
    sys.stdout, sys.stderr = (stream and Outlet(stream) for stream in before)  # pyright: ignore
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, Outlet):
                stream.flush()
        sys.stdout, sys.stderr = before


@contextmanager
def tidy_end() -> Iterator[None]:
    """SIGTERM raises `Terminated` while the body runs, so that no temporary file stays; after it, and after Ctrl-C,
    worker processes end at once.

    Signals are the main thread's: elsewhere nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    except KeyboardInterrupt:
        _end_workers()
        raise
    finally:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)


def _terminate(number: int, frame: Any) -> None:
    signal.signal(number, signal.SIG_IGN)  # a second one would cut the tidying short
    _end_workers()
    raise Terminated


def end_at_once_from_here() -> None:
    """Lets Ctrl-C end this process without a word: the command is over, and Python tidies up for a moment."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _end_workers() -> None:
    """Ends worker processes in the midst of their work: Python would wait for it before it ends."""
    for worker in multiprocessing.active_children():
        worker.terminate()
