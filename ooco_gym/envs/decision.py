"""What makes an environment: a decision point, who is offered there, and what an action means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ooco_gym.compile import address_of
from ooco_gym.envs.buffers import FIXED, PICKED, STEP_SIGNATURE
from ooco_gym.sim.state import State


class OpenDecision(NamedTuple):
    """An open decision, and what a rule answers to it: for `Decision.action_of`."""

    state: State
    answer: int
    picks: np.ndarray  # int32, requests that it wrote
    chosen: np.ndarray  # int32[K], row of StepBuffers.chosen
    turn: np.ndarray  # int64[TURN], row of StepBuffers.turns

    @property
    def picked(self) -> int:
        """Picks made so far in this decision."""
        return int(self.turn[PICKED])

    def closest(self, requests: np.ndarray, wanted: int) -> int:
        """The action of the request that a rule wants, or of the one offered that is closest in length.

        Args:
            requests: int32[k], requests offered, in the order of the candidates.
            wanted: a request.
        """
        if not len(requests):
            return 0
        same = np.flatnonzero(requests == wanted)
        if len(same):
            return FIXED + int(same[0])
        every = self.state.requests
        size = every["prompt_tokens"].astype(np.int64) + every["generated_tokens"]
        return FIXED + int(np.argmin(np.abs(size[requests] - size[wanted])))

    def offered(self) -> np.ndarray:
        """What the candidates are (positions, requests, instances), those that there are: int32[k]."""
        return self.chosen[self.chosen >= 0]


@dataclass(frozen=True)
class Decision:
    """One kind of decision.

    Attributes:
        name: as in `features.DECISIONS`.
        kind: a decision point of the simulator, or `buffers.PACK`, `buffers.CONTROL`.
        offer, answer: compiled parts of a step (`buffers.step_kernel`).
        action_of: the action for what a rule answers, for heuristics; None: it comes by the clock, and rules have
            settings for it, but no answer.
        window: waiting requests that the simulator must look at, where the partner looks at fewer.
    """

    name: str
    kind: int
    offer: Any
    answer: Any
    action_of: Callable[[OpenDecision], int] | None = None
    window: int = 0


@lru_cache(maxsize=64)
def address(part: Any) -> int:
    """Where a compiled part of a step is."""
    return address_of(part, STEP_SIGNATURE)
