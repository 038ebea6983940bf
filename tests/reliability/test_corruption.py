"""Damaged files of each kind that takes a moment to read, and that a changed figure of one of ours is found."""

from __future__ import annotations

import json
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from agents.learning.trust import check_archive
from ooco_gym import files
from ooco_gym.documents import SEAL, read_mapping
from ooco_gym.errors import UserError
from ooco_gym.files import write_sealed
from ooco_gym.policy.weights import Layout, read_weights, write_weights
from ooco_gym.render import read_record
from tests.reliability import corruption
from tests.reliability.kept_files import TARGETS

CASES = 24
NEEDS = {"policy": "sb3_contrib", "bundle": "onnxruntime"}


@pytest.mark.parametrize("name", [name for name, target in TARGETS.items() if not target.slow])
def test_a_damaged_file_is_as_before_or_refused(name: str, tmp_path: Path) -> None:
    pytest.importorskip(NEEDS.get(name, "numpy"))
    bench = corruption.Bench(name, tmp_path)
    bench.make()
    cases = [corruption.draw(name, 1, index, bench.whole) for index in range(CASES)]
    said = Counter(bench.play(case).partition(":")[0] for case in cases)
    assert sum(said.values()) == CASES and said["same"] + said["refused"] > 0


def test_each_damage_changes_a_file(tmp_path: Path) -> None:
    for how in corruption.DAMAGES:
        path = tmp_path / f"{how}.json"
        path.write_text(json.dumps({"a": [1, 2.5, {"b": "text"}], "c": 12}))
        before = path.read_bytes()
        corruption.damage(path, how, "1")
        assert path.is_dir() or path.read_bytes() != before


def test_a_case_is_drawn_from_its_number_alone(tmp_path: Path) -> None:
    corruption.Bench("tree", tmp_path).make()
    one, other = ([corruption.draw("tree", 2, index, tmp_path / "whole") for index in range(9)] for _ in range(2))
    assert one == other and len({case["damage"] for case in one}) > 1


def test_another_figure_of_ours_is_a_failure_and_one_of_a_text_is_not(tmp_path: Path) -> None:
    bench = corruption.Bench("chip", tmp_path)
    bench.make()
    (bench.whole / "kept.bin").write_text("not read")
    case = {"target": "chip", "file": "kept.bin", "damage": "flip", "seed": "0"}
    assert bench.play(case) == corruption.SAME
    bench.expected = ["other"]
    with pytest.raises(AssertionError, match="other figures"):
        bench.play(case)
    assert bench.target.is_text("chip.yaml") and not bench.target.is_text("tables.parquet")


def test_what_is_sealed_is_read_as_it_was_written_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    write_sealed(path, {"rate": 0.1, "seeds": (1, 2), "none": float("nan")})
    assert read_mapping(path) == {"rate": 0.1, "seeds": [1, 2], "none": None, SEAL: read_mapping(path)[SEAL]}
    path.write_text(path.read_text().replace("0.1", "0.2"))
    with pytest.raises(UserError, match=r"figures.json' was changed after it was written \(its SHA-256 differs\)"):
        read_mapping(path)
    path.write_text('{"rate": 0.2}')  # of an earlier version, or a person's
    assert read_mapping(path) == {"rate": 0.2}


def claim(path: Path, size: int) -> None:
    """Lets the first file of a zip archive be so many bytes: as of a bomb, most of which need not be written."""
    with zipfile.ZipFile(path, "a") as archive:
        archive.filelist[0].file_size = size
        archive.comment = b"written anew"


def test_a_few_bytes_that_stand_for_gigabytes_are_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout, weights, policy = Layout(("row",), ("column",)), tmp_path / "weights.npz", tmp_path / "policy.zip"
    write_weights(weights, layout, np.ones(1))
    with zipfile.ZipFile(policy, "w") as archive:
        archive.writestr("policy.pth", b"weights")
    TARGETS["run"].make(tmp_path)
    monkeypatch.setattr(files, "MOST_CELLS", 100)
    with pytest.raises(UserError, match="requests.parquet is missing or cannot be read .*more than the 100 cells"):
        read_record(tmp_path / "run")
    for path, read in ((weights, lambda: read_weights(str(weights), layout)), (policy, lambda: check_archive(policy)),
                       (tmp_path / "run" / "samples.npz", lambda: read_record(tmp_path / "run"))):
        claim(path, 3 * 2**30)
        with pytest.raises(UserError, match=r"unpacks to 3,221,2.*bytes, more than the"):
            read()


def test_a_measured_engine_is_read_as_it_was_made(tmp_path):
    """Its damages are for the night; that nothing of it is refused before them is seen here."""
    TARGETS["measured"].make(tmp_path)
    rows, engine, served, runs = TARGETS["measured"].read(tmp_path)
    assert rows and engine and len(served) == len(runs) > 0


@pytest.mark.parametrize("content, said", [
    (b"", "must hold a mapping"), (b"\xff\xfe", "cannot be read: it is no text in UTF-8"), (b"{", "is not valid"),
    (b"[" * 30_000, "is not valid"), (b"a: 2024-13-45", "is not valid YAML"), (b"!!int ''", "is not valid YAML"),
    (b'{"a": 1' + b"0" * 5000 + b"}", "is not valid"), (None, "cannot be read: Is a directory")])
@pytest.mark.parametrize("ending", ["json", "yaml"])
def test_whatever_is_wrong_with_a_document_is_one_sentence(tmp_path: Path, content: bytes | None, said: str,
                                                           ending: str) -> None:
    path = tmp_path / f"x.{ending}"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(UserError) as refused:
        read_mapping(path)
    text = str(refused.value)
    assert "\n" not in text and f"x.{ending}' " in text
    assert ending == "json" or said in text
