"""What the comparison says of schedules that differ, and of what cannot be compared."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from experiments.studies.oracle_vllm import schedulers
from experiments.studies.oracle_vllm.cases import Case, random_case
from experiments.studies.oracle_vllm.schedulers import Oracle
from experiments.studies.oracle_vllm.study import agreement, markdown, report
from ooco_gym.calibrate.measure.interpreter import VARIABLE
from ooco_gym.cli import main
from ooco_gym.errors import UserError
from ooco_gym.workload import Trace


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


def test_differences_are_in_the_table(case: Case) -> None:
    played = schedulers.simulate(case)
    later = {**played, "finish_ps": played["finish_ps"] + int(0.01 * played["finish_ps"].max())}
    rows = [{"load": "own", "policy": case.policy, "prefix_caching": case.prefix_caching, **report(case, played, other)}
            for other in (played, {**later, "end_ps": later["end_ps"] + 1})]
    assert rows[1]["difference_percent"]["makespan_s"] == pytest.approx(1.0, rel=0.05)
    lines = markdown(rows).splitlines()
    assert [line.split(" | ")[3] for line in lines[2:]] == ["all", "100.000 %"]
    assert lines[2].endswith("| none |")
    assert "makespan" in lines[3] or "tpot" in lines[3]


def test_what_the_engine_refuses_is_named() -> None:
    one = Trace([0.0], [30], [3])
    with pytest.raises(UserError, match="'sarathi' has no counterpart in the engine"):
        Case(one, "sarathi", 10)
    with pytest.raises(UserError, match="request 0 of 'trace' needs 34 tokens of KV memory, but kv_blocks=3 hold 32"):
        Case(one, "vllm_fcfs", 3)
    with pytest.raises(UserError, match="max_num_batched_tokens=16 is below max_num_seqs=256"):
        Case(one, "vllm_fcfs", 10, max_num_batched_tokens=16)


@pytest.mark.parametrize(("words", "told"), [
    (["oracle_vllm.loads=[heavy]"], "unknown load 'heavy'"),
    (["oracle_vllm.policies=[ooco]"], "unknown policy with a counterpart in the engine 'ooco'"),
    (["oracle_vllm.requests=0"], "oracle_vllm.requests=0: expected a whole number"),
    (["engine.python=/no/such/python"], "engine.python=/no/such/python is no Python interpreter that can be run"),
])
def test_mistakes_on_the_command_line(words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                      capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(VARIABLE, raising=False)
    assert main(["experiment", "oracle_vllm", *words, "out=o"]) == 2
    assert told in " ".join(capsys.readouterr().err.split())


@pytest.mark.oracle
def test_the_command(oracle: Oracle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    loads = "oracle_vllm.loads=[saturated,shared_saturated]"
    assert main(["experiment", "oracle_vllm", loads, "oracle_vllm.requests=60", "out=o"]) == 0
    found = json.loads(Path("o/summary.json").read_text())
    assert (found["schema"], found["vllm"]) == ("ooco-gym/oracle_vllm/1", oracle.version)
    assert found["identical"]
    assert [row["requests"] for row in found["results"]] == [60] * 4
    assert np.all([row["steps"] == row["identical_steps"] > 100 for row in found["results"]])
    assert Path("o/oracle.md").read_text().count("\n") == 6
