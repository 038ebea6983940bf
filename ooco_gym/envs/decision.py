"""What makes an environment: a decision point, who is offered there, and what an action means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ooco_gym.compile import address_of, inlined, inner
from ooco_gym.envs.buffers import DECLINE_ACTION, FIXED, PARTNER_ACTION, PICKED, STEP_SIGNATURE
from ooco_gym.envs.features import CANDIDATES, DECISIONS, Feature
from ooco_gym.policy.rules import sort_ascending
from ooco_gym.sim.state import State


class OpenDecision(NamedTuple):
    """An open decision, and what a rule answers to it: for `Decision.action_of`."""

    state: State
    answer: int
    picks: np.ndarray  # int32, requests that it wrote
    chosen: np.ndarray  # int32[K], row of StepBuffers.chosen
    turn: np.ndarray  # int64[TURN], row of StepBuffers.turns

    @property
    def picked(self) -> int:
        """Picks made so far in this decision."""
        return int(self.turn[PICKED])

    def closest(self, requests: np.ndarray, wanted: int) -> int:
        """The action of the request that a rule wants, or of the one offered that is closest in length.

        Args:
            requests: int32[k], requests offered, in the order of the candidates.
            wanted: a request.
        """
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


@dataclass(frozen=True)
class Decision:
    """One kind of decision.

    Attributes:
        name: as in `features.DECISIONS`.
        kind: a decision point of the simulator, or `buffers.PACK`, `buffers.CONTROL`.
        offer, answer: compiled parts of a step (`buffers.step_kernel`).
        action_of: the action for what a rule answers, for heuristics; None: it comes by the clock, and rules have
            settings for it, but no answer.
        window: waiting requests that the simulator must look at, where the partner looks at fewer.
    """

    name: str
    kind: int
    offer: Any
    answer: Any
    action_of: Callable[[OpenDecision], int] | None = None
    window: int = 0


@lru_cache(maxsize=64)
def address(part: Any) -> int:
    """Where a compiled part of a step is."""
    return address_of(part, STEP_SIGNATURE)


# --- Which of many are offered as candidates: what rules would pick, then quantiles of length ------------------------
@inlined
def add_choice(chosen, count, value):
    """Adds a value to the `count` chosen ones, where it is new and there is room; returns how many there are."""
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
    """Fills `chosen` up with every so many of the first entries of `ordered`, evenly, from the first to the last.

    Args:
        ordered: int[at least left + those left out].
        chosen: int32[K], written from `count` on.
        count: how many are chosen by now.
        left: entries to choose from.
        low, high: places in `ordered` that are left out, the lower one first; `left` and beyond: nobody is.

    Returns:
        How many are chosen.
    """
    offered = min(chosen.size - count, left)
    gaps = max(1, offered - 1)
    step, rest = (left - 1) // gaps, (left - 1) % gaps
    place, beyond = 0, 0  # place + beyond / gaps is k (left - 1) / gaps
    for k in range(offered):
        at = place + (place >= low)
        chosen[count + k] = ordered[at + (at >= high)]
        place += step
        beyond += rest
        if beyond >= gaps:
            place += 1
            beyond -= gaps
    return count + offered


# --- Words: what decisions and actions are called on pages, in pictures, in the game in the terminal -----------------
class Words(NamedTuple):
    """One kind of decision, in words."""

    question: str
    no: str  # action 0
    take: str  # action 2 + k
    who: str  # what the candidates are
    figures: tuple[str, ...]  # features of a candidate that say something here


WORDS: Mapping[str, Words] = {
    "route": Words("Which instance takes the request?", "wait, or stay where the prefill ran (not for an arrival)",
                   "send it to this instance", "instances", ("prefill", "backlog", "residents", "memory", "step")),
    "interrupt": Words("An online request has arrived: stop the offline work that runs?", "let the iteration finish",
                       "stop it at the next layer", "the request that has arrived",
                       ("tokens", "prefill", "slack", "backlog")),
    "gate": Words("Start an offline prefill?", "hold: decode what is resident", "start the prefill of this request",
                  "waiting offline requests",
                  ("tokens", "prefill", "wait", "evictions", "interruptions", "interrupt_risk")),
    "evict": Words("Who gives way?", "let the newcomer wait (not where a running batch needs the memory)",
                   "evict this request", "resident offline requests",
                   ("tokens", "generated", "prefill", "wait", "evictions", "memory", "running", "step")),
    "pull": Words("Whom does the strict instance pull?", "end the picks: nobody, or nobody more",
                  "pull this request, and be asked again", "offline requests that decode on relaxed instances",
                  ("tokens", "generated", "prefill", "wait", "evictions", "memory", "step")),
    "pack": Words("How full may steps be in the next interval?", "(never legal)",
                  "fill steps up to this share of the TPOT SLO", "levels", ("level", "step", "running")),
    "control": Words("Where do the partner's parameters stand in the next interval?", "", "", "parameters", ("level",)),
}
_FLAG = "1 where"  # how the meaning of a feature begins that is 1 or 0
_MOST_SHARE = 2.0  # limit above which a share is a count over its limit: evictions, interruptions
PARTNER = "do what the partner would do"
_FEATURES = {feature.name: (place, feature) for place, feature in enumerate(CANDIDATES)}


def actual(feature: Feature, value: float) -> float:
    """The figure behind an observed value, in the feature's unit; what was cut comes back as its limit."""
    if feature.scale == "log":
        return float(np.expm1(value * np.log1p(feature.limit)))
    return value * feature.limit if feature.scale == "linear" else value


def is_flag(feature: Feature) -> bool:
    """Whether a feature says yes or no, as 1 or 0."""
    return feature.meaning.startswith(_FLAG)


def in_unit(feature: Feature, value: float) -> tuple[float, str]:
    """The figure behind an observed value, and its unit as people read it: of shares '%', of counts and flags ''."""
    figure = actual(feature, value)
    if feature.unit != "share":
        return figure, feature.unit
    return (100.0 * figure, "%") if feature.limit <= _MOST_SHARE and not is_flag(feature) else (figure, "")


def shown(feature: Feature, value: float) -> str:
    """An observed value for people, times and rates with their unit; `>` and `<` where it was cut at its limit."""
    (figure, unit), cut = in_unit(feature, value), ""
    if feature.limit != 1.0 and value >= feature.high:
        cut = "> "
    elif feature.low < 0.0 and value <= feature.low:
        cut = "< "
    if is_flag(feature):
        return "yes" if value else "no"
    if unit == "%":
        return f"{cut}{figure:.0f} %"
    if feature.unit in ("share", "tokens", "requests"):
        return f"{cut}{figure:,.0f}"
    text = f"{figure:,.0f}" if abs(figure) >= 10 else f"{figure:.2f}"
    return f"{cut}{text} {unit}"


def figures_of(decision: str, candidate: np.ndarray) -> dict[str, str]:
    """What a candidate's features say, by name.

    Args:
        decision: one of `features.DECISIONS`.
        candidate: float32[CANDIDATE_SIZE].
    """
    texts = {}
    for name in WORDS[decision].figures:
        place, feature = _FEATURES[name]
        texts[name.replace("_", " ")] = shown(feature, float(candidate[place]))
    return texts


def meaning(decision: str, action: int, partner: str = "the partner") -> str:
    """What an action of a choice means.

    Args:
        decision: one of `features.DECISIONS`, but `control`.
        action: 0, 1 or 2 + k.
        partner: its name.
    """
    if action == DECLINE_ACTION:
        return WORDS[decision].no
    if action == PARTNER_ACTION:
        return PARTNER.replace("the partner", partner)
    return f"candidate {action - FIXED}: {WORDS[decision].take}"


def asked(observation: Mapping[str, Any]) -> str:
    """Which decision an observation is about, of `features.DECISIONS`; '' at the end of an episode."""
    hot = np.flatnonzero(observation["decision"])
    return DECISIONS[int(hot[0])] if len(hot) else ""
