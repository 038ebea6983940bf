"""One episode, whichever way it is driven: in bulk or step by step, inside or from Python, in one go or in slices."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from episodes import VALUES, setups
from harness import BASELINES, POINT_NAMES, Episode, Setup, differences, play
from hypothesis import given
from hypothesis import strategies as st

from ooco_gym.policy import get_policy
from ooco_gym.sim import state as s
from ooco_gym.sim.batch import MOST_LANE_STEPS
from ooco_gym.sim.state import copy_state
from ooco_gym.workload import merge


@given(setups())
def test_closed_form_equals_one_step_at_a_time(setup: Setup) -> None:
    assert differences(play(setup).state, play(setup, bulk=False).state) == []


FLUSH = tuple(name for name in VALUES if get_policy(name).flushes)


@given(setups(FLUSH, random_rules=False))
def test_records_written_late_equal_records_written_always(setup: Setup) -> None:
    late, always = Episode(setup), Episode(setup)
    assert late.state.config.rules_flush == 1
    always.state.config.rules_flush = 0
    assert differences(late.play().state, always.play().state) == []


def test_who_settles_is_known() -> None:
    assert {"ooco", "base_pd", "slack", "online_priority"} <= set(FLUSH)
    assert all(get_policy(name).flushes for name in ("always", "never", "random", "least_urgent"))


def nearly_full(setup: Setup, left: int) -> Episode:
    """An episode whose lanes, still empty, are at the step at which only so many are left before they begin anew."""
    episode = Episode(setup)
    for instance in episode.state.instances:
        instance["lanes"], instance["lane_steps"], instance["lane_held"] = 1, *[MOST_LANE_STEPS - left] * 2
        for field in ("lane_gap_ps", "lane_first", "lane_miss_ps"):
            instance[field] = s.NEVER
    return episode


@given(setups(FLUSH, random_rules=False), st.integers(0, 30))
def test_lanes_that_begin_anew_change_nothing(setup: Setup, left: int) -> None:
    assert differences(nearly_full(setup, left).play().state, play(setup).state) == []


def test_lanes_begin_anew_before_they_are_full() -> None:
    setup = Setup(requests=tuple((0.1 * i, 200, 60 + i, True) for i in range(8)))
    late = nearly_full(setup, 20).play().state
    assert 0 < late.instances["lane_steps"][1] < 1000
    assert late.instances["decode_steps"][1] > 20
    assert differences(late, play(setup).state) == []


@given(setups(), st.sampled_from((*((name,) for name in POINT_NAMES), POINT_NAMES)))
def test_driven_from_python_equals_inside(setup: Setup, outside: tuple[str, ...]) -> None:
    assert differences(play(setup).state, play(setup, outside=outside).state) == []


@given(setups(), st.lists(st.integers(0, 25 * s.PS_PER_S), max_size=40))
def test_stopping_at_any_time_changes_nothing(setup: Setup, stops: list[int]) -> None:
    stopped = Episode(setup)
    for stop in sorted(stops):
        if stopped.advance(stop) == s.DONE:
            break
    assert differences(play(setup).state, stopped.play().state) == []


@given(setups(), st.integers(0, 20 * s.PS_PER_S))
def test_a_copied_episode_goes_on_alike(setup: Setup, at_ps: int) -> None:
    first = Episode(setup)
    first.advance(at_ps)
    second = Episode(setup)
    second.state = copy_state(first.state)
    first.play()
    before = [array.tobytes() for array in first.state]
    second.play()
    assert differences(first.state, second.state) == []
    assert all(a == b.tobytes() for a, b in zip(before, first.state, strict=True)), "the copy shares arrays"


@given(setups(), st.data())
def test_a_copy_taken_at_an_open_decision_goes_on_alike(setup: Setup, data: st.DataObject) -> None:
    first = Episode(setup, outside=POINT_NAMES)
    answer, answers = s.ASK, data.draw(st.integers(0, 60))
    for _ in range(answers):
        if first.advance(None, answer) != s.ASKED:
            return
        answer = first.rule_answer()
    second = Episode(setup, outside=POINT_NAMES)
    second.state = copy_state(first.state)
    for episode in (first, second):
        while episode.advance(None, answer if episode.answers == 0 else episode.rule_answer()) == s.ASKED:
            episode.answers += 1
    assert differences(first.state, second.state) == []


@given(setups())
def test_same_seed_same_bytes(setup: Setup) -> None:
    first, second = play(setup).state, play(setup).state
    assert all(a.tobytes() == b.tobytes() for a, b in zip(first, second, strict=True))


@given(setups())
def test_the_log_changes_nothing(setup: Setup) -> None:
    logged = play(setup, log=200_000)
    assert differences(play(setup).state, logged.state) == []
    log = logged.state.log[: logged.state.queues.log_used]
    assert (np.diff(log["time_ps"]) >= 0).all()


@given(setups(noisy=False), st.integers(0, 12))
def test_the_future_is_not_seen(setup: Setup, at_s: int) -> None:
    """Dropping what arrives later changes nothing up to then."""
    later = setup.with_(requests=tuple(row for row in setup.requests if row[0] <= at_s))
    if not later.requests or get_policy(str(setup.policy)).prepare is not None:  # set from the trace's mean context
        return
    whole, part = Episode(setup), Episode(later)
    for episode in (whole, part):
        episode.state.gauges.open_online = 10_000  # so that neither ends before
        episode.play(at_s * s.PS_PER_S)
    n = part.state.requests.size
    for name in ("status", "generated_tokens", "first_token_ps", "finish_ps", "instance", "blocks"):
        assert np.array_equal(whole.state.requests[name][:n], part.state.requests[name]), name


@given(setups(), st.randoms(use_true_random=False))
def test_the_order_of_equal_rows_changes_nothing(setup: Setup, random: Random) -> None:
    """Two traces merged either way, where rows of one time are equal, leave the same multiset of results."""
    seen: dict[float, tuple[float, int, int, bool]] = {}
    rows = [seen.setdefault(row[0], row) for row in setup.requests]
    parts = ([], [])
    for row in rows:
        parts[random.getrandbits(1)].append(row)
    one, two = (setup.with_(requests=tuple(part)).trace() for part in parts)
    a = play(setup, trace=merge(one, two)).state.requests
    b = play(setup, trace=merge(two, one)).state.requests
    names = ["arrival_ps", "finish_ps", "first_token_ps", "generated_tokens", "evictions", "wasted_ps"]
    assert sorted(a[names].tolist()) == sorted(b[names].tolist())


@pytest.mark.parametrize("policy", BASELINES)
@pytest.mark.parametrize("outside", [*((name,) for name in POINT_NAMES), POINT_NAMES])
def test_each_baseline_and_each_point_from_python(policy: str, outside: tuple[str, ...]) -> None:
    """A loaded cluster on which every point comes up, also with several instances and little memory."""
    rows = sorted([(0.11 * i, 300 + 37 * (i % 11), 40 + 13 * (i % 7), True) for i in range(60)]
                  + [(0.07 * i, 200 + 61 * (i % 13), 60 + 17 * (i % 5), False) for i in range(90)])
    setup = Setup(tuple(rows), relaxed=(("ascend_910c", 1),) * 2, strict=(("ascend_910c", 1), ("h800", 1)),
                  kv_tokens=5000, policy=policy, window_s=(0.0, 10.0))
    driven = play(setup, outside=outside)
    assert differences(play(setup).state, driven.state) == []
    rarely = {"gate", "pull", "interrupt"} if policy in ("base_pd",) else {"interrupt", "pull"}
    if not set(outside) <= rarely:
        assert driven.answers > 0, f"{outside} never came up"
