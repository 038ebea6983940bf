"""A word while a user waits: what is not on disk yet is compiled for a minute or two, in scripts as in commands.

It stands apart because it hangs on numba's events and on nothing else of the compilation.
"""

from __future__ import annotations

import multiprocessing
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from numba.core import event

from ooco_gym.compile.source_cache import SourceCache

AFTER_S, EVERY_S = 5.0, 30.0  # of compiling: to the first word (a rule of one's own takes less), and between two
WORDS = "compiling what is not compiled yet, which is kept for later starts; 'ooco-gym compile' does all of it at once"


class Notice(event.Listener):
    """Says that compiling goes on, when it has taken `after_s` seconds in all, and again every `every_s`.

    Only what is kept on disk counts (`jit` of this package), not functions of others.

    Attributes:
        functions: how many were compiled so far.
    """

    def __init__(self, after_s: float, every_s: float, say: Callable[[int], None]):
        self.functions = 0
        self._left_s, self._every_s, self._say = after_s, every_s, say
        self._depth, self._began_s, self._timer = 0, 0.0, threading.Timer(0.0, say)

    def on_start(self, event: Any) -> None:
        """One function begins to compile; others may begin within it."""
        if not _kept(event):
            return
        self._depth += 1
        if self._depth == 1:
            self._wait()

    def _wait(self) -> None:
        self._began_s = time.monotonic()
        self._timer = threading.Timer(self._left_s, self._due)
        self._timer.daemon = True
        self._timer.start()

    def _due(self) -> None:
        if self._depth:  # not as one ends
            self._say(self.functions)
            self._left_s = self._every_s
            self._wait()

    def on_end(self, event: Any) -> None:
        """It is compiled, or cannot be."""
        if not _kept(event):
            return
        self._depth -= 1
        self.functions += 1
        if self._depth == 0:
            self._timer.cancel()
            self._left_s = max(0.0, self._left_s - (time.monotonic() - self._began_s))


def _kept(event: Any) -> bool:
    return isinstance(event.data["dispatcher"]._cache, SourceCache)


_BEGAN_S = time.monotonic()


def _say(functions: int) -> None:
    """A line on stderr; worker processes keep quiet, since the process that asked says what goes on."""
    if multiprocessing.parent_process() is None:
        minutes, seconds = divmod(int(time.monotonic() - _BEGAN_S), 60)
        said = f"{functions} functions compiled ({minutes}:{seconds:02d})" if _SAID else WORDS
        _SAID.append(said)
        print(said, file=sys.stderr, flush=True)


_SAID: list[str] = []
_NOTICE = Notice(AFTER_S, EVERY_S, _say)


def watch() -> None:
    """Counts what is compiled in this process, and says on stderr that it takes time."""
    event.register("numba:compile", _NOTICE)


def compiled() -> int:
    """How many functions that are kept on disk were compiled in this process."""
    return _NOTICE.functions
