"""What a run may cost and what it leaves: limits on time, fitting validation, early checkpoints."""

import itertools
import os
import signal
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest

from agents.environments import windows
from agents.evaluation.players import BatchPlayer, play
from agents.learning import callbacks, train
from agents.policies import export
from agents.policies.runs import STATE_FILE, load_run
from tests.agents.gating_double import SHORT, real_config, train_config

SLOW = {"rule": "best", "decisions": 300, "epochs": 2, "learning_rate": 1e-2, "critic_first_updates": 1}


class OneByOne(BatchPlayer):
    """The same answers, in single environments."""


def test_native_windows_are_those_of_single_environments():
    def decide(cluster, candidates, mask, decision):
        return np.where(cluster[:, 2] > 0.5, mask.argmax(1), mask.shape[1] - 1 - mask[:, ::-1].argmax(1))

    config, told = {**SHORT, "window_s": 20.0, "warmup_s": 5.0}, []
    games = windows([2000, 2001, 2002], 6)
    native = play(config, BatchPlayer(decide), games, 4, told=lambda done, of: told.append((done, of)))
    assert native == play(config, OneByOne(decide), games, 4)
    assert told == [(done, 6) for done in range(7)]


@pytest.mark.parametrize("every_steps", [75, 10**9], ids=["validation often", "validation at the end alone"])
def test_the_limit_covers_set_up_imitation_learning_and_the_last_validation(tmp_path, monkeypatch, every_steps):
    """It covered learning alone: `max_wall_s=200` took 289 s."""
    now = [0.0]

    def ticking():
        now[0] += 0.01
        return now[0]

    def played(*args, **named):
        now[0] += 20.0
        return play(*args, **named)

    monkeypatch.setattr(time, "monotonic", ticking)
    monkeypatch.setattr(callbacks, "play", played)
    summary = train.main(train_config(tmp_path, total_timesteps=10**9, max_wall_s=100.0, checkpoint_every_steps=None,
                                      validation={"windows": 2, "every_steps": every_steps, "violation_limit": 0.03},
                                      agent={"imitate": SLOW} if every_steps == 75 else {}))
    assert summary["stopped_by"] == "max_wall_s"
    assert 70.0 < summary["wall_s"] <= 100.0
    assert summary["validation"][-1]["timesteps"] == summary["timesteps"], "what was learned last is judged"
    assert len(summary["validation"]) > 1 and summary["validation_wall_s"] >= 20.0 * len(summary["validation"])


def test_what_is_validated_does_not_depend_on_the_clock(tmp_path, monkeypatch):
    """Points of a sweep were judged on windows of 120 or 180 s, as time allowed: the learning rate seemed to matter."""
    found = [train.main(real_config(tmp_path / "free"))]
    clock = itertools.count(step=0.01)  # a slow machine: time passes whenever it is looked at
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    found.append(train.main(real_config(tmp_path / "hurried", max_wall_s=1000.0, checkpoint_every_s=0.01)))
    assert len(found[0]["validation"]) == 2 and found[0]["validation"] == found[1]["validation"]
    assert found[0]["best"] == found[1]["best"]
    assert [one["validation_window_s"] for one in found] == [SHORT["window_s"]] * 2


def test_validation_windows_are_as_long_as_asked(tmp_path, capsys):
    config = real_config(tmp_path, total_timesteps=800)
    config["validation"] = {**config["validation"], "window_s": 5.0}
    summary = train.main(config)
    assert summary["validation_window_s"] == 5.0 and "over 2 windows of 5 s" in capsys.readouterr().out
    games = play({**SHORT, "window_s": 5.0}, BatchPlayer(load_run(tmp_path).decide_batch),
                 windows(SHORT["splits"]["validation"], 2))
    assert summary["best"]["reward"] == pytest.approx(np.mean([game["reward"] for game in games]))


def test_a_run_that_is_killed_before_its_first_update_goes_on(tmp_path, monkeypatch):
    train.main(train_config(tmp_path / "whole"))

    def killed(*args, **named):
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr("sb3_contrib.MaskablePPO.learn", killed)
        with pytest.raises(RuntimeError):
            train.main(train_config(tmp_path / "parts"))
    assert (tmp_path / "parts" / STATE_FILE).is_file()
    resumed = train.main({"resume": str(tmp_path / "parts")})
    assert resumed["decisions"] == resumed["timesteps"] == 300
    one, other = (load_run(tmp_path / name).actor.state_dict() for name in ("whole", "parts"))
    assert all(np.array_equal(one[key].numpy(), other[key].numpy()) for key in one)


def test_an_export_of_what_has_learned_nothing_says_so(tmp_path, run_folder):
    pytest.importorskip("onnxruntime")
    train.main(train_config(tmp_path / "run", total_timesteps=75, agent={"imitate": SLOW, "learning_rate": 0.0}))
    with pytest.warns(UserWarning, match="has learned from 0 decisions: it is the initial copy of 'best'"):
        summary = export.main({"policy": str(tmp_path / "run"), "out": str(tmp_path / "bundle"), "checks": 10})
    assert summary["decisions_learned"] == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert export.main({"policy": str(run_folder), "out": str(tmp_path / "b"), "checks": 10})["decisions_learned"]


def test_ctrl_c_ends_workers_without_a_traceback(tmp_path):
    # What a shell starts in the background ignores Ctrl-C, and so would what this test starts.
    code = ("import signal, time\nfrom ooco_gym.study.runs import in_processes\n"
            "def main():\n"
            "    for done in in_processes(time.sleep, [0.01, 60, 60, 60, 60], 2): print('one', flush=True)\n"
            "if __name__ == '__main__':\n"
            "    signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "    try: main()\n"
            "    except KeyboardInterrupt: print('interrupted', flush=True)\n")
    (tmp_path / "job.py").write_text(code)
    process = subprocess.Popen([sys.executable, "job.py"], cwd=tmp_path, start_new_session=True, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == "one\n"
    os.killpg(process.pid, signal.SIGINT)  # as a terminal sends it: to all of them, one of which may still be starting
    out, error = process.communicate(timeout=30)
    assert out == "interrupted\n" and error == ""
