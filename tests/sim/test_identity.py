"""One episode, whichever way it is driven: in bulk or step by step, inside or from Python, in one go or in slices."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ooco_gym
from ooco_gym.errors import UserError
from ooco_gym.policy import get_policy
from ooco_gym.policy.decisions import GATE, hook
from ooco_gym.sim import state as s
from ooco_gym.sim.batch import MOST_LANE_STEPS
from ooco_gym.sim.loop import look
from ooco_gym.sim.records import CACHE_LINE
from ooco_gym.sim.state import copy_state
from ooco_gym.workload import merge
from tests.sim.episodes import VALUES, setups
from tests.sim.harness import BASELINES, POINT_NAMES, Episode, Setup, differences, play


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


def test_what_an_episode_changes_lies_in_one_piece() -> None:
    state = Episode(Setup(((0.0, 100, 10, True),))).state
    arrays = [array for name, array in state._asdict().items() if array.size and name not in s.SHARED]
    pieces = sorted((array.ctypes.data, array.nbytes) for array in arrays)
    assert all(begin % CACHE_LINE == 0 for begin, _ in pieces)
    assert all(0 <= after - (begin + size) < CACHE_LINE for (begin, size), (after, _) in pairwise(pieces))


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
    rarely = {"interrupt", "pull", "retain", "scale"} | ({"gate"} if policy == "base_pd" else set())
    if not set(outside) <= rarely:
        assert driven.answers > 0, f"{outside} never came up"


# --- A state for reading while a decision is open, and rules that count on records being up to date ------------------
def test_it_is_up_to_date_and_the_episode_is_left_alone() -> None:
    env: Any = gym.make("ooco_gym/PrefillGate-v1").unwrapped
    env.reset(seed=1)
    late = 0
    for _ in range(60):
        env.step(0)
        state = env.simulation.state
        before = [array.tobytes() for array in state]
        seen = look(state)
        assert np.array_equal(look(seen).instances, seen.instances)  # nothing is left to be counted
        assert [array.tobytes() for array in state] == before
        late += int((seen.requests["generated_tokens"] != state.requests["generated_tokens"]).any())
        for place, instance in enumerate(seen.instances):
            assert not instance["stale"]
            slots = [slot for row, key in ((s.URGENT, "urgent_members"), (s.OFFLINE, "offline_members"))
                     for slot in seen.members[row, place, : instance[key]]]
            rows = seen.requests[slots][seen.requests["status"][slots] == s.RESIDENT]
            assert (rows["prompt_tokens"] + rows["generated_tokens"]).sum() == (
                instance["urgent_context"] + instance["offline_context"])
    assert late


@hook(GATE)
def ask_somebody(view):
    """Leaves the decision to whoever drives the simulator."""
    return s.ASK


def test_a_base_policy_whose_rule_asks_outside_is_refused_in_a_sentence() -> None:
    asks = replace(ooco_gym.get_policy("ooco"), name="asks", gate=ask_somebody)
    env = gym.make("ooco_gym/Interruption-v1", base_policy=asks)
    with pytest.raises(UserError, match="returned ASK"):
        env.reset(seed=1)
