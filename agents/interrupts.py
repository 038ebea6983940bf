"""Ending a run without loss: Ctrl-C and SIGTERM are noted, and training stops between two rollouts."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Stop(Exception):
    """Ends learning between two rollouts, where all that it depends on can be kept."""


class Interrupts:
    """While it is entered, the first SIGINT or SIGTERM is noted (`asked`); a second one interrupts at once.

    While `patient` is False the first one interrupts at once too: there is nothing to be kept yet. In a thread that is
    not the main one signals cannot be caught, and stay what they are.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.asked, self.patient = False, False
        self._before: dict[Any, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in self.SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked or not self.patient:
            self.asked = True
            raise KeyboardInterrupt
        self.asked = True
