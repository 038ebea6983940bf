"""A folder that holds a training run is not trained into by oversight."""

from __future__ import annotations

import pytest
import yaml

from agents.learning import train
from agents.policies.runs import clear, holds_run
from ooco_gym.errors import UserError
from tests.agents.gating_double import train_config

QUICK = {"total_timesteps": 75, "checkpoint_every_steps": None, "validation": {"windows": 0}}


def test_a_run_is_refused_before_anything_is_made_and_removed_where_that_is_asked_for(tmp_path):
    for name in ("wandb", "bundle"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "old").write_text("old")
    (tmp_path / "mine.txt").write_text("mine")
    train.main(train_config(tmp_path, **QUICK))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with pytest.raises(UserError) as error:
        train.main(train_config(tmp_path, **QUICK))
    assert f"out={tmp_path} holds a training run; continue it with resume={tmp_path}" in str(error.value)
    assert "overwrite=true" in str(error.value)
    with pytest.raises(UserError, match="unknown agent 'nosuch'"):
        train.main(train_config(tmp_path, **QUICK, overwrite=True, agent={"name": "nosuch"}))
    with pytest.raises(UserError, match="unknown logger 'nosuch'"):
        train.main(train_config(tmp_path, **QUICK, overwrite=True, logger="nosuch"))
    with pytest.raises(UserError, match="overwrite must be true or false, got 'no'"):
        train.main(train_config(tmp_path, **QUICK, overwrite="no"))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    train.main(train_config(tmp_path, **{**QUICK, "seed": 2, "resumable": False}, overwrite=True))
    assert yaml.safe_load((tmp_path / "config.yaml").read_text())["seed"] == 2
    left = {path.name for path in tmp_path.iterdir()}
    assert "mine.txt" in left and not left & {"wandb", "bundle", "checkpoints"}


@pytest.mark.parametrize("name, text, held", [
    ("summary.json", '{"command": "train"}', True), ("summary.json", '{"command": "evaluate"}', False),
    ("summary.json", "[", False), ("config.yaml", "agent: {}\ntotal_timesteps: 1\n", True),
    ("config.yaml", "policies: [ooco]\n", False), ("policy_last.zip", "", True),
    ("checkpoints/step_0000000075.zip", "", True), ("checkpoints/latest.state", "", True),
    ("checkpoints/other.pt", "", False),
])
def test_what_counts_as_a_run(tmp_path, name, text, held):
    assert not holds_run(tmp_path / "nowhere")
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text)
    assert holds_run(tmp_path) == held


def test_what_was_refused_before_it_learned_is_no_run(tmp_path, monkeypatch):
    def refused(*args):
        raise UserError("no such feature")

    with monkeypatch.context() as patch:
        patch.setattr("agents.learning.imitation.play_and_scale", refused)
        with pytest.raises(UserError, match="no such feature"):
            train.main(train_config(tmp_path, **QUICK))
    assert not holds_run(tmp_path)


def test_clearing_follows_no_link(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_text("kept")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "elsewhere")
    clear(tmp_path / "run")
    assert not list((tmp_path / "run").iterdir()) and (tmp_path / "elsewhere" / "file").exists()


def test_a_training_that_was_killed_before_it_learned_begins_anew(tmp_path):
    """What such a run leaves: its configuration, and the beginnings of its files."""
    config = train_config(tmp_path, **QUICK)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    (tmp_path / "progress.csv").write_text("")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "mine.txt").write_text("mine")
    assert holds_run(tmp_path)
    train.main(config)
    assert (tmp_path / "policy.zip").is_file() and (tmp_path / "mine.txt").read_text() == "mine"
