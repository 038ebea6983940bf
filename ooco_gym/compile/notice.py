"""A word while a user waits: the first start on a machine compiles for a minute, in scripts as in commands.

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

AFTER_S = 5.0  # of compiling: a rule of one's own takes less
WORDS = ("compiling the simulator, the first time only: it takes about a minute of one core and is kept for later "
         "starts")


class Notice(event.Listener):
    """Says once that compiling goes on, when it has taken `after_s` seconds in all.

    Only what is kept on disk counts (`jit` of this package), not functions of others.
    """

    def __init__(self, after_s: float, say: Callable[[], None]):
        self._left_s, self._say = after_s, say
        self._depth, self._began_s, self._timer = 0, 0.0, threading.Timer(0.0, say)

    def on_start(self, event: Any) -> None:
        """One function begins to compile; others may begin within it."""
        if not _kept(event):
            return
        self._depth += 1
        if self._depth == 1 and self._left_s > 0:
            self._began_s = time.monotonic()
            self._timer = threading.Timer(self._left_s, self._say)
            self._timer.daemon = True
            self._timer.start()

    def on_end(self, event: Any) -> None:
        """It is compiled, or cannot be."""
        if not _kept(event):
            return
        self._depth -= 1
        if self._depth == 0 and self._left_s > 0:
            self._timer.cancel()
            self._left_s -= time.monotonic() - self._began_s


def _kept(event: Any) -> bool:
    return isinstance(event.data["dispatcher"]._cache, SourceCache)


def watch() -> None:
    """Says so on stderr; worker processes keep quiet, since the process that asked says what goes on."""
    if multiprocessing.parent_process() is None:
        event.register("numba:compile", Notice(AFTER_S, lambda: print(WORDS, file=sys.stderr, flush=True)))
