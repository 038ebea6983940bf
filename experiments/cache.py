"""Results of simulations on disk, found again by what they depend on: scenario, policy, seed and the source itself."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from ooco_gym.files import write_json
from ooco_gym.peak import cache_folder
from ooco_gym.resources import conf_root

SOURCES = ("ooco_gym/perf", "ooco_gym/workload", "ooco_gym/sim", "ooco_gym/decisions", "ooco_gym/policy",
           "ooco_gym/metrics", "baselines")
GROUPS = ("chip", "cluster", "model", "offline", "policy", "protocol", "slo", "timing", "workload")  # of conf
SKIPPED = ("statistics.py", "table.py")  # no simulated figure depends on them


@lru_cache(maxsize=1)
def source_digest() -> str:
    """Digest of everything in the package that a simulated figure can depend on: code and configuration."""
    import ooco_gym

    root, digest = Path(str(ooco_gym.__file__)).parent.parent, hashlib.sha256()
    folders = [*(root / part for part in SOURCES), *(conf_root() / group for group in GROUPS)]
    files = sorted(path for folder in folders for path in folder.rglob("*")
                   if path.suffix in (".py", ".yaml") and path.name not in SKIPPED)
    for path in [root / "ooco_gym" / "cluster.py", root / "ooco_gym" / "scenario.py", *files]:
        digest.update(f"{path.name}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


class Cache:
    """A folder of small JSON files. Switched off, it remembers nothing.

    Attributes:
        folder: where the files are, or None where it is off.
    """

    def __init__(self, folder: Path | None = None, on: bool = True):
        self.folder = (folder or cache_folder() / "runs") if on else None

    def key(self, question: dict[str, Any]) -> str:
        """Digest of a question: all that its answer depends on, with the source."""
        text = json.dumps({"source": source_digest(), "question": question}, sort_keys=True, default=str)
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
