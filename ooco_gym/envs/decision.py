"""One kind of decision: its decision point, candidates, the meaning of actions, and its names.

An environment's file builds a `Decision` from these parts; pages, pictures and evaluation read it
there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from ooco_gym.compile import address_of, inlined, inner
from ooco_gym.envs import ENVIRONMENTS
from ooco_gym.envs.buffers import ADMIT, BASE_ACTION, CLOCK, DECLINE_ACTION, FIXED, PICKED, RECLAIM, STEP_SIGNATURE
from ooco_gym.envs.config import EpisodeConfig
from ooco_gym.envs.features import CLUSTER, PRESENT, Feature
from ooco_gym.policy.policy import Policy
from ooco_gym.policy.rules import sort_ascending
from ooco_gym.sim.state import State


class OpenDecision(NamedTuple):
    """A pending decision and a rule's answer to it, for `Decision.action_of`."""

    state: State
    answer: int
    picks: np.ndarray  # int32, requests that the rule wrote
    chosen: np.ndarray  # int32[K], row of StepBuffers.chosen
    turn: np.ndarray  # int64[TURN], row of StepBuffers.status

    @property
    def picked(self) -> int:
        """Picks made so far in this decision."""
        return int(self.turn[PICKED])

    def closest(self, requests: np.ndarray, wanted: int) -> int:
        """Returns the action of the request that a rule wants, or of the offered one (int32[k],
        in the order of the candidates) closest in length."""
        if not len(requests):
            return 0
        same = np.flatnonzero(requests == wanted)
        if len(same):
            return FIXED + int(same[0])
        every = self.state.requests
        size = every["prompt_tokens"].astype(np.int64) + every["generated_tokens"]
        return FIXED + int(np.argmin(np.abs(size[requests] - size[wanted])))

    def offered(self) -> np.ndarray:
        """The candidates (positions, requests, instances) without empty slots: int32[k]."""
        return self.chosen[self.chosen >= 0]


class Controls(NamedTuple):
    """P parameters of the base policy that one action sets, and their levels."""

    names: list[str]
    levels: np.ndarray  # float64[P, levels]
    counts: np.ndarray  # int64[P], number of levels of each
    tuned: np.ndarray  # int64[P], the tuned level of each

    def legal(self, actions: np.ndarray) -> np.ndarray:
        """Replaces invalid levels in actions (..., P) by the tuned level."""
        return np.where((actions >= 0) & (actions < self.counts), actions, self.tuned)


@dataclass(frozen=True)
class Decision:
    """One kind of decision.

    Attributes:
        name: name of the kind, such as `gate`.
        kind: a decision point of the simulator (`sim.state.GATE`, …); a part of a mixed
            instance's iteration (`buffers.RECLAIM`, `buffers.ADMIT`); or for a decision by the
            clock (once in `interval_s`) `buffers.CLOCK`, or `buffers.CONTROL` if an action is a
            vector of levels.
        offer, answer: step kernels (`buffers.step_kernel`).
        action_of: function that returns the action for a rule's answer; None: rules have
            parameters for this decision, but no answer.
        window: number of waiting requests that the simulator must look at, if the base policy
            looks at fewer.
        base_policy: for `CLOCK`, `RECLAIM` and `ADMIT`: step kernel that does what the base
            policy would do.
        levels: function that returns `StepBuffers.levels`, the values to choose from:
            float64[values of one, candidates] (for `CLOCK`: float64[1, levels], ascending); None:
            the configuration sets the number of candidates.
        controls: for `CONTROL`: function that returns the parameters and their levels.
        question: the decision as a question.
        no: effect of action 0.
        take: effect of action 2 + k.
        candidates: noun for the candidates.
        table: features of a candidate, in the order of columns.
        cluster: features of the observation's `cluster`; if not `features.CLUSTER`, `observe`
            fills it.
        still: features of `features.CLUSTER` that never change at this kind of decision. An
            environment leaves out those that never change at any of its kinds.
        observe: step kernel that completes the observation: `cluster`, and features of candidates
            that `offer` left out; None: the common one.
        box: an action may be a vector of numbers from -1 to 1, one for each row of `levels`, least to most.
        marks: positions of its marks in the picture of a cluster, (x, y) in pixels.
    """

    name: str
    kind: int
    offer: Any
    answer: Any
    action_of: Callable[[OpenDecision], int] | None = None
    window: int = 0
    base_policy: Any = None
    levels: Callable[[Policy, EpisodeConfig], np.ndarray] | None = None
    controls: Callable[[Policy, EpisodeConfig], Controls] | None = None
    question: str = ""
    no: str = "(never legal)"
    take: str = ""
    candidates: str = "candidates"
    table: tuple[Feature, ...] = (PRESENT,)
    cluster: tuple[Feature, ...] = CLUSTER
    still: tuple[str, ...] = ()
    observe: Any = None
    box: bool = False
    marks: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        if self.kind in (ADMIT, CLOCK, RECLAIM) and self.base_policy is None:
            raise ValueError(f"decision '{self.name}' has no rule of its own: `base_policy` must give the base "
                             "policy's action")
        if self.cluster is not CLUSTER and self.observe is None:
            raise ValueError(f"decision '{self.name}' has its own cluster table, which `observe` must fill")
        known = _KNOWN.get(self.name)
        if known is not None and known.offer.py_func.__module__ != self.offer.py_func.__module__:
            raise ValueError(f"decision '{self.name}' is registered already: choose another name")
        _KNOWN[self.name] = self


_KNOWN: dict[str, Decision] = {}


def kinds() -> Mapping[str, Decision]:
    """Returns every kind of decision by name: this package's, then those of imported
    environments."""
    for entry_point in ENVIRONMENTS.values():
        import_module(entry_point.partition(":")[0])
    return _KNOWN


def are_settings(decisions: Sequence[Decision]) -> bool:
    """Whether no policy has a rule that answers these decisions. A published policy can then only
    be the base policy."""
    return all(decision.action_of is None for decision in decisions)


def candidate_columns(decisions: Sequence[Decision]) -> tuple[Feature, ...]:
    """Returns the columns of the candidate table of some decisions. A column with several
    meanings names the decision of each; columns beyond a decision's own table are 0."""
    width = max(len(one.table) for one in decisions)
    return tuple(_column([(one.name, one.table[place]) for one in decisions if place < len(one.table)])
                 for place in range(width))


def _column(listed: Sequence[tuple[str, Feature]]) -> Feature:
    distinct = list(dict.fromkeys(feature for _, feature in listed))
    if len(distinct) == 1:
        return distinct[0]
    names = " or ".join(dict.fromkeys(one.name for one in distinct))
    words = "; ".join(f"{name}: {feature.meaning} ({feature.name})" for name, feature in listed)
    return Feature(names, "", "as is", 1.0, min(one.low for one in distinct), max(one.high for one in distinct), words)


def cluster_table(decisions: Sequence[Decision]) -> tuple[Feature, ...]:
    """Returns the features of the observation's `cluster`, which all decisions of an environment
    share."""
    tables = {decision.cluster for decision in decisions}
    if len(tables) != 1:
        names = " and ".join(decision.name for decision in decisions)
        raise ValueError(f"decisions {names} have different cluster tables; an environment has only one")
    table = tables.pop()
    still = set.intersection(*(set(decision.still) for decision in decisions))
    return tuple(feature for feature in table if feature.name not in still)


@lru_cache(maxsize=64)
def address(kernel: Any) -> int:
    return address_of(kernel, STEP_SIGNATURE)


# --- Choosing candidates: what rules would pick, then quantiles of length ------------------------
@inlined
def add_choice(chosen, count, value):
    """Appends a value to the `count` chosen ones if it is new and there is space; returns their
    number."""
    if value < 0 or count >= chosen.size:
        return count
    for k in range(count):
        if chosen[k] == value:
            return count
    chosen[count] = value
    return count + 1


@inner
def add_quantiles(state, chosen, count, found):
    """Fills `chosen` up with quantiles by length of the `found` (length, value) pairs in
    State.scratch.

    The first is the shortest, the last the longest. Returns the number chosen.
    """
    keys, values, left = state.scratch[0], state.scratch[1], 0
    for j in range(found):
        new = True
        for k in range(count):
            if chosen[k] == values[j]:
                new = False
        if new:
            keys[left], values[left] = keys[j], values[j]
            left += 1
    sort_ascending(keys, values, left)
    return add_spread(values, chosen, count, left, left, left)


@inlined
def add_spread(ordered, chosen, count, left, low, high):
    """Fills `chosen`, int32[K], from `count` on with evenly spaced entries of `ordered`, the
    first and last included. Returns the number chosen.

    Args:
        left: number of entries to choose from.
        low, high: indices in `ordered` to leave out, low <= high; values of `left` and above
            leave out none.
    """
    offered = min(chosen.size - count, left)
    intervals = max(1, offered - 1)
    step, rest = (left - 1) // intervals, (left - 1) % intervals
    index, beyond = 0, 0  # index + beyond / intervals is k (left - 1) / intervals
    for k in range(offered):
        at = index + (index >= low)
        chosen[count + k] = ordered[at + (at >= high)]
        index += step
        beyond += rest
        if beyond >= intervals:
            index += 1
            beyond -= intervals
    return count + offered


# --- Names of decisions and actions on pages and in pictures -----------------
BASE = "take the base policy's action"


def actual(feature: Feature, value: float) -> float:
    """Returns the unscaled value of an observed feature, in its unit; a clipped value gives the
    limit."""
    if feature.scale == "log":
        return float(np.expm1(value * np.log1p(feature.limit)))
    if feature.scale == "signed log":
        return float(np.copysign(np.expm1(abs(value) * np.log1p(feature.limit)), value))
    return value * feature.limit if feature.scale == "linear" else value


def meaning(decision: str, action: int, base_policy: str = "the base policy") -> str:
    """Returns the meaning of an action (0, 1 or 2 + k); `decision` is the name of a kind other
    than `control`."""
    if action == DECLINE_ACTION:
        return kinds()[decision].no
    if action == BASE_ACTION:
        return BASE.replace("the base policy", base_policy)
    return f"candidate {action - FIXED}: {kinds()[decision].take}"
