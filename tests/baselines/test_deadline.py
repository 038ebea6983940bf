"""Deadline: iterations within what online requests are ahead of their deadlines, by hand and always."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines import adaptive_deadline as ad
from baselines.deadline import GIVEN, MOST_GIVEN
from ooco_gym.policy.weights import write_weights
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


# --- Adaptive deadline: `deadline` without weights, and what weights make of it --------------------------------------
ALIKE = (("chunk_efficiency", 0.95), ("decode_share", 1.0))  # which the two ship with differently
ONE: dict[str, Any] = {"relaxed": (), "strict": (), "mixed": (("ascend_910c", 1),), "window_s": (0.0, 20.0)}
ROWS, COLUMNS = ad.LAYOUT


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("weights")


def adaptive(folder: Path, rows: Any, weights: np.ndarray, **values: Any) -> Setup:
    """Requests on one mixed instance under a policy with an array of weights."""
    file = folder / f"{hashlib.sha256(weights.tobytes()).hexdigest()[:12]}.npz"
    write_weights(file, ad.LAYOUT, weights)
    values = {"max_num_seqs": 63, "weights": str(file), **values}
    return Setup(rows, policy="adaptive_deadline", values=tuple(values.items()), **ONE)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_without_weights_it_is_deadline(data: st.DataObject) -> None:
    requests = data.draw(traces())
    kv_tokens = data.draw(st.sampled_from((None, 6000)))
    interval_s = data.draw(st.sampled_from((0.0, 0.3, 5.0)))
    values = (("max_num_seqs", 63), ("give_up_share", data.draw(st.sampled_from((0.0, 0.1)))), *ALIKE)
    of = Setup(requests, policy="deadline", values=values, kv_tokens=kv_tokens, **ONE)
    ours = replace(of, policy="adaptive_deadline", values=(*values, ("interval_s", interval_s)))
    played, adapted = play(of), play(ours)
    assert np.array_equal(played.state.requests, adapted.state.requests)
    assert played.state.totals.as_dict() == adapted.state.totals.as_dict()


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_weights_keep_parameters_within_bounds(folder: Path, data: st.DataObject) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 1000)))
    weights = 9.0 * random.normal(size=(len(ROWS), len(COLUMNS))) * (random.random((len(ROWS), len(COLUMNS))) < 0.05)
    episode = Episode(adaptive(folder, data.draw(traces()), weights, interval_s=0.0))
    base = np.array([float(episode.policy.values[name]) for name in ROWS])
    seen = 0
    for spec in steps(episode):
        seen += 1
        for j, one in enumerate(ad.ADJUSTED):
            value = episode.state.memory[0, ad.SET + j]
            assert min(one.low, base[j]) <= value <= max(one.high, base[j])
            assert weights[j].any() or value == base[j]
        assert spec["end_ps"] > spec["start_ps"]
    assert seen > 0


def test_a_constant_moves_a_parameter_by_its_step_and_a_figure_by_its_value(folder: Path) -> None:
    weights = np.zeros((len(ROWS), len(COLUMNS)))
    weights[ROWS.index("headroom_share"), -1] = 2.0
    weights[ROWS.index("offline_chunk"), -1] = -1.0
    weights[ROWS.index("offline_share"), COLUMNS.index("kv_free")] = 1.0
    episode = Episode(adaptive(folder, ((0.0, 300, 20, True), (0.0, 300, 20, False)), weights))
    next(iter(steps(episode)))
    found = dict(zip(ROWS, episode.state.memory[0, ad.SET :], strict=False))
    base: Any = episode.policy.values
    assert found["headroom_share"] == pytest.approx(base["headroom_share"] + 0.2)
    assert found["offline_chunk"] == pytest.approx(base["offline_chunk"] * np.exp(-0.7))
    assert found["offline_share"] == pytest.approx(base["offline_share"] + 0.25)  # all memory is free at the first look
    assert found["tpot_share"] == base["tpot_share"]


def test_what_is_set_holds_for_the_interval(folder: Path) -> None:
    weights = np.zeros((len(ROWS), len(COLUMNS)))
    weights[ROWS.index("tpot_share"), COLUMNS.index("kv_free")] = -1.0
    rows = tuple((0.05 * i, 500, 60, i % 2 == 0) for i in range(40))
    for interval_s in (0.0, 0.5, 1e3):
        episode, changed, last, before = Episode(adaptive(folder, rows, weights, interval_s=interval_s)), [], 0.0, None
        for spec in steps(episode):
            now = episode.state.memory[0, ad.SET]
            if before is not None and now != before:
                changed.append(spec["start_ps"] / s.PS_PER_S - last)
                last = spec["start_ps"] / s.PS_PER_S
            before = now
        assert all(gap >= interval_s - 0.2 for gap in changed[1:])
        assert (len(changed) > 1) == (interval_s < 100.0)
