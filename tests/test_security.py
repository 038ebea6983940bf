"""Each line of SECURITY.md on what is data and what is code, played; the first and the seventh in `test_own_code`,
the ninth in `test_files`."""

from __future__ import annotations

import base64
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import yaml

from ooco_gym.cli import main
from ooco_gym.errors import UserError
from ooco_gym.runtime import Policy
from ooco_gym.study.runs import in_processes

PAGE = Path(__file__).parents[1] / "SECURITY.md"


class Touches:
    """What makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., None], tuple[Path]]:
        return Path.touch, (self.path,)


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Touches:
    """An object whose pickle makes the file `ran` in the folder where commands run."""
    monkeypatch.chdir(tmp_path)
    return Touches(tmp_path / "ran")


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*words, "out=OUT"]) == 2
    said = capsys.readouterr().err
    assert said.count("error:") == 1 and "Traceback" not in said, said
    return said


@pytest.mark.parametrize("group", ["policy", "cluster", "slo", "workload", "offline"])
def test_yaml_makes_no_objects(evil: Touches, capsys: pytest.CaptureFixture[str], group: str) -> None:
    """Line 2."""
    Path("x.yaml").write_text(f"name: !!python/object/apply:pathlib.Path.touch [{evil.path}]\n")
    chosen = {"policy": "ooco", group: "x.yaml"}
    refused(capsys, "simulate", *(f"{key}={value}" for key, value in chosen.items()))
    assert not evil.path.exists()


@pytest.mark.parametrize("name", ["x.csv", "x.jsonl", "x.parquet", "x.csv.gz"])
def test_a_trace_is_data(evil: Touches, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """Line 3."""
    Path(name).write_bytes(pickle.dumps(evil))
    refused(capsys, "simulate", "policy=ooco", f"workload.path={name}")
    assert not evil.path.exists()


def test_a_trained_policy_is_data(evil: Touches, capsys: pytest.CaptureFixture[str]) -> None:
    """Line 4."""
    torch = pytest.importorskip("torch")
    folder = Path("RUN")
    folder.mkdir()
    torch.save({"weight": evil}, "policy.pth")
    with zipfile.ZipFile(folder / "policy.zip", "w") as archive:
        archive.write("policy.pth")
        archive.writestr("data", json.dumps({"num_timesteps": 1, "policy_class": {
            ":serialized:": base64.b64encode(pickle.dumps(evil)).decode()}}))
    env = {"name": "prefillgate", "id": "ooco_gym/PrefillGate-v1"}
    (folder / "config.yaml").write_text(yaml.safe_dump({"env": env, "agent": {"name": "maskable_ppo"}}))
    assert "cannot be read as a policy" in refused(capsys, "export", "policy=RUN")
    assert not evil.path.exists()


def test_an_exported_policy_is_data(evil: Touches) -> None:
    """Line 5: what its arrays are replaced by is seen, before it is read."""
    assert main(["export", "policy=learned_deadline", "forms=npz", "out=BUNDLE"]) == 0
    np.savez("BUNDLE/weights.npz", x=np.array([evil], object))
    with pytest.raises(ValueError, match="weights"):
        Policy.load("BUNDLE")
    assert not evil.path.exists()


def test_weights_are_data(evil: Touches, capsys: pytest.CaptureFixture[str]) -> None:
    """Line 6."""
    np.savez("weights.npz", x=np.array([evil], object))
    Path("x.yaml").write_text("extends: router\nweights: weights.npz\n")
    refused(capsys, "simulate", "policy=x.yaml", "cluster=mixed_7b")
    assert not evil.path.exists()


def test_what_training_goes_on_from_is_code(evil: Touches) -> None:
    """Line 8."""
    pytest.importorskip("stable_baselines3")
    from agents.learning.state import read_state

    Path("checkpoints").mkdir()
    with pa.output_stream("checkpoints/latest.state", compression="zstd") as stream:
        stream.write(pickle.dumps(evil))
    with pytest.raises(UserError, match="cannot be resumed from"):
        read_state({"out": ".", "total_timesteps": 8})
    assert evil.path.exists()


def test_workers_unpickle_what_they_are_given(evil: Touches) -> None:
    """Line 10: code, from the process that began them."""
    assert list(in_processes(type, [evil, evil], 2)) == [type(None)] * 2
    assert evil.path.exists()
