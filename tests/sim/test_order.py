"""The waiting offline requests by rank: the tree of bits against a sorted list, and what the ranks mean."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import types

from ooco_gym.compile import jit
from ooco_gym.policy import Param, Policy
from ooco_gym.policy.mixed import bucket_of, bucket_start, next_in_order, previous_in_order, rank_of, schedule_v1
from ooco_gym.sim import state as s
from ooco_gym.sim.waiting import set_waiting
from ooco_gym.workload import Trace
from ooco_gym.workload.sharing import hash_blocks
from tests.sim.harness import Episode, Setup

ORDERED = Policy("ordered", (Param("waiting_order", "", choices=("arrival", "prefix", "bucket_prefix")),),
                 {"waiting_order": "prefix"}, mixed=True, compose=schedule_v1)


@jit(types.int64(types.int64, types.int64, types.int64, types.int64))
def _look(handle, kind, instance, number):
    state = s.state_at(handle)
    if kind == 0:
        return next_in_order(state, instance, number)
    if kind == 1:
        return previous_in_order(state, instance, number)
    if kind == 2:
        return rank_of(state, number)
    if kind == 3:
        return bucket_start(state, number)
    if kind == 4:
        return bucket_of(number)
    set_waiting(state, instance, number, kind == 5)
    return 0


def look(state: s.State, kind: int, instance: int, number: int) -> Any:
    """0: next, 1: previous, 2: rank, 3: start of a bucket, 4: bucket, 5 and 6: starts and ends waiting."""
    handle = s.handle_of(state)
    return _look(handle.address, kind, instance, number)


def ordered_episode(prompt: list[int], group: list[int], shared: list[int], order: str = "prefix") -> Episode:
    """Offline requests, all there from the start; group and shared blocks of 512 tokens as in `hash_blocks`."""
    n = len(prompt)
    hashes = hash_blocks(np.array(prompt), np.array(shared), np.array(group), np.arange(n), "order")
    trace = Trace(np.zeros(n), np.array(prompt, np.int32), np.full(n, 4, np.int32), np.zeros(n, bool),
                  prefix_hashes=hashes)
    setup = Setup((), relaxed=(), strict=(), mixed=(("ascend_910c", 1),) * 2, policy=ORDERED,
                  values=(("waiting_order", order),), rules={"max_batch": 64})
    return Episode(setup, trace=trace)


@settings(max_examples=25)
@given(st.integers(1, 5000), st.lists(st.tuples(st.integers(0, 4999), st.booleans()), max_size=60),
       st.lists(st.integers(-1, 5001), min_size=1, max_size=20))
def test_next_and_previous_are_those_of_a_sorted_list(n, changes, questions) -> None:
    state = ordered_episode([100] * n, [0] * n, [0] * n).state
    waiting: set[int] = set()
    for rank, on in changes:
        slot = int(state.order[n + rank % n])
        look(state, 5 if on else 6, 1, slot)
        (waiting.add if on else waiting.discard)(rank % n)
    ranks = sorted(waiting)
    for rank in questions:
        i, j = bisect_left(ranks, max(0, rank)), bisect_right(ranks, rank)
        following, before = look(state, 0, 1, max(0, rank)), look(state, 1, 1, rank)
        assert following == (state.order[n + ranks[i]] if i < len(ranks) else -1)
        assert before == (state.order[n + ranks[j - 1]] if j > 0 else -1)
        assert look(state, 0, 0, max(0, rank)) == -1, "another instance's tree"


@given(st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=30))
def test_prompts_that_begin_alike_are_neighbours(rows) -> None:
    """All prompts with one beginning, of whatever length, have ranks in a row."""
    prompt, group, shared = (list(column) for column in zip(*rows, strict=True))
    episode = ordered_episode(prompt, group, shared)
    state, n = episode.state, len(rows)
    offsets, values = episode.trace.prefix_hashes
    paths = [tuple(values[offsets[i] : offsets[i + 1]]) for i in range(n)]
    for depth in range(1, 6):
        for beginning in {path[:depth] for path in paths if len(path) >= depth}:
            ranks = sorted(look(state, 2, 0, i) for i in range(n) if paths[i][:depth] == beginning)
            assert ranks == list(range(ranks[0], ranks[0] + len(ranks)))


def test_who_waits_is_kept() -> None:
    """As requests arrive, start and finish, the tree holds those of the offline queue."""
    episode = ordered_episode([600] * 200, [i % 3 for i in range(200)], [1] * 200)
    state = episode.state
    while (at_ps := episode.next_event_ps()) < s.NEVER and state.instances["offline_waiting"].sum() + 1 > 0:
        if episode.advance(at_ps) == s.DONE:
            break
        for instance in range(2):
            queue, slot = set(), int(state.instances[instance]["offline_head"])
            while slot >= 0:
                queue.add(slot)
                slot = int(state.requests[slot]["next"])
            found, rank = set(), 0
            while (slot := look(state, 0, instance, rank)) >= 0:
                found.add(slot)
                rank = look(state, 2, 0, slot) + 1
            assert found == queue
