"""Results of simulations on disk, found again by what they depend on: scenario, policy, seed and the source itself."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from experiments.source_code import GROUPS, SIMULATED, code_digest
from ooco_gym.files import write_json
from ooco_gym.peak import cache_folder


class Cache:
    """A folder of small JSON files. Switched off, it remembers nothing.

    Attributes:
        folder: where the files are, or None where it is off.
    """

    def __init__(self, folder: Path | None = None, on: bool = True):
        self.folder = (folder or cache_folder() / "runs") if on else None

    def key(self, question: dict[str, Any]) -> str:
        """Digest of a question: all that its answer depends on, with the source."""
        source = code_digest(SIMULATED, GROUPS, peaks=False)
        text = json.dumps({"source": source, "question": question}, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()

    def get(self, key: str) -> dict[str, Any] | None:
        """The stored answer, or None; a file that cannot be read counts as none."""
        if self.folder is None:
            return None
        try:
            return json.loads((self.folder / key[:2] / f"{key}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def put(self, key: str, answer: dict[str, Any]) -> None:
        """Stores an answer, atomically."""
        if self.folder is not None:
            write_json(self.folder / key[:2] / f"{key}.json", answer)
