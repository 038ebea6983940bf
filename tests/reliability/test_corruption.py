"""Damaged files are refused in a sentence, and a changed figure of one of ours is found."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from agents.policies.runs import _read
from ooco_gym import files
from ooco_gym.cli import main
from ooco_gym.documents import SEAL, read_mapping
from ooco_gym.errors import UserError
from ooco_gym.files import write_sealed
from ooco_gym.policy.weights import Layout, read_weights, write_weights
from ooco_gym.render import read_record


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
    assert main(["simulate", "policy=ooco", "duration_s=120", "warmup_s=0", f"out={tmp_path / 'run'}"]) == 0
    monkeypatch.setattr(files, "MOST_CELLS", 100)
    with pytest.raises(UserError, match="requests.parquet is missing or cannot be read .*more than the 100 cells"):
        read_record(tmp_path / "run")
    for path, read in ((weights, lambda: read_weights(str(weights), layout)), (policy, lambda: _read(policy))):
        claim(path, 3 * 2**30)
        with pytest.raises(UserError, match=r"unpacks to 3,221,2.*bytes, more than the"):
            read()


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
