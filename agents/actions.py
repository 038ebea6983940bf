"""What actions mean, for the manifest of an exported policy: three kinds, in words of the decision that is due."""

from __future__ import annotations

from collections.abc import Sequence

# decision -> (its own no, what candidate k stands for)
MEANINGS = {
    "route": ("wait, or stay where it is", "take instance {k}"),
    "interrupt": ("let the iteration finish", "stop it at the next layer"),
    "gate": ("hold: decode what is resident", "start candidate {k}"),
    "evict": ("let the newcomer wait", "evict candidate {k}"),
    "pull": ("no more picks", "pick candidate {k}"),
    "pack": ("never legal", "pack to level {k}"),
}
ANY = ("the decision's own no", "take candidate {k}")
PARTNER = "do what the partner would do"


def action_meanings(decisions: Sequence[str], places: int, fixed: int) -> dict[str, list[str]]:
    """What each action means, by decision: the decision's no, the partner's answer, then one for each candidate.

    Args:
        decisions: names of the decisions that an environment asks for.
        places: candidates (K).
        fixed: actions before them.
    """

    def named(no: str, candidate: str) -> list[str]:
        before = [no, PARTNER][:fixed] + [f"action {i}" for i in range(2, fixed)]
        return before + [candidate.format(k=k) for k in range(places)]

    return {decision: named(*MEANINGS.get(decision, ANY)) for decision in decisions}


def action_names(decisions: Sequence[str], places: int, fixed: int) -> list[str]:
    """Names of the actions: those of the one decision there is, or words that hold for all of them."""
    known = [decision for decision in decisions if decision in MEANINGS]
    name = known[0] if len(known) == 1 == len(decisions) else ""
    return action_meanings([name], places, fixed)[name]
