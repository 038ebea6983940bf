"""Prefix caches of a relaxed and a strict instance, and vLLM's block pool on either side of a hand-over."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracle.cases import Case, conversations
from tests.oracle.fuzz import ASYNCHRONOUS
from tests.oracle.schedulers import Oracle
from tests.oracle.strategies import PROFILE, requests
from tests.sim.harness import Episode, Setup
from tests.sim.pool_checks import content

pytestmark = pytest.mark.oracle
GAP_S = 1000.0  # one request is under way at a time
FOUND_THERE = 2


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Requests one after another, alike from the start or as turns; memory for one and a bit."""
    trace = draw(requests(True))
    if draw(st.booleans()):
        trace = conversations(np.random.Generator(np.random.Philox(draw(st.integers(0, 1000)))), trace)
    trace = replace(trace, arrival_s=GAP_S * np.arange(len(trace)))
    longest = int((-(-(trace.prompt_tokens + trace.output_tokens + 2) // 16)).max())
    more = draw(st.sampled_from((0, 1, 3, 20, 100, 1000)))
    return Case(trace, "vllm_fcfs", max(2, longest) + 1 + more, prefix_caching=True)


@PROFILE
@given(case=cases(), policy=st.sampled_from(("base_pd", "ooco")))
def test_both_sides_find_and_keep_what_vllm_does(oracle: Oracle, version: str, case: Case, policy: str) -> None:
    """What each request finds where it is prefilled and where it decodes, and which content would give way next."""
    if version not in ASYNCHRONOUS:
        pytest.skip("ours frees blocks in the order of the newest releases")
    end_s = GAP_S * (len(case.trace) + 1)
    trace = replace(case.trace, online=np.ones(len(case.trace), bool))
    setup = Setup((), policy=policy, kv_tokens=16 * (case.kv_blocks - 1), values=(("prefix_caching", "on"),),
                  window_s=(0.0, end_s))
    state = Episode(setup, trace=trace).play(round(1e12 * end_s)).state
    real = oracle.play(case, "play_sides")
    assert np.array_equal(real["found_0"], state.requests["cached_tokens"])
    moved = trace.output_tokens > 1
    assert np.array_equal(real["found_1"][moved], 16 * state.owned[moved, FOUND_THERE])
    for side in range(2):
        assert np.array_equal(real[f"kept_{side}"], content(state, side, case.trace)), side
