"""What must hold after every event, whatever cluster, trace and rules: tokens, memory, lists, roles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooco_gym import Scenario, simulate
from ooco_gym.resources import load_yaml
from ooco_gym.sim import state as s
from tests.sim.episodes import setups
from tests.sim.harness import BASELINES, POINT_NAMES, Episode, Setup, play
from tests.sim.sides import check

MANY_EVENTS = 6000


@given(setups())
def test_everything_holds_after_every_event(setup: Setup) -> None:
    episode = Episode(setup)
    for state in episode.events(MANY_EVENTS):
        check(state)
    episode.play()
    check(episode.state)


@given(setups())
def test_everything_holds_at_open_decisions(setup: Setup) -> None:
    """Answered from outside, memory and queues also hold in the middle of an event."""
    episode, answer = Episode(setup, outside=POINT_NAMES), s.ASK
    for _ in range(400):
        if episode.advance(None, answer) != s.ASKED:
            break
        assert (episode.state.instances["free_blocks"] >= 0).all()
        answer = episode.rule_answer()


@given(setups(random_rules=False), st.booleans())
def test_everything_ends(setup: Setup, late: bool) -> None:
    """Every request that could run has run once the load is over; none starves, none is forgotten."""
    end_s = max(row[0] for row in setup.requests) + (0.5 if late else 0.0)
    episode = Episode(setup.with_(window_s=(0.0, end_s + 1.0)))
    episode.state.gauges.open_online = 1 << 30
    episode.play(round((end_s + 3600.0) * s.PS_PER_S))
    status = episode.state.requests["status"]
    assert np.isin(status, (s.FINISHED, s.REJECTED)).all(), np.unique(status)
    assert (episode.state.instances["free_blocks"] == episode.state.instances["total_blocks"]).all()


def expected_misses(state: s.State) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(TTFT missed, TPOT missed, whether the latter is settled) from the times alone, in whole picoseconds."""
    requests = state.requests
    deadline = requests["arrival_ps"] + requests["ttft_slo_ps"]
    first = requests["first_token_ps"]
    ttft = np.where(first > 0, first > deadline, deadline < state.clock.now_ps) | (requests["status"] == s.REJECTED)
    tokens, finish = requests["output_tokens"].astype(np.int64) - 1, requests["finish_ps"]
    begin = first
    if state.config.tpot_from_decode:
        begin = np.where(requests["first_decode_ps"] > 0, requests["first_decode_ps"], first)
    few = requests["output_tokens"] < state.config.tpot_min_tokens
    latest = np.where(few, deadline, begin) + tokens * requests["tpot_slo_ps"]
    return ttft, (finish > latest) & (tokens > 0), requests["status"] == s.FINISHED


@given(setups())
def test_misses_are_charged_as_the_protocol_says(setup: Setup) -> None:
    state = play(setup).state
    requests, online = state.requests, state.requests["online"] == 1
    ttft, tpot, finished = expected_misses(state)
    arrived = requests["status"] != s.FUTURE
    assert (((requests["violated"] & 1) > 0) == ttft)[online & arrived].all()
    assert (((requests["violated"] & 2) > 0) == tpot)[online & finished].all()
    assert (requests["violated"][~online & (requests["status"] != s.REJECTED)] == 0).all()
    counted = online & (requests["counted"] == 1)
    assert state.totals.ttft_misses == np.count_nonzero(requests["violated"][counted] & 1)
    assert state.totals.tpot_misses == np.count_nonzero(requests["violated"][counted] & 2)
    assert state.totals.violations == np.count_nonzero(requests["violated"][counted])
    done = (requests["status"] == s.FINISHED) | (requests["violated"] > 0)
    assert state.gauges.open_online == np.count_nonzero(counted & ~done)


@given(setups())
def test_sums_are_those_of_the_requests(setup: Setup) -> None:
    state = play(setup).state
    requests, clock, totals = state.requests, state.clock, state.totals
    start, end = clock.window_start_ps, clock.window_end_ps
    done = ((requests["online"] == 0) & (requests["status"] == s.FINISHED) & (requests["finish_ps"] >= start)
            & (requests["finish_ps"] < end))
    assert totals.offline_finished == np.count_nonzero(done)
    assert totals.offline_output_tokens == requests["output_tokens"][done].sum()
    assert totals.service_ps == requests["service_ps"][done].sum()
    counted = (requests["online"] == 1) & (requests["counted"] == 1)
    assert totals.online_finished == np.count_nonzero(counted & (requests["status"] == s.FINISHED))
    gaps = np.maximum(requests["generated_tokens"][counted] - 1, 0).sum()
    assert state.itl.sum() == gaps, "an inter-token time for each token after the first"
    for key in ("wasted_tokens", "evictions", "migrations"):
        assert getattr(totals, key) <= requests[key].sum()
    busy = sum(state.instances[key] for key in ("online_prefill_ps", "offline_prefill_ps", "decode_ps"))
    assert (busy <= clock.now_ps).all()


@given(setups(), st.lists(st.integers(-5, 2**31 - 1) | st.integers(-5, 12), min_size=1, max_size=30))
def test_illegal_answers_do_no_harm(setup: Setup, answers: list[int]) -> None:
    """Whatever comes from outside, in the answer and in State.picks, the books stay right."""
    episode, answer = Episode(setup, outside=POINT_NAMES), s.ASK
    for i in range(1500):
        if episode.advance(None, answer) != s.ASKED:
            check(episode.state)
            break
        if i % 2:
            answer = episode.rule_answer()
            continue
        answer = answers[i % len(answers)]
        if answer == s.ASK:
            answer = s.HOLD
        picks = episode.state.picks
        picks[: len(answers)] = np.array(answers)[: picks.size]
    assert (episode.state.instances["free_blocks"] >= 0).all()


@given(setups(policies=("ooco",), noisy=False, random_rules=False))
def test_mixed_decoding_stays_within_the_bound(setup: Setup) -> None:
    """Algorithm 2: no strict step with an offline request in it is believed to take longer than slo_margin * S."""
    episode, margin = Episode(setup), dict(setup.values)["slo_margin"]
    bound_ps = int(margin * episode.state.config.default_tpot_ps)
    for state in episode.events(MANY_EVENTS):
        for i, spec in enumerate(state.instances):
            batch = state.members[s.BATCH, i, : spec["running"]]
            mixed = not state.requests["urgent"][batch].all()
            if spec["role"] != s.STRICT or spec["activity"] != s.DECODE or not mixed:
                continue
            n = spec["batch_size"]
            last = spec["context"] + (spec["steps"] - 1) * n
            base, slope, other_base, other_slope = state.decode_lines[spec["belief"], n]
            assert max(base + slope * last, other_base + other_slope * last) <= bound_ps


def test_episodes_are_rich_enough() -> None:
    """What the random episodes are made of does come up: else the tests above prove little."""
    rows = tuple(sorted([(0.11 * i, 300 + 37 * (i % 11), 40 + 13 * (i % 7), True) for i in range(60)]
                        + [(0.07 * i, 200 + 61 * (i % 13), 60 + 17 * (i % 5), False) for i in range(90)]
                        + [(3.0, 6000, 4, True)]))
    found = {policy: play(Setup(rows, policy=policy, kv_tokens=4000, window_s=(0.0, 20.0))).state
             for policy in BASELINES}
    for policy, state in found.items():
        assert state.totals.evictions > 0, policy
        assert (state.requests["status"] == s.REJECTED).any(), policy
    assert all(found[policy].totals.migrations > 0 for policy in ("ooco", "ooco_xllm"))
    assert all(found[policy].totals.interruptions > 0 for policy in ("ooco", "ooco_xllm"))
    assert all(found[policy].totals.wasted_tokens > 0 for policy in BASELINES[:2])


# --- The optional promise on the longest gap between two tokens, and the scheduler's own time ------------------------
BASE = Scenario(rate_scale=0.04, duration_s=120.0, warmup_s=60.0, drain_s=60.0, offline={"mode": "rate", "rate": 2.0})
GAP = {"ttft_s": 2.0, "tpot_s": 0.05, "gap_s": 0.06}


def test_gaps_are_charged_at_once_as_step_by_step_and_as_recomputed():
    scenario = BASE.with_(slo=GAP)
    once, step = simulate(scenario, "ooco"), simulate(scenario, "ooco", bulk=False)
    counted = (once.requests["counted"] == 1) & (once.requests["online"] == 1)
    over = int(np.count_nonzero(once.requests["max_gap_ps"][counted] > 60e9))
    assert 0 < over <= once.counters["violations"]
    assert once.counters["violations"] == step.counters["violations"]
    assert once.summary["online"]["violation_rate"] == pytest.approx(once.counters["violations"] / counted.sum())
    assert simulate(BASE, "ooco").counters["violations"] < once.counters["violations"]


def test_decision_time_slows_iterations_but_not_what_work_is_worth():
    cluster = {**load_yaml("cluster", "pair_7b"), "engine_clock": {"schedule_s": 0.005}}
    quick, slow = simulate(BASE, "base_pd"), simulate(BASE.with_(cluster=cluster), "base_pd")
    assert slow.summary["online"]["itl_mean_s"] > quick.summary["online"]["itl_mean_s"] + 0.004
    assert np.array_equal(quick.requests["service_ps"], slow.requests["service_ps"])
