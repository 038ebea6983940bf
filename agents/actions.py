"""What actions mean, for the manifest of an exported policy: three kinds, in words of the decision that is due."""

from __future__ import annotations

from collections.abc import Sequence

from ooco_gym.envs.buffers import FIXED
from ooco_gym.envs.decision import PARTNER, WORDS, meaning

_ANY = ("the decision's own no", PARTNER)


def action_meanings(decisions: Sequence[str], places: int, fixed: int) -> dict[str, list[str]]:
    """What each action means, by decision: the decision's no, the partner's answer, then one for each candidate.

    Args:
        decisions: names of the decisions that an environment asks for.
        places: candidates (K).
        fixed: actions before them.
    """

    def named(decision: str, action: int) -> str:
        if decision in WORDS and fixed == FIXED:
            return meaning(decision, action)
        before = (*_ANY, *(f"action {i}" for i in range(len(_ANY), fixed)))[:fixed]
        return before[action] if action < fixed else f"take candidate {action - fixed}"

    return {decision: [named(decision, action) for action in range(fixed + places)] for decision in decisions}


def action_names(decisions: Sequence[str], places: int, fixed: int) -> list[str]:
    """Names of the actions: those of the one decision there is, or words that hold for all of them."""
    name = decisions[0] if len(decisions) == 1 else ""
    return action_meanings([name], places, fixed)[name]
