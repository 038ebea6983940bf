"""Blocks told apart: prefix caching, what is kept, what is taken first; that nothing leaks or is shared wrongly."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ooco_gym.policy import Param, Policy
from ooco_gym.policy.decisions import COMPOSE, hook
from ooco_gym.policy.mixed import (
    RECOMPUTE,
    admit,
    admit_waiting,
    continue_running,
    get_computed_tokens,
    preempt,
    unschedule,
)
from ooco_gym.sim import state as s
from ooco_gym.workload import Trace
from ooco_gym.workload.sharing import hash_blocks
from tests.sim.harness import Episode, Setup
from tests.sim.pool_checks import check_pool

MIXED: dict[str, Any] = {"relaxed": (), "strict": (), "mixed": (("ascend_910c", 1),), "window_s": (0.0, 60.0)}


def shared_trace(rows: list[tuple[float, int, int, bool, int, int]]) -> Trace:
    """Requests of (arrival_s, prompt, output, online, group, 512-token blocks shared with the group)."""
    rows = sorted(rows, key=lambda row: row[0])
    prompt = np.array([row[1] for row in rows], np.int32)
    hashes = hash_blocks(prompt, np.array([row[5] for row in rows]), np.array([row[4] for row in rows]),
                         np.arange(len(rows)), "test")
    return Trace(np.array([row[0] for row in rows]), prompt, np.array([row[2] for row in rows], np.int32),
                 np.array([row[3] for row in rows]), prefix_hashes=hashes)


ROWS = st.lists(st.tuples(st.floats(0.0, 3.0), st.integers(1, 2200), st.integers(1, 60), st.booleans(),
                          st.integers(0, 2), st.integers(0, 4)), min_size=1, max_size=25)
SETUPS = st.builds(lambda policy, kv, tokens, seqs, reserved: Setup(
    (), policy=policy, kv_tokens=kv, values=(("prefix_caching", "on"), ("max_num_batched_tokens", tokens),
                                             ("max_num_seqs", seqs), ("reserved_blocks", reserved)), **MIXED),
    st.sampled_from(("vllm_fcfs", "vllm_priority")), st.sampled_from((2800, 6000)),
    st.sampled_from((64, 700, 2048)), st.sampled_from((2, 16, 63)), st.sampled_from((0, 1)))


@given(SETUPS, ROWS)
def test_a_cache_changes_time_but_no_token(setup: Setup, rows: list[Any]) -> None:
    """The same requests finish with the same tokens, and what is found need not be computed."""
    trace = shared_trace(rows)
    on = Episode(setup, trace=trace).play(round(1e15)).state
    plain = setup.with_(values=(("prefix_caching", "off"), *setup.values[1:]))
    off = Episode(plain, trace=trace).play(round(1e15)).state
    counted = on.requests["status"] == s.FINISHED
    assert np.array_equal(on.requests["generated_tokens"][counted], on.requests["output_tokens"][counted])
    assert (off.requests["cached_tokens"] <= 0).all()
    started = on.requests["cached_tokens"] >= 0
    assert on.instances["cached_tokens"].sum() == on.requests["cached_tokens"][started].sum()
    assert (on.requests["cached_tokens"][started] < (on.requests["prompt_tokens"])[started]).all()


@hook(COMPOSE)
def fickle(view):
    """Starts a request and thinks better of it; looks what it would find; then serves first come, first served."""
    state, instance = view.state, view.instance
    slot = state.instances[instance].online_head
    if state.memory[instance, 0] == 0.0 and slot >= 0:
        admit(state, instance, slot, 600)
        unschedule(state, slot)
        preempt(state, instance, 0, RECOMPUTE)
        state.memory[instance, 0], state.memory[instance, 1] = 1.0, get_computed_tokens(state, instance, slot)
    budget, _ = continue_running(state, instance, 2048)
    return 2048 - admit_waiting(state, instance, budget, 0.0)


def test_what_was_never_computed_is_not_found() -> None:
    policy = Policy("fickle", (Param("prefix_caching", "", choices=("off", "on")),), {"prefix_caching": "on"},
                    mixed=True, compose=fickle)
    state = Episode(Setup((), policy=policy, **MIXED), trace=shared_trace([(0.0, 700, 3, True, 0, 1)])).play().state
    assert state.memory[0, :2].tolist() == [1.0, 0.0]
    assert state.requests["status"].tolist() == [s.FINISHED]
    check_pool(state, 0)
