"""Policies as the experiments take them by name: registered ones, and learned ones in their seats beside one."""

from __future__ import annotations

from ooco_gym.policy import Policy, get_policy

LEARNED = "learned:"


def is_learned(policy: str) -> bool:
    """Whether a policy's name stands for folders of learned ones (`experiments.learned_player`)."""
    return policy.startswith(LEARNED)


def bundle_of(policy: str) -> Policy:
    """The registered policy of a name; of learned ones, that beside which they play.

    Raises:
        UserError: no such policy or folder.
    """
    if is_learned(policy):
        from experiments.learned_player import team_of

        return get_policy(team_of(policy).partner)
    return get_policy(policy)
