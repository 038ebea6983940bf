"""What an agent observes: the tables of `features.json`. The compiled code that fills them is in `filling`.

Every feature is bounded. `log` features are log(1 + x) / log(1 + limit), cut at 1; `signed log`
features are the same of |x| with the sign of x; `linear` features are x / limit, cut at the
bounds. Features have no more than a scheduler knows: output lengths of unfinished requests are
hidden, and only some decisions have a length predictor's estimates.
"""

from __future__ import annotations

import json
from collections import namedtuple
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ooco_gym.errors import UserError

# Actions of every environment with a discrete choice: the decision's own *no*, and the base
# policy's action. Candidates come after them.
DECLINE_ACTION, BASE_ACTION, FIXED = range(3)


class Feature(NamedTuple):
    """One entry of an observation."""

    name: str
    unit: str
    scale: str  # log, signed log, linear, or as is
    limit: float
    low: float
    high: float
    meaning: str


def _table(name: str) -> tuple[Feature, ...]:
    return tuple(Feature(**{"low": 0.0, "high": 1.0, **row}) for row in _TABLES[name])


_TABLES = json.loads(Path(__file__).with_name("features.json").read_text(encoding="utf-8"))
CLUSTER = _table("cluster")
PRESENT, WANTED = _table("present")[0], _table("wanted")[0]
REQUEST = (PRESENT, *_table("request"), WANTED)  # of every request offered at a pool's decision, which adds its own
GATE = (*REQUEST, *_table("gate"))
RESIDENT = (*REQUEST, *_table("resident"))  # of a decoding request, for eviction and migration
BELIEVED = (*RESIDENT, *_table("believed"))  # with a length predictor's estimates
ARRIVAL, PARAMETER = _table("arrival"), _table("parameter")
INSTANCE = (PRESENT, *_table("instance"), WANTED)
LEVEL, RETAINED, JOB = ((PRESENT, *_table(name)) for name in ("level", "retained", "job"))
SERVED = _table("served")
CHANGE, FLEET, POOLS = (PRESENT, *_table("change"), WANTED), _table("fleet"), _table("pools")
ROUTED, ROUTER = (PRESENT, *_table("routed"), WANTED), _table("router")


def columns(table: Sequence[Any]) -> Any:
    """Returns the index of each feature by its name as a named tuple: compiled code reads
    `COLUMN.tokens` as a constant."""
    return namedtuple("Columns", [feature.name for feature in table])(*range(len(table)))


CLUSTER_COLUMN, CLUSTER_SIZE = columns(CLUSTER), len(CLUSTER)
# Features of `CLUSTER` that never change at a kind of decision (`Decision.still`): if the base
# policy's margin is not set, if no picks are made, if the instance is idle, and if it is not a
# strict one.
MARGIN, PICKS = ("packing",), ("picks",)
IDLE = ("busy", "progress")
RELAXED = ("pull_guard",)


def bounds(table: tuple[Feature, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the lowest and highest value of each feature: float32."""
    return np.array([f.low for f in table], np.float32), np.array([f.high for f in table], np.float32)


def candidate_table(observation: Mapping[str, Any], parameters: int | None = None) -> Any:
    """Returns the candidates of an observation as a table, which is a view.

    Args:
        observation: of one or many episodes; `candidates` is (..., K·F), row by row, a NumPy
            array or torch tensor.
        parameters: K, if the action is a vector of levels, one per parameter; else `action_mask`
            gives K.

    Returns:
        (..., K, F), of the same type; the environment's `feature_tables()["candidates"]` names
            the columns.

    Raises:
        UserError: not an observation, or candidates of another shape.
    """
    try:
        candidates, actions = observation["candidates"], observation["action_mask"].shape[-1]
        shape = tuple(candidates.shape)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise UserError("expected an observation: a mapping with the arrays candidates and action_mask") from error
    places = actions - FIXED if parameters is None else parameters
    if not shape or places < 1 or not shape[-1] or shape[-1] % places:
        raise UserError(f"candidates of shape {shape} must have {places} candidates a row; if an action is a vector of "
                        "levels, give parameters=…")
    return candidates.reshape(*shape[:-1], places, shape[-1] // places)
