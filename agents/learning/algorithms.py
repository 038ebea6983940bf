"""The possible content of an agent's configuration (`conf/agent`): algorithm, teacher, constraint.

All is checked before anything is built, and without torch. An algorithm of Stable-Baselines3 needs a file
`conf/agent/<name>.yaml` with `name: <name>`, its name in `ALGORITHMS`, and its classes in `models.CLASSES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agents.search.optimisers import CMA, CMA_LINEAR
from agents.settings import MOST, check_numbers, number, positive, whole
from ooco_gym.errors import UserError, is_number, unknown

Settings = Mapping[str, Any]


ALGORITHMS = ("maskable_ppo",)  # their classes are in `agents.learning.models`


def discounts_of(agent: Settings) -> dict[str, Any]:
    """γ and λ over one simulated second."""
    return {key: agent.get(key) for key in ("discount_per_s", "gae_lambda_per_s")}


# --- Checks ---------------------------------------------------------------------------------------------------------
def check_agent(agent: Settings) -> None:
    """Checks an agent's configuration.

    Raises:
        UserError: an unknown algorithm, or a value out of range.
    """
    if agent.get("name") not in ALGORITHMS:
        raise unknown("agent", agent.get("name"), [*ALGORITHMS, CMA, CMA_LINEAR])
    check_numbers(agent, "agent", {"n_envs": 1, "hidden": 1, "batch_size": 2, "n_epochs": 1},
                  positives=("clip_range", "max_grad_norm"), numbers=("learning_rate", "vf_coef"))
    if agent.get("n_steps") is None:
        positive(agent, "rollout_s", name="agent.rollout_s")
    else:
        decisions = whole(agent, "n_steps", 2, name="agent.n_steps") * agent["n_envs"]
        if decisions > MOST["n_steps"]:
            raise UserError(f"agent.n_steps={agent['n_steps']} of agent.n_envs={agent['n_envs']} give {decisions:,} "
                            f"decisions an update; expected at most {MOST['n_steps']:,}")
    positive(agent, "target_kl", "agent.target_kl", null="no early stop of an update")
    for key, value in discounts_of(agent).items():
        if not is_number(value) or not 0.0 < value <= 1.0:
            raise UserError(f"agent.{key} must lie in (0, 1], got {value}")
    if agent.get("scale_decisions") is not None:
        whole(agent, "scale_decisions", 1, name="agent.scale_decisions")
    for key, check in (("imitate", _check_imitation), ("lagrangian", _check_lagrangian)):
        if agent.get(key):
            if not isinstance(agent[key], Mapping):
                raise UserError(f"agent.{key}={agent[key]!r} must be a mapping, or null to leave it out")
            check(agent[key])


def _check_imitation(imitate: Settings) -> None:
    if imitate.get("rule") is None:
        return
    check_numbers(imitate, "agent.imitate", {"decisions": 1, "epochs": 0, "critic_first_updates": 0},
                  positives=("learning_rate",))
    if imitate.get("smoothing") is not None:
        number(imitate, "smoothing", most=1.0, name="agent.imitate.smoothing")


def _check_lagrangian(settings: Settings) -> None:
    number(settings, "smoothing", most=0.999, name="agent.lagrangian.smoothing")
    check_numbers(settings, "agent.lagrangian", {"epochs": 1}, positives=("requests",), numbers=(
        "proportional", "integral", "derivative", "initial", "most", "learning_rate"))
    budget = settings.get("budget")
    if budget is not None and not 0.0 < number(settings, "budget", name="agent.lagrangian.budget") < 1.0:
        raise UserError(f"agent.lagrangian.budget={budget!r} must lie between 0 and 1, or be null for the protocol's")
