"""What trackers get of a real run: series, histograms, the policy; read back from disk."""


from unittest.mock import MagicMock

import pytest

from agents.learning import train
from agents.learning.loggers import STEP, build_logger
from ooco_gym.envs.reward import TERMS
from ooco_gym.errors import UserError
from ooco_gym.resources import load_yaml
from tests.agents.gating_double import composed, real_config, train_config
from tests.agents.wandb_log import offline_run, offline_runs

LOGGED = {
    *(f"reward/{term}_per_s" for term in TERMS), *(f"cost/{name}_per_s" for name in ("cost", "cost_ttft", "cost_tpot")),
    *(f"validation/{name}" for name in ("offline_reference_gpu_s_per_s", "reward", "violation_limit", "violation_rate",
                                        "wasted_tokens_per_s")),
    *(f"episode/{name}" for name in ("offline_reference_gpu_s_per_s", "output_tokens_per_s", "violation_rate",
                                     "wasted_tokens_per_s")),
    "rollout/no_share", "rollout/base_share", "time/decisions_per_s", "train/explained_variance"}


def test_every_series_is_logged_against_decisions(tracked):
    folder, run = tracked
    assert run.names >= LOGGED and run.ended and run.metrics["*"].step_metric == STEP
    assert run.config["env"]["id"] == "ooco_gym/PrefillGate-v1" and run.config["seed"] == 1
    assert not (folder.parent / "wandb").exists()
    for name in LOGGED:
        steps = [step for step, _ in run.series(name)]
        assert steps == sorted(steps) and all(step == int(step) for step in steps)
        assert all(isinstance(value, (int, float)) for _, value in run.series(name))
    assert [step for step, _ in run.series("validation/reward")][-1] == 1600


def test_agents_with_a_budget_log_its_series(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.chdir(tmp_path)
    config = real_config(tmp_path / "run", logger={"name": "wandb"}, total_timesteps=800)
    budget = load_yaml("agent", "ppo_lagrangian")
    train.main({**config, "validation": {"windows": 0}, "env": {**config["env"], **budget["env"]},
                "agent": {**config["agent"], **budget["agent"]}})
    logged = offline_run(tmp_path / "run").names
    assert {f"lagrangian/{name}" for name in ("budget", "multiplier", "violation_rate")} <= logged


def test_actions_are_histograms_by_kind_of_decision(tracked):
    rows = [row for row in tracked[1].history if row.get("actions/gate/_type") == "histogram"]
    assert len(rows) == 2
    for row in rows:
        assert sum(row["actions/gate/values"]) == 800
        shares = row["rollout/no_share"], row["rollout/base_share"]
        counts = row["actions/gate/values"]
        assert shares[0] == pytest.approx(counts[0] / 800) and shares[1] == pytest.approx(counts[1] / 800)


def test_settings_are_no_shares_of_no_and_of_the_base_policy(tmp_path, capsys):
    """Level 0 of a parameter is no 'no': Control's vectors have histograms, a parameter each, and no such shares."""
    config = composed(
        tmp_path, "env=onlinetuning", "env.window_s=40", "env.warmup_s=5", "window_s=40", "agent.n_envs=2",
        "agent.n_steps=8", "agent.batch_size=12", "agent.hidden=16", "agent.imitate.rule=null",
        "agent.scale_decisions=8", "total_timesteps=16")
    train.main(config)
    said = " ".join(capsys.readouterr().out.split())
    assert "batch_size=12 does not divide the 16 decisions of a rollout" in said and "its last batch has 4." in said
    columns = (tmp_path / "progress.csv").read_text().splitlines()[0]
    assert "rollout/simulated_s" in columns and "_share" not in columns


def test_tensorboard_gets_the_same(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train.main(real_config(tmp_path, logger={"name": "tensorboard"}, total_timesteps=800))
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    tags = events.Tags()
    missing = LOGGED - set(tags["scalars"])
    assert not {name for name in missing if not name.startswith(("train/", "episode/"))}  # one update: none is dumped
    assert "actions/gate" in tags["histograms"]
    assert "config/text_summary" in tags["tensors"]


# --- Weights & Biases works offline without login or prompt, and a resumed training is told apart --------------------
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
