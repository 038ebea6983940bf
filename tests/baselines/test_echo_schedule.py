"""Echo's compiled scheduler beside its restatement, iteration by iteration, and its parts switched off."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooco_gym.policy import get_policy
from ooco_gym.sim import state as s
from tests.baselines.echo_schedule import Request, Schedule
from tests.sim.harness import Episode, Setup, differences, play
from tests.sim.iterations import given_tokens, steps

POLICIES = ("echo", "echo_bs", "echo_bs_e", "echo_bs_e_s")
VALUES = st.fixed_dictionaries({
    "max_num_batched_tokens": st.sampled_from((16, 100, 512)), "max_num_seqs": st.sampled_from((2, 5, 16)),
    "candidates": st.sampled_from((1, 2, 8)), "stop": st.sampled_from(("improving", "feasible")),
    "due_from": st.sampled_from(("arrival", "first_token")),
    "waiting_order": st.sampled_from(("arrival", "prefix", "bucket_prefix"))})


@st.composite
def traces(draw: st.DrawFn) -> tuple[tuple[float, int, int, bool], ...]:
    """Offline requests that are all there at once, online ones that come while they are served."""
    prompts = st.sampled_from((20, 60, 90, 120, 200, 300, 500, 900))
    rows = [(0.0, length, draw(st.integers(1, 40)), False) for length in draw(st.lists(prompts, min_size=4,
                                                                                       max_size=24))]
    rows += [(draw(st.floats(0.0, 3.0)), length, draw(st.integers(1, 60)), True)
             for length in draw(st.lists(prompts, max_size=10))]
    return tuple(sorted(rows, key=lambda row: row[0]))


@st.composite
def setups(draw: st.DrawFn) -> Setup:
    """Random episodes on one mixed instance, many of them short of memory or of time."""
    values = draw(VALUES) | {"prefix_caching": "off", "kv_priority": "lru", "reserve": "off"}
    return Setup(draw(traces()), relaxed=(), strict=(), mixed=(("ascend_910c", 1),), policy=draw(
        st.sampled_from(POLICIES)), kv_tokens=draw(st.sampled_from((None, 1000, 2000, 4000))),
        values=tuple(sorted(values.items())), window_s=(0.0, 20.0),
        rules={"ttft_s": draw(st.sampled_from((0.1, 2.0))), "tpot_s": draw(st.sampled_from((0.02, 0.05)))})


def restated(episode: Episode) -> Schedule:
    """The restatement with the episode's memory, parameters and coefficients."""
    usable = int(episode.state.instances[0]["total_blocks"] - episode.state.config.reserved_blocks)
    return Schedule(usable, dict(episode.policy.values))


@settings(deadline=None, max_examples=60)
@given(setups())
def test_every_iteration_is_the_restated_one(setup: Setup) -> None:
    episode = Episode(setup)
    state, other, arrived = episode.state, restated(episode), 0
    requests = state.requests
    for spec in steps(episode):
        now = int(spec["start_ps"])
        while arrived < state.clock.next_arrival and requests[arrived]["arrival_ps"] <= now:
            row = requests[arrived]
            if row["status"] != s.REJECTED:
                rank = int(state.order[arrived]) if state.order.size else arrived
                other.add(Request(arrived, int(row["prompt_tokens"]), int(row["output_tokens"]), bool(row["urgent"]),
                                  rank, int(row["arrival_ps"]), int(row["ttft_slo_ps"]), int(row["tpot_slo_ps"])))
            arrived += 1
        expected = other.step(now)
        running = state.members[s.BATCH, 0, : spec["running"]]
        assert given_tokens(episode) == expected
        assert running.tolist() == [one.slot for one in other.running]
        assert requests["evictions"].sum() == other.preemptions
        assert spec["free_blocks"] - state.config.reserved_blocks == other.free
        other.end(int(spec["end_ps"]))


@settings(deadline=None, max_examples=30)
@given(setups())
def test_parts_switched_off_are_the_baseline(setup: Setup) -> None:
    """Echo without M, S and E is BS, bit for bit; so is each ablation without its own."""
    off = {"estimator": "off", "selection": "fcfs", "waiting_order": "arrival", "reserve": "off", "kv_priority": "lru"}
    base = play(setup.with_(policy="echo_bs", values=tuple(sorted((dict(setup.values) | off).items())))).state
    for name in POLICIES[:1] + POLICIES[2:]:
        other = play(setup.with_(policy=name, values=tuple(sorted((dict(setup.values) | off).items())))).state
        assert differences(base, other) == []


@pytest.mark.parametrize("name", POLICIES)
def test_the_files_differ_in_their_own_part_alone(name: str) -> None:
    parts = {"echo": {"estimator", "selection", "waiting_order", "kv_priority", "reserve"},
             "echo_bs_e_s": {"estimator", "selection", "waiting_order"}, "echo_bs_e": {"estimator"}, "echo_bs": set()}
    base, mine = get_policy("echo_bs").values, get_policy(name).values
    assert {key for key in mine if mine[key] != base[key]} == parts[name]
