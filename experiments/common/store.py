"""Results on disk, found again by what they depend on: the question, and the code that answers it."""

from __future__ import annotations

import ast
import hashlib
import json
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

import yaml

from ooco_gym.files import write_json
from ooco_gym.peak import cache_folder
from ooco_gym.resources import conf_root

# What a simulation depends on.
SIMULATED = ("ooco_gym/perf", "ooco_gym/workload", "ooco_gym/sim", "ooco_gym/decisions", "ooco_gym/policy",
             "ooco_gym/metrics", "ooco_gym/cluster.py", "ooco_gym/scenario.py", "baselines")
GROUPS = ("chip", "cluster", "model", "offline", "policy", "protocol", "slo", "timing", "workload")  # of conf
# What plays windows of an environment, and what else does where networks, exports and rules of `explain` decide.
PLAYED = ("ooco_gym/perf", "ooco_gym/workload", "ooco_gym/sim", "ooco_gym/decisions", "ooco_gym/policy",
          "ooco_gym/envs", "ooco_gym/cluster.py", "ooco_gym/scenario.py", "baselines", "agents/lookahead",
          "agents/evaluation/heuristics.py", "agents/environments.py", "agents/evaluation/players.py")
NETWORKS = ("agents/explaining/rules.py", "agents/environments.py", "agents/evaluation/players.py",
            "agents/learning/runs.py", "agents/learning/networks.py", "agents/learning/ppo.py",
            "agents/learning/dqn.py", "ooco_gym/runtime.py")
PLAYED_BY_SEATS = (*NETWORKS, "ooco_gym/envs", "experiments/common/learned_player.py")
PLAYED_GROUPS = (*GROUPS, "env", "reward")
# No figure depends on them.
_SKIPPED = tuple(f"ooco_gym/{name}.py" for name in (
    "envs/rule_agent", "envs/vector", "metrics/statistics", "metrics/table"))

_PARSING = Lock()  # Python 3.11 parses in one thread at a time, or fails now and then (CPython's issue 106905)


def code_digest(parts: tuple[str, ...], groups: tuple[str, ...] = PLAYED_GROUPS, peaks: bool = True) -> str:
    """Digest of what the code of files and folders says, without comments and docstrings, and of the configuration.

    Args:
        parts: files and folders, from the folder of the packages.
        groups: of the configuration.
        peaks: also the stored peak factors: not for what has its load in numbers.
    """
    with _PARSING:
        return _digest(parts, groups, peaks)


@lru_cache(maxsize=8)
def _digest(parts: tuple[str, ...], groups: tuple[str, ...], peaks: bool) -> str:
    import ooco_gym

    root, digest = Path(str(ooco_gym.__file__)).parent.parent, hashlib.sha256()
    places = [root / part for part in parts]
    configured = [path for group in groups for path in (conf_root() / group).glob("*.yaml")]
    files = [path for place in places for path in ([place] if place.suffix == ".py" else sorted(place.rglob("*.py")))]
    for path in files:
        if path.relative_to(root).as_posix() not in _SKIPPED:
            digest.update(f"{path.name}\0{code_of(path.read_text(encoding='utf-8'))}\0".encode())
    for path in [*sorted(configured), *(conf_root().glob("peak_factors.yaml") if peaks else ())]:
        digest.update(f"{path.name}\0{yaml.safe_load(path.read_text(encoding='utf-8'))}\0".encode())
    return digest.hexdigest()


def code_of(text: str) -> str:
    """What a source file does: its syntax tree without docstrings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and isinstance(body, list) and body:
            first = body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(
                    first.value.value, str):
                node.body = body[1:]
    return ast.dump(tree)


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
