"""Reads what commands have in common: policies, the baseline, seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ooco_gym.errors import UserError, nearest
from ooco_gym.policy import get_policy
from ooco_gym.protocol import SEEDS, baseline_among

MOST_SEEDS, LONGEST_SEED = 1_000_000, 18  # most seeds, and most digits of a seed


def names_of(options: Mapping[str, Any]) -> list[str]:
    """Returns the policies to measure, `policies`, each checked against the registry.

    Raises:
        UserError: none, a duplicate, or an unknown policy or parameter.
    """
    names = [str(name) for name in options["policies"] or ()]
    if not names:
        raise UserError("policies is empty; expected such as policies=[ooco,base_pd]")
    for index, name in enumerate(names):
        if name in names[:index]:
            raise UserError(f"policies: '{name}' is given twice; expected different names")
        get_policy(name)
    return names


def baseline_of(options: Mapping[str, Any], policies: Sequence[str]) -> str:
    """Returns the policy to which others are compared: `baseline`, else vLLM's if included, or the first.

    Raises:
        UserError: it is not among the policies.
    """
    baseline = options["baseline"] or baseline_among(policies)
    if baseline not in policies:
        raise UserError(f"baseline={baseline} is not one of the compared policies{nearest(str(baseline), policies)}; "
                        f"add it to policies=[…], or name one of them by baseline=…: {', '.join(policies)}")
    return str(baseline)


def seeds_of(value: Any, key: str = "seeds", known: Sequence[int] | None = None) -> tuple[int, ...]:
    """Returns seeds from a list, a range `first:end`, or a number n: the first n.

    Args:
        value: as given; None: all `known`, else the protocol's number.
        key: what the user calls it.
        known: seeds of an environment's split, from which a number takes the first; None: 1, 2, 3, …

    Raises:
        UserError: none of these, or more than there are.
    """
    if value is None:
        value = SEEDS if known is None else list(known)
    ends = str(value).split(":")
    if any(end.isdecimal() and len(end) > LONGEST_SEED for end in ends) or (
            all(map(str.isdecimal, ends)) and int(ends[-1]) - int(ends[0]) * (len(ends) > 1) > MOST_SEEDS):
        raise UserError(f"{key}={str(value)[:80]} has more than {MOST_SEEDS:,} seeds; expected fewer")
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise UserError(f"{key}={value} must be at least 1, or a list such as [1,2,3]")
        if known is not None and value > len(known):
            raise UserError(f"{key}={value}: the environment's split has {len(known)} seeds; expected at most so many, "
                            "or a list or range of others")
        return tuple(range(1, value + 1) if known is None else known[:value])
    if isinstance(value, (list, tuple)) and value and all(type(seed) is int for seed in value):
        if len(set(value)) < len(value):
            raise UserError(f"{key}={list(value)} has a seed twice; expected different whole numbers")
        return tuple(value)
    if len(ends) == 2 and all(end.isdecimal() for end in ends) and int(ends[0]) < int(ends[1]):
        return tuple(range(int(ends[0]), int(ends[1])))
    first = "1, 2, 3" if known is None else "the first 3 of the environment's split"
    raise UserError(f"{key}={value!r} must be a number of seeds (3 means {first}), a list such as [1,2,3] or a range "
                    "such as 101:121, whose end is excluded")
