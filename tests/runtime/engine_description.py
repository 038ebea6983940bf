"""Instances of simulated episodes as an engine describes itself (`ooco_gym.runtime.rules`)."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

from numba import types

from ooco_gym.compile import jit
from ooco_gym.runtime.rules import Engine, Line, Request
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


def described(state: s.State, slot: int) -> Request:
    row = state.requests[slot]
    made = int(row["generated_tokens"])
    arrival, ttft, tpot, first = (int(row[name]) / s.PS_PER_S for name in (
        "arrival_ps", "ttft_slo_ps", "tpot_slo_ps", "first_token_ps"))
    return Request(slot, bool(row["urgent"]), slot, arrival, ttft, tpot, int(row["prompt_tokens"]) + made, made,
                   int(row["num_computed_tokens"]), int(row["blocks"]),
                   first if made and row["first_token_ps"] <= state.clock.now_ps else None)


def engine_of(state: s.State, instance: int = 0, looked_up: bool = False) -> Engine:
    """An instance that is about to compose an iteration; `looked_up`: what of waiting requests is in its cache.

    With asynchronous scheduling the last one still runs: requests that it finishes keep their seats, and a first token
    of it is not seen yet.
    """
    ahead = state.config.async_scheduling and state.instances[instance]["activity"] == s.MIXING
    spec, config, queues = state.instances[instance], state.config, []
    for head in ("online_head", "offline_head"):
        slot, line = int(spec[head]), []
        while slot >= 0:
            line.append(described(state, slot))
            if looked_up:
                line[-1].look_up = partial(cached, state, instance, slot)
            slot = int(state.requests[slot]["next"])
        queues.append(Line(line))
    running = [described(state, int(slot)) for slot in state.members[s.BATCH, instance, : spec["running"]]]
    now_ps, finishing = (spec["end_ps"], spec["suspended"]) if ahead else (state.clock.now_ps, 0)
    return Engine(int(now_ps) / s.PS_PER_S, running, *queues,
                  int(spec["free_blocks"] - config.reserved_blocks), int(spec["total_blocks"]),
                  int(config.block_tokens), int(config.max_num_seqs - finishing), int(config.max_num_batched_tokens),
                  int(config.default_tpot_ps) / s.PS_PER_S,
                  tuple(int(spec[name]) for name in ("online_waiting", "online_waiting_tokens", "offline_waiting",
                                                     "offline_waiting_tokens")))
