"""A line on stderr while functions that are not in the disk cache are compiled, which takes a minute or two."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable
from typing import Any

from numba.core import event

from ooco_gym.compile.source_cache import SourceCache

AFTER_S, EVERY_S = 5.0, 30.0  # from the first function on (a rule of one's own takes less), and between two words
WORDS = "compiling what is not compiled yet, which is kept for later starts; 'ooco-gym compile' does all of it at once"


class Notice(event.Listener):
    """Says that compiling goes on, as a function begins or ends that is compiled `after_s` seconds after the first one,
    and again every `every_s`. Only what is kept on disk counts (`jit` of this package), not functions of others.

    Attributes:
        functions: how many were compiled so far.
    """

    def __init__(self, after_s: float, every_s: float, say: Callable[[int], None]):
        self.functions, self._every_s, self._say = 0, every_s, say
        self._due_s, self._after_s = 0.0, after_s

    def on_start(self, event: Any) -> None:
        """Called when a function begins to compile; others may begin within it."""
        if _kept(event):
            self._due_s = self._due_s or time.monotonic() + self._after_s
            self._tell()

    def on_end(self, event: Any) -> None:
        """Called when a compilation ends, with or without success."""
        if _kept(event):
            self.functions += 1
            self._tell()

    def _tell(self) -> None:
        if time.monotonic() >= self._due_s:
            self._due_s = time.monotonic() + self._every_s
            self._say(self.functions)


def _kept(event: Any) -> bool:
    return isinstance(event.data["dispatcher"]._cache, SourceCache)


_SAID: list[str] = []


def _say(functions: int) -> None:
    """A line on stderr; worker processes keep quiet, since the process that asked says what goes on."""
    if multiprocessing.parent_process() is None:
        _SAID.append(f"{functions} functions compiled" if _SAID else WORDS)
        print(_SAID[-1], file=sys.stderr, flush=True)


_NOTICE = Notice(AFTER_S, EVERY_S, _say)


def watch() -> None:
    """Counts what is compiled in this process, and says on stderr that it takes time."""
    event.register("numba:compile", _NOTICE)


def compiled() -> int:
    """How many functions that are kept on disk were compiled in this process."""
    return _NOTICE.functions
