"""Learning algorithms by the name that an agent's configuration gives them: how a model is built, and read again.

To add one: a file `conf/agent/<name>.yaml` with `name: <name>`, and an entry of `ALGORITHMS` here. What several
algorithms can be combined with is chosen by keys of the agent's configuration: `buffer` (`BUFFERS`), `imitate.rule`
(`agents.preparation.TEACHERS`), and those of `agents.hooks.EXTRAS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agents.checks import is_number, whole
from ooco_gym.errors import UserError, unknown

NETWORKS = ("candidate_scorer", "attention", "mlp")
HEADS = ("shared", "joint")  # of several decisions: last layers that all share, or one for each kind


@dataclass(frozen=True)
class Algorithm:
    """A learning algorithm of Stable-Baselines3 or sb3-contrib, or one built on them.

    Attributes:
        model_class: returns the class whose `load` reads a saved policy.
        build: `(env, agent, seed)` → the model that learns in `env` (a `VecEnv`) as the agent's configuration says.
        check: raises UserError for what a user may have got wrong in the agent's configuration.
    """

    model_class: Callable[[], Any]
    build: Callable[[Any, Mapping[str, Any], int], Any]
    check: Callable[[Mapping[str, Any]], None]


def algorithm_of(agent: Mapping[str, Any]) -> Algorithm:
    """The algorithm of an agent's configuration.

    Raises:
        UserError: no algorithm of that name.
    """
    name = agent.get("name")
    if name not in ALGORITHMS:
        raise unknown("agent", name, ALGORITHMS)
    return ALGORITHMS[name]


def check_agent(agent: Mapping[str, Any]) -> None:
    """Checks an agent's configuration.

    Raises:
        UserError: an unknown algorithm, network or buffer, or a value out of range.
    """
    algorithm = algorithm_of(agent)
    if agent.get("network") not in NETWORKS:
        raise unknown("agent.network", agent.get("network"), NETWORKS)
    if (agent.get("heads") or "shared") not in HEADS:
        raise unknown("agent.heads", agent["heads"], HEADS)
    for key in ("n_envs", "hidden"):
        whole(agent, key, 1, name=f"agent.{key}")
    algorithm.check(agent)


# --- Rollout buffers ---------------------------------------------------------------------------------------------
def _timed(agent: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    from agents.buffer import TimedRolloutBuffer

    return TimedRolloutBuffer, {"discount_per_s": agent["discount_per_s"], "trace_per_s": agent["trace_per_s"]}


# The class of a rollout buffer and its own arguments, from an agent's configuration; `agent.buffer` names one.
BUFFERS: dict[str, Callable[[Mapping[str, Any]], tuple[Any, dict[str, Any]]]] = {"timed": _timed}


def rollout_buffer(agent: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an on-policy algorithm that say where it keeps its rollouts."""
    kind, arguments = BUFFERS[agent.get("buffer") or "timed"](agent)
    return {"rollout_buffer_class": kind, "rollout_buffer_kwargs": arguments}


# --- Proximal policy optimisation -----------------------------------------------------------------------------------
def check_ppo(agent: Mapping[str, Any]) -> None:
    """Checks what the algorithms of the PPO family have in common."""
    for key, least in (("n_steps", 2), ("batch_size", 2), ("n_epochs", 1)):
        whole(agent, key, least, name=f"agent.{key}")
    for key in ("discount_per_s", "trace_per_s"):
        if not is_number(agent.get(key)) or not 0.0 < agent[key] <= 1.0:
            raise UserError(f"agent.{key} must lie in (0, 1], got {agent.get(key)}")
    if (agent.get("buffer") or "timed") not in BUFFERS:
        raise unknown("agent.buffer", agent["buffer"], BUFFERS)


def ppo_arguments(agent: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """The arguments that the algorithms of the PPO family have in common."""
    return {
        **{key: agent[key] for key in ("learning_rate", "n_steps", "batch_size", "n_epochs", "clip_range", "ent_coef",
                                       "vf_coef", "max_grad_norm")},
        "target_kl": agent.get("target_kl"),
        "gamma": 1.0,  # a truncated episode's last value is bootstrapped over one short step; time is in the buffer
        **rollout_buffer(agent), "seed": seed, "device": "cpu",
    }


def masked_policy(agent: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The class of policy for algorithms that know masks, and its arguments."""
    from agents.policies import CandidatePolicy, policy_arguments

    return CandidatePolicy, policy_arguments(agent)


def _maskable_ppo_class() -> Any:
    from agents.lean_ppo import LeanMaskablePPO

    return LeanMaskablePPO


def _maskable_ppo(env: Any, agent: Mapping[str, Any], seed: int) -> Any:
    policy, arguments = masked_policy(agent)
    return _maskable_ppo_class()(policy, env, policy_kwargs=arguments, **ppo_arguments(agent, seed))


ALGORITHMS: dict[str, Algorithm] = {
    "maskable_ppo": Algorithm(_maskable_ppo_class, _maskable_ppo, check_ppo),
}
