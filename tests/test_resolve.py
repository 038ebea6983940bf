"""A scenario is loaded once: `Scenario.resolve` reads each file at most once, and nothing after it looks a name up."""

from __future__ import annotations

import pickle
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from ooco_gym import resources
from ooco_gym.scenario import Scenario

TRAIN = ("train", "env=interruption", "agent.n_envs=2", "window_s=60", "total_timesteps=64", "validation.windows=1",
         "validation.every_steps=64")


def loads(action: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often `load_yaml` read each file during an action, of a process that has read none."""
    read: Counter[str] = Counter()
    code = resources._extended.__code__

    def count(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is code and not frame.f_locals["files"]:  # not what it extends
            read[str(frame.f_locals["path"])] += 1

    monkeypatch.setattr(resources, "_KEPT", {})
    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(None)
    return read


def test_a_training_run_reads_each_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ooco_gym.cli import main

    read = loads(lambda: main([*TRAIN, f"out={tmp_path / 'run'}"]), monkeypatch)
    groups = {Path(name).parent.name for name in read}
    assert {"env", "reward", "cluster", "chip", "model", "protocol", "workload", "offline"} <= groups
    assert set(read.values()) == {1}, read


def test_windows_after_the_first_load_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from ooco_gym.envs.interruption import InterruptionEnv

    env = InterruptionEnv(window_s=30.0, warmup_s=0.0)
    env.reset(seed=1)
    for module in [one for one in sys.modules.values() if getattr(one, "load_yaml", None) is resources.load_yaml]:
        monkeypatch.setattr(module, "load_yaml", lambda *_: pytest.fail("a file is looked up"))
    for seed in (2, 3):
        env.reset(seed=seed)


def test_what_a_copy_has_in_common_is_kept() -> None:
    known = Scenario(workload="ooc", cluster="pair_7b").resolve()
    later = known.with_(seed=5, start_s=7200.0, jitter=0.1)
    assert (later.seed, later.start_s, later.given.jitter) == (5, 7200.0, 0.1)
    for part in ("workload", "cluster", "deployments", "slo", "protocol", "predictor", "offline", "scale"):
        assert getattr(later, part) is getattr(known, part)
    changed = known.with_(slo={"ttft_s": 9.0, "tpot_s": 0.2}, warmup_s=1.0, offline={"mode": "jobs", "jobs": 3})
    assert (changed.slo.ttft_s, changed.protocol.warmup_s, changed.offline.jobs) == (9.0, 1.0, 3)
    assert changed.workload is known.workload and changed.deployments is known.deployments
    assert changed.describe() == changed.given.describe()


def test_a_resolved_scenario_stands_for_itself_and_can_be_sent(tmp_path: Path) -> None:
    path = tmp_path / "week.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n1,100,10\n2,100,10\n")
    known = Scenario(workload=str(path), duration_s=2.0).resolve()
    assert known.resolve() is known and known.from_file and known.start_s == 0.0
    sent = pickle.loads(pickle.dumps(known))
    assert sent.describe() == known.describe() and len(pickle.dumps(known)) < 100_000
    (part,) = sent.workload.parts
    assert part.source.rows == 2, "the file is opened again"
