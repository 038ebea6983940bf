"""What a policy sees of an engine: the same in service as in training, and what it should be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ooco_gym.envs import reward as r
from ooco_gym.perf.terms import Terms, curve
from ooco_gym.policy.engine_features import HOUR_ARRIVED, HOUR_VIOLATED
from ooco_gym.runtime.features import ENGINE, HORIZONS_S, ArrivalRates, Blocks
from ooco_gym.runtime.rules import Engine, Line, Request
from ooco_gym.sim import state as s
from ooco_gym.vllm.beliefs import Belief
from ooco_gym.vllm.replica import Replica
from tests.envs.episodes_in_short import make
from tests.runtime.engine_description import TableBelief, engine_of

MEMORY_BOUND = {"cluster": "mixed_llama2_7b_40g", "workload": "azure_conv", "rate_scale": 0.05}
SHARED = {"workload": "few_shot", "rate_scale": 0.5, "offline": {
    "mode": "rate", "rate": 6.0, "lengths": "mmlu", "sharing": {"form": "few_shot", "ratio": 0.83, "groups": 57}}}
CASES: dict[str, dict[str, Any]] = {
    "as trained": {}, "four engines": {"cluster": "engines_7b", "scenario": {"rate_scale": 6.0}},
    "memory binds": {"scenario": MEMORY_BOUND, "vary": {}},
    "prefixes are shared": {"scenario": SHARED, "vary": {},
                            "base_policy": "hygen:latency_budget_s=0.04,prefix_caching=on"}}


class Counted(Blocks):
    """Blocks of time as an environment counts them."""

    def __init__(self, counts: list[tuple[int, int]]) -> None:
        self.given = counts

    def counts(self, now_s: float) -> list[tuple[int, int]]:
        return self.given


def kept(env: Any) -> tuple[ArrivalRates, Blocks, float]:
    """What is kept from one observation to the next, and the violation budget."""
    buffers, state = env.episodes.buffers, env.simulation.state
    sums, notes, observed, totals = buffers.reward_sums[0], buffers.notes[0], state.observed, state.totals
    rates = ArrivalRates(state.clock.last_online_arrival_ps / s.PS_PER_S)
    rates.rates = dict(zip(HORIZONS_S, (observed.online_rate_fast, observed.online_rate_minute,
                                        observed.online_rate_slow, observed.online_rate_half_hour), strict=True))
    arrived, missed = totals.online_arrived, totals.violations
    return rates, Counted([(arrived - sums[r.BLOCK_ARRIVED], missed - sums[r.BLOCK_VIOLATED]),
                           (arrived - notes[HOUR_ARRIVED], missed - notes[HOUR_VIOLATED])]), float(sums[r.BUDGET])


@pytest.mark.parametrize("case", CASES)
def test_features_in_service_are_those_of_training(case: str) -> None:
    env, random = make("ooco_gym/Batching-v1", **CASES[case]), np.random.default_rng(3)
    observation, info = env.reset(seed=3, options={"window": 0})
    replicas: dict[int, Replica] = {}
    seen = []
    for step in range(300):
        state = env.simulation.state
        instance = int(state.pending.instance)
        engine, belief = engine_of(state, instance, looked_up=True), TableBelief(state, instance)
        replica = replicas.setdefault(instance, Replica())
        replica._origin_s = 0.0
        np.testing.assert_allclose(replica.observe(engine, belief, *kept(env)), observation["cluster"], rtol=0,
                                   atol=2e-6, err_msg=f"step {step}")
        seen.append(observation["cluster"])
        legal = np.flatnonzero(info["action_mask"])
        action = int(random.choice(legal)) if step // 100 % 2 else env.base_action()
        observation, _, _, over, info = env.step(action)
        while over or env.episodes.asked(0) is None:
            replicas.clear()
            observation, info = env.reset(seed=3 + step)
            over, step = False, step + 300
    assert (np.array(seen).std(axis=0) > 0).sum() > 25, "what is compared differs from state to state"


# --- By hand --------------------------------------------------------------------------------------------------------
def found(running: Sequence[Request] = (), waiting: Sequence[Request] = ()) -> dict[str, float]:
    """Features by name of an engine of 4 seats and 100 blocks at 10 s, whose iterations take 10 ms and 0.1 ms a
    token."""
    engine = Engine(10.0, list(running), Line(waiting), Line(), 50, 100, 16, 4, 512, 0.05,
                    (len(waiting), sum(one.num_tokens for one in waiting), 0, 0))
    belief = Belief(Terms(0.01, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, curve((0, 1), (0.0, 1e-4)), curve((0, 1), (0.0, 0.0))))
    values = Replica().observe(engine, belief, ArrivalRates(10.0), Blocks(), 0.03)
    assert values.dtype == np.float32
    return dict(zip((one.name for one in ENGINE), values.tolist(), strict=True))


def decoding(name: int, first_s: float, made: int, online: bool = True, arrival_s: float = 8.0,
             blocks: int = 0) -> Request:
    return Request(name, online, name, arrival_s, 2.0, 0.05, 100 + made, made, 99 + made, blocks, first_s)


def signed_log(ms: float) -> float:
    return float(np.copysign(np.log1p(abs(ms)) / np.log1p(10_000), ms))


def test_slack_is_how_far_a_request_is_ahead_of_its_next_tokens_deadline() -> None:
    """First token at 9 s: the one after 30 tokens is due at 10.5 s, the one after 19 at 9.95 s; one is lost."""
    values = found([decoding(0, 9.0, 30), decoding(1, 9.0, 19), decoding(2, 9.0, 100, arrival_s=1.0),
                    decoding(3, 9.0, 5, online=False, blocks=7)])
    assert values["slack_least"] == pytest.approx(signed_log(-50), abs=1e-6)
    assert values["slack_90"] == pytest.approx(signed_log(-50), abs=1e-6), "place 0 of 2"
    assert values["behind"] == 0.5 and values["kv_offline"] == pytest.approx(0.07)
    assert values["lost"] == pytest.approx(np.log(2) / np.log1p(256))
    assert values["online_step"] == pytest.approx(0.0103 / 0.05 / 4) and values["seats_free"] == 0.0


def test_prompts_are_looked_at_in_their_order() -> None:
    """2,000 tokens take 0.21 s each: the first is due in time, the second in 0.3 s, after 0.42 s."""
    under_way = Request(0, True, 0, 9.0, 2.0, 0.05, 3000, 0, 1000, 63)
    values = found([under_way], [Request(1, True, 1, 8.3, 2.0, 0.05, 2000), Request(2, True, 2, 5.0, 2.0, 0.05, 2000)])
    assert values["prompts_late"] == 0.5
    assert values["next_slack"] == pytest.approx(signed_log(1000), abs=1e-6)
    assert values["ttft_slack"] == values["second_slack"] == pytest.approx(signed_log(300), abs=1e-6)
    assert values["ttft_margin"] == pytest.approx(signed_log(300 - 420), abs=1e-6)
    assert values["lost"] > 0, "the last one is past its deadline"
    assert values["online_work"] == pytest.approx(np.log1p(10 + 51.2) / np.log1p(10_000)), "at most a token budget"


def test_rates_fade_as_those_of_the_simulator() -> None:
    rates = ArrivalRates(0.0)
    for at in (1.0, 2.0, 2.5):
        rates.arrived(at)
    assert rates.rates[10] == pytest.approx(sum(np.exp(-(2.5 - at) / 10) / 10 for at in (1.0, 2.0, 2.5)))
    assert rates.last_s == 2.5
