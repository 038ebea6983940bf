"""The scorer's symmetry, the scaling of observations, and discounting by simulated time."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer

from agents.environments import OBSERVATION_KEYS
from agents.learning.models import CandidatePolicy, TimedRolloutBuffer
from agents.policies.networks import Actor, ObservationEncoder, check_action_space, check_observation_space
from ooco_gym.errors import UserError
from tests.agents.gating_double import FC, FIXED, A, D, F, GatingDouble, K


def policy_of(kind=CandidatePolicy, action_space=None, **more):
    env = GatingDouble()
    torch.manual_seed(0)
    made = kind(env.observation_space, action_space or env.action_space, lambda _: 1e-3, hidden=16, **more)
    for parameter in made.parameters():  # away from the nearly uniform start, so that differences show
        if parameter.dim() > 1:
            torch.nn.init.orthogonal_(parameter)
    return made


@pytest.fixture(scope="module")
def policy():
    return policy_of()


def batch(seed, n=5):
    random = np.random.default_rng(seed)
    mask = (random.random((n, A)) < 0.5).astype(np.int8)
    mask[:, 0] = 1
    return [torch.as_tensor(part) for part in (
        random.normal(size=(n, FC)).astype(np.float32), random.normal(size=(n, K, F)).astype(np.float32), mask,
        np.eye(D, dtype=np.float32)[random.integers(0, D, n)])]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_permuting_candidates_permutes_logits_and_leaves_fixed_actions_and_value(policy, seed):
    cluster, candidates, mask, decision = batch(seed)
    order = torch.as_tensor(np.random.default_rng(seed).permutation(K))
    actor = Actor.of(policy)
    moved = torch.cat([mask[:, :FIXED], mask[:, FIXED:][:, order]], dim=1)
    with torch.inference_mode():
        before = actor(cluster, candidates, mask, decision)[1]
        after = actor(cluster, candidates[:, order], moved, decision)[1]
        values = [policy.predict_values(dict(zip(OBSERVATION_KEYS, (cluster, c, m, decision), strict=True)))
                  for c, m in ((candidates, mask), (candidates[:, order], moved))]
    torch.testing.assert_close(after[:, :FIXED], before[:, :FIXED])
    torch.testing.assert_close(after[:, FIXED:], before[:, FIXED:][:, order])
    torch.testing.assert_close(*values)


def test_padding_and_illegal_candidates_do_not_matter(policy):
    cluster, candidates, mask, decision = batch(3)
    noisy = torch.where(mask[:, FIXED:, None] > 0, candidates, candidates + 100.0)
    actor = Actor.of(policy)
    with torch.inference_mode():
        torch.testing.assert_close(actor(cluster, candidates, mask, decision)[1],
                                   actor(cluster, noisy, mask, decision)[1])


def test_the_decision_that_is_due_matters_to_actor_and_critic(policy):
    cluster, candidates, mask, decision = batch(5)
    other = decision.flip(1)
    with torch.inference_mode():
        one, two = (Actor.of(policy)(cluster, candidates, mask, due)[1] for due in (decision, other))
        values = [policy.predict_values(dict(zip(OBSERVATION_KEYS, (cluster, candidates, mask, due), strict=True)))
                  for due in (decision, other)]
    assert bool((one != two)[mask > 0].any()) and bool((values[0] != values[1]).all())


def test_actor_never_takes_an_illegal_action(policy):
    cluster, candidates, mask, decision = batch(4, n=500)
    mask[:, 0] = 0
    mask[:, FIXED] = 1
    with torch.inference_mode():
        chosen = Actor.of(policy)(cluster, candidates * 50, mask, decision)[0]
    assert bool((mask.gather(1, chosen[:, None]) > 0).all())


def test_without_masks_from_the_algorithm_the_policy_still_draws_legal_actions():
    policy, observations = policy_of(), batch(8, n=500)
    with torch.inference_mode():
        drawn = policy(dict(zip(OBSERVATION_KEYS, observations, strict=True)))[0]
    assert bool((observations[2].gather(1, drawn[:, None]) > 0).all()) and len(set(drawn.tolist())) > 5


def test_a_vector_of_levels_has_a_head_for_each_parameter():
    levels = [5] * (K - 1) + [3]
    env = GatingDouble()
    space = spaces.Dict({**env.observation_space.spaces, "action_mask": spaces.Box(0, 1, (sum(levels),), np.int8)})
    torch.manual_seed(0)
    policy = CandidatePolicy(space, spaces.MultiDiscrete(levels), lambda _: 1e-3, hidden=16)
    cluster, candidates, _, decision = batch(9)
    mask = torch.ones(5, sum(levels), dtype=torch.int8)
    mask[:, 5] = 0  # the lowest level of the second parameter
    with torch.inference_mode():
        actions, logits = Actor.of(policy)(cluster, candidates, mask, decision)
        alike, _ = Actor.of(policy)(cluster, torch.zeros_like(candidates), mask, decision)
    assert actions.shape == (5, K) and logits.shape == (5, sum(levels))
    assert bool((actions < torch.tensor(levels)).all()) and bool((actions[:, 1] > 0).all())
    assert len(set(alike[0].tolist())) > 1  # parameters are told apart by their places


def test_other_actions_than_those_that_can_be_learned_are_refused_with_what_to_do():
    with pytest.raises(UserError, match="Box actions, which this agent cannot learn: expected Discrete or"):
        check_action_space(spaces.Box(0, 1, (2,)), "any")
    check_action_space(spaces.MultiDiscrete([5, 5]), "any")
    check_action_space(spaces.Discrete(3), "any")


def test_scaling_is_that_of_all_legal_rows_in_any_grouping():
    space = GatingDouble().observation_space
    parts = [batch(seed, n=40) for seed in range(3)]
    encoder = ObservationEncoder(space)
    for cluster, candidates, mask, _ in parts:
        encoder.update({"cluster": cluster.numpy(), "candidates": candidates.numpy(), "action_mask": mask.numpy()})
    rows = np.concatenate([c.numpy()[m.numpy()[:, FIXED:] > 0] for _, c, m, _ in parts])
    np.testing.assert_allclose(encoder.candidates.mean.numpy(), rows.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(encoder.candidates.deviation.numpy(), rows.std(0), rtol=1e-5)
    clusters = np.concatenate([c.numpy() for c, _, _, _ in parts])
    np.testing.assert_allclose(encoder.cluster.mean.numpy(), clusters.mean(0), rtol=1e-5, atol=1e-6)


def test_candidates_row_by_row_are_the_same_to_a_network():
    """Environments of this package give them so; those of others may give the table."""
    shape, random = (3, 5), np.random.default_rng(0)
    low = random.uniform(-1.0, 0.0, 5).astype(np.float32)
    others = {"cluster": spaces.Box(0, 1, (2,)), "action_mask": spaces.MultiBinary(5),
              "decision": spaces.Box(0, 1, (1,))}
    seen = {"cluster": random.random((9, 2)), "candidates": random.random((9, *shape)),
            "action_mask": np.ones((9, 5)), "decision": np.ones((9, 1))}
    found = []
    for size in (shape, (shape[0] * shape[1],)):
        box = spaces.Box(np.resize(low, size), np.ones(size, np.float32))
        encoder = ObservationEncoder(spaces.Dict({**others, "candidates": box}))
        given_so = {**seen, "candidates": seen["candidates"].reshape(9, *size)}
        encoder.update(given_so)
        found.append((encoder, encoder({key: torch.as_tensor(part) for key, part in given_so.items()})))
    assert torch.equal(found[0][1], found[1][1]) and torch.equal(found[0][0].candidates.floor,
                                                                 found[1][0].candidates.floor)


@pytest.mark.parametrize("shape", [(0,), (50,), (2, 3, 17)])
def test_candidates_of_another_shape_are_refused(shape):
    space = GatingDouble().observation_space
    with pytest.raises(UserError, match="must have 8 candidates a row"):
        check_observation_space(spaces.Dict({**space.spaces, "candidates": spaces.Box(0, 1, shape)}))


def filled(elapsed_s, rewards, episode_starts, discount, trace):
    env = GatingDouble()
    n = len(rewards)
    buffer = TimedRolloutBuffer(n, env.observation_space, env.action_space, "cpu", n_envs=1,
                                discount_per_s=discount, gae_lambda_per_s=trace)
    buffer.reset()
    buffer.rewards[:, 0] = buffer.paid[:, 0] = rewards
    buffer.elapsed_s[:, 0] = elapsed_s
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
    MaskableDictRolloutBuffer.compute_returns_and_advantage(plain, torch.tensor([2.0]), np.array([False]))
    timed.compute_returns_and_advantage(torch.tensor([2.0]), np.array([False]))
    np.testing.assert_allclose(timed.advantages, plain.advantages, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(timed.returns, plain.returns, rtol=1e-5, atol=1e-5)


def test_a_reward_is_discounted_by_the_time_until_it_comes():
    """A reward of 1 after three steps of 1, 2 and 4 seconds (λ = 1, values 0) is worth γ^(1 + 2) at the first."""
    buffer = filled([1.0, 2.0, 4.0], [0.0, 0.0, 1.0], [1, 0, 0], 0.5, 1.0)
    buffer.values[:] = 0.0
    buffer.compute_returns_and_advantage(torch.tensor([0.0]), np.array([True]))
    np.testing.assert_allclose(buffer.returns[:, 0], [0.5**3, 0.5**2, 1.0])
