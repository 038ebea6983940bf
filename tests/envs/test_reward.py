"""The reward's parts add up: to the reward, and over an episode to the protocol's figures, recomputed here."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ooco_gym.envs.reward import BURST_S, TERMS
from ooco_gym.resources import load_yaml
from ooco_gym.sim import state as s
from tests.envs.episodes_in_short import IDS, at_random, base_policy, make, play

FEW = {"deadline": None, "suppress_health_check": list(HealthCheck), "max_examples": 1, "derandomize": True}
WEIGHTS = {"service": 1.0, "waiting": 0.0005, "ttft": 10.0, "tpot": 7.0, "late": 0.1, "burst": 3.0, "waste": 0.5}
# Rate scale and SLO at which some online requests miss each of them.
MANY = {"rate_scale": 0.2, "slo": {"ttft_s": 3.0, "tpot_s": 0.022}}
LARGE = {"rate_scale": 0.15, "slo": {"ttft_s": 1.0, "tpot_s": 0.022}}
ENGINE = {"rate_scale": 3.0, "slo": {"ttft_s": 0.6, "tpot_s": 0.03}}
OVERLOADED = {**dict.fromkeys(IDS, MANY), **{f"ooco_gym/{name}-v1": LARGE
                                             for name in ("Eviction", "Migration", "Colocation")},
              "ooco_gym/Routing-v2": {"rate_scale": 15.0, "slo": {"ttft_s": 0.6, "tpot_s": 0.02}},
              "ooco_gym/Batching-v1": ENGINE, "ooco_gym/Admission-v2": ENGINE,
              "ooco_gym/Retention-v1": {**ENGINE, "rate_scale": 2.0},
              "ooco_gym/Jobs-v1": {**ENGINE, "cluster": "engine_7b", "workload": "sharegpt",
                                   "offline": {"mode": "rate", "rate": 4.0}},
              "ooco_gym/PreemptionVictim-v1": {"rate_scale": 0.12, "slo": {"ttft_s": 0.6, "tpot_s": 0.03}},
              "ooco_gym/Scaling-v1": {"rate_scale": 0.6},
              "ooco_gym/ScalingPools-v1": {"rate_scale": 15.0, "slo": {"ttft_s": 2.0, "tpot_s": 0.03}},
              "ooco_gym/Serving-v1": {**ENGINE, "rate_scale": 12.0}}
PS = s.PS_PER_S


def seconds(ps):
    return np.asarray(ps, np.float64) / PS


class Expected:
    """Totals from the requests alone, at the end of an episode whose account was opened at `begin` (seconds)."""

    def __init__(self, state, begin, end):
        requests, self.begin, self.end = state.requests, begin, end
        self.now = float(seconds(state.clock.now_ps))
        self.offline = requests[(requests["online"] == 0) & (requests["status"] != s.REJECTED)]
        self.online = requests[(requests["online"] == 1) & (requests["counted"] == 1)]

    def service(self):
        finish = seconds(self.offline["finish_ps"])
        done = (self.offline["status"] == s.FINISHED) & (finish >= self.begin) & (finish < self.end)
        return float(seconds(self.offline["service_ps"][done]).sum())

    def waiting(self):
        leave = np.where(self.offline["finish_ps"] > 0, seconds(self.offline["finish_ps"]), np.inf)
        span = np.minimum(leave, self.end) - np.maximum(seconds(self.offline["arrival_ps"]), self.begin)
        return float((np.clip(span, 0.0, None) * seconds(self.offline["service_ps"])).sum())

    def misses(self, bit):
        return int(np.count_nonzero(self.online["violated"] & bit))

    def late(self):
        """At least and at most: who missed the TTFT SLO is late from then on, the others some time after that."""
        bad = self.online[(self.online["violated"] > 0) & (self.online["status"] != s.REJECTED)]
        leave = np.where(bad["finish_ps"] > 0, seconds(bad["finish_ps"]), self.now)
        since = seconds(bad["arrival_ps"] + bad["ttft_slo_ps"])
        first = (bad["violated"] & 1) > 0
        least = float((leave - since)[first].sum())
        return least, least + float((leave - seconds(bad["first_token_ps"]))[~first].sum())


def played(name, seed, choose, **changes):
    env = make(name, reward=WEIGHTS, scenario=OVERLOADED[name], **changes)
    steps = play(env, choose, seed)
    state = env.simulation.state
    return env, steps, Expected(state, *env.simulation.window_s)


@pytest.mark.parametrize("name", IDS)
@settings(**FEW)
@given(seed=st.integers(0, 2**20), draws=st.integers(0, 2**20))
def test_terms_sum_to_the_reward_and_their_totals_to_the_protocols_figures(name, seed, draws):
    env, steps, expected = played(name, seed, at_random(draws))
    own = [term.name for term in env.terms]
    for step in steps[1:]:
        assert step.reward == pytest.approx(sum(step.info[f"reward/{term}"] for term in (*TERMS, *own)), abs=1e-9)
    total = {term: sum(step.info[f"reward/{term}"] for step in steps[1:]) for term in TERMS}
    summary, totals = steps[-1].info["summary"], env.simulation.state.totals
    assert summary["reward_total"] == pytest.approx(sum(step.reward for step in steps), abs=1e-6)
    for term in TERMS:
        assert summary[f"reward/{term}"] == pytest.approx(total[term], abs=1e-6)
    window_s = env.config.window_s
    assert total["service"] == pytest.approx(WEIGHTS["service"] * expected.service(), abs=1e-6)
    assert total["service"] == pytest.approx(summary["offline_reference_gpu_s_per_s"] * window_s, abs=1e-6)
    assert total["waiting"] == pytest.approx(-WEIGHTS["waiting"] * expected.waiting(), rel=1e-6, abs=1e-6)
    assert total["ttft"] == -WEIGHTS["ttft"] * expected.misses(1) == -WEIGHTS["ttft"] * totals.ttft_misses
    assert total["tpot"] == -WEIGHTS["tpot"] * expected.misses(2) == -WEIGHTS["tpot"] * totals.tpot_misses
    least, most = expected.late()
    assert least - 1e-3 <= total["late"] / -WEIGHTS["late"] <= most + 1e-3
    assert total["waste"] == pytest.approx(-WEIGHTS["waste"] * summary["wasted_gpu_s_per_s"] * window_s, abs=1e-6)
    violated, arrived = summary["online_violated"], summary["online_arrived"]
    assert violated == np.count_nonzero(expected.online["violated"])
    assert arrived == len(expected.online)
    for key, count in (("cost", violated), ("cost_ttft", expected.misses(1)), ("cost_tpot", expected.misses(2))):
        assert sum(step.info.get(key, 0.0) for step in steps) == count
    budget = load_yaml("protocol", "default")["violation_budget"]
    most = -WEIGHTS["burst"] * violated
    least = -WEIGHTS["burst"] * max(0.0, violated - budget * arrived) if window_s <= BURST_S else 0.0
    assert most - 1e-9 <= total["burst"] <= least + 1e-9


@pytest.mark.parametrize("name", IDS)
def test_overloaded_windows_have_misses_of_both_kinds(name):
    """Else the test above would compare zeros."""
    *_, expected = played(name, 1, base_policy)
    assert expected.misses(1) > 0
    assert expected.misses(2) > 0


def test_terms_do_not_depend_on_how_often_an_agent_is_asked():
    """One run, its decisions taken by the base policy, asked every few milliseconds, every five minutes, or never."""
    totals = {}
    for name, interval_s in (("PrefillGate", 1.0), ("Interruption", 1.0), ("Packing", 0.25), ("OnlineTuning", 300.0)):
        env = make(f"ooco_gym/{name}-v1", reward=WEIGHTS, base_policy="ooco:gate_window=64", interval_s=interval_s,
                   window_s=1_500.0, scenario={"rate_scale": 0.17, "slo": {"ttft_s": 1.0, "tpot_s": 0.022}})
        summary = play(env, base_policy)[-1].info["summary"]
        totals[name] = [summary[f"reward/{term}"] for term in TERMS]
    first = totals.pop("PrefillGate")
    assert first[TERMS.index("burst")] < 0.0
    for name, total in totals.items():
        assert total == pytest.approx(first, rel=1e-9, abs=1e-6), name


def test_the_constrained_form_leaves_misses_to_the_cost():
    env = make("ooco_gym/PrefillGate-v1", reward="constrained", scenario={"rate_scale": 0.8})
    steps = play(env, base_policy)
    assert all(step.info[f"reward/{term}"] == 0.0 for step in steps[1:] for term in ("ttft", "tpot", "burst"))
    assert sum(step.info["cost"] for step in steps[1:]) == steps[-1].info["summary"]["online_violated"] > 0
