"""Groups of episodes that meet the same arrivals, and what is subtracted from their advantages."""

import csv

import numpy as np
import pytest
from gating_double import CONFIG, composed

from agents.environments import training_env
from agents.learning.advantages import InputBaseline, Timeline, group_of, of_siblings
from ooco_gym.errors import UserError

PACKING = {"id": "ooco_gym/Packing-v0", "window_s": 8.0, "warmup_s": 5.0, "splits": {"train": [1000, 1001, 1002]}}
GATING = {"id": "ooco_gym/Gating-v0", "window_s": 6.0, "warmup_s": 5.0, "splits": {"train": [1000, 1001, 1002]}}


@pytest.mark.parametrize("config", [PACKING, GATING], ids=["even steps", "uneven steps"])
def test_a_group_plays_one_window_at_a_time(config):
    env = training_env(config, 4, seed=3, group=2)
    random = np.random.default_rng(0)
    _, infos = env.reset(seed=1)
    met, ends = set(), 0
    for _ in range(4000):
        masks = infos["action_mask"]
        actions = np.where(masks > 0, random.random(masks.shape), -1.0).argmax(1)
        _, _, _, over, infos = env.step(actions)
        assert over[0] == over[1] and over[2] == over[3]
        ends += int(over.any())
        played = env.windows
        assert played[0] == played[1] and played[2] == played[3]
        met.add((played[0], played[2]))
        if ends == 6:
            break
    assert ends == 6 and any(first != second for first, second in met)
    env.close()


def test_groups_are_of_equal_size_and_of_this_package():
    with pytest.raises(UserError, match="does not divide"):
        training_env(PACKING, 3, seed=1, group=2)
    with pytest.raises(UserError, match="cannot play one window"):
        training_env(CONFIG, 2, seed=1, group=2)
    assert group_of({"n_envs": 8}) == 1 and group_of({"n_envs": 8, "input_baseline": {"group": 4}}) == 4


def test_clocks_begin_anew_with_each_episode_and_go_on_from_rollout_to_rollout():
    line = Timeline(2)
    times, episodes = line.of(np.array([[1, 1], [0, 1], [0, 0]]), np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    np.testing.assert_array_equal(times, [[0, 0], [1, 0], [4, 4]])
    np.testing.assert_array_equal(episodes, [[1, 1], [1, 2], [1, 2]])
    other = Timeline(2)
    other.load_state_dict(line.state_dict())
    for one in (line, other):
        times, episodes = one.of(np.array([[0, 1]]), np.array([[1.0, 1.0]]))
        assert times.tolist() == [[9.0, 0.0]] and episodes.tolist() == [[1, 3]]


def test_siblings_are_compared_at_equal_simulated_time():
    times = np.array([[0.0, 0.0, 0.0], [2.0, 1.0, 5.0], [4.0, 3.0, 6.0]])
    episodes = np.array([[1, 1, 1], [1, 1, 1], [1, 1, 2]])
    residuals = np.array([[7.0, 0.0, 10.0], [8.0, 2.0, 20.0], [9.0, 6.0, 99.0]])
    found = of_siblings(times, episodes, residuals, group=3)
    assert found[0, 0] == (0.0 + 10.0) / 2
    assert found[1, 0] == (4.0 + 14.0) / 2  # halfway between 1 s and 3 s; two fifths of the way from 0 s to 5 s
    assert found[2, 0] == 18.0  # after the last decision of one sibling; the other's at 4 of 5 s
    assert np.isnan(found[2, 2])  # no sibling has come to its second episode


def test_what_the_input_causes_is_taken_away_and_what_actions_cause_stays():
    """Residuals are a shared input's and an own action's; the siblings' mean explains the first alone."""
    random = np.random.default_rng(0)
    steps, places, group = 400, 8, 4
    elapsed = random.uniform(0.5, 1.5, (steps, places))
    starts = np.zeros((steps, places))
    starts[0] = 1.0
    baseline = InputBaseline(group, places)
    correlation = []
    for _ in range(3):
        times = np.cumsum(elapsed, axis=0) - elapsed + baseline.timeline.state_dict()["clock"]
        shared = np.stack([np.sin(times[:, place] / 20.0 + place // group) for place in range(places)], axis=1) * 3.0
        own = random.normal(size=shared.shape)
        buffer = type("Buffer", (), {"episode_starts": starts, "elapsed_s": elapsed, "advantages": shared + own})()
        baseline.model = type("Model", (), {"rollout_buffer": buffer, "logger": Recorder()})()
        baseline._on_rollout_end()
        correlation.append(np.corrcoef(buffer.advantages.ravel(), own.ravel())[0, 1])
        starts = np.zeros((steps, places))
    assert correlation[0] < 0.5 and correlation[-1] > 0.8
    assert baseline.model.logger.found["input/share_explained"] > 0.6
    again = InputBaseline(group, places)
    again.load_state_dict(baseline.state_dict())
    assert again.coefficient == baseline.coefficient > 0.8


class Recorder:
    """A logger that remembers."""

    def __init__(self):
        self.found = {}

    def record(self, key, value):
        self.found[key] = value


def test_training_with_groups_logs_what_siblings_explain(tmp_path):
    from agents.learning import train

    config = composed(
        tmp_path, "env=packing", "agent=ppo_input", "env.window_s=40", "env.warmup_s=5", "window_s=40",
        "agent.n_envs=4", "agent.n_steps=60", "agent.batch_size=120", "agent.hidden=16", "agent.imitate.rule=null",
        "agent.scale_decisions=64", "total_timesteps=720")
    train.main(config)
    rows = [row for row in csv.DictReader((tmp_path / "progress.csv").open()) if row["input/covered"]]
    assert len(rows) == 3 and all(float(row["input/covered"]) > 0.9 for row in rows)
    assert float(rows[0]["input/coefficient"]) == 0.0 <= float(rows[-1]["input/coefficient"]) <= 1.0
