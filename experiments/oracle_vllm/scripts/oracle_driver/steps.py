"""A schedule as it is written down: of each step, what differs from the step before.

A request that decodes is given one token step after step, so that a step's changes are few. Equal schedules give equal
arrays, whoever wrote them down.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

FIELDS = ("start_ps", "end_ps", "change_step", "change_slot", "change_tokens", "preempted_step", "preempted_slot")


class Steps:
    """Collects steps. Times are in picoseconds."""

    def __init__(self) -> None:
        self._times: list[tuple[int, int]] = []
        self._changes: list[tuple[int, int, int]] = []
        self._preempted: list[tuple[int, int]] = []
        self._last: dict[int, int] = {}

    def add(self, start_ps: int, end_ps: int, given: Mapping[int, int], preempted: Iterable[int]) -> None:
        """Adds a step.

        Args:
            start_ps: when it begins.
            end_ps: when it ends.
            given: new tokens (> 0) of each request that is scheduled, by its slot.
            preempted: slots of those that lost their memory since the step before, each as often as it did.
        """
        step = len(self._times)
        self._times.append((start_ps, end_ps))
        last = self._last
        changed = {slot: tokens for slot, tokens in given.items() if last.get(slot) != tokens}
        changed.update((slot, 0) for slot in last if slot not in given)
        self._changes += [(step, slot, changed[slot]) for slot in sorted(changed)]
        self._preempted += [(step, slot) for slot in sorted(preempted)]
        self._last = dict(given)

    def arrays(self) -> dict[str, np.ndarray]:
        """`FIELDS`: times int64[steps], changes (step, slot, tokens; 0: no longer scheduled), preemptions."""
        times = np.array(self._times, np.int64).reshape(-1, 2)
        changes = np.array(self._changes, np.int32).reshape(-1, 3)
        preempted = np.array(self._preempted, np.int32).reshape(-1, 2)
        return dict(zip(FIELDS, (*times.T, *changes.T, *preempted.T), strict=True))
