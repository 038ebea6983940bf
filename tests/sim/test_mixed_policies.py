"""What must hold on mixed instances whoever schedules them: every registered policy, with any of its choices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooco_gym.perf.engine_clock import EngineClock
from ooco_gym.policy import get_policy, list_policies
from ooco_gym.sim import state as s
from ooco_gym.workload import Trace
from tests.sim.episodes import patience, traces
from tests.sim.harness import Episode, Setup, differences
from tests.sim.mixed_invariants import check_memory, check_mixed, check_tokens
from tests.sim.test_blocks import ROWS, shared_trace

MIXED = tuple(name for name in list_policies() if get_policy(name).mixed)
SIZES: dict[str, Any] = {"max_num_batched_tokens": st.sampled_from((64, 700, 4096)),
                         "max_num_seqs": st.sampled_from((2, 16, 63)), "reserved_blocks": st.sampled_from((0, 1)),
                         # what HyGen finds by test runs, and Sarathi, which knows no offline work
                         "latency_budget_s": st.sampled_from((0.03, 0.2)), "offline_qps": st.sampled_from((0.5, 50.0)),
                         "offline": st.just("fcfs"), "host_gib": st.sampled_from((0, 1)),
                         "output_window": st.sampled_from((3, 100)), "aging_s": st.sampled_from((0, 1))}
MANY_EVENTS = 4000
EACH = pytest.mark.parametrize("policy", MIXED)
FEW = settings(max_examples=12)


@st.composite
def episodes(draw: st.DrawFn, name: str) -> tuple[Setup, Trace]:
    """A policy with random sizes and choices, one or two chips mostly short of memory, prompts that share or do not."""
    policy = get_policy(name)
    values = {param.name: draw(SIZES[param.name] if param.name in SIZES else st.sampled_from(param.choices))
              for param in policy.params if param.name in SIZES or param.choices}
    chips = draw(st.lists(st.sampled_from((("ascend_910c", 1), ("h800", 1))), min_size=1, max_size=2))
    prefixes = draw(st.booleans())
    host_blocks = draw(st.sampled_from((0, 23, 117, 4000)))  # of the prefix cache's second tier
    setup = Setup((), relaxed=(), strict=(), mixed=tuple(chips), policy=policy.name, values=tuple(values.items()),
                  rules={"offloading_bytes": host_blocks * 16 * 57_344.0,
                         "engine_clock": EngineClock(async_scheduling=draw(st.booleans()))},
                  kv_tokens=draw(st.sampled_from((None, 2800, 6000))), window_s=(0.0, 20.0),
                  seed=draw(st.integers(0, 2**40)))
    trace = shared_trace(draw(ROWS)) if prefixes else setup.with_(requests=draw(traces())).trace()
    return setup.with_(patience_s=draw(patience(len(trace)))), trace


@EACH
@FEW
@given(st.data())
def test_everything_holds_after_every_event(policy: str, data: st.DataObject) -> None:
    setup, trace = data.draw(episodes(policy))
    for state in Episode(setup, trace=trace).events(MANY_EVENTS):
        check_mixed(state)


@EACH
@FEW
@given(st.data())
def test_everything_ends_and_nothing_is_held(policy: str, data: st.DataObject) -> None:
    """Once the load is over every request has run or left; memory, references and host memory are as in the
    beginning."""
    setup, trace = data.draw(episodes(policy))
    episode = Episode(setup, trace=trace)
    before = episode.state.instances["host_free_blocks"].copy()
    episode.state.gauges.open_online = 1 << 30
    episode.play(round(36_000.0 * s.PS_PER_S))
    state = episode.state
    status, ends = state.requests["status"], (s.FINISHED, s.REJECTED, s.ABORTED)
    assert np.isin(status, ends if setup.patience_s else ends[:2]).all(), np.unique(status)
    assert (state.instances["free_blocks"] == state.instances["total_blocks"]).all()
    assert (state.blocks["references"] == 0).all()
    assert (state.reuse == 0).all()
    assert np.array_equal(state.instances["host_free_blocks"], before)
    check_memory(state)
    check_tokens(state)


@EACH
@FEW
@given(st.data())
def test_the_same_seed_leaves_the_same_bytes(policy: str, data: st.DataObject) -> None:
    setup, trace = data.draw(episodes(policy))
    first, second = (Episode(setup, trace=trace).play().state for _ in range(2))
    assert all(a.tobytes() == b.tobytes() for a, b in zip(first, second, strict=True))


@EACH
@FEW
@given(st.data())
def test_horizons_and_copies_change_nothing(policy: str, data: st.DataObject) -> None:
    setup, trace = data.draw(episodes(policy))
    horizons = data.draw(st.lists(st.floats(0.0, 30.0), max_size=5))
    episode = Episode(setup, trace=trace)
    for horizon in sorted(horizons):
        episode.play(round(horizon * s.PS_PER_S))
        episode.state = s.copy_state(episode.state)
    assert differences(episode.play().state, Episode(setup, trace=trace).play().state) == []


@EACH
@FEW
@given(st.data())
def test_composed_from_python_equals_inside(policy: str, data: st.DataObject) -> None:
    setup, trace = data.draw(episodes(policy))
    driven = Episode(setup, trace=trace, outside=("compose", "route")).play()
    assert driven.answers > 0
    assert differences(Episode(setup, trace=trace).play().state, driven.state) == []


@pytest.mark.parametrize("policy", ["deadline", "vllm_priority"])
def test_an_offline_request_that_has_waited_goes_as_an_online_one(policy: str) -> None:
    """One runs at a time, and each takes more than a second: the offline request waits for all nine, or, once it has
    waited three seconds, goes before those that arrived after it."""
    rows = ((0.0, 64, 100, True), (0.1, 64, 100, False), *((0.2 + 0.1 * i, 64, 100, True) for i in range(8)))
    setup = Setup(rows, relaxed=(), strict=(), mixed=(("ascend_910c", 1),), policy=policy)

    def places(**values: int) -> tuple[int, Any]:
        state = Episode(setup.with_(values=tuple({"max_num_seqs": 1, **values}.items()))).play().state
        finish_ps = state.requests["finish_ps"]
        assert (state.requests["status"] == s.FINISHED).all() and state.instances[0]["online_waiting"] == 0
        return int((finish_ps < finish_ps[1]).sum()), finish_ps

    (last, plain), (late, _), (never, same) = places(), places(aging_s=3), places(aging_s=1000)
    assert (last, never) == (9, 9) and np.array_equal(plain, same)
    waited = int(np.searchsorted(np.sort(plain), 3.1 * s.PS_PER_S)) + 1
    assert 1 < late == waited < 9
