"""ConServe: the latency budget, what an online arrival stops, and what a preempted request loses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooco_gym.sim import state as s
from tests.sim.harness import Episode, Setup
from tests.sim.iterations import given_tokens, iterations, steps

ONE_CHIP: dict[str, Any] = {"relaxed": (), "strict": (), "mixed": (("ascend_910c", 1),), "window_s": (0.0, 20.0)}
Row = tuple[float, int, int, bool]
ROWS = st.lists(st.tuples(st.floats(0.0, 3.0), st.integers(1, 3000), st.integers(1, 200), st.booleans()), min_size=2,
                max_size=25)


def setup_of(rows: Any, kv_tokens: int | None = None, rules: dict[str, Any] | None = None, **values: Any) -> Setup:
    """Requests of (arrival_s, prompt, output, online) on one chip."""
    return Setup(tuple(sorted(rows)), policy="conserve", kv_tokens=kv_tokens, values=tuple(values.items()),
                 rules={"max_batch": 300, **(rules or {})}, **ONE_CHIP)


def to_the_end(setup: Setup) -> s.State:
    """An episode in which every request runs to its end."""
    episode = Episode(setup)
    episode.state.gauges.open_online = 1 << 30
    return episode.play(round(36_000.0 * s.PS_PER_S)).state


# --- The scheduler --------------------------------------------------------------------------------------------------
@settings(max_examples=40, deadline=None)
@given(ROWS, st.sampled_from((0.5, 1.0)))
def test_offline_work_keeps_the_budget_beside_online_requests(rows: list[Row], share: float) -> None:
    """An iteration longer than the budget has no offline work, or no online."""
    episode = Episode(setup_of(rows, tbt_share=share, preempted_kv="recompute"))
    longest = 0
    for spec in steps(episode):
        classes = {bool(episode.state.requests["urgent"][slot]) for slot in given_tokens(episode)}
        if spec["natural_end_ps"] - spec["start_ps"] > round(share * 0.05 * s.PS_PER_S):
            longest += 1
            assert len(classes) == 1


def test_without_online_requests_an_iteration_is_as_large_as_it_may_be() -> None:
    rows = [(0.0, 1500, 50, False)] * 8
    assert sum(next(iterations(Episode(setup_of(rows, offline_batched_tokens=5000)))).values()) == 5000
    with_online = next(iterations(Episode(setup_of([*rows, (0.0, 100, 50, True)], offline_batched_tokens=5000))))
    assert sum(with_online.values()) < 2000


# --- Layer-wise preemption ------------------------------------------------------------------------------------------
def stopped(preemption: str, ttft_s: float = 2.0, **values: Any) -> tuple[float, int, s.State]:
    """An online request arrives 10 ms into a long offline iteration: (its TTFT in s, iterations stopped, the end)."""
    rows = [(0.0, 8000, 20, False), (0.010, 100, 5, True)]
    state = to_the_end(setup_of(rows, rules={"ttft_s": ttft_s}, preemption=preemption, **values))
    request = state.requests[1]
    return (request["first_token_ps"] - request["arrival_ps"]) / s.PS_PER_S, int(state.totals.interruptions), state


def test_an_arrival_stops_an_offline_iteration_at_the_next_safepoint() -> None:
    waits, never, whole = stopped("never")
    fast, once, state = stopped("always")
    assert (never, once) == (0, 1)
    layers = int(state.tables["layers"][0])
    begun = Episode(setup_of([(0.0, 8000, 20, False)]))
    spec = next(iter(steps(begun)))
    safepoint_s = (spec["natural_end_ps"] - spec["start_ps"]) / s.PS_PER_S / (layers // 4)
    alone = to_the_end(setup_of([(0.0, 100, 5, True)])).requests[0]
    alone_s = (alone["first_token_ps"] - alone["arrival_ps"]) / s.PS_PER_S
    assert waits > 0.3 and fast <= safepoint_s + 2 * 0.05 + alone_s
    assert (state.requests["status"] == s.FINISHED).all() and state.instances["wasted_ps"][0] > 0
    assert whole.instances["wasted_ps"][0] == 0
    coarse, *_ = stopped("always", safepoint_layers=14)
    assert fast < coarse < waits


@pytest.mark.parametrize("ttft_s,count", [(2.0, 0), (0.2, 1)])
def test_only_a_request_that_would_miss_its_ttft_stops_anything(ttft_s: float, count: int) -> None:
    assert stopped("slack", ttft_s)[1] == count


# --- Incremental checkpoints ----------------------------------------------------------------------------------------
def displaced(how: str, **values: Any) -> s.State:
    """Offline requests that fill the memory, until an online one needs it."""
    rows = [(0.0, 700, 40, False), (0.0, 600, 40, False), (0.2, 800, 5, True)]
    return to_the_end(setup_of(rows, 1600, preempted_kv=how, **values))


def test_a_preempted_request_goes_on_from_its_copy() -> None:
    lost, swapped, copied = (displaced(how) for how in ("recompute", "swap", "checkpoint"))
    for state in (lost, swapped, copied):
        assert state.requests["evictions"].tolist() == [0, 1, 0]
        assert (state.requests["status"] == s.FINISHED).all()
    wasted = [int(state.requests["wasted_tokens"].sum()) for state in (lost, swapped, copied)]
    assert wasted[0] >= 600 and wasted[1:] == [0, 0]
    crossed = [int(state.instances["swapped_tokens"][0]) for state in (lost, swapped, copied)]
    # Swapping moves the request's memory out and in; copies are of all that offline requests compute, and one is read.
    done = copied.requests[:2]
    total = int((done["prompt_tokens"] + done["output_tokens"]).sum())
    assert crossed[0] == 0 and crossed[1] >= 2 * 600 and abs(crossed[2] - total - crossed[1] // 2) <= 8


@settings(max_examples=30, deadline=None)
@given(ROWS, st.sampled_from((3200, 6400)))
def test_with_room_on_the_host_nothing_of_offline_requests_is_computed_twice(rows: list[Row], kv_tokens: int) -> None:
    state = to_the_end(setup_of(rows, kv_tokens))
    offline = state.requests[state.requests["online"] == 0]
    assert offline["wasted_tokens"].sum() == 0
    assert np.isin(state.requests["status"], (s.FINISHED, s.REJECTED)).all()
