"""`ooco-gym doctor` finds what is wrong with an installation and says what to do."""

import json
import sys

import pytest

from ooco_gym.cli import main
from ooco_gym.commands import doctor


def findings(tmp_path):
    """What the command found, by what it is about."""
    assert main(["doctor", f"out={tmp_path / 'run'}"]) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["problems"] == sum(one["state"] == doctor.PROBLEM for one in summary["findings"])
    return {one["about"]: one for one in summary["findings"]}


def test_a_sound_installation_has_no_problem(tmp_path, capsys, monkeypatch):
    for name in ("OOCO_GYM_DATA", "OOCO_GYM_ENGINE_PYTHON", "NUMBA_DISABLE_JIT", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    found = findings(tmp_path)
    assert not [one for one in found.values() if one["state"] == doctor.PROBLEM]
    assert found["ooco-gym"]["found"] and "numba" in found["packages"]["found"]
    assert "no problem found" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "value", "about"), [
    ("OOCO_GYM_DATA", "/no/such/folder", "OOCO_GYM_DATA"),
    ("OOCO_GYM_ENGINE_PYTHON", "/no/such/python", "engine"),
    ("OOCO_GYM_ENGINE_PYTHON", sys.executable, "engine"),  # a Python without vLLM
    ("NUMBA_DISABLE_JIT", "1", "NUMBA_DISABLE_JIT"),
    ("NUMBA_CACHE_DIR", "/proc/nowhere", "compiled code"),
    ("OOCO_GYM_CACHE", "/proc/nowhere", "kept simulations"),
])
def test_a_wrong_setting_is_a_problem_with_advice(tmp_path, monkeypatch, name, value, about):
    monkeypatch.setenv(name, value)
    one = findings(tmp_path)[about]
    assert one["state"] == doctor.PROBLEM
    assert one["advice"]


def test_a_version_that_is_refused_is_a_problem(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "_version", {"gymnasium": "0.1", "rich": "999"}.get)
    found = findings(tmp_path)
    assert found["gymnasium"]["state"] == doctor.PROBLEM
    assert "gymnasium<2,>=1.1" in found["gymnasium"]["advice"]
    assert found["packages"]["state"] == doctor.PROBLEM  # the core without numba does not run
    assert "numba" in found["packages"]["found"]
    assert found["[train]"]["state"] == doctor.NOTE
