"""What an agent's configuration (`conf/agent`) may say: algorithm, teacher, constraint.

All is checked before anything is built, and without torch. To add an algorithm of Stable-Baselines3: a file
`conf/agent/<name>.yaml` with `name: <name>`, and its classes in `ALGORITHMS`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

from agents.search.optimisers import CMA
from agents.settings import MOST, check_numbers, number, positive, positive_or_null, whole
from ooco_gym.errors import UserError, is_number, unknown

Settings = Mapping[str, Any]


def _maskable_ppo() -> tuple[Any, Any, Any]:
    from sb3_contrib import MaskablePPO

    from agents.learning.models import CandidatePolicy, TimedRolloutBuffer

    return MaskablePPO, CandidatePolicy, TimedRolloutBuffer


def _ppo() -> tuple[Any, Any, Any]:
    from stable_baselines3 import PPO

    from agents.learning.models import UnmaskedCandidatePolicy, UnmaskedTimedRolloutBuffer

    return PPO, UnmaskedCandidatePolicy, UnmaskedTimedRolloutBuffer


# By name: what returns the classes of an algorithm, of its policy and of its rollout buffer.
ALGORITHMS: dict[str, Callable[[], tuple[Any, Any, Any]]] = {"maskable_ppo": _maskable_ppo, "ppo": _ppo}
_ARGUMENTS = ("learning_rate", "n_steps", "batch_size", "n_epochs", "clip_range", "ent_coef", "vf_coef",
              "max_grad_norm", "target_kl")


def algorithm_of(agent: Settings) -> tuple[Any, Any, Any]:
    """The classes of an agent's algorithm, its policy and its buffer.

    Raises:
        UserError: no algorithm of that name.
    """
    if agent.get("name") not in ALGORITHMS:
        raise unknown("agent", agent.get("name"), [*ALGORITHMS, CMA])
    return ALGORITHMS[agent["name"]]()


def build_model(env: Any, agent: Settings, seed: int) -> Any:
    """The model that learns in `env` (a `VecEnv`).

    Its gamma is 1: time is in the buffer, and a truncated episode's last value is bootstrapped over one short step.
    """
    from stable_baselines3.common.utils import LinearSchedule

    model, policy, buffer = algorithm_of(agent)
    arguments = {key: agent.get(key) for key in _ARGUMENTS}
    if agent.get("anneal"):
        arguments["learning_rate"] = LinearSchedule(float(agent["learning_rate"]), 0.0, 1.0)
    with warnings.catch_warnings():  # rollouts are as long as simulated seconds are: their last minibatch is a rest
        warnings.filterwarnings("ignore", "You have specified a mini-batch size")
        return model(policy, env, policy_kwargs={"hidden": int(agent["hidden"])}, seed=seed, device="cpu", gamma=1.0,
                     rollout_buffer_class=buffer, rollout_buffer_kwargs=discounts_of(agent), **arguments)


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
        raise unknown("agent", agent.get("name"), [*ALGORITHMS, CMA])
    check_numbers(agent, "agent", {"n_envs": 1, "hidden": 1, "batch_size": 2, "n_epochs": 1},
                  positives=("clip_range", "max_grad_norm"), numbers=("learning_rate", "vf_coef"))
    if agent.get("n_steps") is None:
        positive(agent, "rollout_s", name="agent.rollout_s")
    else:
        decisions = whole(agent, "n_steps", 2, name="agent.n_steps") * agent["n_envs"]
        if decisions > MOST["n_steps"]:
            raise UserError(f"agent.n_steps={agent['n_steps']} of agent.n_envs={agent['n_envs']} are {decisions:,} "
                            f"decisions between two updates; expected at most {MOST['n_steps']:,}")
    positive_or_null(agent, "target_kl", "no end to an update", name="agent.target_kl")
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
