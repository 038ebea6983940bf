"""What an environment has of its own beside its decisions: terms of the reward, and figures of the cluster.

Both read the simulator by a compiled function of (state, instance) that returns a number, a *reading*. `examples/
own_reward.py` has one of each in a file of its own, which needs no other change anywhere.
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
from ooco_gym.errors import UserError, is_number
from ooco_gym.policy.engine_features import log1p
from ooco_gym.sim.state import STATE_TYPE

READING = types.float64(Reference(STATE_TYPE), types.int64)
reading_at = function_at(types.FunctionType(READING))
SCALES = ("as is", "linear", "log", "signed log")  # of `Feature.scale`
KIND, LIMIT, LOW, HIGH = range(4)  # columns of the scales


def reading(function: Any) -> Any:
    """Compiles a function of (state, instance) that returns a number; it is kept on disk like all compiled code.

    `ooco_gym/sim/records.py` has what `state` holds. `instance` is where a decision is taken, an index of
    `state.instances`; a term of the reward is given -1. It must change nothing.
    """
    return jit(READING, no_cpython_wrapper=True)(function)


class Term(NamedTuple):
    """A term of the reward: its weight times what a reading has grown by since the last decision.

    What costs is a reading that falls. The difference of a potential of the state is a term as well (Ng et al. 1999).
    """

    name: str  # `info["reward/<name>"]`, and the key of its weight in `reward`
    total: Any  # a reading: a total so far
    weight: float = 1.0  # unless `reward` says another one


class Figure(NamedTuple):
    """A figure of the observation's `cluster`, after those that all environments have."""

    feature: Feature  # name, unit, scale, limit, bounds, meaning
    value: Any  # a reading, in the feature's unit


def check(terms: Sequence[Term], figures: Sequence[Figure], known_terms: Sequence[str],
          known_figures: Sequence[str]) -> None:
    """Refuses terms and figures of a class that cannot be told apart (also from those known), scaled or shown."""
    features = [figure.feature for figure in figures]
    for kind, names in (("term", [*known_terms, *(term.name for term in terms)]),
                        ("figure", [*known_figures, *(feature.name for feature in features)])):
        for name in names:
            if names.count(name) > 1:
                raise UserError(f"{kind} '{name}': there is another one of this name; give yours another")
    for term in terms:
        if not is_number(term.weight) or term.weight < 0:
            raise UserError(f"term '{term.name}': weight={term.weight!r} must be a number of at least 0; what costs is "
                            "a reading that falls")
    for feature in features:
        if feature.scale not in SCALES:
            raise UserError(f"figure '{feature.name}': scale '{feature.scale}' must be one of {', '.join(SCALES)}")
        if feature.scale != "as is" and not feature.limit > 0.0:
            raise UserError(f"figure '{feature.name}': limit={feature.limit} must be a number above 0")
        if not feature.low <= 0.0 <= feature.high:
            raise UserError(f"figure '{feature.name}': its bounds {feature.low} and {feature.high} must have 0 between "
                            "them, which is shown at the end of an episode")


def addresses_of(readings: Sequence[Any]) -> np.ndarray:
    """Where readings are: int64[n]."""
    return np.array([address_of(one, READING) for one in readings], np.int64)


def scales_of(figures: Sequence[Figure]) -> np.ndarray:
    """How readings become figures: float64[figures, 4]."""
    rows = [(SCALES.index(one.scale), one.limit, one.low, one.high) for one, _ in figures]
    return np.array(rows, np.float64).reshape(len(rows), 4)


@inlined
def scaled(value, scale):
    """A reading as it is observed: on its scale (a row of `scales_of`), cut at its bounds."""
    kind = scale[KIND]
    if kind == 1.0:
        value /= scale[LIMIT]
    elif kind == 2.0:
        value = log1p(max(0.0, value)) / log1p(scale[LIMIT])
    elif kind == 3.0:
        value = math.copysign(log1p(abs(value)) / log1p(scale[LIMIT]), value)
    return min(scale[HIGH], max(scale[LOW], value))
