"""Tables of the features of `Batching-v1`, `PreemptionVictim-v1` and `Serving-v1`.

`features.json` has the tables, with each feature's source in vLLM V1.
`ooco_gym.policy.engine_features` and the environments compute them from a simulator's state; the
scheduler inside vLLM (`ooco_gym.vllm.replica`) fills such a state from the engine.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import NamedTuple

from ooco_gym.rounding import steady

LOOK_ONLINE, LOOK_OFFLINE = 8, 4  # waiting requests of each class that are examined one by one
HORIZONS_S = (10, 60, 300, 1800)  # horizons of the averaged online arrival rates
BLOCKS_S = (600, 3600)  # blocks of time for the violation budget
NONE_MS = 1e9  # stands for infinity; clipped to the limit


# --- Tables ---------------------------------------------------------------------------------------------------------
class Contracted(NamedTuple):
    """One feature: name, unit, scale, range, meaning, and its source in vLLM V1."""

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


# --- State between observations -------------------------------------------------------------------------------------
class ArrivalRates:
    """Exponentially averaged rates of online arrivals over `HORIZONS_S`, in requests per second."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.rates, self.last_s = dict.fromkeys(HORIZONS_S, 0.0), now_s

    def arrived(self, now_s: float) -> None:
        passed_s = max(0.0, now_s - self.last_s)     # the clock may be set back
        for horizon in HORIZONS_S:
            faded = self.rates[horizon] * steady(math.exp(-passed_s / horizon))
            self.rates[horizon] = faded + 1.0 / horizon
        self.last_s = now_s


class Blocks:
    """Online arrivals and SLO violations in the current block of time of each length."""

    def __init__(self) -> None:
        self._block = dict.fromkeys(BLOCKS_S, -1.0)
        self._counts = {length: [0, 0] for length in BLOCKS_S}

    def arrived(self, now_s: float) -> None:
        self._add(now_s, 1, 0)

    def missed(self, now_s: float) -> None:
        """Records an online request's first SLO violation."""
        self._add(now_s, 0, 1)

    def counts(self, now_s: float) -> list[tuple[int, int]]:
        """Returns (arrivals, violations) in the current block of each length of `BLOCKS_S`."""
        self._add(now_s, 0, 0)
        return [(arrived, missed) for arrived, missed in self._counts.values()]

    def _add(self, now_s: float, arrived: int, missed: int) -> None:
        for length in BLOCKS_S:
            block = now_s // length
            if block != self._block[length]:
                self._block[length], self._counts[length] = block, [0, 0]
            self._counts[length][0] += arrived
            self._counts[length][1] += missed
