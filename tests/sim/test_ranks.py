"""Data-parallel ranks: steps of one length, queues and memory of their own, experts for the tokens of all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooco_gym.errors import UserError
from ooco_gym.perf import Deployment, cost_table
from ooco_gym.perf.command import describe_iteration
from ooco_gym.perf.engine_clock import EngineClock
from ooco_gym.scenario import Cluster, Scenario
from ooco_gym.sim import state as s
from ooco_gym.simulation import simulate
from ooco_gym.workload import Trace
from tests.sim.harness import Episode, Setup, differences, machines_of
from tests.sim.mixed_invariants import check_memory, check_mixed, check_tokens
from tests.sim.test_mixed_policies import MANY_EVENTS, MIXED, episodes

MODEL = "qwen3_30b_a3b"
TWO = Setup((), relaxed=(), strict=(), mixed=(("h100", 1),), model=MODEL, data_parallel=2, policy="vllm_fcfs",
            values=(("max_num_seqs", 8), ("max_num_batched_tokens", 4096), ("prefix_caching", "off")))
SOME = settings(max_examples=40)


def steps(episode: Episode) -> list[list[dict[str, int]]]:
    """Plays to the end; of each step what every rank did in it."""
    found: list[list[dict[str, int]]] = []
    for state in episode.events(10_000):
        specs = state.instances
        if specs[0]["activity"] == s.MIXING and (not found or specs[0]["start_ps"] != found[-1][0]["start_ps"]):
            found.append([{name: int(spec[name]) for name in ("start_ps", "end_ps", "new_tokens")} for spec in specs])
    return found


def own_and_shared_ps(tokens: int, total: int) -> tuple[float, float]:
    """Of a prompt of `tokens` alone on a rank of `TWO`, in ps: what the rank takes by itself, and what the experts and
    the exchange of `total` tokens take, from the datasheet's figures."""
    deployment = machines_of(TWO)[0].deployment
    chip, model = deployment.shard.chip, deployment.model
    whole = describe_iteration(deployment, prefill=[(tokens, tokens)])
    own_s = whole.latency_s * (1.0 - whole.operator_shares["experts"] - whole.operator_shares["exchange"])
    weights = 3 * model.hidden * model.expert_intermediate // 2  # an expert's, of which each of two chips has a half
    read = 128 * (1 - (1 - 8 / 128) ** total)
    experts_s = max(2 * weights * 8 * total / chip.gemm_flops_per_s,
                    (2 * weights * read + 4 * 8 * total * (model.hidden + model.expert_intermediate // 2))
                    / chip.gemm_memory_bytes_per_s)
    exchange_s = chip.allreduce_latency_s + 2 * model.hidden * total / chip.allreduce_bytes_per_s  # 2 (n - 1) / n = 1
    return own_s * s.PS_PER_S, model.layers * (experts_s + exchange_s) * s.PS_PER_S


def test_a_step_is_as_long_as_the_slowest_ranks() -> None:
    """Two prompts that come at once go to a rank each; experts count the tokens of both."""
    rows = ((0.0, 1000, 1, True), (0.0, 200, 1, True))
    first = steps(Episode(TWO.with_(requests=rows)))
    assert [[rank["new_tokens"] for rank in step] for step in first] == [[1000, 200]]
    (slow, shared), (fast, _) = own_and_shared_ps(1000, 1200), own_and_shared_ps(200, 1200)
    assert slow > fast
    for rank in first[0]:
        assert rank["end_ps"] - rank["start_ps"] == pytest.approx(slow + shared, rel=1e-6)


def test_a_rank_without_work_steps_along() -> None:
    """Its token, which is thrown away, goes to experts too; what comes to it meanwhile waits until the step is over."""
    rows = ((0.0, 1000, 3, True), (0.001, 200, 1, True))
    episode = Episode(TWO.with_(requests=rows))
    found = steps(episode)
    assert [[rank["new_tokens"] for rank in step] for step in found] == [[1000, 0], [1, 200], [1, 0]]
    own, shared = own_and_shared_ps(1000, 1001)
    assert found[0][1]["end_ps"] == found[0][0]["end_ps"] == pytest.approx(own + shared, rel=1e-6)
    requests = episode.state.requests
    assert requests["instance"].tolist() == [0, 1]
    assert int(requests["first_token_ps"][1]) == found[1][1]["end_ps"], "it began with the second step"
    assert episode.state.instances["decode_steps"].tolist() == [2, 0]
    idle = found[0][0]["end_ps"] + found[2][0]["end_ps"] - found[2][0]["start_ps"]
    busy = episode.state.instances["online_prefill_ps"] + episode.state.instances["decode_ps"]
    assert (busy + episode.state.instances["offline_prefill_ps"]).tolist() == [found[2][0]["end_ps"],
                                                                               found[2][0]["end_ps"] - idle]


def test_what_comes_as_a_step_runs_waits_for_the_one_after_next_where_that_is_composed() -> None:
    """Asynchronous scheduling: as a step begins, every rank has composed the next one, an idle one too."""
    rows = ((0.0, 1000, 4, True), (0.001, 200, 1, True))
    clock = EngineClock(async_scheduling=True)
    found = steps(Episode(TWO.with_(requests=rows, rules={"engine_clock": clock})))
    assert [[rank["new_tokens"] for rank in step] for step in found] == [[1000, 0], [1, 0], [1, 200], [1, 0]]


def test_ranks_of_a_dense_model_are_instances() -> None:
    """They do not wait for each other, as in vLLM."""
    scenario = Scenario(workload="azure_conv", duration_s=30.0, warmup_s=0.0, rate_scale=0.3)
    runs = [simulate(scenario.with_(cluster={"model": "llama_3_1_8b", "mixed": [{"chip": "h100", **given_as}]}),
                     "vllm_fcfs") for given_as in ({"count": 2}, {"data_parallel": 2})]
    assert runs[0].requests["finish_ps"].tolist() == runs[1].requests["finish_ps"].tolist()
    assert runs[0].instances.tobytes() == runs[1].instances.tobytes()


def test_one_rank_is_an_instance() -> None:
    scenario = Scenario(workload="azure_conv", duration_s=30.0, warmup_s=0.0, rate_scale=0.1)
    pools: tuple[dict[str, Any], ...] = ({"chip": "h100"}, {"chip": "h100", "data_parallel": 1})
    runs = [simulate(scenario.with_(cluster={"model": MODEL, "mixed": [pool]}), "vllm_fcfs") for pool in pools]
    assert runs[0].requests.tobytes() == runs[1].requests.tobytes()


def test_a_cluster_counts_the_chips_of_all_ranks() -> None:
    cluster = Cluster.load({"model": MODEL, "mixed": [{"chip": "h100", "tp": 2, "data_parallel": 4, "count": 3}]})
    assert cluster.hardware()[2] == ["h100"] * 24
    assert [one.chips for _, one in cluster.deployments(None)] == [2] * 12
    state = Episode(TWO.with_(mixed=(("h100", 1),) * 3, requests=((0.0, 5, 1, True),))).state
    assert state.instances["first_rank"].tolist() == [0, 0, 2, 2, 4, 4]
    run = simulate(Scenario(cluster=cluster.__dict__ | {"mixed": [{"chip": "h100", "data_parallel": 2}], "twin": None},
                            workload="azure_conv", duration_s=5.0, warmup_s=0.0, rate_scale=0.1), "vllm_fcfs")
    assert [one["rank"] for one in run.summary["instances"]] == [0, 1]


def test_wrong_clusters_are_refused() -> None:
    with pytest.raises(UserError, match="data_parallel=2 is for mixed instances"):
        Cluster.load({"model": MODEL, "relaxed": [{"chip": "h100", "data_parallel": 2}], "strict": [{"chip": "h100"}]})
    with pytest.raises(UserError, match="experts that tp=1 x data_parallel=3 divides; it has 128"):
        Deployment.from_config({"chip": "h100", "model": MODEL, "data_parallel": 3, "expert_parallel": True})
    with pytest.raises(UserError, match=r"without expert_parallel each expert .* data_parallel=100 does not divide"):
        Deployment.from_config({"chip": "h100", "model": MODEL, "data_parallel": 100})
    with pytest.raises(UserError, match="no experts that ranks could share"):
        Deployment.from_config({"chip": "h100", "model": "llama_3_1_8b", "data_parallel": 2})


def test_memory_of_a_rank() -> None:
    """DeepSeek-V3 in FP8 on eight H200: with tp=8 every chip keeps the same latents; a rank keeps its own requests'.

    Of 671,026,419,200 weights 58 layers x 256 experts x 3 x 7,168 x 2,048 are experts', a byte each: 653,908,770,816.
    The other 19,078,458,368 bytes lie on every chip, and an eighth of the experts. Of 0.9 x 141 GB that leaves 26.08 GB
    for latents of 61 x 576 x 2 bytes a token.
    """
    experts = 58 * 256 * 3 * 7168 * 2048
    config = {"chip": "h200", "model": "deepseek_v3", "memory": "fraction", "kv_fraction": 0.9, "timing": "extended"}
    together = Deployment.from_config(config | {"tp": 8})
    rank = Deployment.from_config(config | {"data_parallel": 8, "expert_parallel": True})
    others = together.weight_bytes - experts
    assert others == 19_078_458_368
    assert rank.weight_bytes == others + experts // 8 == 100_817_054_720
    assert rank.kv_bytes_per_token == 61 * 576 * 2 == 70_272
    assert rank.kv_tokens == int((0.9 * 141e9 - 100_817_054_720) // (16 * 70_272)) * 16 == 371_168
    assert (together.kv_tokens, 8 * rank.kv_tokens) == (608_720, 2_969_344)


def test_times_of_a_rank_are_those_of_all_chips_experts() -> None:
    """Where all ranks have as many tokens: experts are those of tp=8 and eight times the tokens."""
    config = {"chip": "h200", "model": "deepseek_v3", "timing": "extended", "expert_parallel": True}
    ranks, one = (Deployment.from_config(config | given_as) for given_as in ({"data_parallel": 8}, {"tp": 8}))
    tokens = np.array([1.0, 64.0, 512.0])
    mine, theirs = ({cost.name: cost.seconds for cost in deployment.form.dense(deployment.shard, times * tokens)}
                    for deployment, times in ((ranks, 1.0), (one, 8.0)))
    assert mine["experts"].tolist() == theirs["experts"].tolist()
    assert mine["exchange"] / 58 == pytest.approx(theirs["all_reduce"] / (2 * 61 - 58 + 1))
    assert "all_reduce" not in mine and "all_to_all" not in mine
    assert cost_table(one, 8, 64).shared_ps.size == 0


@st.composite
def rank_episodes(draw: st.DrawFn) -> tuple[Setup, Trace]:
    """A policy of mixed instances with random sizes and choices, on one or two groups of two to four ranks."""
    setup, trace = draw(episodes(draw(st.sampled_from(MIXED))))
    return setup.with_(model=MODEL, data_parallel=draw(st.integers(2, 4))), trace


@SOME
@given(rank_episodes())
def test_everything_holds_after_every_event(drawn: tuple[Setup, Trace]) -> None:
    for state in Episode(drawn[0], trace=drawn[1]).events(MANY_EVENTS):
        check_mixed(state)


@SOME
@given(rank_episodes())
def test_everything_ends_and_nothing_is_held(drawn: tuple[Setup, Trace]) -> None:
    episode = Episode(drawn[0], trace=drawn[1])
    episode.state.gauges.open_online = 1 << 30
    state = episode.play(round(36_000.0 * s.PS_PER_S)).state
    assert np.isin(state.requests["status"], (s.FINISHED, s.REJECTED, s.ABORTED)).all()
    assert (state.instances["free_blocks"] == state.instances["total_blocks"]).all()
    check_memory(state)
    check_tokens(state)


@SOME
@given(rank_episodes())
def test_the_same_seed_leaves_the_same_bytes(drawn: tuple[Setup, Trace]) -> None:
    first, second = (Episode(drawn[0], trace=drawn[1]).play().state for _ in range(2))
    assert all(a.tobytes() == b.tobytes() for a, b in zip(first, second, strict=True))


@SOME
@given(rank_episodes(), st.lists(st.floats(0.0, 30.0), max_size=5))
def test_however_driven_an_episode_is_the_same(drawn: tuple[Setup, Trace], horizons: list[float]) -> None:
    """With horizons and copies, and with decisions taken outside."""
    setup, trace = drawn
    plain, halted = (Episode(setup, trace=trace) for _ in range(2))
    for horizon in sorted(horizons):
        halted.play(round(horizon * s.PS_PER_S))
        halted.state = s.copy_state(halted.state)
    driven = Episode(setup, trace=trace, outside=("compose", "route"))
    assert differences(plain.play().state, halted.play().state) == []
    assert differences(plain.state, driven.play().state) == []


@SOME
@given(st.data())
def test_a_request_goes_where_vllms_front_end_sends_it(data: st.DataObject) -> None:
    """The score of `DPLBAsyncMPClient.get_core_engine_for_request` of vLLM 0.32.0, restated, at every arrival."""
    setup, trace = data.draw(rank_episodes())
    setup = setup.with_(policy="vllm_priority", values=(("max_num_seqs", 3),))
    episode, answer, start = Episode(setup, trace=trace, outside=("route",)), s.ASK, 0
    while episode.advance(None, answer) == s.ASKED:
        specs, scores = episode.state.instances, []
        for place in range(len(specs)):
            index = (start + place) % len(specs)
            spec = specs[index]
            waiting = int(spec["online_waiting"] + spec["offline_waiting"])
            usage = 1.0 - spec["free_blocks"] / spec["total_blocks"]
            scores.append((waiting + int(spec["running"]) + waiting * 6.0 * max(0.0, usage - 0.5), place, index))
        answer, start = episode.rule_answer(), (start + 1) % len(specs)
        least = min(score for score, _, _ in scores)
        assert answer == min((place, index) for score, place, index in scores if score <= least + 1e-9)[1]
