"""What the package does is what it did when the digests were recorded; and the digests cover all that is registered."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import numpy as np
import pytest

import ooco_gym
from ooco_gym.envs import ENVIRONMENTS
from tests.golden import __main__ as command
from tests.golden import cpus, digests, runs, studies, trajectories

PART = 20  # each so-manieth case is played under another processor


@pytest.mark.parametrize("group", command.GROUPS)
def test_digests_hold(group: str) -> None:
    expected, without = digests.read(group)["digests"], {"without": studies.SOLVED} if group == "studies" else {}
    assert expected
    expected = {case: parts for case, parts in expected.items() if case not in without.get("without", ())}
    lines = digests.differences(expected, command.GROUPS[group].group(**without))
    assert not lines, "\n".join([*lines[:20], f"{len(lines)} digests differ: python -m tests.golden only={group}"])


def test_every_policy_and_environment_has_digests() -> None:
    assert set(ooco_gym.list_policies()) <= {*runs.POOL_POLICIES, *runs.MIXED_POLICIES}
    assert set(ENVIRONMENTS) == set(trajectories.IDS)


def test_a_difference_names_the_case_the_part_and_both_digests() -> None:
    columns = {"finish_s": digests.digest(np.array([1.0, 2.0])), "evictions": digests.digest(np.array([0, 1]))}
    other = {**columns, "finish_s": digests.digest(np.array([1.0, 2.00001]))}
    assert digests.differences({"a run": columns}, {"a run": other}) == [
        f"a run · finish_s: expected {columns['finish_s']}, got {other['finish_s']}"]
    assert digests.differences({}, {"a run": {"x": "1"}}) == ["a run · x: expected nothing, got 1"]


def test_another_processor_has_the_same_figures() -> None:
    environment = {key: value for key, value in cpus.settings()["all at once"].items() if not key.startswith("NUMBA")}
    done = cpus.check(environment, ["only=doors,runs,trajectories", f"every={PART}"])  # make golden CPUS=all: the whole
    assert done.stdout.splitlines()[-1].endswith(", 0 differ"), done.stdout + done.stderr


def test_every_bit_of_a_float_counts() -> None:
    assert digests.digest(np.array([1.0])) != digests.digest(np.array([np.nextafter(1.0, 2.0)]))
    assert digests.digest({"a": [0.1 + 0.2, None]}) != digests.digest({"a": [0.3, None]})
    assert digests.digest(np.array([1, 2], np.int32)) == digests.digest(np.array([1, 2], np.int64))
    assert digests.digest(np.zeros((2, 3))) != digests.digest(np.zeros((3, 2)))


def test_record_writes_what_is_missing_and_refuses_what_differs(tmp_path: Any, monkeypatch: Any, capsys: Any) -> None:
    class Group:
        value: ClassVar[digests.Digests] = {"run": {"column": "1"}}

        @staticmethod
        def group(every: int = 1) -> digests.Digests:
            return Group.value

    monkeypatch.setattr(digests, "FOLDER", tmp_path)
    monkeypatch.setattr(command, "GROUPS", {"runs": Group})
    assert command.main(["record"]) == 0 and command.main(["check"]) == 0
    Group.value = {"run": {"column": "2"}, "more": {"column": "3"}}
    assert command.main(["record"]) == 1 and command.main([]) == 1
    assert capsys.readouterr().out.endswith("golden: 1 digests, 2 differ\n")
    assert command.main(["record", "force"]) == 2 and command.main(["record", "only=jumps"]) == 2
    assert command.main(["record", "force", "why=wording"]) == 0 and command.main([]) == 0
    recorded = json.loads((tmp_path / "runs.json").read_text())["recorded"]
    assert [note["why"] for note in recorded] == ["first recorded", "wording"]
