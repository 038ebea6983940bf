"""Policies, the baseline and seeds by name: registered policies, and learned ones in their seats beside one.

`learned:RUNS/gating+RUNS/eviction` is the partner that they were trained beside, with these decisions taken by the
network of the folder that was trained on them. They decide in the measured window; warm-up and drain are the partner's,
as in the environments. `…@ooco:interrupt=slack` at the end names another partner than that of their training.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments.common.store import code_digest
from ooco_gym.cli.commands import read_choice
from ooco_gym.errors import UserError, nearest
from ooco_gym.policy import Policy, get_policy, spelling_of
from ooco_gym.policy.policy import HOOKS
from ooco_gym.protocol import SEEDS, baseline_among
from ooco_gym.resources import conf_root

if TYPE_CHECKING:
    from agents.evaluation.players import LearnedPolicy

LEARNED = "learned:"
BESIDE = "@"  # behind learned policies: the partner
JOIN = "+"
DEFAULT_PARTNER = "ooco"
CLOCKED = ("levels", "interval_s")  # of `conf/env`


# --- Options --------------------------------------------------------------------------------------------------------
def names_of(options: Mapping[str, Any], plural: str = "policies", singular: str = "policy") -> list[str]:
    """Policies to measure: the list under `plural`, or the one under `singular`; each checked against the registry.

    Raises:
        UserError: none given, one given twice, or an unknown policy or parameter.
    """
    one = options.get(singular)
    given = [one] if one is not None else options.get(plural)
    names = [given] if isinstance(given, str) else [str(name) for name in given or ()]
    if not names:
        raise UserError(f"{plural} is empty; expected such as {plural}=[ooco,base_pd] or {singular}=ooco")
    for index, name in enumerate(names):
        if name in names[:index]:
            raise UserError(f"{plural}: '{name}' is there twice; expected different names")
        base_policy(name)
    return names


def baseline_of(options: Mapping[str, Any], policies: Sequence[str]) -> str:
    """The policy that the others are compared with: `baseline`, else vLLM's where it plays, or the first.

    Raises:
        UserError: it is not among those compared.
    """
    baseline = options["baseline"] or baseline_among(policies)
    if baseline not in policies:
        raise UserError(f"baseline={baseline} is none of the policies compared{nearest(str(baseline), policies)}; add "
                        f"it to policies=[…], or name one of them by baseline=…: {', '.join(policies)}")
    return str(baseline)


def seeds_of(value: Any, key: str = "seeds") -> tuple[int, ...]:
    """Seeds from a list, or from a number n: 1 … n; None means as many as the protocol asks for.

    Raises:
        UserError: not a list of different whole numbers, and not a number of at least 1.
    """
    value = SEEDS if value is None else value
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise UserError(f"{key}={value} must be at least 1, or a list such as [1,2,3]")
        return tuple(range(1, value + 1))
    if isinstance(value, (list, tuple)) and value and all(type(seed) is int for seed in value):
        if len(set(value)) < len(value):
            raise UserError(f"{key}={list(value)} has a seed twice; expected different whole numbers")
        return tuple(value)
    raise UserError(f"{key}={value!r} must be a number of seeds (3 means 1, 2, 3) or a list such as [1,2,3]")


def check_names(where: str, given: Mapping[str, Any]) -> None:
    """Refuses a cell's workload, cluster or SLO that is neither a known name nor a file."""
    for group in ("workload", "cluster", "slo"):
        if isinstance(given.get(group), str):
            try:
                read_choice([conf_root()], group, given[group])
            except UserError as error:
                raise UserError(f"{where}: {error}") from error


# --- Policies -------------------------------------------------------------------------------------------------------
def is_learned(policy: str) -> bool:
    """Whether a policy's name stands for folders of learned ones (`experiments.common.learned_player`)."""
    return policy.startswith(LEARNED)


def base_policy(policy: str) -> Policy:
    """The registered policy of a name; of learned ones, that beside which they play.

    Raises:
        UserError: no such policy or folder.
    """
    if is_learned(policy):
        return get_policy(team_of(policy).partner)
    return get_policy(policy)


def policy_identity(policy: str) -> dict[str, Any]:
    """What a policy's answers depend on: name, parameters' values, the code of its rules, and files of learned ones.

    The code that plays learned policies is not among it: `experiments.common.runner` adds that.
    """
    base = base_policy(policy)
    rules = [getattr(rule, "py_func", rule) for name in (*HOOKS, "prepare", "profile")
             if (rule := getattr(base, name)) is not None]
    modules = sorted({str(getattr(rule, "__module__", "")) for rule in rules} - {""})
    weights = base.weights
    identity = {"name": base.name, "values": dict(base.values), "code": code_digest(modules, (), peaks=False)}
    if weights is not None:
        identity["weights"] = hashlib.sha256(weights.tobytes()).hexdigest()
    if is_learned(policy):
        from agents.evaluation.players import digest_of

        identity |= {"learned": [digest_of(folder) for folder in _folders(policy)],
                     "decisions": list(team_of(policy).seats)}
    return identity


# --- Learned policies -----------------------------------------------------------------------------------------------
class Team(NamedTuple):
    """The learned policy of each decision, and the policy that takes all others."""

    partner: str
    seats: dict[str, LearnedPolicy]
    clocks: dict[str, Any]  # levels and interval that the policy that packs was trained with


@lru_cache(maxsize=4)
def team_of(policy: str) -> Team:
    """The learned policies under a name, by the decision that each takes.

    Raises:
        UserError: a folder that is no policy, a decision that two of them take, or different partners.
    """
    from agents.evaluation.players import environment_of, is_policy, load_learned

    seats: dict[str, LearnedPolicy] = {}
    partners: list[str] = []
    clocks: dict[str, Any] = {}
    for folder in _folders(policy):
        if not is_policy(Path(folder)):
            raise UserError(f"'{policy}': '{folder}' is no learned policy; expected the out of train or export, joined "
                            f"by {JOIN}")
        one = load_learned(folder)
        for decision in one.decisions:
            if decision in seats:
                raise UserError(f"'{policy}': two of its policies were trained to {decision}; leave one of them out")
            seats[decision] = one
        trained = environment_of(folder)
        partners.append(spelling_of(trained.get("partner") or DEFAULT_PARTNER))
        if "pack" in one.decisions:
            clocks = {key: trained[key] for key in CLOCKED if key in trained}
    asked = policy.partition(BESIDE)[2].strip()
    if len(set(partners)) > 1 and not asked:
        raise UserError(f"'{policy}': its policies were trained beside different partners, {' and '.join(partners)}; "
                        f"name the one they are to play beside, as {BESIDE}{partners[0]} at the end")
    if "control" in seats:
        raise UserError(f"'{policy}': a policy of Control turns all parameters at once, and cannot play beside others; "
                        "expected one of another environment ('ooco-gym evaluate env=control' plays this one)")
    return Team(asked or partners[0], seats, clocks)


def _folders(policy: str) -> list[str]:
    named = policy.removeprefix(LEARNED).partition(BESIDE)[0]
    folders = [part.strip() for part in named.split(JOIN) if part.strip()]
    if not folders:
        raise UserError(f"'{policy}' names no folder; expected such as {LEARNED}RUNS/gating/seed_1")
    return folders
