"""Policies, the baseline and seeds by name: registered policies, and learned ones in their seats beside one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ooco_gym.errors import UserError, nearest
from ooco_gym.policy import Policy, get_policy

LEARNED = "learned:"
BESIDE = "@"  # behind learned policies: the partner
TUNED = "tuned:"  # before that partner: as it is tuned for each cell of `compare sustain=true`


def is_learned(policy: str) -> bool:
    """Whether a policy's name stands for folders of learned ones (`experiments.common.learned_player`)."""
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
        from experiments.common.learned_player import team_of

        return get_policy(team_of(policy.replace(BESIDE + TUNED, BESIDE)).partner)
    return get_policy(policy)


DEFAULT_SEEDS = 3  # the fewest that PROTOCOL allows


def names_of(options: Mapping[str, Any], plural: str, singular: str) -> list[str]:
    """Policies to measure: the list under `plural`, or the one under `singular`; each checked against the registry.

    Raises:
        UserError: none given, one given twice, or an unknown policy or parameter.
    """

    one = options.get(singular)
    given = [one] if one is not None else options.get(plural)
    names = [given] if isinstance(given, str) else [str(name) for name in given or ()]
    if not names:
        raise UserError(f"{plural} is empty; expected such as {plural}=[ooco,base_pd] or {singular}=ooco")
    for place, name in enumerate(names):
        if name in names[:place]:
            raise UserError(f"{plural}: '{name}' is there twice; expected different names")
        bundle_of(name)
    return names


def baseline_of(options: Mapping[str, Any], policies: Sequence[str]) -> str:
    """The policy that the others are compared with: `baseline`, or the first.

    Raises:
        UserError: it is not among those compared.
    """
    baseline = options["baseline"] or policies[0]
    if baseline not in policies:
        raise UserError(f"baseline={baseline} is none of the policies compared{nearest(str(baseline), policies)}; add "
                        f"it to policies=[…], or name one of them by baseline=…: {', '.join(policies)}")
    return str(baseline)


def seeds_of(value: Any, key: str = "seeds") -> tuple[int, ...]:
    """Seeds from a list, or from a number n: 1 … n; None means 3.

    Raises:
        UserError: not a list of different whole numbers, and not a number of at least 1.
    """
    value = DEFAULT_SEEDS if value is None else value
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise UserError(f"{key}={value} must be at least 1, or a list such as [1,2,3]")
        return tuple(range(1, value + 1))
    if isinstance(value, (list, tuple)) and value and all(type(seed) is int for seed in value):
        if len(set(value)) < len(value):
            raise UserError(f"{key}={list(value)} has a seed twice; expected different whole numbers")
        return tuple(value)
    raise UserError(f"{key}={value!r} must be a number of seeds (3 means 1, 2, 3) or a list such as [1,2,3]")
