"""Least-computed-first preemption, shortest predicted job first and Past-Future: what each of them promises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import types

from baselines.past_future import greatest, output_length
from ooco_gym.compile import jit
from ooco_gym.sim import state as s
from tests.sim.harness import Episode, Setup, play

ONE_CHIP: dict[str, Any] = {"relaxed": (), "strict": (), "mixed": (("ascend_910c", 1),), "window_s": (0.0, 20.0),
                            "rules": {"max_batch": 300}}
Row = tuple[float, int, int, bool]
ROWS = st.lists(st.tuples(st.floats(0.0, 3.0), st.integers(1, 900), st.integers(1, 300), st.booleans()), min_size=2,
                max_size=30)


def setup_of(rows: Any, policy: str, kv_tokens: int | None = 3200, **values: Any) -> Setup:
    """Requests of (arrival_s, prompt, output, online) on one chip of little memory."""
    return Setup(tuple(sorted(rows)), policy=policy, kv_tokens=kv_tokens, values=tuple(values.items()), **ONE_CHIP)


def to_the_end(setup: Setup) -> s.State:
    """An episode in which every request runs to its end."""
    episode = Episode(setup)
    episode.state.gauges.open_online = 1 << 30
    return episode.play(round(36_000.0 * s.PS_PER_S)).state


# --- Least computed first -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rule,victim", [("last", 1), ("least_computed", 0), ("least_computed_of_class", 0)])
def test_the_request_that_has_computed_least_gives_way(rule: str, victim: int) -> None:
    rows = ((0.0, 300, 200, False), (0.001, 900, 200, False))
    state = play(setup_of(rows, "vllm_lcf", 1360, preempt=rule)).state
    assert state.requests["evictions"].nonzero()[0].tolist() == [victim]


@pytest.mark.parametrize("rule,victims", [("least_computed", [1]), ("least_computed_of_class", [0])])
def test_an_online_request_gives_way_to_an_offline_one_unless_classes_count(rule: str, victims: list[int]) -> None:
    rows = ((0.0, 900, 200, False), (0.001, 300, 200, True))
    state = play(setup_of(rows, "vllm_lcf", 1360, preempt=rule)).state
    assert state.requests["evictions"].nonzero()[0].tolist() == victims


def test_less_is_computed_again_than_where_the_last_gives_way() -> None:
    draws = np.random.default_rng(3)
    rows = [(float(i) * 0.02, int(draws.integers(20, 900)), int(draws.integers(20, 300)), False) for i in range(120)]
    ends = {rule: to_the_end(setup_of(rows, "vllm_lcf", 6400, preempt=rule, prefix_caching="off"))
            for rule in ("last", "least_computed")}
    waste = {rule: int(state.requests["wasted_tokens"].sum()) for rule, state in ends.items()}
    assert 0 < waste["least_computed"] < 0.8 * waste["last"]


# --- Past-Future: the past ------------------------------------------------------------------------------------------
@jit(types.int64(types.int64, types.int64, types.int64))
def _drawn(handle, slot, draw):
    return output_length(s.state_at(handle), 0, slot, draw)


def drawn(state: s.State, slot: int, draw: int) -> int:
    handle = s.handle_of(state)
    return _drawn(handle.address, slot, draw)


@jit(types.int64(types.int64, types.int64))
def _peak(handle, count):
    return greatest(s.state_at(handle), count)


def peak(state: s.State, count: int) -> int:
    """The peak of what State.scratch holds, in blocks."""
    handle = s.handle_of(state)
    return _peak(handle.address, count)


@settings(max_examples=30, deadline=None)
@given(ROWS, st.integers(1, 12), st.sampled_from(("off", "on")))
def test_the_window_holds_the_last_lengths_sorted(rows: list[Row], window: int, apart: str) -> None:
    state = to_the_end(setup_of(rows, "past_future", output_window=window, outputs_by_class=apart))
    done = state.requests[np.lexsort((np.arange(len(rows)), state.requests["finish_ps"]))]
    assert (done["status"] == s.FINISHED).all()
    assert (int(state.instances["online_finished"][0]), int(state.instances["offline_finished"][0])) == (
        int((done["online"] == 1).sum()), int((done["online"] == 0).sum()))
    for row in (0, 1):
        mine = done[done["online"] == row] if apart == "on" else done if row == 0 else done[:0]
        known = min(window, len(mine))
        ring, ordered = (np.sort(state.outputs[0, row, which, :known]) for which in (0, 1))
        assert np.array_equal(ring, ordered) and np.array_equal(ordered, state.outputs[0, row, 1, :known])
        last = mine["finish_ps"][-known:] if known else mine["finish_ps"]
        if known and (mine["finish_ps"] == last[0]).sum() == 1:  # no tie at the window's edge
            assert ordered.tolist() == sorted(mine["output_tokens"][-known:].tolist())


def past_state(lengths: list[int], **values: Any) -> s.State:
    """An instance at which offline requests of these output lengths have finished; slot 0 has not begun."""
    state = Episode(setup_of([(0.0, 9, 5000, False)] * 3, "past_future", None, output_window=8, **values)).state
    state.outputs[0, 0, 0, : len(lengths)] = lengths
    state.outputs[0, 0, 1, : len(lengths)] = sorted(lengths)
    state.instances["offline_finished"] = len(lengths)
    return state


def test_a_waiting_request_is_drawn_from_the_whole_past_and_a_running_one_from_what_is_longer() -> None:
    state = past_state([5, 7, 7, 30, 50], initial=0)
    assert {drawn(state, 0, draw) for draw in range(64)} == {5, 7, 30, 50}
    state.requests["generated_tokens"][0] = 7
    assert {drawn(state, 0, draw) for draw in range(64)} == {30, 50}
    state.requests["generated_tokens"][0] = 60
    assert drawn(state, 0, 0) == 2048, "none was as long: the longest that may be asked for"
    state.requests["generated_tokens"][0] = 3000
    assert drawn(state, 0, 0) == 3001


# --- Past-Future: the future ----------------------------------------------------------------------------------------
@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 500)), min_size=1, max_size=12))
def test_the_peak_is_that_of_the_timeline(batch: list[tuple[int, int]]) -> None:
    """Against memory step by step: a request of context c with r steps left holds c + t tokens up to step r."""
    state = Episode(setup_of([(0.0, 9, 9, False)] * 2, "past_future")).state
    state.scratch[:, : len(batch)] = np.array(batch).T
    exact = max(sum(-(-(context + t) // 16) for left, context in batch if left >= t) for t in range(1, 41))
    tokens = max(sum(context + t for left, context in batch if left >= t) for t in range(1, 41))
    found = peak(state, len(batch))
    assert max(exact, tokens // 16) <= found <= (tokens + 15 * len(batch)) // 16


@settings(max_examples=60, deadline=None)
@given(ROWS, st.sampled_from((1000, 1600, 4000)), st.sampled_from((64, 2048)), st.sampled_from((2, 16, 200)))
def test_nothing_is_preempted_where_lengths_are_known(rows: list[Row], kv_tokens: int, budget: int, seqs: int) -> None:
    state = to_the_end(setup_of(rows, "past_future", kv_tokens, lengths="exact", reserve=0.0,
                                max_num_batched_tokens=budget, max_num_seqs=seqs))
    assert state.requests["evictions"].sum() == 0
    assert np.isin(state.requests["status"], (s.FINISHED, s.REJECTED)).all()


def pressed(policy: str, **values: Any) -> np.ndarray:
    """The requests of an hour's work at once, in memory for a dozen of them."""
    draws = np.random.default_rng(5)
    rows = [(0.0, int(draws.integers(50, 400)), int(draws.integers(50, 700)), False) for _ in range(300)]
    return to_the_end(setup_of(rows, policy, 6400, **values)).requests


def test_the_past_prevents_most_preemptions_and_costs_little_time() -> None:
    """The paper's Figure: the aggressive scheduler evicts, the conservative one waits, this one does neither."""
    aggressive, known = pressed("vllm_priority"), pressed("past_future", lengths="exact", reserve=0.0)
    learned = pressed("past_future", output_window=100, initial=20, max_output_tokens=700)
    worst = pressed("past_future", initial=1000, output_window=1000, max_output_tokens=700)  # every one the longest
    evicted = [int(requests["evictions"].sum()) for requests in (aggressive, learned, worst, known)]
    assert evicted[0] > 50 and evicted[1] < 0.4 * evicted[0] and evicted[2] == evicted[3] == 0
    ends = [int(requests["finish_ps"].max()) for requests in (learned, worst, known)]
    assert ends[0] < ends[1] and ends[2] < ends[1]
