"""Calls with a time limit: a function runs in a thread that waits for work, and whoever called goes on without it.

Python cannot stop a function from outside. One that has not answered in time keeps its thread until it does; if all
threads are kept like that, no more calls are taken.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Late(TimeoutError):
    """The function has not answered in time."""


class Stalled(TimeoutError):
    """Every thread still waits for a function that was late."""


class _Call:
    """One call: what it answers or raises, and whether it has."""

    __slots__ = ("answer", "done", "error", "function")

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function, self.answer, self.error = function, None, None
        self.done = threading.Lock()
        self.done.acquire()  # whoever waits for the call acquires it again

    def run(self) -> None:
        try:
            self.answer = self.function()
        except BaseException as error:  # handed to whoever called, if anyone still waits
            self.error = error
        self.done.release()


class _Worker(threading.Thread):
    """A thread that runs one call after another."""

    def __init__(self, free: Callable[[_Worker], None]) -> None:
        super().__init__(name="ooco-gym-policy", daemon=True)
        self._free, self._call = free, None
        self.busy = self.late = False
        self._given = threading.Lock()
        self._given.acquire()
        self.start()

    def give(self, call: _Call | None) -> None:
        """A call to run, or None to end."""
        self._call = call
        self._given.release()

    def run(self) -> None:
        """Runs what it is given."""
        while True:
            self._given.acquire()
            call, self._call = self._call, None
            if call is None:
                return
            call.run()
            del call
            self._free(self)


class Workers:
    """Threads that run functions with a time limit, as many as callers need at a time.

    Args:
        most_late: threads that may wait for a function that was late; with as many no more calls are taken.
    """

    def __init__(self, most_late: int = 4) -> None:
        self._most_late, self._late = most_late, 0
        self._idle: list[_Worker] = []
        self._lock = threading.Lock()

    def call(self, function: Callable[[], Any], limit_s: float) -> Any:
        """What the function answers, or raises.

        Raises:
            Late: not within `limit_s`.
            Stalled: too many calls before were late, and still are.
        """
        with self._lock:
            if self._late >= self._most_late:
                raise Stalled
            worker = self._idle.pop() if self._idle else _Worker(self._back)
            worker.busy = True
        call = _Call(function)
        worker.give(call)
        if not call.done.acquire(timeout=limit_s):
            with self._lock:
                if worker.busy:
                    worker.late = True
                    self._late += 1
            raise Late
        if call.error is not None:
            raise call.error
        return call.answer

    def close(self) -> None:
        """Ends the threads that wait for work; the others end with the process."""
        with self._lock:
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.give(None)

    def _back(self, worker: _Worker) -> None:
        with self._lock:
            self._late -= worker.late
            worker.busy = worker.late = False
            self._idle.append(worker)
