"""Deadline: iterations within what online requests are ahead of their deadlines, by hand and always."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.deadline import GIVEN, MOST_GIVEN
from ooco_gym.sim import state as s
from tests.sim.episodes import traces
from tests.sim.harness import Episode, Setup, play
from tests.sim.iterations import given_tokens, iterations, steps

MIXED: dict[str, Any] = {"relaxed": (), "strict": (), "mixed": (("ascend_910c", 1),), "window_s": (0.0, 20.0)}
TPOT_PS, SHARE = 0.05 * s.PS_PER_S, 0.9
# Online prefill never due, no least iteration, any chunk: the budget alone.
BOUND = {"tpot_share": SHARE, "ttft_share": 2.0, "least_iteration_s": 0.0, "online_chunk": 1, "offline_chunk": 1,
         "decode_share": 100.0, "offline_share": 1.0, "headroom_share": 0.0, "max_num_batched_tokens": 4096,
         "max_num_seqs": 63, "give_up_share": 0.0}


def setup_of(*rows: tuple[float, int, int, bool], **values: Any) -> Setup:
    """Requests of (arrival_s, prompt, output, online) on one mixed instance."""
    return Setup(rows, policy="deadline", values=tuple({**BOUND, **values}.items()), **MIXED)


def at_once(*rows: tuple[int, int, bool], **values: Any) -> Setup:
    """The same, all there from the start."""
    return setup_of(*((0.0, *row) for row in rows), **values)


def slacks(state: s.State, share: float) -> list[int]:
    """What each online request that decodes is ahead of its next token's deadline, as the iteration begins."""
    requests, now = state.requests, int(state.instances["start_ps"][0])
    found = []
    for slot in state.members[s.BATCH, 0, : state.instances["running"][0]]:
        one = requests[slot]
        made = int(one["generated_tokens"])
        late = one["first_token_ps"] - one["arrival_ps"] > one["ttft_slo_ps"]
        if one["online"] and made and one["prompt_tokens"] + made - one["num_computed_tokens"] == 1 and not late:
            found.append(int(one["first_token_ps"]) + int(share * one["tpot_slo_ps"] * made) - now)
    return found


def is_online_decode(state: s.State, slot: int) -> bool:
    one = state.requests[slot]
    missing = one["prompt_tokens"] + one["generated_tokens"] - one["num_computed_tokens"]
    return bool(one["online"] and one["generated_tokens"] and missing == 1)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_iterations_keep_to_what_online_requests_are_ahead(data: st.DataObject) -> None:
    """What is more than online decodes ends before the first of their deadlines, and online decodes are always in."""
    values = {"prefix_caching": data.draw(st.sampled_from(("off", "on"))),
              "preempted": data.draw(st.sampled_from(("recompute", "swap")))}
    setup = setup_of(**values).with_(requests=data.draw(traces()),
                                     kv_tokens=data.draw(st.sampled_from((None, 6000))))
    episode = Episode(setup)
    for spec in steps(episode):
        state, batch = episode.state, given_tokens(episode)
        decoding = [slot for slot in state.members[s.BATCH, 0, : spec["running"]] if is_online_decode(state, slot)]
        assert set(decoding) <= set(batch)
        ahead = slacks(state, SHARE)
        if ahead and set(batch) - set(decoding):
            assert spec["end_ps"] - spec["start_ps"] <= max(0, min(ahead)) or state.instances["swapped_tokens"][0] > 0


def test_offline_decodes_that_do_not_fit_are_parked_with_their_memory() -> None:
    """A TPOT that a decode step all but takes leaves nothing: the online request decodes alone, then they go on."""
    setup = at_once((100, 40, True), (500, 9, False), (500, 9, False)).with_(rules={"tpot_s": 0.0155})
    episode, alone, parked = Episode(setup), 0, 0
    for _ in steps(episode):
        state, batch = episode.state, given_tokens(episode)
        if is_online_decode(state, 0):
            alone += list(batch) == [0]
            parked += bool((state.requests["blocks"][1:] > 0).any())
    assert alone >= 38 and parked >= 38
    assert (episode.state.requests["status"] == s.FINISHED).all()


def test_offline_work_fills_what_online_requests_are_ahead() -> None:
    """The same promise as without offline work, and all of it is used."""
    rows = ((200, 200, True), *((1500, 60, False) for _ in range(200)))
    state = play(at_once(*rows)).state
    one = state.requests[0]
    tpot = (one["finish_ps"] - one["first_token_ps"]) / 199 / TPOT_PS
    assert SHARE - 0.05 < tpot <= SHARE


@pytest.mark.parametrize("ttft_share,whole", [(0.0, True), (2.0, False)])
def test_online_prefill_that_is_due_is_not_bound(ttft_share: float, whole: bool) -> None:
    """The second prompt arrives while the first request decodes, with a slack of one TPOT or so."""
    setup = setup_of((0.0, 100, 200, True), (0.05, 3000, 5, True), ttft_share=ttft_share)
    chunks = [batch[1] for batch in iterations(Episode(setup)) if batch.get(1, 0) > 1]
    assert (chunks == [3000]) == whole


def test_headroom_stays_free_when_offline_requests_enter() -> None:
    rows = tuple((0.0, 900, 4, False) for _ in range(8))
    admitted = {}
    for share in (0.0, 0.5):
        episode = Episode(setup_of(*rows, headroom_share=share).with_(kv_tokens=6400))
        admitted[share] = max(int(spec["running"]) for spec in steps(episode))
        assert (episode.state.requests["status"] == s.FINISHED).all()
    assert admitted == {0.0: 7, 0.5: 3}


def test_no_more_are_given_up_than_may_be() -> None:
    rows = tuple((0.3 * i, 100, 200, True) for i in range(40))
    offline = tuple((0.0, 1500, 40, False) for _ in range(60))
    setup = setup_of(*sorted(rows + offline), give_up_gain_s=0.01, violation_window_s=1e6)
    for share, most in ((0.0, 0), (0.1, 4)):
        state = play(setup.with_(values=(*setup.values, ("give_up_share", share)))).state
        given_up = np.count_nonzero(state.memory[0, GIVEN : GIVEN + MOST_GIVEN])
        assert given_up == 0 if most == 0 else 0 < given_up <= most


def test_a_request_enters_only_where_the_memory_will_last() -> None:
    """Two at a time fill the memory as they grow; without `growth` all enter at once and evict each other."""
    rows = tuple((0.0, 300, 200, False) for _ in range(12))
    evicted = {}
    for growth in (0.0, 3.125):  # 64 tokens are assumed, 200 come
        episode = play(setup_of(*rows, growth=growth).with_(kv_tokens=1600))
        assert (episode.state.requests["status"] == s.FINISHED).all()
        evicted[growth] = int(episode.state.requests["evictions"].sum())
    assert evicted[0.0] > 4 and evicted[3.125] == 0
