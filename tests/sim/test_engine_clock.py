"""An engine's host time lengthens each iteration by what it is, on both kinds of instances; none changes nothing."""

from __future__ import annotations

import pytest

from ooco_gym import Scenario, simulate
from ooco_gym.errors import UserError
from ooco_gym.perf.engine_clock import EngineClock
from ooco_gym.sim import state as s
from tests.sim.harness import Episode, Setup, play

CLOCK = EngineClock("test", decode_s=0.001, prefill_s=0.003, prefill_token_s=2e-6, sequence_s=1e-5)
MIXED = {"relaxed": (), "strict": (), "mixed": (("ascend_910c", 1),), "policy": "vllm_fcfs"}


def times(clock: EngineClock, **setup) -> tuple[float, float]:
    """When one request of 100 + 3 tokens has its first and its last token, in seconds."""
    one = play(Setup(((0.0, 100, 3, True),), rules={"engine_clock": clock}, **setup)).state.requests[0]
    assert one["status"] == s.FINISHED
    return one["first_token_ps"] / s.PS_PER_S, one["finish_ps"] / s.PS_PER_S


@pytest.mark.parametrize("setup", [MIXED, {"policy": "base_pd"}], ids=["mixed", "pools"])
def test_each_iteration_takes_its_host_time_too(setup) -> None:
    (first, last), (plain_first, plain_last) = times(CLOCK, **setup), times(EngineClock(), **setup)
    assert first - plain_first == pytest.approx(0.003 + 100 * 2e-6 + 1e-5, abs=1e-9)
    assert (last - first) - (plain_last - plain_first) == pytest.approx(2 * (0.001 + 1e-5), abs=1e-9)


def test_with_asynchronous_scheduling_an_arrival_waits_a_step_more() -> None:
    """The second request arrives while an iteration runs; the one after that is composed already."""
    rows = ((0.0, 100, 200, True), (0.5, 100, 2, True))
    first = {}
    for asynchronous in (False, True):
        setup = Setup(rows, rules={"engine_clock": EngineClock(async_scheduling=asynchronous)}, **MIXED)
        requests = play(setup).state.requests
        assert (requests["status"] == s.FINISHED).all()
        first[asynchronous] = requests["first_token_ps"].tolist()
    step_s = times(EngineClock(), **MIXED)
    step_ps = 0.5 * (step_s[1] - step_s[0]) * s.PS_PER_S
    assert first[True][0] == first[False][0], "an idle engine begins at once"
    assert first[True][1] - first[False][1] == pytest.approx(step_ps, rel=0.02)


def test_composing_is_hidden_while_the_iteration_before_it_lasts() -> None:
    rows = ((0.0, 100, 11, True),)
    ends = {}
    for schedule_s in (0.0, 0.001, 0.05):
        for asynchronous in (False, True):
            clock = EngineClock(schedule_s=schedule_s, async_scheduling=asynchronous)
            one = play(Setup(rows, rules={"engine_clock": clock}, **MIXED)).state.requests[0]
            ends[schedule_s, asynchronous] = one["finish_ps"] / s.PS_PER_S
    plain = ends[0.0, False]
    assert ends[0.0, True] == ends[0.001, True] == plain
    assert ends[0.001, False] == pytest.approx(plain + 11 * 0.001, abs=1e-9)
    assert ends[0.05, False] == pytest.approx(plain + 11 * 0.05, abs=1e-9)
    assert ends[0.05, True] == pytest.approx(11 * 0.05, abs=1e-9), "every iteration waits for the next to be composed"


def test_rules_that_stop_an_iteration_or_share_blocks_wait_for_the_one_before() -> None:
    rules = {"engine_clock": EngineClock(async_scheduling=True)}
    for policy, mode in (("vllm_fcfs", s.SEES_FINISHING), ("deadline", s.HIDES_FINISHING), ("vllm_v0", s.SYNCHRONOUS),
                         ("bros", s.SYNCHRONOUS), ("conserve", s.SYNCHRONOUS)):
        setup = Setup(((0.0, 100, 3, True),), rules={**rules, "max_batch": 1024}, **{**MIXED, "policy": policy})
        state = Episode(setup).state
        assert state.config.async_scheduling == mode, policy


def test_the_front_end_is_in_what_clients_see_and_in_what_is_left_of_their_slo() -> None:
    cluster = {"name": "one", "model": "qwen2_5_7b", "mixed": [{"chip": "h100"}], "slo": "chat"}
    load = {"online_rate": 2.0, "warmup_s": 0.0, "duration_s": 30.0}
    plain = simulate(Scenario(cluster=cluster, **load), "vllm_fcfs")
    clock = {"frontend_s": 0.1, "frontend_token_s": 1e-5}
    slow = simulate(Scenario(cluster={**cluster, "engine_clock": clock}, **load), "vllm_fcfs")
    added = 0.1 + 1e-5 * plain.requests["prompt_tokens"]
    for name in ("first_token_ps", "finish_ps"):
        there = (plain.requests[name] > 0) & (slow.requests[name] > 0)
        later_s = (slow.requests[name] - plain.requests[name])[there] / s.PS_PER_S
        assert later_s == pytest.approx(added[there], abs=1e-9)
    assert (slow.requests["ttft_slo_ps"] == plain.requests["ttft_slo_ps"]).all()
    late = simulate(Scenario(cluster={**cluster, "engine_clock": {"frontend_s": 10.0}}, **load), "vllm_fcfs")
    assert late.summary["online"]["violation_rate"] == 1.0 and late.summary["online"]["own_slos"] == 0
    assert late.counters["violations"] == late.summary["online"]["arrived"]
    longer = simulate(Scenario(cluster={**cluster, "engine_clock": {"template_tokens": 7}}, **load), "vllm_fcfs")
    assert (longer.requests["prompt_tokens"] == plain.requests["prompt_tokens"] + 7).all()


def test_a_clusters_clock_is_played_by_its_name() -> None:
    cluster = {"name": "one", "model": "qwen2_5_7b", "mixed": [{"chip": "h100"}], "slo": "chat"}
    runs = [simulate(Scenario(cluster={**cluster, "engine_clock": name}, online_rate=2.0, warmup_s=0.0,
                              duration_s=30.0), "vllm_fcfs").summary["online"]["tpot_mean_s"]
            for name in (None, "none", "vllm_eager_async", "vllm_eager_sync")]
    assert runs[0] == runs[1] < runs[2] < runs[3]


@pytest.mark.parametrize(("value", "words"), [
    ({"decod_s": 0.1}, "did you mean 'decode_s'"), ("vllm_eagr_async", "did you mean 'vllm_eager_async'"),
])
def test_a_clock_that_is_none_is_refused_in_a_sentence(value, words) -> None:
    with pytest.raises(UserError, match=words):
        EngineClock.load(value)
