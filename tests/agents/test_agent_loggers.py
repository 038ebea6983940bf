"""Weights & Biases works offline without login or prompt, and a resumed training is told apart."""

from unittest.mock import MagicMock

import pytest

from agents.learning import train
from agents.learning.loggers import build_logger
from ooco_gym.errors import UserError
from tests.agents.gating_double import train_config
from tests.agents.wandb_log import offline_runs


def test_a_training_resumed_offline_is_another_run_of_its_group(tmp_path, monkeypatch):
    """`wandb sync` takes each of the two files as a whole run: with one id the second would begin at step 0 again."""
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "run"
    logger = {"name": "wandb"}
    config = train_config(out, total_timesteps=150, logger=logger)
    train.main(config)
    train.main({**config, "total_timesteps": 300, "resume": str(out)})
    runs = offline_runs(out)
    assert len({run.run.run_id for run in runs}) == 2 and {run.run.run_group for run in runs} == {"run"}
    assert max(step for step, _ in runs[0].series("reward/service_per_s")) == 150
    assert min(step for step, _ in runs[1].series("reward/service_per_s")) > 150


def test_a_training_resumed_online_goes_on_in_its_run(tmp_path, monkeypatch):
    wandb, asked = pytest.importorskip("wandb"), []
    monkeypatch.setattr(wandb, "login", lambda prompt, verify: True)
    monkeypatch.setattr(wandb, "init", lambda **given: asked.append(given) or MagicMock())
    (tmp_path / "wandb" / "run-20260101_000000-abc123").mkdir(parents=True)
    for after in (None, 150):
        build_logger(tmp_path, {"name": "wandb", "mode": "online"}, {}, after)
    assert [(one["id"], one["resume"]) for one in asked] == [(None, None), ("abc123", "allow")]


def test_online_without_a_login_becomes_offline(monkeypatch):
    wandb = pytest.importorskip("wandb")
    from agents.learning import loggers

    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setattr(wandb, "login", lambda prompt, verify: False)
    assert loggers._wandb_mode({}) == "offline"
    monkeypatch.setattr(wandb, "login", lambda prompt, verify: True)
    assert loggers._wandb_mode({}) == "online"
    monkeypatch.delenv("WANDB_MODE")
    assert loggers._wandb_mode({}) == "online"
    for mode in ("offline", "disabled"):
        assert loggers._wandb_mode({"mode": mode}) == mode
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert loggers._wandb_mode({"mode": "online"}) == "offline"
    monkeypatch.delenv("WANDB_MODE")
    with pytest.raises(UserError, match="unknown logger.mode 'ofline' \\(did you mean 'offline'"):
        loggers._wandb_mode({"mode": "ofline"})
