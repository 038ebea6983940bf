"""Imitation of heuristics by name, and learning from what each action would have been worth."""

import numpy as np
import pytest
from gating_double import CONFIG, composed, train_config

from agents.environments import make_env
from agents.lookahead.rollout import Rollout
from agents.search.hindsight import Hindsight, collect, targets
from agents.search.imitation import teacher_of, watch
from ooco_gym import candidate_table
from ooco_gym.errors import UserError

GATING = {"id": "ooco_gym/Gating-v0", "window_s": 20.0, "warmup_s": 10.0, "candidates": 4,
          "splits": {"train": [1000, 1001], "validation": [2000], "test": [3000]}}
COLOCATION = {**GATING, "id": "ooco_gym/Colocation-v0"}


@pytest.fixture(scope="module")
def gate():
    return make_env(GATING).unwrapped


def test_a_heuristic_is_watched_by_its_name():
    seen = watch(GATING, "shortest", 200, seed=1)
    assert 200 <= len(seen["answer"]) < 260 and seen["candidates"].shape[1:] == (4 * 17,)
    offered = seen["action_mask"][:, 2:] > 0
    lengths = np.where(offered, candidate_table(seen["candidates"])[:, :, 1], np.inf)
    rows = offered.any(1)
    assert rows.any() and np.all(seen["answer"][rows] == 2 + lengths.argmin(1)[rows])


def test_each_decision_may_have_a_teacher_of_its_own():
    env = make_env(COLOCATION).unwrapped
    asked = set()
    env.reset(seed=1000)
    act = teacher_of(env, {"gate": "shortest", "interrupt": "decline"})
    shortest = teacher_of(env, "shortest")
    while env.episodes.open(0) and len(asked) < 3:
        kind = env.decisions[[d.kind for d in env.decisions].index(int(env.episodes.buffers.turns[0, 0]))].name
        expected = {"gate": shortest, "interrupt": lambda: 0}.get(kind, env.partner_action)()
        assert act() == expected
        asked.add(kind)
        env.step(act())
    assert {"gate", "interrupt"} & asked
    with pytest.raises(UserError, match="decision"):
        teacher_of(env, {"gaet": "shortest"})


def test_values_are_those_of_a_rollout_with_the_same_base(gate):
    """To the end of the episode, with the partner deciding afterwards, both play the same copies."""
    gate.reset(seed=1000)
    values = Hindsight(gate, "partner", 1e6).values()
    actions, bases, expected = Rollout(gate, bases=["partner"]).values()
    assert set(bases) == {0}
    np.testing.assert_allclose(values[actions[:, 0]], expected, rtol=1e-9)
    assert np.isnan(values[gate.episodes.buffers.mask[0] == 0]).all()


def test_playing_out_leaves_the_episode_as_it_was(gate):
    gate.reset(seed=1001)
    while not gate.episodes.buffers.mask[0, 3]:
        gate.step(gate.partner_action())
    before = {key: value.copy() for key, value in gate.snapshot().rows.items()}
    values = Hindsight(gate, "shortest", 5.0).values()
    assert np.isfinite(values[gate.episodes.buffers.mask[0] > 0]).all()
    after = gate.snapshot().rows
    assert all(np.array_equal(before[key], after[key]) for key in before)


def test_targets_lead_with_the_teacher_and_cut_what_is_far_off():
    values = np.array([[1.0, 2.0, np.nan], [0.0, 0.0, -1000.0]])
    wanted = targets(values, np.array([0, 1]), temperature=0.5, lead=3.0)
    assert wanted[0, 0] == 3.0 and wanted[1, 1] == 3.0 and np.isnan(wanted[0, 2])
    assert 0.0 < wanted[0, 1] < 0.1 and wanted[1, 2] == pytest.approx(-2 * np.sqrt(3.0)) and wanted[1, 0] == 0.0


def hindsight_config(folder, **imitate):
    config = composed(
        folder, "env=gating", "agent=ppo_hindsight", "env.window_s=20", "env.warmup_s=10", "env.candidates=4",
        "window_s=20", "agent.n_envs=2", "agent.n_steps=16", "agent.batch_size=32", "agent.hidden=16",
        "total_timesteps=64")
    config["agent"]["imitate"].update({"looks": 60, "every": 3, "horizon_s": 5.0, "workers": 1, **imitate})
    return config


def test_the_same_seed_collects_the_same_whatever_plays_beside_it():
    settings = {**hindsight_config("x")["agent"]["imitate"], "teacher": "shortest", "looks": 12}
    first, again = (collect(GATING, settings, None, seed=1, turn=0) for _ in range(2))
    assert all(np.array_equal(first[key], again[key], equal_nan=key == "values") for key in first)
    other = collect(GATING, settings, None, seed=2, turn=0)
    assert not np.array_equal(first["cluster"], other["cluster"])


def test_training_starts_from_hindsight(tmp_path):
    from agents.learning import train

    summary = train.main(hindsight_config(tmp_path, teacher="shortest", base="shortest"))
    imitation = summary["imitation"]
    assert imitation["rule"] == "hindsight" and imitation["decisions"] == 120
    assert imitation["agreement"] > 0.5 and np.isfinite(imitation["gain"]) and (tmp_path / "policy.zip").exists()


def test_where_nothing_can_be_played_out_it_says_so(tmp_path):
    from agents.learning import train

    config = train_config(tmp_path)
    config["agent"]["imitate"] = hindsight_config(tmp_path)["agent"]["imitate"]
    with pytest.raises(UserError, match="played out"):
        train.main(config)
    with pytest.raises(UserError, match="agent.imitate.looks"):
        train.main(hindsight_config(tmp_path, looks=0))


def test_a_copy_that_is_smoothed_stays_unsure(tmp_path):
    from agents.learning import train
    from agents.learning.runs import load_run

    chances = {}
    for smoothing in (0.0, 0.3):
        config = train_config(tmp_path / str(smoothing))
        config["agent"]["imitate"] = {"rule": "ooco", "decisions": 400, "epochs": 30, "learning_rate": 5e-3,
                                      "critic_first_updates": 99, "smoothing": smoothing}
        summary = train.main(config)
        assert summary["imitation"]["agreement"] > 0.8
        seen = watch(CONFIG, "ooco", 100, seed=3)
        policy = load_run(tmp_path / str(smoothing)).model.policy
        observation = policy.obs_to_tensor({key: seen[key] for key in policy.observation_space})[0]
        chances[smoothing] = policy.get_distribution(observation).distribution.probs.max(1).values.mean().item()
    assert chances[0.3] < 0.9 < chances[0.0]


def test_a_constant_of_several_controls_is_imitated_too(tmp_path):
    from agents.learning import train

    config = composed(
        tmp_path, "env=control", "env.window_s=40", "env.warmup_s=5", "window_s=40", "agent.n_envs=2",
        "agent.n_steps=8", "agent.batch_size=16", "agent.hidden=16", "agent.imitate.rule='interrupt=1,slo_margin=0.95'",
        "agent.imitate.decisions=64", "agent.imitate.epochs=40", "agent.imitate.learning_rate=0.01",
        "total_timesteps=16")
    imitation = train.main(config)["imitation"]
    assert imitation["decisions"] >= 64 and imitation["agreement"] > 0.95
