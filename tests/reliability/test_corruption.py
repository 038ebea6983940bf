"""Damaged files are refused in a sentence, and a changed figure of one of ours is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from ooco_gym.documents import SEAL, read_mapping
from ooco_gym.errors import UserError
from ooco_gym.files import write_sealed


def test_what_is_sealed_is_read_as_it_was_written_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    write_sealed(path, {"rate": 0.1, "seeds": (1, 2), "none": float("nan")})
    assert read_mapping(path) == {"rate": 0.1, "seeds": [1, 2], "none": None, SEAL: read_mapping(path)[SEAL]}
    path.write_text(path.read_text().replace("0.1", "0.2"))
    with pytest.raises(UserError, match=r"figures.json' was changed after it was written \(its SHA-256 differs\)"):
        read_mapping(path)
    path.write_text('{"rate": 0.2}')  # of an earlier version, or a person's
    assert read_mapping(path) == {"rate": 0.2}


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
