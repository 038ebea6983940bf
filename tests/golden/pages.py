"""The files of `docs/envs`, which are written from the environments (`tests/envs/test_pages.py`)."""

from __future__ import annotations

from tests.golden.digests import ROOT, Digests, digest

FOLDER = ROOT / "docs" / "envs"


def group(every: int = 1) -> Digests:
    """The digest of every n-th file."""
    files = sorted(path for path in FOLDER.rglob("*") if path.is_file())
    return {path.relative_to(ROOT).as_posix(): {"content": digest(path.read_bytes())} for path in files[::every]}
