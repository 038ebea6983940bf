"""Echo's choice of offline work and its KV manager on examples made by hand (arXiv 2504.03651, Figures 4 and 5)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines import echo_estimator as e
from ooco_gym.compile import jit
from ooco_gym.policy import get_policy
from ooco_gym.sim import state as s
from ooco_gym.workload import Trace
from tests.baselines.echo_schedule import Request, Schedule
from tests.sim.harness import Episode, Setup, differences, play
from tests.sim.iterations import given_tokens, steps
from tests.sim.pool_checks import check_pool, free_queue

Row = tuple[float, int, int, bool, list[int]]  # arrival, prompt, output, online, prefix hashes


def episode(rows: list[Row], policy: str, **values: Any) -> Episode:
    """An episode on one instance whose requests have these prefix hashes."""
    counts = [len(row[4]) for row in rows]
    trace = Trace(np.array([row[0] for row in rows]), np.array([row[1] for row in rows], np.int32),
                  np.array([row[2] for row in rows], np.int32), np.array([row[3] for row in rows]),
                  prefix_hashes=(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
                                 np.array([one for row in rows for one in row[4]], np.int64)))
    setup = Setup((), relaxed=(), strict=(), mixed=(("ascend_910c", 1),), policy=policy,
                  values=tuple(({"max_num_seqs": 16} | values).items()))
    return Episode(setup, trace=trace)


def order_of(one: Episode) -> list[int]:
    """Slots in the order of their first tokens."""
    return np.argsort(one.play().state.requests["first_token_ps"], kind="stable").tolist()


@pytest.mark.parametrize(("policy", "order"), [("echo", [0, 2, 4, 1, 3]), ("echo_bs_e_s", [0, 2, 4, 1, 3]),
                                               ("echo_bs_e", [0, 1, 2, 3, 4]), ("echo_bs", [0, 1, 2, 3, 4])])
def test_those_that_share_a_prefix_follow_each_other(policy: str, order: list[int]) -> None:
    """Figure 4: by arrival, two documents take turns; by benefit, all questions on the first come first."""
    rows: list[Row] = [(0.0, 1536, 3, False, [10 + i % 2, 20 + i % 2, 30 + i]) for i in range(5)]
    one = episode(rows, policy, max_num_seqs=1)
    assert order_of(one) == order
    found = one.state.requests["cached_tokens"].tolist()
    assert sorted(found) == [0, 0, 1024, 1024, 1024]


def test_online_requests_take_memory_from_the_offline_ones() -> None:
    """A burst that finds the memory full preempts offline work; no offline request joins while an online one waits."""
    rows: list[Row] = [*[(0.0, 1000, 400, False, [i, 100 + i]) for i in range(4)],
                       *[(0.5, 1000, 4, True, [i, 100 + i]) for i in range(10, 13)]]
    setup = Setup(tuple(row[:4] for row in rows), relaxed=(), strict=(), mixed=(("ascend_910c", 1),), policy="echo",
                  values=(("max_num_seqs", 16),), kv_tokens=4800)
    one = Episode(setup).play()
    requests = one.state.requests
    assert requests["evictions"][:4].sum() > 0
    assert requests["evictions"][4:].sum() == 0
    assert (requests["status"] == s.FINISHED).all()
    check_pool(one.state, 0)


def test_blocks_go_in_the_order_of_their_worth() -> None:
    """4.2, conformance (d): finished offline, then finished online, then by how many offline requests want them.

    Documents of 512 and 1,024 tokens are wanted by two requests and by one; one of 1,536 by none; an online request
    of 2,048 has finished, two others run and keep all others waiting.
    """
    a, b, c, d = [1], [2, 3], [4, 5, 6], [7, 8, 9, 10]
    rows: list[Row] = [(0.0, 512, 2, False, a), (0.0, 1024, 2, False, b), (0.0, 1536, 2, False, c),
                       (0.0, 2048, 2, True, d), (3.0, 512, 9000, True, [20]), (3.0, 512, 9000, True, [21]),
                       (5.0, 512, 2, False, a), (5.0, 512, 2, False, a), (5.0, 1024, 2, False, b)]
    one = episode(rows, "echo", max_num_seqs=2)
    one.play(6 * s.PS_PER_S)
    state = one.state
    assert (state.requests["status"][:4] == s.FINISHED).all()
    assert (state.requests["status"][6:] == s.WAITING).all()
    queue = free_queue(state, 0)
    held = [int(state.blocks["level"][0, block]) for block in queue if state.blocks["key"][0, block] != 0]
    assert held == sorted(held)
    assert Counter(held) == {0: 1536 // 16, 1: 2048 // 16, 2: 1024 // 16, 3: 512 // 16}
    running = state.members[s.BATCH, 0, : state.instances[0]["running"]]
    assert sorted(running.tolist()) == [4, 5], "what runs is in no queue"
    check_pool(state, 0)


def test_memory_is_left_free_for_bursts() -> None:
    """4.2: with an hour of online load behind it, offline work may not fill the memory."""
    rows = [(0.25 * i, 800, 60, True) for i in range(80)]
    rows += [(19.0, 800, 400, False) for _ in range(30)]
    held = {}
    for reserve in ("off", "total"):
        setup = Setup(tuple(sorted(rows)), relaxed=(), strict=(), mixed=(("ascend_910c", 1),), policy="echo",
                      values=(("max_num_seqs", 63), ("reserve", reserve), ("reserve_sigmas", 4.0)), kv_tokens=9000,
                      rules={"max_batch": 128})
        one = Episode(setup)
        one.play(round(19.6 * s.PS_PER_S))
        running = one.state.members[s.BATCH, 0, : one.state.instances[0]["running"]]
        requests = one.state.requests[running]
        held[reserve] = int(requests["blocks"][requests["online"] == 0].sum())
    assert held["total"] < held["off"]


# --- Echo's estimator (arXiv 2504.03651, 5.3): the memory that is left free for bursts of online requests ------------
@jit
def note(state, time_ps, blocks):
    state.clock.now_ps = time_ps
    e.remember(state, 0, blocks)
    return e.expected_blocks(state, 0)


@jit
def reserve_of(state, held):
    return e.reserved_for_bursts(state, 0, held)


def episode_echo_estimator(**values: object) -> Episode:
    return Episode(Setup(((0.0, 100, 50, True),), relaxed=(), strict=(), mixed=(("ascend_910c", 1),), policy="echo",
                         values=tuple({"max_num_seqs": 32, **values}.items())))


# --- Memory of bursts to come (5.3) ---------------------------------------------------------------------------------
@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.floats(0.0, 40.0), st.integers(0, 500)), min_size=2, max_size=40))
def test_mean_and_deviation_of_the_history(calls: list[tuple[float, int]]) -> None:
    """Over the newest quarter and the three before it, by the time that each level lasted."""
    one = episode_echo_estimator(history_s=40.0, reserve_sigmas=1.5)
    at_s, levels = 0.0, [(0.0, 0)]
    for gap_s, blocks in calls:
        at_s += gap_s
        found = note(one.state, round(at_s * s.PS_PER_S), blocks)
        levels.append((at_s, blocks))
    first_s = max(0.0, (np.floor(np.nextafter(at_s, 0.0) / 10.0) - 3) * 10.0)
    edges = np.array([max(time_s, first_s) for time_s, _ in levels])
    lasted = np.diff(edges)
    if lasted.sum() < 1e-6:
        return
    held = np.array([blocks for _, blocks in levels[:-1]], float)
    mean = (held * lasted).sum() / lasted.sum()
    deviation = np.sqrt(max(0.0, (held**2 * lasted).sum() / lasted.sum() - mean**2))
    assert found == pytest.approx(mean + 1.5 * deviation, rel=1e-3, abs=1e-2)


def test_what_is_left_free() -> None:
    """Half the time 100 blocks, half 300: mean 200, deviation 100; expected 400 with two of them."""
    one = episode_echo_estimator(history_s=4000.0)
    one.state.memory[0, e.USED] = 100.0
    for second, blocks in enumerate((300, 100, 300, 0), start=1):
        note(one.state, second * s.PS_PER_S, blocks)
    assert reserve_of(one.state, 300) == 100
    assert reserve_of(one.state, 450) == 0
    one.state.params[e.P.reserve] = 0
    assert reserve_of(one.state, 0) == 0


# --- Echo's compiled scheduler beside its restatement, iteration by iteration, and its parts switched off ------------
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
