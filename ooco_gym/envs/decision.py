"""One kind of decision: where it is asked, what is offered, what an action means, and what it is called.

An environment's file makes its `Decision` of these pieces; everything that shows or plays environments reads it there.
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
    """A decision that waits for its answer, and what a rule answers to it: for `Decision.action_of`."""

    state: State
    answer: int
    picks: np.ndarray  # int32, requests that it wrote
    chosen: np.ndarray  # int32[K], row of StepBuffers.chosen
    turn: np.ndarray  # int64[TURN], row of StepBuffers.status

    @property
    def picked(self) -> int:
        """Picks made so far in this decision."""
        return int(self.turn[PICKED])

    def closest(self, requests: np.ndarray, wanted: int) -> int:
        """The action of the request that a rule wants, or of the one offered (int32[k], in the order of the
        candidates) that is closest in length."""
        if not len(requests):
            return 0
        same = np.flatnonzero(requests == wanted)
        if len(same):
            return FIXED + int(same[0])
        every = self.state.requests
        size = every["prompt_tokens"].astype(np.int64) + every["generated_tokens"]
        return FIXED + int(np.argmin(np.abs(size[requests] - size[wanted])))

    def offered(self) -> np.ndarray:
        """What the candidates are (positions, requests, instances), those that there are: int32[k]."""
        return self.chosen[self.chosen >= 0]


class Controls(NamedTuple):
    """P parameters of the base policy that one action sets, and their levels."""

    names: list[str]
    levels: np.ndarray  # float64[P, levels]
    counts: np.ndarray  # int64[P], how many levels each has
    tuned: np.ndarray  # int64[P], which of them the policy was tuned to

    def legal(self, actions: np.ndarray) -> np.ndarray:
        """Actions (..., P) with the tuned level in place of each that there is not."""
        return np.where((actions >= 0) & (actions < self.counts), actions, self.tuned)


@dataclass(frozen=True)
class Decision:
    """One kind of decision.

    Attributes:
        name: of the kind, such as `gate`.
        kind: a decision point of the simulator (`sim.state.GATE`, …); a part of a mixed instance's iteration
            (`buffers.RECLAIM`, `buffers.ADMIT`); or, of a decision by the clock (once in `interval_s`),
            `buffers.CLOCK`, or `buffers.CONTROL` where an action is a vector of levels.
        offer, answer: step kernels (`buffers.step_kernel`).
        action_of: the action for what a rule answers, for heuristics; None: it comes by the clock, and rules have
            settings for it, but no answer.
        window: waiting requests that the simulator must look at, where the base policy looks at fewer.
        base policy: of `CLOCK`, `RECLAIM` and `ADMIT`: step kernel that does what the base policy would do, and
            returns ASK.
        levels: the values to choose among, for `StepBuffers.levels`: float64[values of one, candidates] (of `CLOCK`:
            float64[1, levels], ascending); None: there are as many candidates as the configuration says.
        controls: of `CONTROL`: the parameters and their levels.
        question: what is asked, as a sentence.
        no: what action 0 does.
        take: what action 2 + k does.
        candidates: what the candidates are.
        table: the features of a candidate, in the order of its columns.
        cluster: the table of the observation's `cluster`, where it is not `features.CLUSTER`; `observe` then fills it.
        still: features of `features.CLUSTER` that are always the same at this kind of decision. An environment leaves
            out those that are so at all kinds that it asks.
        observe: step kernel that completes the observation of this kind of decision: `cluster`, and what of the
            candidates `offer` has left; None: the common one.
        box: an action may be a vector of numbers from -1 to 1, one for each row of `levels`, least to most.
        marks: where its marks are in the picture of a cluster, (x, y) in pixels.
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
            raise ValueError(f"decision '{self.name}' has no rule of its own: `base_policy` must say what that does")
        if self.cluster is not CLUSTER and self.observe is None:
            raise ValueError(f"decision '{self.name}' has a cluster table of its own: `observe` must fill it")
        known = _KNOWN.get(self.name)
        if known is not None and known.offer.py_func.__module__ != self.offer.py_func.__module__:
            raise ValueError(f"decision '{self.name}' is there already: give yours another name")
        _KNOWN[self.name] = self


_KNOWN: dict[str, Decision] = {}


def kinds() -> Mapping[str, Decision]:
    """Every kind of decision by name: those of this package, then those of environments that were imported."""
    for entry_point in ENVIRONMENTS.values():
        import_module(entry_point.partition(":")[0])
    return _KNOWN


def are_settings(decisions: Sequence[Decision]) -> bool:
    """Whether no rule of a policy answers any of these decisions, which are parts of what it does or its settings: a
    published policy then plays them from the base policy's seat."""
    return all(decision.action_of is None for decision in decisions)


def candidate_columns(decisions: Sequence[Decision]) -> tuple[Feature, ...]:
    """The features of a candidate of some decisions. A column that means one thing in one decision and another in the
    next says which decision has which; beyond a decision's own table columns are 0."""
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
    """The features of the observation's `cluster`: the same for all decisions of an environment."""
    tables = {decision.cluster for decision in decisions}
    if len(tables) != 1:
        names = " and ".join(decision.name for decision in decisions)
        raise ValueError(f"decisions {names} have different cluster tables: one environment has one")
    table = tables.pop()
    still = set.intersection(*(set(decision.still) for decision in decisions))
    return tuple(feature for feature in table if feature.name not in still)


@lru_cache(maxsize=64)
def address(kernel: Any) -> int:
    """Where a step kernel is."""
    return address_of(kernel, STEP_SIGNATURE)


# --- Which of many are offered as candidates: what rules would pick, then quantiles of length ------------------------
@inlined
def add_choice(chosen, count, value):
    """Adds a value to the `count` chosen ones, where it is new and there is space; returns how many there are."""
    if value < 0 or count >= chosen.size:
        return count
    for k in range(count):
        if chosen[k] == value:
            return count
    chosen[count] = value
    return count + 1


@inner
def add_quantiles(state, chosen, count, found):
    """Fills `chosen` up with quantiles of what is in State.scratch: `found` pairs of (length, value).

    The first is the shortest, the last the longest. Returns how many are chosen.
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
    """Fills `chosen`, int32[K], up from `count` on with every so many of the first entries of `ordered`, evenly, from
    the first to the last. Returns how many are chosen.

    Args:
        left: entries to choose from.
        low, high: indices in `ordered` that are left out, the lower one first; `left` and beyond: none is.
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


# --- Words: what decisions and actions are called on pages and in pictures -----------------
BASE = "do what the base policy would do"


def actual(feature: Feature, value: float) -> float:
    """The figure behind an observed value, in the feature's unit; what was cut comes back as its limit."""
    if feature.scale == "log":
        return float(np.expm1(value * np.log1p(feature.limit)))
    if feature.scale == "signed log":
        return float(np.copysign(np.expm1(abs(value) * np.log1p(feature.limit)), value))
    return value * feature.limit if feature.scale == "linear" else value


def meaning(decision: str, action: int, base_policy: str = "the base policy") -> str:
    """What an action (0, 1 or 2 + k) of a choice means; `decision` is the name of its kind, but `control`."""
    if action == DECLINE_ACTION:
        return kinds()[decision].no
    if action == BASE_ACTION:
        return BASE.replace("the base policy", base_policy)
    return f"candidate {action - FIXED}: {kinds()[decision].take}"
