"""Traces for Perfetto: the file keeps the format, and says what has happened."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import ooco_gym
from ooco_gym.sim import state as s

SHORT: dict[str, Any] = {"window_s": 40.0, "warmup_s": 20.0}
REQUIRED = {"M": {"name", "args"}, "X": {"name", "dur"}, "b": {"name", "cat", "id"}, "e": {"name", "cat", "id"},
            "C": {"name", "args"}, "i": {"name", "s"}}


def played(name: str, steps: int = 300, **arguments: Any) -> Any:
    env: Any = gym.make(f"ooco_gym/{name}-v0", trace=True, **{**SHORT, **arguments}).unwrapped
    env.reset(seed=4, options={"window": 1})
    random = np.random.default_rng(0)
    for _ in range(steps):
        if env.episodes.controls is not None:
            action = random.integers(env.episodes.controls.counts)
        else:
            action = int(random.choice(np.flatnonzero(env.action_masks())))
        if env.step(action)[3]:
            break
    return env


def trace_of(env: Any, path: Path) -> dict[str, Any]:
    env.export_trace(path)
    return json.loads(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_text())


@pytest.mark.parametrize(("name", "arguments"), [
    ("Colocation", {}), ("Control", {}),
    ("Packing", {"cluster": "mixed_7b", "partner": "hygen"})])
def test_a_trace_follows_the_trace_event_format(name: str, arguments: dict[str, Any], tmp_path: Path) -> None:
    events = trace_of(played(name, **arguments), tmp_path / "trace.json.gz")["traceEvents"]
    assert {event["ph"] for event in events} >= {"M", "X", "b", "e", "C", "i"}
    times = [event["ts"] for event in events]
    assert times == sorted(times) and times[0] == 0
    ends: dict[Any, float] = defaultdict(float)
    open_slices: dict[Any, list[str]] = defaultdict(list)
    for event in events:
        assert {"ph", "ts", "pid", "tid"} | REQUIRED[event["ph"]] <= set(event)
        if event["ph"] == "X":
            lane = event["pid"], event["tid"]
            assert event["dur"] >= 0 and event["ts"] >= ends[lane] - 1e-3  # nanoseconds, in floating point
            ends[lane] = event["ts"] + event["dur"]
        elif event["ph"] == "b":
            open_slices[event["cat"], event["id"]].append(event["name"])
        elif event["ph"] == "e":
            assert open_slices[event["cat"], event["id"]].pop() == event["name"]
    assert not any(open_slices.values())


def test_a_trace_has_the_work_requests_and_decisions_of_the_episode(tmp_path: Path) -> None:
    env = played("Colocation", steps=2_000)
    content = trace_of(env, tmp_path / "trace.json")
    events, state = content["traceEvents"], env.simulation.state
    assert content["otherData"]["seed"] == 4
    decisions = [event for event in events if event["ph"] == "i" and ": " in event["name"]]
    assert len(decisions) == len(env._watch.recorder.recording(0).answers)
    assert {event["name"].partition(":")[0] for event in decisions} <= {one.name for one in env.decisions}
    missed = sum(event["args"]["requests"] for event in events if event["name"] == "TTFT missed")
    assert missed == int(state.totals.ttft_misses)
    rows = state.requests[: int(state.clock.next_arrival)]
    begin_ps = round(env.simulation.window_s[0] * s.PS_PER_S)
    ended = {event["id"]: event["ts"] for event in events if event["ph"] == "e" and event["name"].split()[0] in
             ("online", "offline")}
    checked = 0
    for slot in np.flatnonzero((rows["status"] == s.FINISHED) & (rows["finish_ps"] > begin_ps)):
        assert ended[str(slot)] == pytest.approx((rows["finish_ps"][slot] - begin_ps) / 1e6, abs=2e-3)
        checked += 1
    assert checked > 20
    evicted = [event for event in events if event["ph"] == "b" and event["name"] == "evicted"]
    assert bool(evicted) == bool(state.totals.evictions)


def test_export_trace_without_a_recording_is_refused(tmp_path: Path) -> None:
    env: Any = gym.make("ooco_gym/Gating-v0", **SHORT).unwrapped
    env.reset(seed=1)
    with pytest.raises(ooco_gym.UserError, match="trace=True"):
        env.export_trace(tmp_path / "trace.json")
    env = gym.make("ooco_gym/Gating-v0", trace=True, **SHORT).unwrapped
    with pytest.raises(ooco_gym.UserError, match="reset"):
        env.export_trace(tmp_path / "trace.json")
    env.reset(seed=1)
    (tmp_path / "file").write_text("")
    with pytest.raises(ooco_gym.UserError, match="file"):
        env.export_trace(tmp_path / "file" / "trace.json")


def test_a_vector_exports_each_slot(tmp_path: Path) -> None:
    env: Any = gym.make_vec("ooco_gym/Gating-v0", 2, vectorization_mode="vector_entry_point", trace=True, **SHORT)
    env.reset(seed=4)
    for _ in range(10):
        env.step(np.ones(2, int))
    env.export_trace(tmp_path / "trace.json", index=1)
    assert json.loads((tmp_path / "trace.json").read_text())["otherData"]["seed"] == 5
