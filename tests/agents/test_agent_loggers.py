"""Weights & Biases works offline without login or prompt; TensorBoard writes into the run folder."""

import time

import pytest
from gating_double import train_config

from agents import train


def test_wandb_offline_run_holds_the_figures(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "run"
    train.main(train_config(out, total_timesteps=150, logger={"name": "wandb", "project": "tests"}))
    files = list(out.glob("wandb/offline-run-*/run-*.wandb"))
    assert len(files) == 1
    data = files[0].read_bytes()
    for _ in range(200):  # W&B's service writes out a moment after it has confirmed the end of the run
        if b"validation/reward" in data:
            break
        time.sleep(0.05)
        data = files[0].read_bytes()
    for key in (b"reward/service_per_s", b"episode/violation_rate", b"validation/reward", b"global_step"):
        assert key in data
    assert not (tmp_path / "wandb").exists()


def test_online_without_a_login_becomes_offline(monkeypatch):
    wandb = pytest.importorskip("wandb")
    from agents import loggers

    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setattr(wandb, "api", type("Api", (), {"api_key": None})())
    assert loggers._wandb_mode({}) == "offline"
    monkeypatch.setattr(wandb, "api", type("Api", (), {"api_key": "k" * 40})())
    assert loggers._wandb_mode({}) == "online"
    monkeypatch.delenv("WANDB_MODE")
    assert loggers._wandb_mode({}) == "offline"


def test_tensorboard_writes_into_the_run_folder(tmp_path):
    pytest.importorskip("tensorboard")
    train.main(train_config(tmp_path, total_timesteps=75, logger={"name": "tensorboard"}))
    assert list((tmp_path / "tensorboard").glob("events.out.tfevents.*"))
