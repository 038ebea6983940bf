"""Some of a run's requests, without a copy of their records (gigabytes for ten million requests)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ooco_gym.run import RunRecord
from ooco_gym.sim.build import SOME  # requests whose records are copied at once


class Chosen:
    """The requests of a `REQUEST` array that a mask, bool[n], selects, in their order; columns by name."""

    def __init__(self, requests: np.ndarray, mask: np.ndarray) -> None:
        self.requests, self.mask = requests, mask

    def __len__(self) -> int:
        return int(np.count_nonzero(self.mask))

    def __getitem__(self, name: str) -> np.ndarray:
        return self.requests[name][self.mask]

    def but(self, mask: np.ndarray) -> Chosen:
        """Returns the selected requests that another mask of the whole array also selects."""
        return Chosen(self.requests, self.mask & mask)

    def some(self) -> Iterator[np.ndarray]:
        """Yields their records in parts: `REQUEST` arrays."""
        for begin in range(0, max(len(self.requests), 1), SOME):
            part = slice(begin, begin + SOME)
            yield self.requests[part][self.mask[part]]

    def each(self, value: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """Returns a function's value for each request, from its record."""
        return np.concatenate([value(records) for records in self.some()])

    def columns(self, judged: Callable[[np.ndarray], Any], *names: str) -> list[np.ndarray]:
        """Returns attributes of the results of a function of records, each for all requests."""
        pieces: dict[str, list[np.ndarray]] = {name: [] for name in names}
        for found in map(judged, self.some()):
            for name in names:
                pieces[name].append(getattr(found, name))
        return [np.concatenate(pieces[name]) for name in names]


def counted(run: RunRecord, online: bool) -> Chosen:
    """Returns the requests of one class that arrived in the measured window, in the trace's order."""
    requests = run.requests
    return Chosen(requests, (requests["counted"] == 1) & (requests["online"] == int(online)))
