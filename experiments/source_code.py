"""Digests of the code that figures depend on, so that kept ones are known to be of other code."""

from __future__ import annotations

import ast
import hashlib
from functools import lru_cache
from pathlib import Path
from threading import Lock

import yaml

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
            "agents/learning/dqn.py", "ooco_gym/runtime")
PLAYED_BY_SEATS = (*NETWORKS, "ooco_gym/envs", "experiments/learned_player.py")
PLAYED_GROUPS = (*GROUPS, "env", "reward")
# No figure depends on them.
_SKIPPED = tuple(f"ooco_gym/{name}.py" for name in (
    "envs/document", "envs/picture", "envs/rule_agent", "envs/vector", "envs/words", "metrics/statistics",
    "metrics/table"))

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
