"""Messages on stderr while functions outside the disk cache are compiled, which takes a minute or
two."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable
from typing import Any

from numba.core import event

from ooco_gym.compile.source_cache import SourceCache

AFTER_S, EVERY_S = 5.0, 30.0  # delay after the first function (a user's rule takes less), and between messages
WORDS = "compiling functions that later starts reuse; 'ooco-gym compile' compiles all of them"


class Notice(event.Listener):
    """Reports compilation that starts or ends `after_s` seconds after the first one, and then every
    `every_s`. Only functions cached on disk count (`jit` of this package).

    Attributes:
        functions: number compiled so far.
    """

    def __init__(self, after_s: float, every_s: float, say: Callable[[int], None]):
        self.functions, self._every_s, self._say = 0, every_s, say
        self._due_s, self._after_s = 0.0, after_s

    def on_start(self, event: Any) -> None:
        """Called when compilation of a function starts, also within another's."""
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
    """Prints to stderr, except in worker processes, whose parent reports."""
    if multiprocessing.parent_process() is None:
        _SAID.append(f"{functions} functions compiled" if _SAID else WORDS)
        print(_SAID[-1], file=sys.stderr, flush=True)


_NOTICE = Notice(AFTER_S, EVERY_S, _say)


def watch() -> None:
    """Counts compilations in this process, and reports on stderr that they take time."""
    event.register("numba:compile", _NOTICE)


def compiled() -> int:
    """Number of functions compiled in this process and cached on disk."""
    return _NOTICE.functions
