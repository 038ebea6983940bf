"""What every environment keeps of Gymnasium's, Stable-Baselines3's and our own conventions."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import warnings
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env

from ooco_gym import UserError, candidate_table
from ooco_gym.envs import ENVIRONMENTS
from ooco_gym.errors import FORMER
from ooco_gym.resources import load_yaml
from tests.envs.episodes_in_short import IDS, WINDOW, alike, arguments, at_random, base_policy, make, play, random_legal

# Run in a process of its own, with nothing but what `pip install ooco-gym` brings.
BARE = """
import sys
for name in ("torch", "hydra", "plotly", "pandas", "scipy", "wandb", "stable_baselines3", "sb3_contrib"):
    sys.modules[name] = None
import gymnasium as gym
env = gym.make("ooco_gym:ooco_gym/PrefillGate-v1", window_s=20.0, warmup_s=10.0)
env.reset(seed=1)
print(*env.step(1)[2:4], "ooco_gym" in sys.modules)
"""


@contextmanager
def warnings_as_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".*is out of date. You should consider upgrading")  # a newer version is there
        yield


@pytest.mark.parametrize("name", IDS)
def test_gymnasiums_checker_passes(name):
    with warnings_as_errors():
        check_env(gym.make(name, render_mode="ansi", **arguments(name)).unwrapped)


@pytest.mark.parametrize("name", IDS)
def test_stable_baselines_checker_passes(name):
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    with warnings_as_errors():
        env = gym.make(name, **arguments(name))
        checker.check_env(env)
        checker.check_env(env.unwrapped)


def test_what_was_not_measured_of_chips_is_in_the_info_of_a_reset():
    env = gym.make("ooco_gym/PrefillGate-v1", window_s=20.0, warmup_s=10.0)
    assert any(one.startswith("chip 'ascend_910c': not measured") for one in env.reset(seed=1)[1]["notes"])
    assert "notes" not in env.step(1)[4]
    envs = gym.make_vec("ooco_gym/PrefillGate-v1", 2, vectorization_mode="vector_entry_point", window_s=20.0,
                        warmup_s=10.0)
    info = envs.reset(seed=1)[1]
    assert list(info["notes"]) == [env.reset(seed=1)[1]["notes"]] * 2 and info["_notes"].all()
    measured = gym.make("ooco_gym/PrefillGate-v1", window_s=20.0, warmup_s=10.0, cluster="pair_h100_8b")
    assert "notes" not in measured.reset(seed=1)[1]


def test_the_core_installation_makes_an_environment_by_its_module_prefix():
    done = subprocess.run([sys.executable, "-W", "error:chip", "-c", BARE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "True"]


@pytest.mark.parametrize("name", IDS)
def test_specs_survive_json_and_pickling(name):
    spec = gym.make(name, **arguments(name, candidates=5)).spec
    assert spec is not None
    for again in (EnvSpec.from_json(spec.to_json()), pickle.loads(pickle.dumps(spec))):
        made = gym.make(again).unwrapped
        assert made.config.candidates == min(5, made.most_candidates)
        assert made.config.window_s == arguments(name)["window_s"]


@pytest.mark.parametrize("name", IDS)
def test_every_part_has_one_axis_and_candidates_become_a_table_without_a_copy(name):
    """Row by row, as the simulator has them, in one episode and in many."""
    env, envs = make(name), gym.make_vec(name, num_envs=3, vectorization_mode="vector_entry_point", **arguments(name))
    assert {len(space.shape) for space in env.observation_space.values()} == {1}
    for observed, made in ((env.reset(seed=1)[0], env), (envs.reset(seed=1)[0], envs.unwrapped)):
        within = made.episodes.buffers.candidates
        shown = candidate_table(observed, parameters(env))
        assert np.shares_memory(shown, observed["candidates"]) and not np.shares_memory(shown, within)
        assert np.array_equal(shown, within if made is not env else within[0])
        assert observed["candidates"].shape == (*within.shape[:0 if made is env else 1], within[0].size)


@pytest.mark.parametrize("shape", [(), (0,), (16,), (3, 18)])
def test_candidate_table_refuses_other_shapes(shape):
    with pytest.raises(UserError, match="must have 5 candidates a row; .* give parameters="):
        candidate_table({"candidates": np.zeros(shape), "action_mask": np.ones(7)})
    with pytest.raises(UserError, match="expected an observation"):
        candidate_table(np.zeros(8))


def parameters(env):
    """How many parameters an action sets; None where it is one of a few."""
    return len(env.action_space.nvec) if hasattr(env.action_space, "nvec") else None


@pytest.mark.parametrize("name", IDS)
def test_info_and_action_masks_have_the_same_mask(name):
    env = make(name)
    for step in play(env, at_random(3), most=300):
        mask = step.info["action_mask"]
        assert mask.dtype == np.int8 and mask.any()
        assert np.array_equal(mask, step.observation["action_mask"])
        assert env.observation_space.contains(step.observation)
        if not step.terminated and env.episodes.controls is None:
            assert step.observation["decision"].sum() == 1.0
            shown = candidate_table(step.observation).any(axis=1)
            assert np.array_equal(shown, mask[2:] > 0), "every candidate shown may be taken, and no other"
    assert np.array_equal(env.action_masks(), mask.astype(bool))


@pytest.mark.parametrize("name", IDS)
def test_at_least_two_answers_are_open_beside_the_base_policies(name):
    env = make(name)
    if env.episodes.controls is not None:
        pytest.skip("all levels are always legal")
    for step in play(env, at_random(4), most=500)[:-1]:
        answers = np.delete(step.info["action_mask"], 1)
        first_pick = env.episodes.buffers.status[0, 1] == 0
        assert answers.sum() >= 1 + first_pick


def wrong_actions(env):
    """Actions that the space does not hold, or the mask forbids."""
    if env.episodes.controls is not None:
        counts = env.action_space.nvec
        return [counts, -np.ones_like(counts), np.full_like(counts, 10**9), [10**30] * len(counts)]
    forbidden = np.flatnonzero(~env.action_masks())
    forbidden = forbidden[forbidden != env.base_action()]  # which is always accepted
    return [-1, -5, int(env.action_space.n), 10**12, 10**30, -(10**30), np.int64(2**62), *map(int, forbidden[:3])]


@pytest.mark.parametrize("name", [one for one in IDS if "Batching" not in one and "Serving" not in one])
def test_no_two_legal_actions_are_the_same_act(name):
    """Played from one snapshot, no action comes to what another comes to each time; the base policy's is no second
    name of one. (Ways to fill an iteration do come to the same where there is little to fill it with.)"""
    env = make(name)
    if env.episodes.controls is not None:
        pytest.skip("each level is another one")
    same, seen, random = {}, 0, at_random(6)

    def compare(one):
        nonlocal seen
        legal, state, after = np.flatnonzero(one.action_masks()), one.snapshot(), {}
        for action in legal.tolist():
            one.step(action)
            changed = one.simulation.state
            after[action] = pickle.dumps((changed.requests, changed.instances, changed.params, changed.heaps))
            one.restore(state)
        for first, second in combinations(legal.tolist(), 2):
            if after[first] == after[second]:
                same[first, second] = same.get((first, second), 0) + 1
        seen += 1
        return random(one)

    play(env, compare, most=60)
    assert seen > 10
    assert all(count < seen / 2 for count in same.values()), (same, seen)


@pytest.mark.parametrize("name", IDS)
def test_illegal_actions_do_what_the_base_policy_does(name):
    good, bad, turn = make(name), make(name), iter(range(10**6))
    right = play(good, base_policy, most=400)
    wrong = play(bad, lambda env: (options := wrong_actions(env))[next(turn) % len(options)], most=400)
    assert len(right) > 10
    for step in wrong[1:]:
        assert step.info.pop("illegal_action") is True
    if wrong[-1].over:
        assert wrong[-1].info["summary"].pop("illegal_actions") == len(wrong) - 1
    for one, other in zip(right, wrong, strict=True):
        assert alike(one[:5], other[:5]), "and what is legal has neither"


@pytest.mark.parametrize("name", IDS)
def test_invalid_actions_are_refused_and_change_nothing(name):
    env = make(name)
    env.reset(seed=WINDOW[0], options={"window": WINDOW[1]})
    wrong = [1.5, None, "1", {}, np.array([1.0]), [None], [[1]], [0] * 50]
    controls = env.episodes.controls
    short = [[0]] if controls is not None and len(controls.names) > 1 else []
    for action in [*wrong, *([0, *short] if controls is not None else [[1], np.array([1, 2])])]:
        with pytest.raises(UserError, match=r"expected an action of (Multi)?Discrete"):
            env.step(action)
    assert env.step(env.base_action())[4]["elapsed_s"] >= 0.0


@pytest.mark.parametrize("name", IDS)
def test_steps_before_the_beginning_and_after_the_end_are_refused(name):
    env = make(name)
    with pytest.raises(UserError, match="before step"):
        env.step(1)
    assert play(env, base_policy)[-1].over
    with pytest.raises(UserError, match="the episode is over"):
        env.step(env.base_action())


@pytest.mark.parametrize("name", IDS)
def test_a_pickled_episode_goes_on_as_the_original_does(name):
    env = make(name)
    play(env, at_random(5), most=5)
    copy = pickle.loads(pickle.dumps(env))
    for seed in range(2):  # the rest of this episode, and the one after it, drawn from the same stream
        one, other = np.random.default_rng(seed), np.random.default_rng(seed)
        over = False
        while not over:
            a, b = random_legal(one, env), random_legal(other, copy)
            assert np.array_equal(a, b)
            mine, others = env.step(a), copy.step(b)
            assert alike(mine, others)
            over = mine[3]
        assert alike(env.reset(), copy.reset())


def test_a_window_without_a_decision_is_one_step():
    """Nothing is evicted in a quiet window: there is a step all the same, as Gymnasium's loops expect."""
    steps = play(make("ooco_gym/Eviction-v1", scenario={"rate_scale": 0.001, "offline": {"mode": "rate", "rate": 0.1}}),
                 at_random(0))
    assert [step.terminated for step in steps] == [False, True]
    assert steps[0].info["action_mask"].tolist() == [0, 1] + [0] * 8
    assert steps[1].info["elapsed_s"] == 60.0
    assert steps[1].reward == steps[1].info["summary"]["reward_total"] > 0.0


@pytest.mark.parametrize("make_one", [gym.make, gym.make_vec])
@pytest.mark.parametrize(("former", "now"), [*FORMER["environment"].items()][4:])
def test_former_ids_say_what_they_are_called_now(former, now, make_one):
    with pytest.raises(UserError, match=f"is now '{now}'"):
        make_one(former)
    assert now in ENVIRONMENTS


@pytest.mark.filterwarnings("ignore:.*is out of date")
@pytest.mark.parametrize("now", IDS)
def test_earlier_versions_say_which_one_there_is_now(now):
    former = f"{now[:-1]}{int(now[-1]) - 1}"
    known = FORMER["environment"]
    with pytest.raises(UserError if former in known else gym.error.DeprecatedEnv, match=known.get(former, now)):
        gym.make(former)


def test_only_environments_that_can_be_made_are_listed():
    listed = [one for one in gym.registry if one.startswith("ooco_gym/")]
    printed = gym.pprint_registry(disable_print=True).split()
    assert sorted(listed) == sorted(ENVIRONMENTS) == sorted(one for one in printed if one.startswith("ooco_gym/"))


@pytest.mark.parametrize(("former", "now"), [*FORMER["env"].items()])
def test_former_names_of_configurations_say_what_they_are_called_now(former, now):
    with pytest.raises(UserError, match=f"is now '{now}'"):
        load_yaml("env", former)
    assert load_yaml("env", now)["id"] in ENVIRONMENTS


# --- In an hour of random play every feature of an observation changes, but for those that the pages name ------------
QUIET = json.loads((Path(__file__).parents[2] / "results" / "quiet_features.json").read_text(encoding="utf-8"))
HOUR_S = 3_600.0
BUSY = ("Batching-v1", "Colocation-v1", "Routing-v2", "Serving-v1")  # many decisions a second: ten minutes are played


def unchanged(name: str) -> list[str]:
    """The features of an environment that had one value throughout an hour of random play, `part.name`."""
    made = gym.make(name)
    env = made.unwrapped
    parameters = len(env.action_space.nvec) if hasattr(env.action_space, "nvec") else None
    tables = env.feature_tables()
    low = {part: np.full(len(table), np.inf) for part, table in tables.items()}
    high = {part: np.full(len(table), -np.inf) for part, table in tables.items()}
    random, played_s, seed = np.random.default_rng(0), 0.0, 0
    while played_s < (HOUR_S / 6 if name.endswith(BUSY) else HOUR_S):
        seed += 1
        observation, over = env.reset(seed=seed)[0], False
        while not over:
            table, mask = candidate_table(observation, parameters), env.action_masks()
            rows = table if parameters else table[mask[-len(table):]]
            for part, values in (("cluster", observation["cluster"][None]), ("candidates", rows)):
                if len(values):
                    low[part] = np.minimum(low[part], values.min(axis=0))
                    high[part] = np.maximum(high[part], values.max(axis=0))
            if parameters:
                action = random.integers(env.action_space.nvec)
            else:
                action = random.choice(np.flatnonzero(mask))
            observation, _, _, over, _ = env.step(action)
        played_s += env.config.window_s
    return [f"{part}.{row['name']}" for part in ("cluster", "candidates") for row, least, most in zip(
        tables[part], low[part], high[part], strict=True) if least >= most]


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_feature_changes_in_an_hour_of_random_play_but_for_those_that_pages_name(name: str) -> None:
    new = set(unchanged(name)) - set(QUIET.get(name, ()))
    assert not new, f"constant, and not listed in results/quiet_features.json: {sorted(new)}"
