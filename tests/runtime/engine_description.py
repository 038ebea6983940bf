"""Instances of simulated episodes as an engine describes itself (`ooco_gym.runtime.rules`)."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

from numba import types

from agents.score.plain import engine_of as described
from ooco_gym.compile import jit
from ooco_gym.runtime.rules import Engine
from ooco_gym.sim import state as s
from ooco_gym.sim.step_actions import get_computed_blocks


@jit(types.UniTuple(types.int64, 3)(types.int64, types.int64, types.int64))
def _cached(handle, instance, slot):
    return get_computed_blocks(s.state_at(handle), instance, slot)


def cached(state: s.State, instance: int, slot: int) -> tuple[int, int, int]:
    """What of a waiting request is in an instance's prefix cache, as `Request.look_up` says it."""
    handle = s.handle_of(state)
    return _cached(handle.address, instance, slot)


class TableBelief:
    """The simulator's own cost tables."""

    def __init__(self, state: s.State, instance: int = 0) -> None:
        self.state, self.table = state, int(state.instances["belief"][instance])
        self.terms = SimpleNamespace(tokens=state.prefill_ps.shape[1] - 1)

    def fill(self, state: s.State) -> None:
        for name in s.COST_TABLES:
            ours, theirs = getattr(state, name), getattr(self.state, name)[self.table]
            if name in ("decode_lines", "attention_lines", "head_ps"):
                ours[0, : min(len(ours[0]), len(theirs))] = theirs[: len(ours[0])]
            elif ours.size:
                ours[0] = theirs


def engine_of(state: s.State, instance: int = 0, looked_up: bool = False) -> Engine:
    """An instance that is about to compose an iteration; `looked_up`: what of waiting requests is in its cache."""
    found = described(state, instance)
    for one in [*found.online, *found.offline] if looked_up else []:
        one.look_up = partial(cached, state, instance, one.id)
    return found
