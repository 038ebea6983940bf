"""Blocks with two owners, slot by slot: what lies where, what is overwritten, what comes back, and all free at last."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import types

from ooco_gym.compile import jit
from ooco_gym.sim import state as s
from ooco_gym.sim.bidirectional import fill_pairs, pair_entries, pair_fits, pair_grow, pair_release
from tests.sim.two_way_blocks import Blocks

REQUESTS = 8  # the even ones are online
GROW, RELEASE = 0, 1


@jit(types.int64(types.int64, types.int64, types.int64, types.int64))
def _act(handle, what, slot, reach):
    state = s.state_at(handle)
    spec = state.instances[0]
    if what == RELEASE:
        spec.free_blocks += pair_release(state, 0, slot)
        state.requests[slot].blocks = 0
        state.requests[slot].host_tokens = 0
        return spec.free_blocks
    if not pair_fits(state, 0, slot, reach):
        return -1
    spec.free_blocks -= pair_grow(state, 0, slot, reach)
    return spec.free_blocks


def act(state: s.State, what: int, slot: int, reach: int) -> int:
    """Grows or releases a request on instance 0. Returns the free blocks, or -1 where it does not fit."""
    handle = s.handle_of(state)
    return _act(handle.address, what, slot, reach)


def empty(blocks: int, size: int, join: bool) -> s.State:
    """One instance of so many free blocks, and requests that hold nothing."""
    state = s.empty_state(REQUESTS, 0, 1, 0, 1, 4, 2, pool=s.OptionalSizes(
        pairs=blocks, pair_entries=pair_entries(size), owners=REQUESTS))
    state.config.block_tokens, state.config.bidirectional = size, 1 if join else 2
    state.instances["total_blocks"] = state.instances["free_blocks"] = blocks
    state.instances["host_free_blocks"] = 1 << 30
    state.requests["urgent"] = np.arange(REQUESTS) % 2 == 0
    fill_pairs(state)
    return state


def assert_equal(state: s.State, other: Blocks) -> None:
    """Every block has the same owners and the same slots of each; sums and what is in host memory agree, too."""
    for place, block in enumerate(other.blocks):
        one = state.pairs[0, place]
        block.check()
        assert (one["online"], one["offline"]) == (_or_none(block.online), _or_none(block.offline))
        assert (one["online_used"], one["offline_used"]) == (block.used(block.online), block.used(block.offline))
        assert one["preempted"] == block.lost
        assert one["online_used"] + one["offline_used"] + block.empty() == other.size
    assert state.instances["free_blocks"][0] == other.free()
    assert state.instances["swap_tokens"][0] == other.swapped
    for slot in range(REQUESTS):
        assert state.owned[slot, 2] == other.held(slot)
        assert state.requests["host_tokens"][slot] == other.host.get(slot, 0)
        assert state.requests["blocks"][slot] == len(other.chains.get(slot, []))


def _or_none(owner: int | None) -> int:
    return -1 if owner is None else owner


ACTIONS = st.lists(st.tuples(st.sampled_from((GROW, GROW, GROW, RELEASE)), st.integers(0, REQUESTS - 1),
                             st.sampled_from((1, 1, 2, 5, 16, 30))), max_size=60)


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 12), st.sampled_from((4, 16)), st.booleans(), ACTIONS)
def test_every_block_is_as_restated(blocks: int, size: int, join: bool, actions: list[tuple[int, int, int]]) -> None:
    """Random growth and release: the same blocks, slots, overwritten tokens and refusals, and all free at the end."""
    state, other = empty(blocks, size, join), Blocks(blocks, size, join)
    for what, slot, more in actions:
        online = slot % 2 == 0
        if what == RELEASE:
            act(state, RELEASE, slot, 0)
            other.release(slot)
        else:
            reach = other.held(slot) + other.host.get(slot, 0) + more
            fits = other.fits(slot, online, reach)
            assert (act(state, GROW, slot, reach) >= 0) == fits
            if fits:
                other.grow(slot, online, reach)
                assert other.held(slot) == reach, "a scheduled request has all its tokens on the device"
        assert_equal(state, other)
    for slot in range(REQUESTS):
        act(state, RELEASE, slot, 0)
    assert state.instances["free_blocks"][0] == blocks
    assert (state.owned == [-1, -1, 0]).all()
    assert (state.pairs["online"] < 0).all() and (state.pairs["offline"] < 0).all()


def test_figure_9() -> None:
    """The paper's example: request a (offline) and B (online) in one block; B's eighth token overwrites a's third.

    Blocks here have 10 slots, so that 7 tokens of B and 3 of a fill one.
    """
    a, big_b = 1, 2
    state = empty(1, 10, True)
    act(state, GROW, a, 3)
    act(state, GROW, big_b, 7)
    one = state.pairs[0, 0]
    assert (one["online"], one["online_used"], one["offline"], one["offline_used"]) == (big_b, 7, a, 3)
    assert one["preempted"] == 0, "as long as there are empty slots both lie there"
    act(state, GROW, big_b, 8)
    assert (one["online_used"], one["offline_used"], one["preempted"]) == (8, 2, 1)
    assert state.requests["host_tokens"][a] == 1, "the third token of a, and that alone, has been checkpointed"
    assert act(state, GROW, a, 4) == -1, "no empty slot for it to come back to"
    act(state, RELEASE, big_b, 0)
    act(state, GROW, a, 4)
    assert (one["offline_used"], one["preempted"], state.requests["host_tokens"][a]) == (4, 0, 0)
    assert state.instances["swap_tokens"][0] == 2, "out and in again"
