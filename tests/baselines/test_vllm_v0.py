"""vLLM's V0 scheduler, compiled, beside its restatement and beside cases worked by hand."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooco_gym.policy import get_policy
from ooco_gym.sim import state as s
from ooco_gym.sim.policy_context import PolicyContext
from tests.baselines.vllm_v0_restated import Request, Schedule
from tests.sim.episodes import traces
from tests.sim.harness import Episode, Setup
from tests.sim.iterations import given_tokens, iterations, steps

RICH = settings(deadline=None, max_examples=60, derandomize=True)
POLICIES = ("vllm_v0", "vllm_v0_priority")


@st.composite
def setups(draw: st.DrawFn) -> Setup:
    """Random episodes on one mixed instance, most of them short of memory."""
    values = {"max_num_batched_tokens": draw(st.sampled_from((64, 512, 4096))),
              "max_num_seqs": draw(st.sampled_from((1, 3, 16, 63))),
              "watermark": draw(st.sampled_from((0.0, 0.01, 0.1)))}
    return Setup(requests=draw(traces()), relaxed=(), strict=(),
                 mixed=(draw(st.sampled_from((("ascend_910c", 1), ("h800", 1)))),),
                 policy=draw(st.sampled_from(POLICIES)), kv_tokens=draw(st.sampled_from((None, 800, 2800, 6000))),
                 values=tuple(sorted(values.items())), window_s=(0.0, 20.0))


def check_against_restatement(setup: Setup) -> Schedule:
    """Plays an episode of one instance beside the restated scheduler; returns that."""
    episode = Episode(setup)
    state, values = episode.state, episode.policy.values
    requests = state.requests
    other = Schedule(int(state.instances[0]["total_blocks"]), values["max_num_batched_tokens"],
                     values["max_num_seqs"], values["watermark"], not state.config.class_blind)
    arrived, last = 0, {}
    for spec in steps(episode):
        other.end(last)
        while arrived < state.clock.next_arrival and requests[arrived]["arrival_ps"] <= spec["start_ps"]:
            row = requests[arrived]
            if row["status"] != s.REJECTED:
                other.add(Request(arrived, int(row["prompt_tokens"]), int(row["output_tokens"]), bool(row["urgent"])))
            arrived += 1
        last = other.step()
        assert given_tokens(episode) == last
        running = state.members[s.BATCH, 0, : spec["running"]]
        assert sorted(running.tolist()) == sorted(request.slot for request in other.running)
        assert requests["evictions"].sum() == other.preemptions
        assert spec["free_blocks"] == other.free
    return other


@RICH
@given(setups())
def test_every_iteration_is_the_restated_schedulers(setup: Setup) -> None:
    check_against_restatement(setup)


@pytest.mark.parametrize("policy", POLICIES)
def test_and_under_pressure_with_both_classes(policy: str) -> None:
    """That the random episodes do reach what the scheduler does when memory is short."""
    rows = tuple(sorted([(0.11 * i, 200 + 37 * (i % 11), 100 + 13 * (i % 7), True) for i in range(80)]
                        + [(0.07 * i, 150 + 61 * (i % 13), 120 + 17 * (i % 5), False) for i in range(120)]))
    setup = Setup(rows, relaxed=(), strict=(), mixed=(("ascend_910c", 1),), policy=policy, kv_tokens=5000,
                  values=(("max_num_seqs", 63),), window_s=(0.0, 60.0))
    assert check_against_restatement(setup).preemptions > 20


# --- By hand --------------------------------------------------------------------------------------------------------
def run(rows: tuple[tuple[float, int, int, bool], ...], count: int, policy: str = "vllm_v0",
        kv_tokens: int | None = None, **values: Any) -> list[dict[int, int]]:
    """New tokens of each request in the first iterations of one instance."""
    setup = Setup(rows, relaxed=(), strict=(), mixed=(("ascend_910c", 1),), policy=policy, kv_tokens=kv_tokens,
                  values=(*values.items(), ("max_num_seqs", values.pop("max_num_seqs", 63))))
    return list(islice(iterations(Episode(setup)), count))


def test_prompts_go_first_and_whole_and_decodes_wait_for_them() -> None:
    rows = ((0.0, 100, 9, True), (0.0, 60, 9, True), (0.0, 50, 9, True), (0.001, 40, 9, True))
    assert run(rows, 4, max_num_batched_tokens=170) == [{0: 100, 1: 60}, {2: 50, 3: 40}, {0: 1, 1: 1, 2: 1, 3: 1},
                                                       {0: 1, 1: 1, 2: 1, 3: 1}]


def test_a_waiting_online_request_takes_the_memory_of_running_offline_ones() -> None:
    """It is seen in the first pass that starts no prompt, and admitted in the next."""
    rows = ((0.0, 60, 50, False), (0.0, 60, 50, False), (0.001, 90, 3, True))
    by_class = run(rows, 4, "vllm_v0_priority", kv_tokens=176, watermark=0.0)
    assert by_class == [{0: 60, 1: 60}, {0: 1}, {2: 90}, {0: 1, 2: 1}]
    blind = run(rows, 4, "vllm_v0", kv_tokens=176, watermark=0.0)
    assert blind == [{0: 60, 1: 60}] + [{0: 1, 1: 1}] * 3


# --- vLLM as it ships: budget and seats by card and release, a prefix cache; what is given stays ---------------------
NO_TABLE = None


def prepared(chip: str, gigabytes: float, text: str = "vllm_fcfs", max_batch: int = 1024) -> tuple[int, int]:
    policy = get_policy(text)
    context = PolicyContext(NO_TABLE, 0.05, 100.0, max_batch, NO_TABLE, 16, chip, gigabytes * 1e9)  # type: ignore[arg-type]
    assert policy.prepare is not None
    found = policy.prepare(policy, context)
    return found["max_num_batched_tokens"], found["max_num_seqs"]


@pytest.mark.parametrize(("chip", "gigabytes", "release", "expected"), [
    ("h100", 80, "0.33.0", (8192, 1024)), ("h200", 141, "0.12.0", (8192, 1024)),
    ("a100_80g", 80, "0.33.0", (2048, 256)), ("l40s", 48, "0.33.0", (2048, 256)),
    ("b200", 180, "0.28.0", (16_384, 1024)), ("b200", 180, "0.27.1", (8192, 1024)),
])
def test_budget_and_seats_are_those_of_the_release_on_the_card(chip, gigabytes, release, expected) -> None:
    assert prepared(chip, gigabytes, f"vllm_priority:engine_version={release}") == expected


def test_what_is_given_stays() -> None:
    assert prepared("h100", 80, "vllm_fcfs:max_num_batched_tokens=512") == (512, 512)
    assert prepared("h100", 80, "vllm_lcf:max_num_seqs=64") == (8192, 64)
    assert prepared("h100", 80, max_batch=300) == (8192, 300)


def test_the_prefix_cache_is_on() -> None:
    assert {get_policy(name).values["prefix_caching"] for name in ("vllm_fcfs", "vllm_priority", "vllm_lcf")} == {"on"}
