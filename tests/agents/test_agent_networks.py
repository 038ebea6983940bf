"""The scorer's symmetry, the scaling of observations, and discounting by simulated time."""

import numpy as np
import pytest
import torch
from gating_double import FC, F, GatingDouble, K
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.buffer import TimedRolloutBuffer
from agents.networks import CandidatePolicy, Gate, ObservationEncoder


@pytest.fixture(scope="module")
def policy():
    env = GatingDouble()
    torch.manual_seed(0)
    return CandidatePolicy(env.observation_space, env.action_space, lambda _: 1e-3, hidden=16)


def batch(seed, n=5):
    random = np.random.default_rng(seed)
    mask = (random.random((n, K + 1)) < 0.5).astype(np.int8)
    mask[:, 0] = 1
    return [torch.as_tensor(part) for part in (
        random.normal(size=(n, FC)).astype(np.float32), random.normal(size=(n, K, F)).astype(np.float32), mask)]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_permuting_candidates_permutes_logits_and_leaves_hold_and_value(policy, seed):
    cluster, candidates, mask = batch(seed)
    order = torch.as_tensor(np.random.default_rng(seed).permutation(K))
    gate = Gate(policy)
    moved = torch.cat([mask[:, :1], mask[:, 1:][:, order]], dim=1)
    with torch.inference_mode():
        before = gate(cluster, candidates, mask)[1]
        after = gate(cluster, candidates[:, order], moved)[1]
        values = [policy.predict_values({"cluster": cluster, "candidates": c, "action_mask": m})
                  for c, m in ((candidates, mask), (candidates[:, order], moved))]
    torch.testing.assert_close(after[:, 0], before[:, 0])
    torch.testing.assert_close(after[:, 1:], before[:, 1:][:, order])
    torch.testing.assert_close(*values)


def test_padding_and_illegal_candidates_do_not_matter(policy):
    cluster, candidates, mask = batch(3)
    noisy = torch.where(mask[:, 1:, None] > 0, candidates, candidates + 100.0)
    with torch.inference_mode():
        torch.testing.assert_close(Gate(policy)(cluster, candidates, mask)[1], Gate(policy)(cluster, noisy, mask)[1])


def test_gate_never_takes_an_illegal_action(policy):
    cluster, candidates, mask = batch(4, n=500)
    mask[:, 0] = 0
    mask[:, 1] = 1
    with torch.inference_mode():
        chosen = Gate(policy)(cluster, candidates * 50, mask)[0]
    assert bool((mask.gather(1, chosen[:, None]) > 0).all())


def test_scaling_is_that_of_all_legal_rows_in_any_grouping():
    space = GatingDouble().observation_space
    parts = [batch(seed, n=40) for seed in range(3)]
    encoder = ObservationEncoder(space)
    for cluster, candidates, mask in parts:
        encoder.update({"cluster": cluster.numpy(), "candidates": candidates.numpy(), "action_mask": mask.numpy()})
    rows = np.concatenate([c.numpy()[m.numpy()[:, 1:] > 0] for _, c, m in parts])
    np.testing.assert_allclose(encoder.candidates.mean.numpy(), rows.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(encoder.candidates.deviation.numpy(), rows.std(0), rtol=1e-5)
    clusters = np.concatenate([c.numpy() for c, _, _ in parts])
    np.testing.assert_allclose(encoder.cluster.mean.numpy(), clusters.mean(0), rtol=1e-5, atol=1e-6)


def filled(elapsed_s, rewards, episode_starts, discount, trace):
    env = GatingDouble()
    n = len(rewards)
    buffer = TimedRolloutBuffer(n, env.observation_space, env.action_space, "cpu", n_envs=1,
                                discount_per_s=discount, trace_per_s=trace)
    buffer.reset()
    buffer.rewards[:, 0], buffer.elapsed_s[:, 0] = rewards, elapsed_s
    buffer.episode_starts[:, 0] = episode_starts
    buffer.values[:, 0] = np.arange(n)
    return buffer


def test_equal_steps_give_the_ordinary_advantages():
    """With Δt constant, γ^Δt and λ^Δt are constants, and Stable-Baselines3's own recursion must agree."""
    random = np.random.default_rng(0)
    starts = np.zeros(30)
    starts[[0, 11]] = 1
    timed = filled(np.full(30, 0.5), random.normal(size=30), starts, 0.81, 0.64)
    plain = filled(np.full(30, 0.5), timed.rewards[:, 0], starts, 0.81, 0.64)
    plain.gamma, plain.gae_lambda = 0.9, 0.8
    super(TimedRolloutBuffer, plain).compute_returns_and_advantage(torch.tensor([2.0]), np.array([False]))
    timed.compute_returns_and_advantage(torch.tensor([2.0]), np.array([False]))
    np.testing.assert_allclose(timed.advantages, plain.advantages, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(timed.returns, plain.returns, rtol=1e-5, atol=1e-5)


def test_a_reward_is_discounted_by_the_time_until_it_comes():
    """A reward of 1 after three steps of 1, 2 and 4 seconds (λ = 1, values 0) is worth γ^(1 + 2) at the first."""
    buffer = filled([1.0, 2.0, 4.0], [0.0, 0.0, 1.0], [1, 0, 0], 0.5, 1.0)
    buffer.values[:] = 0.0
    buffer.compute_returns_and_advantage(torch.tensor([0.0]), np.array([True]))
    np.testing.assert_allclose(buffer.returns[:, 0], [0.5**3, 0.5**2, 1.0])


def test_lean_vectoriser_steps_as_stable_baselines3s():
    from gating_double import CONFIG
    from stable_baselines3.common.vec_env import DummyVecEnv

    from agents.environments import training_makers
    from agents.vector import LeanVecEnv

    ours, theirs = (kind(training_makers(CONFIG, 3, seed=1)) for kind in (LeanVecEnv, DummyVecEnv))
    ours.reset(), theirs.reset()
    random = np.random.default_rng(0)
    for _ in range(90):  # past two ends of episodes
        masks = np.stack(ours.env_method("action_masks"))
        assert np.array_equal(masks, np.stack(theirs.env_method("action_masks")))
        actions = np.where(masks, random.random(masks.shape), -1).argmax(1)
        one, two = ours.step(actions), theirs.step(actions)
        for key in one[0]:
            assert np.array_equal(one[0][key], two[0][key])
        assert np.array_equal(one[1], two[1]) and np.array_equal(one[2], two[2])
        for a, b in zip(one[3], two[3], strict=True):
            assert set(a) == set(b) and a["TimeLimit.truncated"] == b["TimeLimit.truncated"]
