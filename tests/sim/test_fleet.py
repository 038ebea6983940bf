"""Elastic fleets: starts, drains and reclaims to the picosecond by hand, and what holds of random fleets."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooco_gym.perf.engine_clock import EngineClock
from ooco_gym.policy import get_policy
from ooco_gym.policy.decisions import SCALE, hook
from ooco_gym.policy.policy import Policy
from ooco_gym.sim import state as s
from ooco_gym.sim.config import Group
from tests.sim.harness import Episode, Setup, differences
from tests.sim.mixed_invariants import check_mixed
from tests.sim.test_blocks import shared_trace
from tests.sim.test_mixed_policies import MIXED, episodes

CHIP = ("ascend_910c", 1)
S = s.PS_PER_S


@hook(SCALE)
def two_then_one(view):
    """Two instances from the first decision on, one from the fourth on."""
    return 2 if view.state.fleet.intervals < 4 else 1


def fleet(rows: Any, group: Group, policy: str = "vllm_priority", interval_s: float = 10.0, scale: Any = None,
          **rules: Any) -> Episode:
    """An episode on one elastic group."""
    chosen = get_policy(policy)
    if scale is not None:
        chosen = replace(chosen, scaled_by=Policy("test", scale=scale, mixed=True))
    return Episode(Setup(tuple(rows), relaxed=(), strict=(), mixed=(CHIP,) * group.engines, policy=chosen,
                         values=(("max_num_seqs", 32),), window_s=(0.0, 200.0),
                         rules={"groups": (group,), "scale_interval_s": interval_s, **rules}))


def at(episode: Episode, time_s: float) -> s.State:
    """The state once everything up to a time has happened."""
    episode.play(round(time_s * S))
    return episode.state


def test_one_burst_and_a_second_instance() -> None:
    """A burst at 12 s; the decision at 10 s has begun a start of 60 s. At 40 s, still starting, it is stopped: the chip
    has been used for 30 s, and the burst was served by the first one alone."""
    rows = [(12.0 + 0.01 * i, 1000, 50, True) for i in range(20)]
    episode = fleet(rows, Group(0, 2, 1, 1, 2, start_s=60.0), scale=two_then_one)
    assert at(episode, 9.999).instances["power"].tolist() == [s.ON, s.OFF]
    assert at(episode, 10.0).instances["power"].tolist() == [s.ON, s.STARTING]
    assert at(episode, 39.999).units["used_ps"].tolist() == [0, 0]
    state = at(episode, 40.0)
    assert state.instances["power"].tolist() == [s.ON, s.OFF] and state.units["used_ps"].tolist() == [0, 30 * S]
    assert (state.requests["instance"] == 0).all() and (state.requests["status"] == s.FINISHED).all()
    assert state.tides[:4, :4].tolist() == [[0, 20, 0, 0], [0, 20_000, 0, 0], [0] * 4, [0] * 4]
    assert state.tides[4, :4].tolist() == [10.0, 30.0, 50.0, 70.0]  # chip-seconds: from 10 s on two are paid for


def test_a_started_instance_serves_from_its_time_on() -> None:
    """With a start of 20 s the second instance is on at 30 s: what arrives before goes to the first, and the next
    request to the second, which has none, and ends as on an idle engine."""
    rows = [(12.0, 1000, 4000, True), (29.9, 1000, 10, True), (30.1, 1000, 10, True)]
    episode = fleet(rows, Group(0, 2, 1, 1, 2, start_s=20.0), scale=two_then_one)
    state = at(episode, 35.0)
    assert state.instances["power"].tolist() == [s.ON, s.ON] and state.groups["starts"].tolist() == [1]
    assert state.requests["instance"].tolist() == [0, 0, 1]
    alone = fleet([(30.1, 1000, 10, True)], Group(0, 1, 1, 1, 1))
    assert at(alone, 35.0).requests["finish_ps"][0] == state.requests["finish_ps"][2] > 0


@hook(SCALE)
def one_of_two(view):
    return 1


@pytest.mark.parametrize("ahead", [False, True])
def test_a_drain_lasts_as_long_as_its_longest_online_request(ahead: bool) -> None:
    """Both instances are on and run an online request each; the second also an offline one. At 10 s the one with fewer
    online requests (of equal ones the last) drains: its offline request goes to the other one and computes its prompt
    and tokens again, its online one stays to its end, to which the chip is paid for."""
    rows = [(1.0, 500, 2500, True), (1.1, 500, 2000, True), (2.0, 700, 900, False), (2.1, 700, 900, False),
            (11.0, 300, 5, True)]
    episode = fleet(rows, Group(0, 2, 2, 1, 2, start_s=60.0), scale=one_of_two,
                    engine_clock=EngineClock(async_scheduling=ahead))
    before = at(episode, 9.999).requests.copy()
    assert before["instance"][:4].tolist() == [0, 1, 0, 1]
    state = at(episode, 10.2)
    assert state.instances["power"].tolist() == [s.ON, s.DRAINING]
    moved = state.requests[3]
    assert moved["instance"] == 0 and moved["evictions"] == 1 and state.requests["evictions"].sum() == 1
    assert moved["generated_tokens"] >= before["generated_tokens"][3] > 100
    state = at(episode, 199.0)
    assert (state.requests["status"] == s.FINISHED).all() and state.requests["instance"].tolist() == [0, 1, 0, 0, 0]
    assert state.instances["power"].tolist() == [s.ON, s.OFF]
    end_ps = state.requests["finish_ps"][1]
    assert state.units["used_ps"].tolist() == [0, end_ps] and end_ps > 30 * S
    again = before["generated_tokens"][3] + 700
    assert again - 3 <= state.requests["wasted_tokens"][3] <= again + 3


@hook(SCALE)
def two(view):
    return 2


def test_a_reclaimed_instance_has_its_notice() -> None:
    """A spot instance is told at its drawn time, takes nothing new for 30 s, and then loses what still runs, which goes
    to the other instance and finishes there; a new start follows with the next decision."""
    rows = [(0.1 * i, 400, 6000, True) for i in range(4)]
    spot = Group(1, 1, 1, 1, 1, start_s=60.0, notice_s=30.0, rate_per_h=60.0)
    setup = Setup(tuple(rows), relaxed=(), strict=(), mixed=(CHIP, CHIP), policy="vllm_priority",
                  rules={"groups": (Group(0, 1, 1, 1, 1), spot), "scale_interval_s": 10.0}, window_s=(0.0, 400.0),
                  seed=5)
    episode = Episode(setup)
    told = int(episode.state.units["due_ps"][1])
    assert 0 < told < 200 * S
    rows.append((told / S + 1.0, 300, 5, True))
    episode = Episode(setup.with_(requests=tuple(rows)))
    state = at(episode, told / S + 2.0)
    assert state.instances["power"].tolist() == [s.ON, s.DRAINING] and state.requests["instance"][4] == 0
    assert state.units["due_ps"][1] == told + 30 * S
    mine = np.flatnonzero(state.requests["instance"] == 1)
    assert len(mine) == 2
    at(episode, (told + 30 * S - 1) / S)
    end = int(episode.state.instances["end_ps"][1])  # of the iteration in progress when its notice is over
    state = at(episode, (told + 31 * S) / S)
    assert state.instances["power"][1] != s.DRAINING and state.units["used_ps"][1] == end
    assert told + 30 * S <= end < told + 30 * S + S // 10
    assert (state.requests["evictions"][mine] == 1).all() and (state.requests["instance"] == 0).all()
    state = at(episode, 900.0)
    assert (state.requests["status"] == s.FINISHED).all()
    assert (state.requests["generated_tokens"] == state.requests["output_tokens"]).all()
    assert state.groups["reclaims"][1] >= 1 and state.groups["starts"][1] >= 1


# --- Random fleets and controllers -----------------------------------------------------------------------------------
@st.composite
def fleets(draw: st.DrawFn) -> tuple[Setup, Any]:
    """Any policy of mixed instances on one or two groups, steered at random."""
    name = draw(st.sampled_from(MIXED))
    setup, trace = draw(episodes(name))
    groups, first = [], 0
    for least in range(1, 1 + draw(st.integers(1, 2))):
        engines = draw(st.integers(1, 3))
        low = min(engines, draw(st.integers(0, 1)) if least > 1 else 1)
        groups.append(Group(first, engines, draw(st.integers(max(low, 2 - least), engines)), low, engines,
                            start_s=draw(st.sampled_from((0.0, 0.4, 3.0))),
                            notice_s=draw(st.sampled_from((0.0, 0.3, 5.0))),
                            rate_per_h=draw(st.sampled_from((0.0, 400.0, 3600.0)))))
        first += engines
    rules = {**setup.rules, "groups": tuple(groups), "scale_interval_s": draw(st.sampled_from((0.3, 1.0, 4.0)))}
    rules.pop("offloading_bytes")
    points = draw(st.sampled_from((("scale",), ("scale", "route"))))
    return setup.with_(mixed=(CHIP,) * first, rules=rules, random_points=points), trace


def check_fleet(state: s.State) -> None:
    """Instances that are off or start hold nothing; as many are on or starting as their group was asked to have, as far
    as others do not still drain; times add up."""
    for i, (spec, unit) in enumerate(zip(state.instances, state.units, strict=True)):
        if spec["power"] in (s.OFF, s.STARTING):
            assert spec["running"] == spec["urgent_members"] == spec["offline_members"] == 0
            assert spec["activity"] == s.IDLE and spec["free_blocks"] == spec["total_blocks"]
            assert state.blocks.shape[1] == 0 or (state.blocks[i]["key"] == 0).all(), "a started engine has no cache"
        assert 0 <= unit["used_ps"] <= state.clock.now_ps
        if spec["power"] != s.OFF:
            assert unit["used_ps"] <= unit["begun_ps"] <= state.clock.now_ps, "never paid for twice"
        assert unit["due_ps"] >= state.clock.now_ps
    for group in state.groups:
        power = state.instances["power"][group["first"] : group["first"] + group["engines"]]
        here = np.count_nonzero(power == s.ON) + np.count_nonzero(power == s.STARTING)
        assert here <= group["most"] and group["least"] <= group["target"] <= group["most"]


@given(fleets())
def test_everything_holds_after_every_event(drawn: tuple[Setup, Any]) -> None:
    setup, trace = drawn
    draining: dict[int, set[int]] = {}
    for state in Episode(setup, trace=trace).events(1500):
        check_mixed(state)
        check_fleet(state)
        others = (state.instances["power"] != s.DRAINING).any()
        for i in np.flatnonzero(state.instances["power"] == s.DRAINING):
            here = set(state.members[s.BATCH, i, : state.instances["running"][i]].tolist())
            assert not others or here <= draining.get(i, here), "a draining instance takes nothing new"
            draining[i] = here
        for i in np.flatnonzero(state.instances["power"] != s.DRAINING):
            draining.pop(i, None)


@given(fleets())
def test_nothing_is_lost(drawn: tuple[Setup, Any]) -> None:
    """In the end every request has all its tokens, whatever started, drained or was reclaimed on the way."""
    setup, trace = drawn
    episode = Episode(setup, trace=trace)
    episode.state.gauges.open_online = 1 << 30
    episode.state.groups["rate_per_h"] = np.minimum(episode.state.groups["rate_per_h"], 100.0)
    episode.play(round(7200.0 * s.PS_PER_S))
    requests = episode.state.requests
    assert np.isin(requests["status"], (s.FINISHED, s.REJECTED, s.ABORTED)).all(), np.unique(requests["status"])
    done = requests["status"] == s.FINISHED
    assert (requests["generated_tokens"] == requests["output_tokens"])[done].all()


@given(fleets(), st.lists(st.floats(0.0, 30.0), max_size=4))
def test_driving_it_otherwise_changes_nothing(drawn: tuple[Setup, Any], horizons: list[float]) -> None:
    """Answered from Python, cut at any time, copied: the same to the byte."""
    setup, trace = drawn
    plain, driven = Episode(setup, trace=trace).play(), Episode(setup, trace=trace, outside=("scale", "route"))
    for horizon in sorted(horizons):
        driven.play(round(horizon * s.PS_PER_S))
        driven.state = s.copy_state(driven.state)
    driven.play()
    assert differences(plain.state, driven.state) == []
    for name in ("units", "groups", "tides", "notes"):
        assert getattr(plain.state, name).tobytes() == getattr(driven.state, name).tobytes(), name


def digest_of_a_fleet() -> str:
    """Of what a run with starts, drains and reclaims leaves."""
    group = Group(0, 3, 2, 1, 3, start_s=0.7, notice_s=0.3, rate_per_h=300.0)
    setup = Setup((), relaxed=(), strict=(), mixed=(CHIP,) * 3, policy="deadline", random_points=("scale",), seed=11,
                  values=(("prefix_caching", "on"), ("max_num_seqs", 32)),
                  rules={"groups": (group,), "scale_interval_s": 0.5})
    trace = shared_trace([(0.2 * i, 300 + 70 * (i % 9), 20 + i % 40, i % 2 == 0, i % 3, i % 4) for i in range(60)])
    state = Episode(setup, trace=trace).play().state
    assert state.groups["starts"][0] > 3 and state.groups["reclaims"][0] > 0
    return hashlib.sha256(b"".join(one.tobytes() for one in (state.requests, state.units, state.groups))).hexdigest()


def test_another_process_gets_the_same() -> None:
    code = "from tests.sim.test_fleet import digest_of_a_fleet as d; print(d())"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == digest_of_a_fleet()
