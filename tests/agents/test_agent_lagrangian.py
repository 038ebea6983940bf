"""Advantages in simulated time, the multiplier's loop, and an agent that holds a violation budget."""

import csv

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agents.learning.lagrangian import PIDMultiplier, cost_critic
from agents.learning.models import timed_advantages
from tests.agents.gating_double import composed


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.floats(0.01, 5.0), st.floats(-2.0, 2.0), st.floats(-2.0, 2.0)), min_size=1, max_size=12),
       st.floats(0.5, 1.0), st.floats(0.0, 1.0), st.floats(-2.0, 2.0))
@example([(0.01, 0.0, 0.0), (0.01, 1.0, 0.0)], 0.5, 5e-324, 0.0)  # γλ would be 0, and λ^0.01 is 0.0006
def test_advantages_are_the_discounted_sum_of_surprises(steps, discount, trace, last):
    """Â_t = Σ_k (γλ)^(τ_k - τ_t) δ_k with δ_k = r_k + γ^Δ_k V_(k+1) - V_k and τ the time at which step k begins."""
    elapsed, rewards, values = (np.array(part)[:, None] for part in zip(*steps, strict=True))
    starts = np.zeros_like(rewards)
    found = timed_advantages(rewards, values, np.array([last]), starts, np.array([False]), elapsed, discount, trace)
    after = np.append(values[1:, 0], last)
    surprise = rewards[:, 0] + discount ** elapsed[:, 0] * after - values[:, 0]
    begins = np.concatenate([[0.0], np.cumsum(elapsed[:, 0])[:-1]])
    expected = [sum(discount ** (begins[k] - begins[t]) * trace ** (begins[k] - begins[t]) * surprise[k]
                    for k in range(t, len(steps))) for t in range(len(steps))]
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-9, atol=1e-9)


def test_a_constant_stream_of_reward_has_the_closed_form():
    """Reward at rate 1 a second and V = 0: Â = Σ of Δ (γλ)^t over what is left, whatever the λ of each step hides."""
    elapsed = np.random.default_rng(0).uniform(0.1, 2.0, (200, 1))
    zeros, gamma, trace = np.zeros((200, 1)), 0.98, 0.9
    found = timed_advantages(elapsed, zeros, np.zeros(1), zeros, np.array([True]), elapsed, gamma, trace)
    begins = np.concatenate([[0.0], np.cumsum(elapsed[:, 0])[:-1]])
    assert found[0, 0] == pytest.approx(float(np.sum(elapsed[:, 0] * (gamma * trace) ** begins)))
    halves = np.repeat(elapsed / 2, 2, axis=0)  # the same stream, asked twice as often, is worth nearly the same
    more = timed_advantages(halves, np.zeros((400, 1)), np.zeros(1), np.zeros((400, 1)), np.array([True]), halves,
                            gamma, trace)
    assert more[0, 0] == pytest.approx(found[0, 0], rel=0.05)


def test_nothing_comes_across_the_end_of_an_episode():
    rewards, values = np.array([[1.0], [0.0], [5.0]]), np.zeros((3, 1))
    found = timed_advantages(rewards, values, np.array([9.0]), np.array([[1.0], [0.0], [1.0]]), np.array([True]),
                             np.ones((3, 1)), 0.5, 1.0)
    np.testing.assert_allclose(found[:, 0], [1.0, 0.0, 5.0])


def test_without_proportional_and_derivative_parts_the_multiplier_is_gradient_ascent():
    multiplier, expected = PIDMultiplier(0.0, 0.1, 0.0, 1.0, 50.0, 0.0), 1.0
    for excess in (0.5, 2.0, -1.0, -1.0, -40.0, 1.0):
        expected = max(0.0, expected + 0.1 * excess)
        assert multiplier.update(excess) == pytest.approx(expected)


def simulated(gains, updates=600):
    """A plant that lags: the rate follows what the multiplier asks for, 3 % at λ = 2, a twentieth of the way a time."""
    multiplier, rate, rates = PIDMultiplier(*gains, 0.0, 50.0, 0.9), 0.15, []
    for _ in range(updates):
        price = multiplier.update(rate / 0.03 - 1.0)
        rate += 0.05 * (0.15 * np.exp(-price * np.log(5.0) / 2.0) - rate)
        rates.append(rate)
    return np.array(rates)


def test_the_loop_settles_at_the_budget_and_the_other_parts_damp_it():
    """Stooke et al. 2020, section 5: integral control alone overshoots; proportional and derivative parts damp it."""
    integral, pid = simulated((0.0, 0.05, 0.0)), simulated((0.3, 0.05, 1.0))
    assert abs(pid[-50:].mean() - 0.03) < 0.001 and abs(integral[-50:].mean() - 0.03) < 0.005
    assert pid.min() > integral.min()
    assert np.abs(pid[100:] - 0.03).mean() < 0.5 * np.abs(integral[100:] - 0.03).mean()


def test_a_cost_critic_starts_from_nothing():
    assert cost_critic(5, 8)(torch.randn(3, 5)).abs().max() == 0.0


def lagrangian_config(folder, **settings):
    """Packing, where a decision lasts a second, so that a few hundred of them see thousands of requests."""
    config = composed(
        folder, "env=packing", "agent=pid_lagrangian", "env.window_s=60", "env.warmup_s=10", "window_s=60",
        "agent.n_envs=4", "agent.n_steps=64", "agent.batch_size=128", "agent.hidden=16", "agent.imitate.rule=null",
        "agent.scale_decisions=64", "total_timesteps=1024")
    config["agent"]["lagrangian"].update(settings)
    return config


def test_a_lagrangian_run_logs_its_multiplier_and_charges_no_violation_to_the_reward(tmp_path):
    from agents.learning import train

    config = lagrangian_config(tmp_path, budget=1e-4, integral=0.01, most=1e6)
    assert config["env"]["reward"] == "constrained"
    assert train.main(config)["agent"] == "pid_lagrangian"
    rows = [row for row in csv.DictReader((tmp_path / "progress.csv").open()) if row["lagrangian/multiplier"]]
    multipliers = [float(row["lagrangian/multiplier"]) for row in rows]
    rates = [float(row["lagrangian/violation_rate"]) for row in rows]
    assert len(rows) == 4 and max(rates) > 1e-4  # some violation among hundreds of requests, beyond such a budget
    assert multipliers[-1] > multipliers[0] > 0.0
    assert all(float(row["reward/ttft_per_s"]) == 0.0 for row in rows)
    assert any(float(row["lagrangian/price"]) > 0.0 for row in rows)
