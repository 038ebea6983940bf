"""An engine's host time lengthens each iteration by what it is, on both kinds of instances; none changes nothing."""

from __future__ import annotations

import pytest
from harness import Setup, play

from ooco_gym import Scenario, simulate
from ooco_gym.errors import UserError
from ooco_gym.perf.engine_clock import EngineClock
from ooco_gym.sim import state as s

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


def test_a_clusters_clock_is_played_by_its_name() -> None:
    cluster = {"name": "one", "model": "qwen2_5_7b", "mixed": [{"chip": "h100"}], "slo": "chat"}
    runs = [simulate(Scenario(cluster={**cluster, "engine_clock": name}, online_rate=2.0, warmup_s=0.0,
                              duration_s=30.0), "vllm_fcfs").summary["online"]["tpot_mean_s"]
            for name in (None, "none", "vllm_eager_async", "vllm_eager_sync")]
    assert runs[0] == runs[1] < runs[2] < runs[3]


@pytest.mark.parametrize(("value", "words"), [
    ({"decode_s": -1.0}, "decode_s=-1.0 must be a number of seconds from 0 to 1"),
    ({"decod_s": 0.1}, "did you mean 'decode_s'"), ("vllm_eagr_async", "did you mean 'vllm_eager_async'"),
])
def test_a_clock_that_is_none_is_refused_in_a_sentence(value, words) -> None:
    with pytest.raises(UserError, match=words):
        EngineClock.load(value)
