"""The files of a search over whole episodes after every generation, and how it resumes.

`policy.yaml` and, for a policy with weights, `weights.npz` are the best policy so far (commands
take the YAML as a policy's name). `generations.csv` is the table. A search resumes from
`checkpoints/latest.state`, exactly. No file contains a time, so that the same search writes the
same bytes. The state is a pickle, which can carry code: resume only what you trust.
"""

from __future__ import annotations

import csv
import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from agents.policies.runs import GENERATIONS_FILE as TABLE_FILE
from agents.policies.runs import SEARCHED_FILE as POLICY_FILE
from agents.policies.runs import SEARCHED_WEIGHTS as WEIGHTS_FILE
from agents.policies.runs import STATE_FILE
from ooco_gym.errors import UserError
from ooco_gym.files import atomic_write
from ooco_gym.policy import get_policy
from ooco_gym.policy.weights import write_weights
from ooco_gym.study.population import Candidate

FILES = (POLICY_FILE, WEIGHTS_FILE, TABLE_FILE)
_SCHEMA = "ooco-gym/search/1"
COLUMNS = ("generation", "restart", "candidates", "windows", "best_score", "best_service", "best_violation_rate",
           "best_violation_upper_limit", "best_feasible", "median_score", "feasible_share", "sigma", "moved",
           "training_best_score", "training_mean_score",
           *(f"validation_{name}_{figure}" for name in ("best", "mean")
             for figure in ("score", "violation_rate", "violation_upper_limit")), "kept_score", "kept_feasible")


def write(search: Any) -> bytes:
    """Writes a search's files; returns its memory, pickled."""
    memory, out = pickle.dumps(search.memory), search.out
    write_policy(out, search.space.candidate(search.memory.best))
    with atomic_write(out / TABLE_FILE) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(search.memory.rows)
    state = {"schema": _SCHEMA, "names": search.space.names, "memory": memory}
    with atomic_write(out / STATE_FILE) as temporary:  # last, so that a resumed search finds all other files complete
        temporary.write_bytes(pickle.dumps(state))
    return memory


def read(folder: Path, names: Sequence[str]) -> Any:
    """Reads the memory of the search in a folder; `names` are its numbers.

    Raises:
        UserError: the state is missing, damaged, or of another search or version of this package.
    """
    path = folder / STATE_FILE
    try:
        state = pickle.loads(path.read_bytes())
        if not isinstance(state, dict) or state.get("schema") != _SCHEMA:
            raise UserError(f"'{path}' is from another version of ooco-gym, or not a search; expected schema "
                            f"{_SCHEMA}: start a new search")
        if tuple(state["names"]) != tuple(names):
            raise UserError(f"'{path}' is from a search over other parameters of the policy, which has changed since: "
                            "start a new search")
        return pickle.loads(state["memory"])
    except UserError:
        raise
    except Exception as error:  # pickles fail in many ways; all mean that the file cannot be used
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"'{path}' cannot be resumed from: {reason}; start a new search") from error


def write_policy(folder: Path, candidate: Candidate) -> None:
    """Writes a candidate as a policy's YAML, with its weights beside it."""
    policy = candidate.policy
    lines: dict[str, Any] = {"name": policy.name}
    if policy.file:  # a registered policy's name suffices
        path, colon, wanted = policy.file.partition(":")
        lines["file"] = os.path.relpath(path, folder) + colon + wanted
    known = get_policy(policy.file or policy.name).values
    lines |= {key: value for key, value in policy.values.items() if known.get(key) != value and key != "weights"}
    if candidate.weights is not None:
        assert policy.layout is not None
        write_weights(folder / WEIGHTS_FILE, policy.layout, candidate.weights)
        lines["weights"] = WEIGHTS_FILE
    with atomic_write(folder / POLICY_FILE) as temporary:
        temporary.write_text("# Found by a search (ooco-gym train); summary.json describes it.\n"
                             + yaml.safe_dump(lines, sort_keys=False, width=120), encoding="utf-8")
