"""What programs that write schedulers begin with: a rule of ours as one file, its task and an evaluator."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agents.score.command import scored
from ooco_gym.errors import UserError
from ooco_gym.files import atomic_write
from ooco_gym.policy import get_policy
from ooco_gym.resources import conf_root, load_yaml

EVALUATOR = """\"\"\"The evaluator of OpenEvolve and SkyDiscover: evaluate(path) -> {"combined_score": …}.\"\"\"

from agents.score.program import evaluate  # noqa: F401
"""


def settings(**changes: Any) -> dict[str, Any]:
    """The command's keys, with changes, as `scored` takes them."""
    known = {key: value for key, value in load_yaml("", "suite").items() if key != "defaults"}
    return {**known, "suite": load_yaml("suite", "v1"), **changes}


def evaluate(path: str, **changes: Any) -> dict[str, Any]:
    """Scores a rule's file, by the keys of `conf/suite.yaml`: on public windows, unless `seed` is given.

    Returns:
        `combined_score` and, for a program, `low` and `high` of its interval and `violation_rate`; with an `error` all
        scores are 0.
    """
    try:
        found = scored(str(path), settings(**changes))
    except UserError as error:
        return {"combined_score": 0.0, "low": 0.0, "high": 0.0, "violation_rate": 1.0, "error": str(error)}
    low, high = found["interval"]
    return {"combined_score": found["combined_score"], "low": low, "high": high,
            "violation_rate": found["violation_rate"]}


def write_program(config: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """Writes the initial program, its task and the evaluator."""
    texts = {"initial_program.py": initial_program(), "evaluator.py": EVALUATOR,
             "task.md": (conf_root() / "suite" / "task.md").read_text("utf-8")}
    for name, text in texts.items():
        with atomic_write(out / name) as temporary:
            temporary.write_text(text, "utf-8")
    print(f"{', '.join(texts)} written to {out}")
    return {"files": list(texts)}


def initial_program(name: str = "deadline") -> str:
    """A policy of ours as one file: its rules, with the values of its YAML as defaults."""
    policy = get_policy(name)
    spec = find_spec(load_yaml("policy", name)["module"])
    assert spec is not None and spec.origin is not None
    lines = Path(spec.origin).read_text("utf-8").splitlines(keepends=True)
    for node in reversed([one for one in ast.walk(ast.parse("".join(lines))) if isinstance(one, ast.Call)]):
        if isinstance(node.func, ast.Name) and node.func.id == "Param" and isinstance(node.args[0], ast.Constant):
            row, column = (node.end_lineno or 1) - 1, node.end_col_offset or 1
            value = policy.values[str(node.args[0].value)]
            lines[row] = f"{lines[row][: column - 1]}, default={value!r}{lines[row][column - 1 :]}"
    return "".join(lines)
