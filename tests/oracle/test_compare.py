"""What the comparison says of schedules that differ, and of what cannot be compared."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ooco_gym.errors import UserError
from ooco_gym.sim.engine_versions import engine_version_of
from ooco_gym.workload import Trace
from tests.oracle import schedulers
from tests.oracle.__main__ import main
from tests.oracle.cases import Case, random_case
from tests.oracle.compare import agreement
from tests.oracle.fuzz import ASYNCHRONOUS
from tests.oracle.schedulers import Oracle


@pytest.fixture(scope="module")
def case() -> Case:
    """A case in which a request loses its memory."""
    return next(case for case in map(random_case, range(100)) if schedulers.simulate(case)["preemptions"].sum() > 2)


def changed(played: dict, key: str, place: int, value: int) -> dict:
    values = played[key].copy()
    values[place] = value
    return {**played, key: values}


def test_a_schedule_agrees_with_itself(case: Case) -> None:
    played = schedulers.simulate(case)
    found = agreement(played, played)
    assert found.whole
    assert found.steps == found.identical == found.same_times == len(played["start_ps"]) > 10
    assert found.preemptions == (len(played["preempted_slot"]),) * 2


def test_the_first_difference_is_told(case: Case) -> None:
    played = schedulers.simulate(case)
    place = len(played["change_step"]) // 2
    step, slot = int(played["change_step"][place]), int(played["change_slot"][place])
    found = agreement(played, changed(played, "change_tokens", place, 77))
    assert found.first.startswith(f"step {step}: ")
    assert f"request {slot} gets {played['change_tokens'][place]} tokens, ours gives 77" in found.first
    assert step <= found.identical < found.steps, "up to the request's next change all steps differ, and no other"
    found = agreement(played, changed(played, "preempted_slot", 0, 99))
    assert (found.identical, found.same_times) == (found.steps - 1, found.steps)
    assert "by ours [99" in found.first or ", 99]" in found.first


def test_times_and_missing_steps_count(case: Case) -> None:
    played = schedulers.simulate(case)
    late = agreement(played, changed(played, "end_ps", -1, 1))
    assert (late.identical, late.same_times) == (late.steps, late.steps - 1)
    assert late.first == f"step {late.steps - 1}: the same tokens at other times"
    short, fewer = {**played, "start_ps": played["start_ps"][:-1], "end_ps": played["end_ps"][:-1]}, late.steps - 1
    told = f"step {fewer}: the real scheduler makes {late.steps} steps, ours {fewer}"
    assert agreement(played, short).first == told


def test_what_the_engine_refuses_is_named() -> None:
    one = Trace([0.0], [30], [5])
    with pytest.raises(UserError, match="'sarathi' has no counterpart in the engine"):
        Case(one, "sarathi", 10)
    with pytest.raises(UserError, match="request 0 of 'trace' needs 34 tokens of KV memory, but kv_blocks=3 hold 32"):
        Case(one, "vllm_fcfs", 3)
    with pytest.raises(UserError, match="max_num_batched_tokens=16 is below max_num_seqs=256"):
        Case(one, "vllm_fcfs", 10, max_num_batched_tokens=16)


@pytest.mark.parametrize(("version", "known"), [
    ("0.33.0", "0.33.0"), ("0.32.0+cpu", "0.32.0"), ("0.19.1", "0.19.1"), ("0.20.3", "0.20.2"), ("0.12.1", "0.12.0"),
    ("0.34.1.dev7", "0.33.0"), ("1.0", "0.33.0")])
def test_whose_schedule_stands_beside_a_release(version: str, known: str) -> None:
    assert engine_version_of(version) == known


@pytest.mark.parametrize("version", ["0.11.2", "0.8.5", "dev"])
def test_what_is_older_has_no_schedule(version: str) -> None:
    with pytest.raises(UserError, match=f"vLLM {version} is older than the schedules .*: expected 0.12.0 or newer"):
        engine_version_of(version)


@pytest.mark.oracle
@pytest.mark.parametrize("plan", [["--loads", "saturated", "shared_saturated"], ["--fuzz-steps", "2000"]])
def test_the_command(oracle: Oracle, version: str, plan: list[str], tmp_path: Path) -> None:
    assert main(["study", *plan, "--requests", "60", "--python", str(oracle.python), "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "summary.json").read_text())
    one, = found["engines"]
    assert (one["vllm"], one["engine_version"]) == (oracle.version, version)
    assert found["identical"] and one["identical"]
    rows = one["fuzz" if "fuzz" in one else "results"]
    count = 8 if "fuzz" in one and version in ASYNCHRONOUS else 4
    assert len(rows) == count and np.all([row["steps"] == row["identical_steps"] > 100 for row in rows])
    assert (tmp_path / "oracle.md").read_text().count("\n") == 4 + count
