"""The protocol's figures for comparisons (docs/protocol.md): `conf/protocol/default.yaml`, `conf/comparisons.yaml`.

Apart so that every package has one home to take them from; a scenario with a protocol of its own has its budget there.
"""

from __future__ import annotations

from collections.abc import Sequence

from ooco_gym.resources import load_yaml

_COMPARISONS = load_yaml("", "comparisons")

VIOLATION_BUDGET: float = load_yaml("protocol", "default")["violation_budget"]
"""Share of online requests that may violate their SLO."""
WINDOW_S: float = _COMPARISONS["window_s"]
"""Measured window, in seconds."""
SEEDS: int = _COMPARISONS["seeds"]
"""The fewest paired seeds."""
KEPT_UP: float = _COMPARISONS["kept_up"]
"""Smallest share of the offline requests arriving in the second half that is completed, where a rate is sustained."""
KEPT_UP_SERVICE: float = _COMPARISONS["kept_up_service"]
"""The same by reference GPU time."""
KEPT_UP_ONE_RUN: float = _COMPARISONS["kept_up_one_run"]
"""The same of one run by itself, below which its backlog is said to grow."""
BASELINE = "vllm_priority"
"""The policy that others are compared with where it plays and none is named."""


def baseline_among(policies: Sequence[str]) -> str:
    """The policy that the others are compared with where none is named: vLLM's where it plays, else the first."""
    return BASELINE if BASELINE in policies else policies[0]
