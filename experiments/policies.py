"""Policies as the experiments take them by name: registered ones, and learned ones in their seats beside one."""

from __future__ import annotations

from ooco_gym.policy import Policy, get_policy

LEARNED = "learned:"
BESIDE = "@"  # behind learned policies: the partner
TUNED = "tuned:"  # before that partner: as it is tuned for each cell of `compare sustain=true`


def is_learned(policy: str) -> bool:
    """Whether a policy's name stands for folders of learned ones (`experiments.learned_player`)."""
    return policy.startswith(LEARNED)


def tuned_partner(policy: str) -> str | None:
    """The policy that has to be tuned before learned ones play beside it; None: there is none."""
    partner = policy.partition(BESIDE)[2]
    return partner.removeprefix(TUNED) if is_learned(policy) and partner.startswith(TUNED) else None


def bundle_of(policy: str) -> Policy:
    """The registered policy of a name; of learned ones, that beside which they play.

    Raises:
        UserError: no such policy or folder.
    """
    if is_learned(policy):
        from experiments.learned_player import team_of

        return get_policy(team_of(policy.replace(BESIDE + TUNED, BESIDE)).partner)
    return get_policy(policy)
