"""BROS beside its paper: hand-worked iterations, the batch size, every iteration as the restated scheduler has it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from baselines.bros_batches import POLL_S, simulate_batches
from ooco_gym.scenario import Scenario
from ooco_gym.sim import state as s
from tests.baselines.bros_restated import Request, Scheduler
from tests.sim.episodes import traces
from tests.sim.harness import Episode, Setup
from tests.sim.iterations import iterations

LINEAR = {"prefill_linear": 1e8, "prefill_product": 0.0, "prefill_base": 1e9, "decode_linear": 1e9,
          "decode_product": 0.0, "decode_base": 1e9}  # a prompt token takes 0.1 ms, a decode 1 ms, either phase 1 ms
SIZES = st.fixed_dictionaries({
    "batch_base": st.sampled_from((1, 3, 16)), "batch_cap": st.sampled_from((4, 64)),
    "late": st.sampled_from(("first", "last")), "bidirectional": st.sampled_from(("off", "on", "own")),
    "max_num_seqs": st.sampled_from((4, 63)), "average_weight": st.sampled_from((0.1, 1.0))})


def episode_of(rows: Any, kv_tokens: int | None = None, tpot_s: float = 0.05, ttft_s: float = 0.2,
               **values: Any) -> Episode:
    """An episode on one 910C with Qwen2.5-7B, of requests (arrival_s, prompt, output, online)."""
    values = {"max_num_seqs": 63, **values}
    return Episode(Setup(tuple(rows), relaxed=(), strict=(), mixed=(("ascend_910c", 1),), policy="bros",
                         kv_tokens=kv_tokens, values=tuple(values.items()), window_s=(0.0, 20.0),
                         rules={"tpot_s": tpot_s, "ttft_s": ttft_s}))


def restated(episode: Episode) -> Scheduler:
    state, values = episode.state, dict(episode.policy.values)
    config = state.config
    link = float(state.tables[0]["kv_bytes_per_token"]) / config.host_bytes_per_s
    return Scheduler(values, int(state.instances[0]["total_blocks"]), int(config.block_tokens), link * s.PS_PER_S)


# Found by chance: of blocks that are equal otherwise, one where nothing was lost keeps its place when others come back.
CAME_BACK = {
    "rows": ((0.0, 1, 1, False), *((0.0, 1, 15, False),) * 8, *((0.0, 200, 150, True),) * 3,
             *((0.0, 900, 150, False),) * 4, (5.0, 900, 1, True)),
    "kv_tokens": 3600, "tpot_s": 0.1,
    "values": {"batch_base": 1, "batch_cap": 4, "late": "first", "bidirectional": "on", "max_num_seqs": 63,
               "average_weight": 0.1}}


@settings(deadline=None, max_examples=40)
@example(**CAME_BACK)
@given(traces(), st.sampled_from((1200, 2800, 3600)), st.sampled_from((0.03, 0.1)), SIZES)
def test_every_iteration_is_as_restated(rows: Any, kv_tokens: int | None, tpot_s: float, values: Any) -> None:
    """Tokens of each request, drops, batch size and memory equal those of Algorithm 1 in Python, in every iteration."""
    episode = episode_of(rows, kv_tokens, tpot_s, **values)
    other, state = restated(episode), episode.state
    spec, requests, arrived = state.instances[0], state.requests, 0
    last, span = {}, None
    for found in iterations(episode):
        now = int(spec["start_ps"])
        other.end(last, now if span is None else int(span[1]))
        while arrived < state.clock.next_arrival and requests[arrived]["arrival_ps"] <= now:
            row = requests[arrived]
            if row["status"] != s.REJECTED:
                other.arrive(Request(arrived, bool(row["online"]), int(row["prompt_tokens"]),
                                     int(row["output_tokens"]), int(row["arrival_ps"]), int(row["ttft_slo_ps"]),
                                     int(row["tpot_slo_ps"])))
            arrived += 1
        last = other.compose(now, None if span is None else float(span[1] - span[0]))
        span = (now, int(spec["end_ps"]))
        assert found == last
        assert requests["evictions"].sum() == sum(one.drops for one in everyone(other))
        if values["bidirectional"] == "off":
            assert spec["free_blocks"] == other.memory.free
        else:
            assert spec["free_blocks"] == other.memory.kept.free()
            for place, block in enumerate(other.memory.kept.blocks):
                one = state.pairs[0, place]
                assert one["online_used"] == block.used(block.online)
                assert one["offline_used"] == block.used(block.offline)


def everyone(other: Scheduler) -> list[Request]:
    """All requests that the restated scheduler has seen."""
    known: dict[int, Request] = other.__dict__.setdefault("known", {})
    known.update({one.slot: one for one in other.running + other.waiting})
    return list(known.values())


# --- Hand-worked iterations -----------------------------------------------------------------------------------------
def test_the_batch_size_doubles_until_the_time_runs_out() -> None:
    """4.2: 128, 256, 512, 1024 (our cap); three prompts of 40 ms for 100 ms: the third is cut off, and 128 again."""
    rows = [(0.0, 10, 400, False), *((0.5, 400, 2, True) for _ in range(3))]
    episode = episode_of(rows, ttft_s=0.1, tpot_s=0.1, **LINEAR)
    sizes = []
    for found in iterations(episode):
        sizes.append(int(episode.state.memory[0, 0]))
        if len(found) > 1:
            break
    assert sizes[:4] == [256, 512, 1024, 1024], "for the iterations after the first four"
    assert len([slot for slot in found if slot > 0]) == 2
    assert sizes[-1] == 128 and set(sizes[4:-1]) == {1024}


def test_the_most_urgent_go_first_and_no_more_than_its_time_allows() -> None:
    """Lines 3 to 23 by hand: prompts of 500 take 50 ms; the oldest has 150 ms left: two fit, and a short best-effort
    prompt, not the third."""
    rows = [(0.0, 1000, 1, True), (0.02, 500, 1, True), (0.03, 500, 1, True), (0.04, 500, 1, True),
            (0.05, 100, 5, False)]
    episode = episode_of(rows, ttft_s=0.2, **LINEAR)
    begun = iterations(episode)
    assert next(begun) == {0: 1000}, "it came alone"
    second = next(begun)
    left_ps = 0.2e12 - (int(episode.state.instances[0]["start_ps"]) - 0.02e12)
    assert 111e9 < left_ps < 151e9
    assert second == {1: 500, 2: 500, 4: 100}


def test_who_cannot_wait_is_not_replaced() -> None:
    """Lines 25 to 32, a batch of one: request 1 is late, so that (6) with x_i = 0 fails."""
    rows = [(0.0, 2000, 1, True), (0.0, 20, 1, True), (0.01, 20, 5, False)]
    episode = episode_of(rows, ttft_s=0.05, batch_base=1, batch_cap=1)
    begun = iterations(episode)
    assert next(begun) == {0: 2000}
    assert next(begun) == {1: 20}


# --- Round robin (2.2): classes take turns, each first come first served ---------------------------------------------
def turns_of(rows: Any, kv_tokens: int | None = None, **values: Any) -> Episode:
    """An episode on one 910C with Qwen2.5-7B, of requests (arrival_s, prompt, output, online)."""
    return Episode(Setup(tuple(rows), relaxed=(), strict=(), mixed=(("ascend_910c", 1),), policy="round_robin",
                         kv_tokens=kv_tokens, values=tuple({"max_num_seqs": 63, **values}.items()),
                         window_s=(0.0, 20.0)))


def test_the_classes_take_turns() -> None:
    """Figure 4, case (1): request A and two best-effort ones, an iteration each in turn, until A has all its tokens."""
    rows = [(0.0, 100, 4, True), (0.0, 200, 6, False), (0.0, 200, 6, False)]
    found = list(iterations(turns_of(rows)))
    assert found[:4] == [{0: 100}, {1: 200, 2: 200}, {0: 1}, {1: 1, 2: 1}]
    assert [set(one) for one in found[4:]] == [{0}, {1, 2}, {0}, {1, 2}, {1, 2}, {1, 2}]


@settings(deadline=None, max_examples=40)
@given(traces(), st.sampled_from((None, 2800, 3600)), st.sampled_from((1, 4, 63)), st.sampled_from((1, 500, 2048)))
def test_turns_batches_and_memory(rows: Any, kv_tokens: int | None, batch_size: int, tokens: int) -> None:
    """An iteration has one class and at most its batch; all requests that were not rejected get done."""
    episode = turns_of(rows, kv_tokens, batch_size=batch_size, max_num_batched_tokens=tokens)
    state = episode.state
    for found in iterations(episode):
        assert len({int(state.requests[slot]["urgent"]) for slot in found}) == 1
        assert len(found) <= batch_size
        assert state.instances[0]["free_blocks"] >= 0
    episode.play(10**15)
    counted = (state.requests["online"] == 1) & (state.requests["counted"] == 1)
    assert ((state.requests["status"] >= s.FINISHED) | (state.requests["violated"] > 0))[counted].all()


# --- Best-effort requests in batches, as BROS's evaluation has them --------------------------------------------------
BATCH = 6


@pytest.fixture(scope="module")
def requests() -> np.ndarray:
    """The requests of a short run under round robin, in seconds where they are times."""
    scenario = Scenario(cluster="bros_opt_13b", workload="bros_sharegpt", slo="bros", duration_s=20.0, warmup_s=2.0,
                        drain_s=60.0, start_s=0.0, online_rate=1.0,
                        offline={"mode": "jobs", "jobs": 20 * BATCH, "dataset": "bros_be"})
    run = simulate_batches(scenario, "round_robin", BATCH)
    assert run.summary["simulated_s"] >= 20.0
    return run.requests


def test_a_batch_arrives_when_the_last_one_is_done(requests: np.ndarray) -> None:
    done = requests[(requests["online"] == 0) & (requests["arrival_ps"] < s.NEVER)]
    arrivals = np.unique(done["arrival_ps"])
    assert len(arrivals) > 3
    batches = [done[done["arrival_ps"] == at] for at in arrivals]
    assert all(len(batch) == BATCH for batch in batches)
    for before, after in zip(batches, arrivals[1:], strict=False):
        wait_s = (after - before["finish_ps"].max()) / s.PS_PER_S
        assert 0.0 <= wait_s <= POLL_S + 1e-6
