"""Damaged files are refused in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from ooco_gym.documents import read_mapping
from ooco_gym.errors import UserError


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
