"""Windows that an evaluation which did not come to its end has played already, so that they are not played again.

A line of `played.jsonl` holds the records of some windows under the digest of all that they depend on. The file is
removed when the evaluation is whole.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from agents.evaluation.players import digest_of
from ooco_gym.documents import SEAL, seal_of
from ooco_gym.errors import UserError
from ooco_gym.files import as_json
from ooco_gym.peak import file_stamps
from ooco_gym.resources import conf_root

PLAYED_FILE = "played.jsonl"


class PlayedWindows:
    """What the file `path` holds (`found`, by key); `put` adds to it. A line that was cut off by the end of the
    process, or has changed since it was written, is left out."""

    def __init__(self, path: Path) -> None:
        if path.is_dir():
            raise UserError(f"'{path}' is a folder, where the windows that have been played are kept; move it away")
        self._path = path
        self.found: dict[str, Any] = {}
        content = path.read_bytes() if path.is_file() else b""
        for line in content.splitlines():
            try:
                entry = json.loads(line)
                if entry[SEAL] == seal_of(entry):
                    self.found[entry["key"]] = entry["result"]
            except (ValueError, KeyError, TypeError, RecursionError):
                continue
        self._cut = bool(content) and not content.endswith(b"\n")

    def put(self, key: str, result: Any) -> Any:
        """Adds a result and returns it."""
        entry = json.loads(json.dumps({"key": key, "result": result}))
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(("\n" if self._cut else "") + json.dumps({**entry, SEAL: seal_of(entry)}) + "\n")
        self._cut = False
        return result


def key_of(work: Any) -> str:
    """Digest of a job of `evaluate`: of what is played, the policy's own files, and the code that plays."""
    files = digest_of(work.policy) if getattr(work, "learned", False) else None
    told = {"kind": type(work).__name__, **work._asdict(), "files": files, "code": _code()}
    told["stamps"] = file_stamps({**told, "own": str(getattr(work, "policy", "")).partition(":")[0]})
    return hashlib.sha256(json.dumps(as_json(told), sort_keys=True).encode()).hexdigest()


@cache
def _code() -> str:
    """Digest of the sources and settings of this installation."""
    digest, root = hashlib.sha256(), Path(__file__).parents[2]
    folders = [conf_root(), *(root / name for name in ("ooco_gym", "baselines", "agents"))]
    for path in sorted(path for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".yaml")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
