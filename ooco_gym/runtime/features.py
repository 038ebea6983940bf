"""The feature contract of `Batching-v1`, `Admission-v1`, `PreemptionVictim-v1` and `Serving-v1`: what a policy sees.

`features.json` has the tables; `ooco_gym.policy.engine_features` and the environments compute them from a simulator's
state, and the scheduler inside vLLM (`ooco_gym.vllm.replica`) from such a state that is filled with the engine.
`features.json` says for each feature where it comes from in vLLM V1.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import NamedTuple

from ooco_gym.rounding import steady

LOOK_ONLINE, LOOK_OFFLINE = 8, 4  # waiting requests of each class that are looked at one by one
HORIZONS_S = (10, 60, 300, 1800)  # of the moving rates of online arrivals
BLOCKS_S = (600, 3600)  # blocks of time over which the violation budget is looked at
NONE_MS = 1e9  # what counts as time without end: cut at the limit


# --- Tables ---------------------------------------------------------------------------------------------------------
class Contracted(NamedTuple):
    """One feature: name, unit, how it is scaled, what it means, and where vLLM V1 has what it is made of."""

    name: str
    unit: str
    scale: str  # log, signed log, or linear
    limit: float
    low: float
    high: float
    meaning: str
    vllm: str


def _contracted(rows: list[dict]) -> tuple[Contracted, ...]:
    return tuple(Contracted(**row, low=-1.0 if row["scale"] == "signed log" else 0.0, high=1.0) for row in rows)


_TABLES = json.loads(Path(__file__).with_name("features.json").read_text(encoding="utf-8"))
ENGINE, ACTION, ENTRY, VICTIM, TARGET = map(_contracted, _TABLES.values())


# --- What is kept from one observation to the next ------------------------------------------------------------------
class ArrivalRates:
    """Moving rates of online arrivals, in requests a second: exponential averages over `HORIZONS_S`."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.rates, self.last_s = dict.fromkeys(HORIZONS_S, 0.0), now_s

    def arrived(self, now_s: float) -> None:
        """An online request has arrived."""
        passed_s = max(0.0, now_s - self.last_s)     # a clock may be set back
        for horizon in HORIZONS_S:
            faded = self.rates[horizon] * steady(math.exp(-passed_s / horizon))
            self.rates[horizon] = faded + 1.0 / horizon
        self.last_s = now_s


class Blocks:
    """Online requests that arrived, and that missed an SLO, in the present block of time of each length."""

    def __init__(self) -> None:
        self._block = dict.fromkeys(BLOCKS_S, -1.0)
        self._counts = {length: [0, 0] for length in BLOCKS_S}

    def arrived(self, now_s: float) -> None:
        """An online request has arrived."""
        self._add(now_s, 1, 0)

    def missed(self, now_s: float) -> None:
        """An online request has missed an SLO, for the first time."""
        self._add(now_s, 0, 1)

    def counts(self, now_s: float) -> list[tuple[int, int]]:
        """(Arrived, missed) in the present block of each length of `BLOCKS_S`."""
        self._add(now_s, 0, 0)
        return [(arrived, missed) for arrived, missed in self._counts.values()]

    def _add(self, now_s: float, arrived: int, missed: int) -> None:
        for length in BLOCKS_S:
            block = now_s // length
            if block != self._block[length]:
                self._block[length], self._counts[length] = block, [0, 0]
            self._counts[length][0] += arrived
            self._counts[length][1] += missed
