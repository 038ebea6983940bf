"""The package's learned policies: rules with weights in `conf/policy`, and their cards.

A learned policy is a YAML file that names its weights and has a card: its decisions, its training,
held-out scores with intervals, and failures. It simulates, compares and exports as any other
policy. `ooco-gym zoo` retrains them (docs/learned.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ooco_gym.errors import UserError, nearest, unknown
from ooco_gym.policy import Policy, get_policy
from ooco_gym.resources import load_yaml
from ooco_gym.resources import names as known
from ooco_gym.runtime import Policy as Bundle

_PREFIX = "learned_"  # of file names in conf/policy


def names() -> list[str]:
    """Names of the learned policies, such as `learned_gate`."""
    return [name for name in known("policy") if name.startswith(_PREFIX)]


def card(name: str) -> dict[str, Any]:
    """Card of a learned policy: its decisions, training, scores with intervals, and failures.

    Raises:
        UserError: unknown name.
    """
    if name not in names():
        raise unknown("learned policy", name, names())
    return load_yaml("policy", name)["card"]


def load_policy(name: str | Path, threads: int = 1) -> Policy | Bundle:
    """Loads a learned policy of the package by name, as a `Policy` to simulate, compare or make
    agents of; or the `out` folder of `ooco-gym export`, as a bundle that maps observations to
    actions (`threads` is onnxruntime's, for bundles with only a graph).

    Raises:
        UserError: neither a name nor a folder, a broken bundle, or onnxruntime is missing.
    """
    if isinstance(name, str) and name in names():
        return get_policy(name)
    if isinstance(name, (str, Path)) and Path(name).is_dir():
        return Bundle.load(Path(name), threads)
    raise UserError(f"unknown learned policy {str(name)!r}{nearest(str(name), names())}; expected the 'out' of "
                    f"'ooco-gym export', or one of: {', '.join(names())} (ooco_gym.get_policy finds rules)")
