"""A run that was stopped goes on as if it had not been: same curve, same policies, whatever stopped it."""

import csv
import os
import signal

import numpy as np
import pytest
import yaml
from sb3_contrib import MaskablePPO

from agents.learning import callbacks, train
from agents.policies.runs import STATE_FILE, load_run
from ooco_gym.errors import UserError
from ooco_gym.files import write_json
from tests.agents.gating_double import train_config

IMITATE = {"rule": "best", "decisions": 300, "epochs": 2, "learning_rate": 1e-2, "critic_first_updates": 2}
GATING = {"id": "ooco_gym/PrefillGate-v1", "window_s": 30.0, "warmup_s": 10.0,
          "splits": {"train": [1, 2], "validation": [3], "test": [4]}}
KINDS = {
    "maskable_ppo": {},
    "imitated": {"agent": {"imitate": IMITATE}},
    "native": {"env": GATING, "window_s": 15.0},
}


def curve(folder):
    """The rows of progress.csv without times, which depend on the machine."""
    with (folder / "progress.csv").open() as file:
        return [{key: value for key, value in row.items() if not key.startswith("time/") or key.endswith("timesteps")}
                for row in csv.DictReader(file)]


def weights(folder, name):
    model = MaskablePPO.load(folder / name, device="cpu")
    return {key: value.numpy() for key, value in model.policy.state_dict().items()}


def same(one, other):
    assert curve(one) == curve(other)
    for name in ("policy.zip", "policy_last.zip"):
        left, right = weights(one, name), weights(other, name)
        assert left.keys() == right.keys() and all(np.array_equal(left[key], right[key]) for key in left), name


def stop_after(monkeypatch, rollouts, number=signal.SIGINT, times=1):
    """Sends this process signals at the end of a rollout, before its update."""
    original, seen = callbacks.LogMetrics._on_rollout_end, []

    def end(self):
        seen.append(1)
        if len(seen) == rollouts:
            for _ in range(times):
                os.kill(os.getpid(), number)
        original(self)

    monkeypatch.setattr(callbacks.LogMetrics, "_on_rollout_end", end)


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_is_the_run_that_was_never_stopped(kind, tmp_path, monkeypatch):
    whole = train.main(train_config(tmp_path / "whole", **KINDS[kind]))
    number = signal.SIGTERM if kind == "imitated" else signal.SIGINT
    stop_after(monkeypatch, 2, number)
    handler = signal.getsignal(number)
    stopped = train.main(train_config(tmp_path / "parts", **KINDS[kind]))
    assert stopped["stopped_by"] == "interrupt" and 0 < stopped["timesteps"] < whole["timesteps"]
    assert stopped["signal"] == number.name
    assert signal.getsignal(number) is handler
    assert load_run(tmp_path / "parts").config["seed"] == 1  # what there is can be played
    resumed = train.main({"resume": str(tmp_path / "parts")})
    assert resumed["resumed"] and resumed["stopped_by"] == "total_timesteps"
    for key in ("timesteps", "updates", "episodes", "validation", "best", "imitation"):
        assert resumed[key] == whole[key], key
    assert resumed["decisions"] == whole["timesteps"] - stopped["timesteps"]
    same(tmp_path / "whole", tmp_path / "parts")


def test_a_signal_while_it_validates_loses_nothing(tmp_path, monkeypatch):
    train.main(train_config(tmp_path / "whole"))
    original, seen = callbacks.Validation._play, []

    def play(self):
        seen.append(1)
        if len(seen) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self)

    monkeypatch.setattr(callbacks.Validation, "_play", play)
    stopped = train.main(train_config(tmp_path / "parts"))
    assert stopped["stopped_by"] == "interrupt" and len(stopped["validation"]) == 1
    train.main({"resume": str(tmp_path / "parts")})
    same(tmp_path / "whole", tmp_path / "parts")


def test_a_second_signal_ends_at_once_and_the_last_checkpoint_is_gone_on_from(tmp_path, monkeypatch):
    train.main(train_config(tmp_path / "whole"))
    stop_after(monkeypatch, 3, times=2)
    stopped = train.main(train_config(tmp_path / "parts"))
    assert stopped["stopped_by"] == "interrupt" and stopped["timesteps"] == 225
    resumed = train.main({"resume": str(tmp_path / "parts")})
    assert resumed["decisions"] == 150  # from the checkpoint at 150 on
    same(tmp_path / "whole", tmp_path / "parts")


def test_a_run_that_was_killed_once_it_had_learned_is_brought_to_its_end(tmp_path, monkeypatch):
    """Its state is kept before its policies and its summary are written: what resumes it writes them."""
    whole = train.main(train_config(tmp_path / "whole"))

    save = callbacks.save

    def killed(model, path):
        if path.name == "policy_last.zip":
            raise RuntimeError("killed")
        save(model, path)

    with monkeypatch.context() as patch:
        patch.setattr(callbacks, "save", killed)
        with pytest.raises(RuntimeError):
            train.main(train_config(tmp_path / "parts"))
    assert not (tmp_path / "parts" / "policy_last.zip").exists()
    resumed = train.main({"resume": str(tmp_path / "parts")})
    assert resumed["decisions"] == 0 and resumed["stopped_by"] == "total_timesteps"
    for key in ("timesteps", "updates", "episodes", "validation", "best", "imitation"):
        assert resumed[key] == whole[key], key
    same(tmp_path / "whole", tmp_path / "parts")


def test_more_decisions_go_on_where_a_finished_run_ended(tmp_path):
    train.main(train_config(tmp_path / "whole", validation={"windows": 0}))
    train.main(train_config(tmp_path / "parts", total_timesteps=150, validation={"windows": 0}))
    write_json(tmp_path / "parts" / "summary.json", {"stopped_by": "total_timesteps", "timesteps": 150})
    with pytest.raises(UserError, match=r"has learned from 150 decisions, and total_timesteps=150; expected more"):
        train.main({"resume": str(tmp_path / "parts")})
    train.main({"resume": str(tmp_path / "parts"), "total_timesteps": 300})
    same(tmp_path / "whole", tmp_path / "parts")
    assert yaml.safe_load((tmp_path / "parts" / "config.yaml").read_text())["total_timesteps"] == 300


@pytest.mark.parametrize("change, words", [
    ({"resume": "nowhere"}, "resume=nowhere is not a training run: config.yaml is missing"),
    ({"agent": {"name": "cma"}}, "agent differs from the run in"),
    ({"overwrite": True}, "overwrite=true would remove the run"),
    ({"seed": 2}, "seed=2 differs from the run in"),
    ({"out": "elsewhere"}, "out=elsewhere is not resume="),
])
def test_what_cannot_be_resumed_says_why(tmp_path, run_folder, change, words):
    with pytest.raises(UserError) as error:
        train.main({"resume": str(run_folder), **change})
    assert words in str(error.value) and "\n" not in str(error.value)


def test_folders_without_a_state_say_what_is_missing(tmp_path, run_folder):
    with pytest.raises(UserError, match=r"is not a training run: config.yaml is missing"):
        train.main({"resume": str(tmp_path)})
    (tmp_path / "config.yaml").write_text((run_folder / "config.yaml").read_text())
    with pytest.raises(UserError, match=r"has no checkpoints/latest.state to resume from"):
        train.main({"resume": str(tmp_path)})
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / STATE_FILE).write_bytes(b"nonsense")
    with pytest.raises(UserError, match=r"latest.state' cannot be resumed from: it is damaged or from another"):
        train.main({"resume": str(tmp_path)})


def test_the_state_is_left_out_where_nobody_wants_it(tmp_path):
    train.main(train_config(tmp_path, total_timesteps=75, resumable=False))
    assert not (tmp_path / STATE_FILE).exists() and (tmp_path / "policy.zip").is_file()
