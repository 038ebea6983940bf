"""What an evaluation that did not come to its end has played already, so that it is not played once more.

A line of `played.jsonl` holds the records of some windows under the digest of all that they depend on. The file is
removed when the evaluation is whole.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import ooco_gym
from agents.evaluation.players import digest_of
from ooco_gym.files import as_json
from ooco_gym.peak import file_stamps
from ooco_gym.resources import conf_root

PLAYED_FILE = "played.jsonl"


class Kept:
    """What `path` holds (`found`, by key); `put` adds to it.

    A last line that was cut off by the end of the process is left out.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.found: dict[str, Any] = {}
        for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
            try:
                entry = json.loads(line)
                self.found[entry["key"]] = entry["result"]
            except (ValueError, KeyError, TypeError):
                continue

    def put(self, key: str, result: Any) -> Any:
        """Adds a result and returns it."""
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"key": key, "result": result}) + "\n")
        return result

    def remove(self) -> None:
        """Removes the file: the evaluation is whole."""
        self._path.unlink(missing_ok=True)


def key_of(work: Any) -> str:
    """Digest of some windows of one policy, or of the window of a bound: of what is played, the policy's own files, and
    the code that plays."""
    files = digest_of(work.policy) if getattr(work, "learned", False) else None
    told = {"kind": type(work).__name__, **work._asdict(), "files": files, "code": _code()}
    told["stamps"] = file_stamps({**told, "own": str(getattr(work, "policy", "")).partition(":")[0]})
    return hashlib.sha256(json.dumps(as_json(told), sort_keys=True).encode()).hexdigest()


@cache
def _code() -> str:
    """Digest of the sources and settings of this installation."""
    digest, root = hashlib.sha256(), Path(ooco_gym.__file__).parent.parent
    folders = [conf_root(), *(root / name for name in ("ooco_gym", "baselines", "agents"))]
    for path in sorted(path for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".yaml")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
