"""What decisions and actions are called where people read them: pages, pictures, the game in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ooco_gym.envs.buffers import DECLINE_ACTION, FIXED, PARTNER_ACTION
from ooco_gym.envs.features import CANDIDATES, DECISIONS, Feature


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
