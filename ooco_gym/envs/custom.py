"""An environment's own terms of the reward and features of the cluster.

Both are a *reading* of the simulator: a compiled function of (state, instance) that returns a
number. `examples/own_reward.py` has one of each in a single file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import types

from ooco_gym.compile import address_of, function_at, inlined, jit
from ooco_gym.compile.references import Reference
from ooco_gym.envs.features import Feature
from ooco_gym.errors import UserError
from ooco_gym.policy.engine_features import log1p
from ooco_gym.schema import number
from ooco_gym.sim.state import STATE_TYPE

READING = types.float64(Reference(STATE_TYPE), types.int64)
reading_at = function_at(types.FunctionType(READING))
SCALES = ("as is", "linear", "log", "signed log")  # values of `Feature.scale`
KIND, LIMIT, LOW, HIGH = range(4)  # columns of the scales


def reading(function: Any) -> Any:
    """Compiles a function of (state, instance) that returns a number; the result is cached on
    disk.

    `ooco_gym/sim/records.py` defines `state`. `instance` is the index in `state.instances` where
    a decision is taken; for a reward term it is -1. A reading must not change the state.
    """
    return jit(READING, no_cpython_wrapper=True)(function)


class Term(NamedTuple):
    """A reward term: its weight times the increase of a reading since the last decision.

    A cost is a reading that falls. A term may also be the difference of a potential of the state
    (Ng et al. 1999).
    """

    name: str  # `info["reward/<name>"]`, and the key of its weight in `reward`
    total: Any  # a reading: the total so far
    weight: float = 1.0  # default; `reward` overrides it


class OwnFeature(NamedTuple):
    """A feature of the observation's `cluster`, after those that all environments have."""

    feature: Feature  # name, unit, scale, limit, bounds, meaning
    value: Any  # a reading, in the feature's unit


def check(terms: Sequence[Term], own: Sequence[OwnFeature], known_terms: Sequence[str],
          known_features: Sequence[str]) -> None:
    """Raises UserError for terms and features with duplicate names (also among those known), or
    invalid weights, scales or bounds."""
    features = [one.feature for one in own]
    for kind, names in (("term", [*known_terms, *(term.name for term in terms)]),
                        ("feature", [*known_features, *(feature.name for feature in features)])):
        for name in names:
            if names.count(name) > 1:
                raise UserError(f"{kind} '{name}': this name is taken; choose another")
    for term in terms:
        number(f"term '{term.name}': weight", term.weight, 0)  # to penalise, the reading decreases
    for feature in features:
        if feature.scale not in SCALES:
            raise UserError(f"feature '{feature.name}': scale '{feature.scale}' must be one of {', '.join(SCALES)}")
        if feature.scale != "as is" and not feature.limit > 0.0:
            raise UserError(f"feature '{feature.name}': limit={feature.limit} must be a number above 0")
        if not feature.low <= 0.0 <= feature.high:
            raise UserError(f"feature '{feature.name}': 0 must lie within its bounds {feature.low} and {feature.high}, "
                            "because it is the value at the end of an episode")


def addresses_of(readings: Sequence[Any]) -> np.ndarray:
    """Addresses of readings: int64[n]."""
    return np.array([address_of(one, READING) for one in readings], np.int64)


def scales_of(own: Sequence[OwnFeature]) -> np.ndarray:
    """The scales of features: float64[features, 4]."""
    rows = [(SCALES.index(one.scale), one.limit, one.low, one.high) for one, _ in own]
    return np.array(rows, np.float64).reshape(len(rows), 4)


@inlined
def scaled(value, scale):
    """Scales a reading (`scale` is a row of `scales_of`) and clips it to its bounds."""
    kind = scale[KIND]
    if kind == 1.0:
        value /= scale[LIMIT]
    elif kind == 2.0:
        value = log1p(max(0.0, value)) / log1p(scale[LIMIT])
    elif kind == 3.0:
        value = math.copysign(log1p(abs(value)) / log1p(scale[LIMIT]), value)
    return min(scale[HIGH], max(scale[LOW], value))
