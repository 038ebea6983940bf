"""Length predictors: keyed by request, right in what they state, and the only source of what rules believe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import types
from scipy.stats import kendalltau

from ooco_gym import Scenario, Simulation, UserError, simulate
from ooco_gym.compile import jit
from ooco_gym.policy.lengths import (
    add_future,
    believed_output,
    density,
    peak_tokens,
    reference_worth,
)
from ooco_gym.sim import state as s
from ooco_gym.sim.state import state_at
from ooco_gym.workload import LengthPredictor, Trace

SPEAKING = ("true", "lognormal", "rank")
POOLS: dict[str, Any] = {"cluster": "pair_llama2_7b_40g", "workload": "azure_conv", "slo": "chat", "rate_scale": 0.05,
                         "offline": {"mode": "rate", "rate": 1.0}, "duration_s": 120.0, "warmup_s": 60.0}
MIXED: dict[str, Any] = {**POOLS, "cluster": "mixed_llama2_7b_40g"}


def trace_of(n: int, seed: int = 1) -> Trace:
    random = np.random.default_rng(seed)
    prompt = random.integers(10, 4000, n)
    output = np.rint(np.exp(random.normal(5.0, 1.0, n)) * (1 + prompt / 4000)).astype(int) + 1
    return Trace(np.sort(random.random(n)) * 100, prompt, output, random.random(n) < 0.4)


def believe(trace: Trace, seed: int = 3, **how: Any) -> np.ndarray:
    said = LengthPredictor.load(how).believe(trace, seed)
    assert said is not None
    return said


@jit(types.void(types.int64, types.int64[:], types.float64[:], types.float64[:]))
def _quantiles(address, slots, survival, out):
    state = state_at(address)
    for i in range(slots.size):
        out[i] = believed_output(state, slots[i], survival[i])


@jit(types.void(types.int64, types.int64[:], types.float64[:]))
def _densities(address, slots, out):
    state = state_at(address)
    for i in range(slots.size):
        out[i] = density(state, slots[i])


@jit(types.float64(types.int64, types.int64, types.float64))
def _worth(address, slot, output):
    return reference_worth(state_at(address), slot, output)


@jit(types.int64(types.int64, types.int64[:], types.int64[:]))
def _peak(address, remaining, contexts):
    state = state_at(address)
    for i in range(remaining.size):
        add_future(state, i, remaining[i], contexts[i])
    return peak_tokens(state, remaining.size)


@pytest.fixture(scope="module")
def running() -> Simulation:
    simulation = Simulation(Scenario(**POOLS, lengths={"predictor": "lognormal", "error": 0.4}), "ooco_lengths")
    simulation.advance(120.0)
    return simulation


# --- What is said -----------------------------------------------------------------------------------------------------
def test_by_default_nothing_is_said_and_a_scenario_reads_as_it_did_before() -> None:
    assert LengthPredictor.load("none").believe(trace_of(5), 1) is None
    assert "lengths" not in Scenario(**POOLS).describe()
    described = Scenario(**POOLS, lengths={"predictor": "rank", "tau": 0.4}).describe()
    assert described["lengths"]["tau"] == 0.4 and Scenario.from_config(described).resolve().lengths.tau == 0.4


@pytest.mark.parametrize("predictor", SPEAKING)
def test_what_is_said_hangs_on_the_seed_alone(predictor: str) -> None:
    trace = trace_of(400)
    said = believe(trace, predictor=predictor)
    assert said.shape == (400, 2) and np.isfinite(said).all() and (said[:, 0] >= 1).all() and (said[:, 1] >= 0).all()
    assert np.array_equal(said, believe(trace, predictor=predictor))
    assert np.array_equal(said, believe(trace, seed=4, predictor=predictor)) == (predictor == "true")


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 300), st.integers(0, 2**40))
def test_errors_of_a_class_depend_on_its_own_requests_before_alone(n: int, seed: int) -> None:
    trace = trace_of(300)
    said = believe(trace, seed, predictor="lognormal", error=0.5)
    for kept in (np.arange(300) < n, ~trace.online):  # the first ones, and offline ones without the online ones
        part = Trace(trace.arrival_s[kept], trace.prompt_tokens[kept], trace.output_tokens[kept], trace.online[kept])
        assert np.array_equal(believe(part, seed, predictor="lognormal", error=0.5), said[kept])


def test_true_is_true_and_errors_have_the_stated_spread() -> None:
    trace = trace_of(20_000)
    assert np.array_equal(believe(trace, predictor="true")[:, 0], trace.output_tokens)
    assert np.array_equal(believe(trace, predictor="lognormal", error=0.0)[:, 0], trace.output_tokens)
    off = np.log(believe(trace, predictor="lognormal", error=0.6)[:, 0] / trace.output_tokens)[trace.output_tokens > 9]
    assert abs(off.std() - 0.6) < 0.02 and abs(np.median(off)) < 0.02


@pytest.mark.parametrize("tau", [0.1, 0.3, 0.7, 1.0])
def test_a_ranker_has_the_stated_kendall_tau(tau: float) -> None:
    trace = trace_of(6_000)
    said, mine = believe(trace, predictor="rank", tau=tau), ~trace.online
    found: Any = kendalltau(said[mine, 0], trace.output_tokens[mine])
    assert abs(found.statistic - tau) < 0.03
    assert tau < 1.0 or said[:, 1].max() < 1e-6


@pytest.mark.parametrize(("value", "message"), [
    ({"predictor": "lognormal", "tau": 0.4}, "lengths.tau=0.4: only predictor 'rank' takes it"),
    ({"error": 0.4}, "only predictor 'lognormal' takes it"), ({"predictor": "lognormal", "err": 0.4}, "err"),
])
def test_mistakes_are_named(value: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Scenario(**POOLS, lengths=value).resolve()


# --- What is believed -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("grown", [0.0, 0.5, 1.0, 3.0])
def test_a_belief_is_the_distribution_given_what_has_been_generated(running: Simulation, grown: float) -> None:
    """Quantiles beside draws from the law itself, of which those are kept that are longer than what is there."""
    state, slot = running.state, int(np.argmax(running.state.predicted[:, 0] > 200))
    median, spread = state.predicted[slot]
    before = int(state.requests["generated_tokens"][slot])
    state.requests["generated_tokens"][slot] = round(grown * median)
    survival, out = np.array([0.84, 0.5, 0.16]), np.empty(3)
    _quantiles(running.handle.address, np.full(3, slot), survival, out)
    state.requests["generated_tokens"][slot] = before
    shape = np.pi / np.sqrt(3.0) / spread
    drawn = median * (1.0 / np.random.default_rng(1).random(2_000_000) - 1.0) ** (1.0 / shape)
    expected = np.quantile(drawn[drawn > round(grown * median)], 1.0 - survival)
    assert np.allclose(out, expected, rtol=0.02)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 90)), min_size=1, max_size=12))
def test_the_peak_is_that_of_playing_on_token_by_token(running: Simulation, pairs: list[tuple[int, int]]) -> None:
    remaining, contexts = np.array(pairs, np.int64).T.copy()
    played = [sum(c + t for r, c in pairs if r >= t) for t in range(1, remaining.max() + 1)]
    assert _peak(running.handle.address, remaining, contexts) == max(played)


def test_density_is_worth_over_memory_still_needed(running: Simulation) -> None:
    state = running.state
    slots = np.flatnonzero(state.requests["online"] == 0)[:50].astype(np.int64)
    found, output = np.empty(50), np.empty(50)
    _densities(running.handle.address, slots, found)
    _quantiles(running.handle.address, slots, np.full(50, 0.5), output)
    rows = state.requests[slots]
    left, context = output - rows["generated_tokens"], rows["prompt_tokens"] + rows["generated_tokens"]
    worth = [_worth(running.handle.address, int(slot), float(one)) for slot, one in zip(slots, output, strict=True)]
    assert np.allclose(found, worth / (left * (context + left / 2)), rtol=1e-12)
    true = [_worth(running.handle.address, int(slot), float(state.requests["output_tokens"][slot])) for slot in slots]
    assert np.allclose(true, rows["service_ps"], rtol=1e-9)  # the protocol's own price, of what one believes


# --- Who believes it --------------------------------------------------------------------------------------------------
def test_rules_that_do_not_ask_are_not_changed_and_all_are_told_the_same() -> None:
    runs = [Simulation(Scenario(**POOLS, lengths=lengths), policy) for lengths, policy in
            (("rank", "ooco"), ("rank", "ooco_lengths"))]
    assert np.array_equal(runs[0].state.predicted, runs[1].state.predicted) and runs[0].state.predicted.size
    plain, told = (simulate(Scenario(**POOLS, lengths=lengths), "slack") for lengths in ("none", "true"))
    assert plain.counters == told.counters


def test_better_predictions_are_other_decisions_and_slack_is_one_of_its_settings() -> None:
    counters = [simulate(Scenario(**POOLS, lengths=lengths), "ooco_lengths").counters
                for lengths in ("none", "true", {"predictor": "lognormal", "error": 0.6})]
    assert counters[0] != counters[1] != counters[2]
    told = simulate(Scenario(**POOLS, lengths="true"), "ooco_lengths:evict=bottleneck,pull=slack")
    assert told.counters == simulate(Scenario(**POOLS), "slack").counters


def test_mixed_policies_go_by_the_same_predictor() -> None:
    told_by = "past_future:lengths=predicted,max_output_tokens=99999"
    exact, told = (simulate(Scenario(**MIXED, lengths=lengths), policy) for lengths, policy in
                   (("none", "past_future:lengths=exact"), ("true", told_by)))
    assert exact.counters == told.counters


def test_a_client_is_predicted_by_what_has_ended_of_it() -> None:
    """By hand: mean and spread of the logarithm, with as much weight on its class as two requests have."""
    offline = {"mode": "rate", "rate": 2.0, "clients": [
        {"share": 1.0, "lengths": {"prompt": {"weights": [1.0], "mu": [5.0], "sigma": [0.5], "clip": [8, 999]},
                                   "output": {"weights": [1.0], "mu": [mu], "sigma": [0.3], "clip": [2, 999]}}}
        for mu in (3.0, 5.0)]}
    run = Simulation(Scenario(**{**MIXED, "offline": offline, "lengths": "client", "seed": 2}), "deadline")
    client = run.state.client.copy()

    def median(slot: int) -> float:
        run.state.requests["generated_tokens"][slot], out = 0, np.zeros(1)
        _quantiles(run.handle.address, np.array([slot]), np.array([0.5]), out)
        return float(out[0])

    assert len({median(slot) for slot in np.flatnonzero(run.state.requests["online"] == 0)[:9]}) == 1, "none has ended"
    run.advance(180.0)
    requests = run.state.requests
    done = (requests["status"] == s.FINISHED) & (requests["online"] == 0)
    every = np.log(requests["output_tokens"][done])
    medians = []
    for row in np.unique(client[done]):
        mine = np.log(requests["output_tokens"][done & (client == row)])
        assert np.allclose(run.state.ended[row][:3], [mine.size, mine.mean(), mine.var() * mine.size])
        mean = (mine.sum() + 2 * every.mean()) / (mine.size + 2)
        medians.append(median(np.flatnonzero(client == row)[-1]))
        assert medians[-1] == pytest.approx(np.exp(mean), rel=1e-6)
    assert 1.5 * medians[0] < medians[1]
    assert np.allclose(run.state.ended[-2][:2], [every.size, every.mean()])
    with pytest.raises(UserError, match="no request names one"):
        Simulation(Scenario(**{**MIXED, "lengths": "client"}), "deadline")


def test_a_request_of_no_client_counts_once(tmp_path: Path) -> None:
    rows = "arrival_s,prompt_tokens,output_tokens,class,client\n" + "".join(
        f"{0.5 * i},100,{10 + 5 * i},offline,{'a' if i % 2 else ''}\n" for i in range(8))
    (tmp_path / "some.csv").write_text(rows)
    run = Simulation(Scenario(cluster="mixed_7b", workload={"path": str(tmp_path / "some.csv")}, slo="chat",
                              rate_scale=1.0, lengths="client", drain_s=60.0), "vllm_fcfs")
    run.advance()
    done = run.state.requests["status"] == s.FINISHED
    assert run.state.ended[[0, -2], 0].tolist() == [done[1::2].sum(), done.sum()], "of the one client, and of all"
    assert done.sum() > 5
    with pytest.raises(UserError, match="a whole number from 0 to 99,999, or -1 for none"):
        Trace(np.zeros(1), np.ones(1), np.ones(1), client=np.array([2_000_000_000]))
