"""The length predictor: right without error, as wrong as is asked for, and absent unless it is asked for."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import FlattenObservation

import ooco_gym
from ooco_gym.envs import buffers as b
from ooco_gym.envs.revealing import KEY, LIMIT, RevealLengths, RevealLengthsVector
from ooco_gym.sim import state as s
from ooco_gym.sim.loop import look

SHORT: dict[str, Any] = {"window_s": 40.0, "warmup_s": 20.0}


def make(name: str, **arguments: Any) -> Any:
    return gym.make(f"ooco_gym/{name}-v0", **{**SHORT, **arguments})


def asked_of(env: Any) -> list[int]:
    """The requests that the candidates are, from what the environment would do with them."""
    episodes = env.unwrapped.episodes
    state, kind = env.unwrapped.simulation.state, int(episodes.buffers.turns[0, b.KIND])
    chosen = [int(one) for one in episodes.buffers.chosen[0] if one >= 0]
    if kind == s.EVICT:
        return [int(state.picks[one]) for one in chosen]
    return chosen if kind in (s.GATE, s.PULL, s.INTERRUPT) else [int(state.pending.request)] * len(chosen)


@pytest.mark.parametrize("name", ["Gating", "Eviction", "Migration", "Preemption", "Routing", "Colocation", "Packing"])
def test_a_predictor_without_error_gives_the_true_lengths(name: str) -> None:
    env = RevealLengths(make(name), error=0.0)
    observation: Any = env.reset(seed=2, options={"window": 1})[0]
    random, seen = np.random.default_rng(0), 0
    for _ in range(80):
        assert env.observation_space.contains(observation)
        inside: Any = env.unwrapped
        if int(inside.episodes.buffers.turns[0, b.KIND]) >= b.CLOCK:
            assert not observation[KEY].any()
        else:
            rows = look(inside.simulation.state).requests
            left = [max(1, int(rows["output_tokens"][slot]) - int(rows["generated_tokens"][slot]))
                    for slot in asked_of(env)] if inside.episodes.open(0) else []
            wanted = np.minimum(1.0, np.log1p(left) / np.log1p(LIMIT))
            there = ooco_gym.candidate_table(observation["candidates"])[:, 0] > 0
            assert observation[KEY][there] == pytest.approx(wanted, abs=1e-6)
            assert not observation[KEY][~there].any()
            seen += len(left)
        over = False
        if inside.episodes.open(0):
            observation, _, _, over, _ = env.step(int(random.choice(np.flatnonzero(inside.action_masks()))))
        if over:
            break
    assert seen or name == "Packing"


def test_the_predictors_error_has_the_given_spread() -> None:
    env = RevealLengths(make("Gating"), error=0.5)
    env.reset(seed=2)
    factors = np.log(env._predictor._factors(0))
    assert factors.mean() == pytest.approx(0.0, abs=0.05) and factors.std() == pytest.approx(0.5, rel=0.05)
    first = factors.copy()
    env.reset(seed=2)
    assert np.array_equal(np.log(env._predictor._factors(0)), first)
    env.reset(seed=3)
    assert not np.array_equal(np.log(env._predictor._factors(0))[:100], first[:100])


def test_the_vector_wrapper_predicts_the_same_and_has_the_key_in_final_obs() -> None:
    vector = RevealLengthsVector(gym.make_vec("ooco_gym/Gating-v0", 2, vectorization_mode="vector_entry_point",
                                              autoreset_mode="SameStep", window_s=5.0, warmup_s=20.0), error=0.4)
    single = RevealLengths(make("Gating", window_s=5.0), error=0.4)
    observations: Any = vector.reset(seed=6)[0]
    observation: Any = single.reset(seed=7)[0]
    over = False
    while not over:
        assert vector.observation_space.contains(observations)
        assert np.array_equal(observations[KEY][1], observation[KEY])
        observations, _, _, truncated, infos = vector.step(np.ones(2, int))
        observation, _, _, over, _ = single.step(1)
    assert truncated[1] and KEY in infos["final_obs"][1]


def test_a_pickled_wrapped_vector_goes_on_alike() -> None:
    vector: Any = RevealLengthsVector(gym.make_vec("ooco_gym/Gating-v0", 2, vectorization_mode="vector_entry_point",
                                                   **SHORT), error=0.4)
    vector.reset(seed=6)
    copy: Any = pickle.loads(pickle.dumps(vector))
    for _ in range(5):
        mine, other = (one.step(np.ones(2, int))[0] for one in (vector, copy))
        assert np.array_equal(mine[KEY], other[KEY]) and mine[KEY].any()


def test_the_wrapper_flattens_pickles_and_is_in_the_spec() -> None:
    env = RevealLengths(make("Gating"), error=0.2)
    other = pickle.loads(pickle.dumps(env))
    first: Any = env.reset(seed=1)[0]
    second: Any = other.reset(seed=1)[0]
    assert np.array_equal(first[KEY], second[KEY])
    flat = FlattenObservation(env)
    assert flat.observation_space.contains(flat.reset(seed=1)[0])
    assert env.spec is not None
    again: Any = gym.make(env.spec)
    assert np.array_equal(again.reset(seed=1)[0][KEY], first[KEY])


def test_wrapping_other_environments_is_refused() -> None:
    with pytest.raises(ooco_gym.UserError, match="no environment of ooco_gym"):
        RevealLengths(gym.make("CartPole-v1"))
    with pytest.raises(ooco_gym.UserError, match="FlattenObservation"):
        RevealLengths(FlattenObservation(make("Gating")))
    with pytest.raises(ooco_gym.UserError, match="error"):
        RevealLengths(make("Gating"), error=-1.0)
