"""Exported policies (docs/bundles.md) that set a rule's parameters, as policies of the simulator with the same digits.

A bundle is data: `Policy.load` holds it against its schema, digests and reference vectors. What plays it is our
compiled rule with the bundle's numbers, so it needs the features, scales and bounds of that rule.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.policy import get_policy
from ooco_gym.policy.registry import list_policies
from ooco_gym.runtime import ARRAYS_FILE, Policy
from ooco_gym.runtime.manifest import read_arrays
from ooco_gym.study.population import Candidate


def bundled(folder: str) -> Candidate:
    """The policy of a bundle.

    Raises:
        UserError: the bundle is damaged, or is of no compiled rule.
    """
    bundle = Policy.load(folder, form="npz")
    name = f"adaptive_{getattr(bundle, 'rule', None)}"
    if bundle.kind != "parameters" or name not in list_policies():
        raise UserError(f"bundle '{folder}' sets no parameters of a compiled rule, such as deadline; what takes an "
                        "environment's decisions is played by ooco-gym suite run")
    policy = get_policy(name)
    assert policy.linear is not None and policy.layout is not None
    known, whole = {one.name: one for one in policy.linear.parameters}, {one.name for one in policy.params if one.whole}
    weights, values = np.zeros((len(policy.layout.rows), len(policy.layout.columns))), dict[str, Any](bundle.constants)
    arrays = read_arrays(Path(folder) / ARRAYS_FILE)
    for row, weight, bias in zip(bundle.manifest["parameters"], arrays["weight"], arrays["bias"], strict=True):
        one, base = known.get(row["name"]), row["base"]
        if one is None or one.name in values or bundle.features != list(policy.layout.columns[:-1]) or (
                *(row[key] for key in ("scale", "step", "low", "high")),) != (
                one.scale, one.step, min(one.low, base), max(one.high, base)):
            raise UserError(f"bundle '{folder}' moves '{row['name']}' otherwise than {name} does: its scale, step, "
                            "bounds or features are others, or it is given twice (baselines/adaptive_deadline.py)")
        weights[policy.layout.rows.index(one.name)] = [*weight, bias]
        values[one.name] = base
    values["interval_s"] = bundle.interval_s or 0.0
    values = {key: int(value) if key in whole and value == int(value) else value for key, value in values.items()}
    return Candidate(policy.with_values(values, f"bundle '{folder}'"), weights.ravel())
