"""Results on disk, keyed by what they depend on: the question, code and configuration."""

from __future__ import annotations

import hashlib
import json
import warnings
from functools import cache
from pathlib import Path
from typing import Any

from ooco_gym import resources
from ooco_gym.documents import read_json
from ooco_gym.errors import UserError
from ooco_gym.files import as_json, cache_path, write_json

PACKAGES = ("ooco_gym", "baselines", "experiments")
# Groups of conf that make up a scenario.
GROUPS = ("chip", "cluster", "model", "offline", "policy", "protocol", "slo", "timing", "workload")
ROOT = Path(resources.__file__).parents[1]


# --- Results --------------------------------------------------------------------------------------------------------
class Store:
    """A folder of small JSON files, each with a digest of its answer; does nothing if off.

    Attributes:
        folder: of the files; None if the store is off or there is no usable cache folder.
    """

    def __init__(self, folder: Path | None = None, on: bool = True):
        self.folder = (folder or cache_path("runs")) if on else None
        self._writable = True

    def get(self, key: str) -> dict[str, Any] | None:
        """Returns the stored answer; None if it is missing, unreadable or damaged."""
        if self.folder is None:
            return None
        try:
            entry = read_json(self.folder / key[:2] / f"{key}.json")
        except UserError:
            return None
        if not isinstance(entry, dict) or entry.get("digest") != key_of([key, entry.get("answer")]):
            return None
        return entry["answer"]

    def put(self, key: str, answer: dict[str, Any]) -> None:
        """Stores an answer, atomically; warns once if the folder cannot be written."""
        if self.folder is None or not self._writable:
            return
        kept = as_json(answer)
        try:
            write_json(self.folder / key[:2] / f"{key}.json", {"digest": key_of([key, kept]), "answer": kept})
        except (OSError, UserError) as error:
            self._writable = False
            warnings.warn(f"results are not cached: folder '{self.folder}' cannot be written ({error}); set "
                          "OOCO_GYM_CACHE to a writable folder", UserWarning, stacklevel=2)


def key_of(question: Any) -> str:
    """Returns the digest of a question, which includes all that its answer depends on, also the code's digest."""
    return hashlib.sha256(json.dumps(question, sort_keys=True, default=str).encode()).hexdigest()


# --- Code -----------------------------------------------------------------------------------------------------------
@cache
def code_digest() -> str:
    """Returns the digest of our sources and of the configuration that makes up scenarios."""
    digest, conf = hashlib.sha256(), resources.conf_root()
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    for path in sorted(files + [path for group in GROUPS for path in (conf / group).glob("*.yaml")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
