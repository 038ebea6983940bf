"""The best heuristic on training windows as the one to start from."""

from contextlib import closing
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

pytest.importorskip("sb3_contrib")
from agents.environments import Window, make_env, split_seeds
from agents.evaluation.heuristics import heuristics_of, play_heuristic
from agents.evaluation.scoring import HEADLINE, best_heuristic
from agents.learning import imitation as best_start
from agents.learning.imitation import best_on_training, training_windows
from agents.learning.train import main
from ooco_gym.errors import UserError
from ooco_gym.resources import conf_root, load_yaml

SHORT = {"window_s": 20.0, "warmup_s": 10.0}


def config(name):
    return {**load_yaml("env", name), **SHORT}


def test_it_is_the_one_that_serves_most_on_windows_of_the_training_split():
    found = best_on_training(config("gating"), 4, 7)
    with closing(make_env(config("gating"))) as env:
        names = [one.name for one in heuristics_of(env.unwrapped, None)]
    games = [Window(*place) for place in islice(training_windows(config("gating"), (7, 13)), 4)]
    assert {game.seed for game in games} <= set(split_seeds(config("gating"), "train"))
    played = {name: play_heuristic(config("gating"), name, games) for name in names}
    rates = {name: float(np.mean([record["summary"]["violation_rate"] for record in played[name]])) for name in names}
    assert found["rule"] == best_heuristic(played, limits=rates) and found["among"] == len(names)
    mean = np.mean([record["summary"][HEADLINE] for record in played[found["rule"]]])
    assert found["service"] == pytest.approx(mean) and 0.0 <= found["violation_rate"] <= 1.0


def test_constants_play_beside_the_partner_and_no_one_takes_its_seat(monkeypatch):
    played = []

    def noted(config, name, games):
        played.append(name)
        return play_heuristic(config, name, games)

    listed = [SimpleNamespace(name=name) for name in ("partner", "interrupt=1", "ooco:interrupt=slack")]
    monkeypatch.setattr(best_start, "heuristics_of", lambda env, rules: listed)
    monkeypatch.setattr(best_start, "play_heuristic", noted)
    found = best_on_training(config("control"), 2, 1)
    assert played == ["partner", "interrupt=1"] and found["among"] == 2 and found["rule"] in played


def asked(out, **imitate):
    settings = yaml.safe_load((conf_root() / "train.yaml").read_text(encoding="utf-8"))
    del settings["defaults"]
    agent = {**load_yaml("agent", "maskable_ppo"), "n_envs": 2, "n_steps": 32, "batch_size": 64, "n_epochs": 1}
    agent["imitate"] = {**agent["imitate"], "rule": "best_heuristic", "decisions": 300, "epochs": 2, **imitate}
    return {**settings, "env": config("gating"), "agent": agent, "logger": {"name": "none"}, "total_timesteps": 64,
            "window_s": 20.0, "validation": {"windows": 0}, "out": str(out)}


def test_an_agent_copies_it_and_says_whom(tmp_path):
    imitation = main(asked(tmp_path, windows=2))["imitation"]
    assert imitation["rule"] == best_on_training({**config("gating"), "window_s": 20.0}, 2, 1)["rule"]
    assert imitation["agreement"] > 0.5 and imitation["among"] > 1


def test_too_few_windows_are_refused_before_anything_is_built(tmp_path):
    with pytest.raises(UserError, match="agent.imitate.windows"):
        main(asked(tmp_path, windows=1))
