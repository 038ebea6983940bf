"""Round robin beside BROS 2.2: classes take turns, each first come first served, and no turn is left unused."""

from __future__ import annotations

from typing import Any

from episodes import traces
from harness import Episode, Setup
from hypothesis import given, settings
from hypothesis import strategies as st
from iterations import iterations

from ooco_gym.sim import state as s


def episode_of(rows: Any, kv_tokens: int | None = None, **values: Any) -> Episode:
    """An episode on one 910C with Qwen2.5-7B, of requests (arrival_s, prompt, output, online)."""
    return Episode(Setup(tuple(rows), relaxed=(), strict=(), mixed=(("ascend_910c", 1),), policy="round_robin",
                         kv_tokens=kv_tokens, values=tuple({"max_num_seqs": 63, **values}.items()),
                         window_s=(0.0, 20.0)))


def test_the_classes_take_turns() -> None:
    """Figure 4, case (1): request A and two best-effort ones, an iteration each in turn, until A has all its tokens."""
    rows = [(0.0, 100, 4, True), (0.0, 200, 6, False), (0.0, 200, 6, False)]
    found = list(iterations(episode_of(rows)))
    assert found[:4] == [{0: 100}, {1: 200, 2: 200}, {0: 1}, {1: 1, 2: 1}]
    assert [set(one) for one in found[4:]] == [{0}, {1, 2}, {0}, {1, 2}, {1, 2}, {1, 2}]


def test_prompts_share_the_tokens_of_an_iteration_and_a_long_one_runs_alone() -> None:
    rows = [(0.0, 600, 2, True), (0.0, 500, 2, True), (0.0, 3000, 2, True)]
    found = list(iterations(episode_of(rows, max_num_batched_tokens=1000)))
    assert found[:3] == [{0: 600}, {0: 1, 1: 500}, {1: 1, 2: 3000}]


@settings(deadline=None, max_examples=40)
@given(traces(), st.sampled_from((None, 2800, 3600)), st.sampled_from((1, 4, 63)), st.sampled_from((1, 500, 2048)))
def test_turns_batches_and_memory(rows: Any, kv_tokens: int | None, batch_size: int, tokens: int) -> None:
    """An iteration has one class and at most its batch; all requests that were not rejected get done."""
    episode = episode_of(rows, kv_tokens, batch_size=batch_size, max_num_batched_tokens=tokens)
    state = episode.state
    for found in iterations(episode):
        assert len({int(state.requests[slot]["urgent"]) for slot in found}) == 1
        assert len(found) <= batch_size
        assert state.instances[0]["free_blocks"] >= 0
    episode.play(10**15)
    counted = (state.requests["online"] == 1) & (state.requests["counted"] == 1)
    assert ((state.requests["status"] >= s.FINISHED) | (state.requests["violated"] > 0))[counted].all()
