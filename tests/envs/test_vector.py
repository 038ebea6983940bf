"""N native episodes equal N single environments, transition by transition, in every autoreset mode."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces.utils import flatten, flatten_space, unflatten
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from agents.environments import make_env
from ooco_gym import UserError
from ooco_gym.policy import spelling_of
from tests.envs.episodes_in_short import IDS, alike, arguments, at_random, make, play, random_legal

BRIEF: dict[str, Any] = {"window_s": 12.0, "warmup_s": 20.0}
BRIEF_OF = {"ooco_gym/OnlineTuning-v1": {"interval_s": 2.0}, "ooco_gym/RuleChoice-v1": {"interval_s": 2.0},
            "ooco_gym/Admission-v2": {"interval_s": 2.0}, "ooco_gym/Serving-v1": {"window_s": 1.0},
            "ooco_gym/Jobs-v1": {"warmup_s": 60.0}}  # until no seat is free
MODES = tuple(AutoresetMode)
FEW = {"deadline": None, "suppress_health_check": list(HealthCheck), "max_examples": 1, "derandomize": True,
       "phases": [Phase.generate]}


def brief(name):
    return arguments(name, **{**BRIEF, **BRIEF_OF.get(name, {})})


def native(name, count, mode=AutoresetMode.NEXT_STEP, **changes):
    env: Any = gym.make_vec(name, num_envs=count, autoreset_mode=mode, **{**brief(name), **changes})
    return env


def maker(name):
    return lambda: gym.make(name, disable_env_checker=True, **brief(name))


def filled(infos, like):
    """Vector infos with what `like` has and they lack: there, but for no slot."""
    whole = dict(infos)
    for key, value in like.items():
        if isinstance(value, dict):
            whole[key] = filled(whole.get(key, {}), value)
        elif key not in whole:
            whole[key] = np.zeros_like(value)
    return whole


def assert_of_the_reset(mine, other, places):
    """Infos of a reset of some places: the same there."""
    for key in ("action_mask", "elapsed_s"):
        assert np.array_equal(mine[key][places], other[key][places])
        assert mine[f"_{key}"][places].all() and other[f"_{key}"][places].all()


def actions_of(random, singles):
    """Legal actions at random, (N,) or (N, P)."""
    return np.array([random_legal(random, env) for env in singles])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", IDS)
@settings(**FEW)
@given(seed=st.integers(0, 2**30), count=st.integers(1, 4), draws=st.integers(0, 2**30))
def test_native_episodes_are_those_of_gymnasiums_vector(name, mode, seed, count, draws):
    ours = native(name, count, mode)
    theirs: Any = SyncVectorEnv([maker(name)] * count, autoreset_mode=mode)
    singles = [env.unwrapped for env in theirs.envs]
    assert theirs.observation_space == ours.observation_space and theirs.action_space == ours.action_space
    random, ends = np.random.default_rng(draws), 0
    results = [env.reset(seed=seed) for env in (ours, theirs)]
    assert alike(*results)
    for _ in range(300):
        actions = actions_of(random, singles)
        mine, other = ours.step(actions), theirs.step(actions)
        assert alike(mine[:4], other[:4])
        assert alike(filled(mine[4], other[4]), filled(other[4], mine[4]))
        assert np.array_equal(ours.action_masks(), np.array([env.action_masks() for env in singles]))
        over = mine[3]
        ends += int(over.sum())
        if ends > 2 * count:
            break
        if mode == AutoresetMode.DISABLED and over.any():
            with pytest.raises(UserError, match="are over"):
                ours.step(actions)
            results = [env.reset(options={"reset_mask": over.copy()}) for env in (ours, theirs)]
            assert alike(results[0][0], results[1][0])
            assert_of_the_reset(results[0][1], results[1][1], over)
            assert np.array_equal(results[0][1]["action_mask"], ours.action_masks()), "the others' masks hold still"
    assert ends > 0


@pytest.mark.parametrize("mode", MODES)
def test_max_episode_steps_truncates_as_the_wrapper_does(mode):
    name = "ooco_gym/PrefillGate-v1"
    spec = gym.spec(name)
    limited = gym.envs.registration.EnvSpec(id="ooco_gym/Limited-v0", entry_point=spec.entry_point,
                                            vector_entry_point=spec.vector_entry_point, max_episode_steps=7)
    gym.registry[limited.id] = limited
    try:
        ours: Any = gym.make_vec(limited.id, num_envs=2, autoreset_mode=mode, **brief(name))
        theirs: Any = SyncVectorEnv([lambda: gym.make(limited.id, disable_env_checker=True, **brief(name))] * 2,
                                    autoreset_mode=mode)
        assert alike(ours.reset(seed=3), theirs.reset(seed=3))
        for turn in range(1, 20):
            actions = ours.base_actions()
            mine, other = ours.step(actions), theirs.step(actions)
            assert alike(mine[:4], other[:4])
            assert alike(filled(mine[4], other[4]), filled(other[4], mine[4]))
            period = 8 if mode == AutoresetMode.NEXT_STEP else 7
            assert mine[3].all() == (turn % period == 7 % period)
            if mode == AutoresetMode.DISABLED and mine[3].any():
                both = [env.reset(options={"reset_mask": mine[3].copy()}) for env in (ours, theirs)]
                assert alike(both[0][0], both[1][0])
    finally:
        del gym.registry[limited.id]


@pytest.mark.parametrize("name", IDS)
def test_rule_actions_and_masks_are_those_of_single_environments(name):
    ours, singles = native(name, 3), [make(name, **{**BRIEF, **BRIEF_OF.get(name, {})}) for _ in range(3)]
    ours.reset(seed=5, options={"window": [4, 0, 2]})
    for place, (env, window) in enumerate(zip(singles, (4, 0, 2), strict=True)):
        env.reset(seed=5 + place, options={"window": window})
    assert ours.windows == [(5, 4), (6, 0), (7, 2)]
    rule = "ooco" if singles[0].episodes.controls is None else spelling_of(singles[0].config.base_policy)
    assert np.array_equal(ours.rule_actions(rule), [env.rule_action(rule) for env in singles])
    assert np.array_equal(ours.action_masks(), [env.action_masks() for env in singles])
    assert ours.action_masks().dtype == bool
    assert ours.summary(1) == singles[1].summary()


def test_batches_of_wrong_shape_are_refused():
    env = native("ooco_gym/PrefillGate-v1", 2, AutoresetMode.DISABLED)
    with pytest.raises(UserError, match="before step"):
        env.step(np.zeros(2, int))
    with pytest.raises(UserError, match="reset_mask.*first reset"):
        env.reset(seed=1, options={"reset_mask": np.array([True, False])})
    env.reset(options={"reset_mask": np.ones(2, bool)})
    env.reset(seed=1)
    for wrong in (np.zeros(3, int), np.zeros(2), 1, None, np.zeros((2, 1), int), ["a", "b"], [10**30, 1]):
        with pytest.raises(UserError, match="actions of shape"):
            env.step(wrong)
    for mask in (np.zeros(2, bool), np.ones(3, bool), np.ones(2, int)):
        with pytest.raises(UserError, match="reset_mask"):
            env.reset(options={"reset_mask": mask})
    with pytest.raises(UserError, match="3 entries"):
        env.reset(seed=[1, 2, 3])


def arrays_of(result):
    """All arrays that a step returned."""
    observations, rewards, terminated, truncated, infos = result
    return [*observations.values(), rewards, terminated, truncated,
            *(value for key, value in infos.items() if not key.startswith("_"))]


@pytest.mark.parametrize("name", IDS)
def test_a_step_returns_copies(name):
    """No array of a step is written to by a later one, nor can be by way of another array or of the next step."""
    env = native(name, 3)
    env.reset(seed=1)
    first, later = (env.step(env.unwrapped.base_actions()) for _ in range(2))
    kept = pickle.loads(pickle.dumps(later))
    for array in arrays_of(first):
        array[...] = 1
    assert alike(kept, later) and alike(env.action_masks(), later[0]["action_mask"] > 0)
    for array in arrays_of(later):
        array[...] = 2
        assert sum(bool(np.shares_memory(array, other)) for other in arrays_of(later)) == 1
    again = env.step(env.unwrapped.base_actions())
    assert set(again[4]["action_mask"].ravel()) <= {0, 1} and set(again[0]["action_mask"].ravel()) <= {0, 1}


@pytest.mark.parametrize("mode", AutoresetMode)
def test_illegal_actions_are_counted_as_in_gymnasiums_vector(mode):
    """Of two episodes side by side one takes illegal actions: its infos and its summary say so, the other's do not."""
    name = "ooco_gym/PrefillGate-v1"
    envs = native(name, 2, mode), SyncVectorEnv([maker(name)] * 2, autoreset_mode=mode)
    seen: list[list[Any]] = [[], []]
    for env, mine in zip(envs, seen, strict=True):
        env.reset(seed=3)
        for turn in range(3000):
            *_, over, info = env.step(np.array([10**6 if turn % 3 == 0 else 1, 1]))
            last = info.get("final_info", {}).get("summary") or info.get("summary") or {}
            there = last.get("_illegal_actions", np.zeros(2, bool))
            for one in (info, info.get("final_info", {})):
                if one.get("_illegal_action", there).any() and "illegal_action" in one:
                    mine.append((turn, one["illegal_action"].tolist(), one["_illegal_action"].tolist()))
            if there.any():
                mine.append((last["illegal_actions"].tolist(), there.tolist()))
                break
            if mode == AutoresetMode.DISABLED and over.any():
                env.reset(options={"reset_mask": over})
    assert seen[0] == seen[1] and seen[0][-1][1] == [True, False] and seen[0][-1][0][0] >= 1


def test_a_vector_in_the_midst_of_its_episodes_pickles():
    env = native("ooco_gym/Colocation-v1", 2, AutoresetMode.SAME_STEP)
    env.reset(seed=4)
    for _ in range(20):
        env.step(env.base_actions())
    copy = pickle.loads(pickle.dumps(env))
    for turn in range(80):
        actions = np.array([turn % 3, 1])
        assert alike(env.step(actions), copy.step(actions))


# --- `flat=True`: one vector for an observation, equal to Gymnasium's own flattening, in one episode and in many -----
GATING = "ooco_gym/PrefillGate-v1"
BRIEF_FLAT: dict[str, Any] = {"window_s": 12.0, "warmup_s": 20.0}


@pytest.mark.parametrize("name", IDS)
def test_an_observation_is_what_gymnasium_makes_of_the_parts(name: str) -> None:
    parts, flat = make(name), make(name, flat=True)
    assert flat.observation_space == flatten_space(parts.observation_space)
    assert flat.observation_space.dtype == np.float32 and flat.parts_space == parts.observation_space
    ours, theirs = play(flat, at_random(1), most=40), play(parts, at_random(1), most=40)
    for one, other in zip(ours, theirs, strict=True):
        assert one.observation.dtype == np.float32
        assert np.array_equal(one.observation, flatten(parts.observation_space, other.observation))
        assert alike(unflatten(flat.parts_space, one.observation), other.observation)
        assert alike(one[1:], other[1:]), "all else is the same, the mask in the info as well"
    assert np.array_equal(flat.action_masks(), parts.action_masks())


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("name", [GATING, "ooco_gym/OnlineTuning-v1"])
def test_a_vector_of_them_is_gymnasiums_of_single_ones(name: str, mode: AutoresetMode) -> None:
    given = arguments(name, **BRIEF_FLAT, flat=True)
    ours: Any = gym.make_vec(name, num_envs=3, vectorization_mode="vector_entry_point", autoreset_mode=mode, **given)
    theirs: Any = SyncVectorEnv([lambda: gym.make(name, disable_env_checker=True, **given)] * 3, autoreset_mode=mode)
    assert ours.observation_space == theirs.observation_space
    assert alike(ours.reset(seed=1)[0], theirs.reset(seed=1)[0])
    ended = 0
    for _ in range(400):
        actions = ours.base_actions()
        mine, other = ours.step(actions), theirs.step(actions)
        assert alike(mine[:4], other[:4])
        over = mine[3]
        ended += int(over.sum())
        if mode == AutoresetMode.SAME_STEP:
            for i in np.flatnonzero(over):
                assert alike(mine[4]["final_obs"][i], other[4]["final_obs"][i])
        if mode == AutoresetMode.DISABLED and over.any():
            both = [env.reset(options={"reset_mask": over.copy()})[0] for env in (ours, theirs)]
            assert alike(*both)
        if ended > 4:
            break
        if not (mode == AutoresetMode.DISABLED and over.any()):
            assert np.array_equal(ours.action_masks(), mine[4]["action_mask"] > 0)
    assert ended > 0


def test_what_needs_the_parts_says_so() -> None:
    with pytest.raises(UserError, match="env.flat=true: commands need the parts of an observation"):
        make_env({"id": GATING, "flat": True})
