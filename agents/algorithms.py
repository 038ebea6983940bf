"""Learning algorithms by the name that an agent's configuration gives them: how a model is built, and read again.

To add one: a file `conf/agent/<name>.yaml` with `name: <name>`, and an entry of `ALGORITHMS` here. What several
algorithms can be combined with is chosen by keys of the agent's configuration: `imitate.rule`
(`agents.preparation.TEACHERS`), and those of `agents.hooks.EXTRAS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agents.checks import number, positive, positive_or_null, whole
from agents.hooks import check_extras
from agents.preparation import teacher_named
from ooco_gym.errors import UserError, is_number, unknown

NETWORKS = ("candidate_scorer", "attention", "mlp")
ATTENTION_HEADS = 4
HEADS = ("shared", "joint")  # of several decisions: last layers that all share, or one for each kind


@dataclass(frozen=True)
class Algorithm:
    """A learning algorithm of Stable-Baselines3 or sb3-contrib, or one built on them.

    Attributes:
        model_class: returns the class whose `load` reads a saved policy.
        build: `(env, agent, seed)` → the model that learns in `env` (a `VecEnv`) as the agent's configuration says.
        check: raises UserError for what a user may have got wrong in the agent's configuration.
        on_policy: whether it learns from rollouts, with a rollout buffer, rather than from what it remembers.
        vectors: whether its actions may be vectors (`MultiDiscrete`), as those of Control-v0.
        info_keys: what it reads from the dicts of infos that a step gives.
    """

    model_class: Callable[[], Any]
    build: Callable[[Any, Mapping[str, Any], int], Any]
    check: Callable[[Mapping[str, Any]], None]
    on_policy: bool = True
    vectors: bool = True
    info_keys: tuple[str, ...] = ()


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
        UserError: an unknown algorithm or network, or a value out of range.
    """
    algorithm = algorithm_of(agent)
    if agent.get("network") not in NETWORKS:
        raise unknown("agent.network", agent.get("network"), NETWORKS)
    if (agent.get("heads") or "shared") not in HEADS:
        raise unknown("agent.heads", agent["heads"], HEADS)
    for key in ("n_envs", "hidden"):
        whole(agent, key, 1, name=f"agent.{key}")
    if agent["network"] == "attention" and agent["hidden"] % ATTENTION_HEADS:
        raise UserError(f"agent.hidden={agent['hidden']} must be a multiple of {ATTENTION_HEADS} for "
                        "agent.network=attention")
    if agent.get("history") is not None:
        whole(agent, "history", 1, name="agent.history")
    algorithm.check(agent)
    _check_start(agent)
    check_extras(agent)


def _check_start(agent: Mapping[str, Any]) -> None:
    """Checks what comes before learning."""
    if agent.get("scale_decisions") is not None:
        whole(agent, "scale_decisions", 1, name="agent.scale_decisions")
    imitate = agent.get("imitate") or {}
    if not isinstance(imitate, Mapping):
        raise UserError(f"agent.imitate={imitate!r} must be a mapping, or null to imitate nobody")
    if imitate.get("rule") is None:
        return
    for key, least in (("decisions", 1), ("epochs", 0), ("critic_first_updates", 0)):
        whole(imitate, key, least, name=f"agent.imitate.{key}")
    positive(imitate, "learning_rate", name="agent.imitate.learning_rate")
    if imitate.get("smoothing") is not None:
        number(imitate, "smoothing", most=1.0, name="agent.imitate.smoothing")
    teacher = teacher_named(imitate["rule"])
    if teacher is not None:
        teacher.check(imitate)
    if imitate["rule"] == "hindsight" and history_of(agent) > 1:
        raise UserError(f"agent.history={agent['history']}: who learns in hindsight sees the present alone; expected "
                        "1, or another agent.imitate.rule")


def recipe_of(agent: Mapping[str, Any]) -> str:
    """What an agent's configuration is called in conf/agent: several recipes there are built on one algorithm, whose
    name is all that loading needs and `agent.name` says."""
    multiplier, rule = agent.get("lagrangian"), (agent.get("imitate") or {}).get("rule")
    if multiplier:
        damped = multiplier.get("proportional") or multiplier.get("derivative")
        return "pid_lagrangian" if damped else "ppo_lagrangian"
    if agent.get("input_baseline"):
        return "ppo_input"
    return str(agent["name"]) if teacher_named(rule) is None else f"ppo_{rule}"


def history_of(agent: Mapping[str, Any]) -> int:
    """How many of the last cluster vectors an agent sees in one."""
    return int(agent.get("history") or 1)


# --- Proximal policy optimisation -----------------------------------------------------------------------------------
def check_ppo(agent: Mapping[str, Any]) -> None:
    """Checks what the algorithms of the PPO family have in common."""
    for key, least in (("n_steps", 2), ("batch_size", 2), ("n_epochs", 1)):
        whole(agent, key, least, name=f"agent.{key}")
    for key in ("clip_range", "max_grad_norm"):
        positive(agent, key, name=f"agent.{key}")
    for key in ("learning_rate", "vf_coef"):
        number(agent, key, name=f"agent.{key}")
    positive_or_null(agent, "target_kl", "no end to an update", name="agent.target_kl")
    for key in ("discount_per_s", "trace_per_s"):
        if not is_number(agent.get(key)) or not 0.0 < agent[key] <= 1.0:
            raise UserError(f"agent.{key} must lie in (0, 1], got {agent.get(key)}")


def ppo_arguments(agent: Mapping[str, Any], seed: int, buffer: Any) -> dict[str, Any]:
    """The arguments that the algorithms of the PPO family have in common; `buffer` is the class of their rollouts."""
    return {
        **{key: agent[key] for key in ("learning_rate", "n_steps", "batch_size", "n_epochs", "clip_range", "ent_coef",
                                       "vf_coef", "max_grad_norm")},
        "target_kl": agent.get("target_kl"),
        "gamma": 1.0,  # a truncated episode's last value is bootstrapped over one short step; time is in the buffer
        "rollout_buffer_class": buffer, "seed": seed, "device": "cpu",
        "rollout_buffer_kwargs": {key: agent[key] for key in ("discount_per_s", "trace_per_s")},
    }


def _maskable_ppo_class() -> Any:
    from agents.lean_ppo import LeanMaskablePPO

    return LeanMaskablePPO


def _maskable_ppo(env: Any, agent: Mapping[str, Any], seed: int) -> Any:
    from agents.buffer import TimedRolloutBuffer
    from agents.policies import CandidatePolicy, policy_arguments

    return _maskable_ppo_class()(CandidatePolicy, env, policy_kwargs=policy_arguments(agent),
                                 **ppo_arguments(agent, seed, TimedRolloutBuffer))


def _ppo_class() -> Any:
    from stable_baselines3 import PPO

    return PPO


def _ppo(env: Any, agent: Mapping[str, Any], seed: int) -> Any:
    from agents.buffer import UnmaskedTimedRolloutBuffer
    from agents.policies import UnmaskedCandidatePolicy, policy_arguments

    return _ppo_class()(UnmaskedCandidatePolicy, env, policy_kwargs=policy_arguments(agent),
                        **ppo_arguments(agent, seed, UnmaskedTimedRolloutBuffer))


# --- Learning from what is remembered ---------------------------------------------------------------------------------
def _check_dqn(agent: Mapping[str, Any]) -> None:
    for key, least in (("buffer_size", 1), ("batch_size", 2), ("learning_starts", 0), ("train_freq", 1),
                       ("gradient_steps", 1), ("target_update_interval", 1)):
        whole(agent, key, least, name=f"agent.{key}")
    number(agent, "learning_rate", name="agent.learning_rate")
    for key in ("discount_per_s", "exploration_fraction", "exploration_final_eps"):
        if not is_number(agent.get(key)) or not 0.0 < agent[key] <= 1.0:
            raise UserError(f"agent.{key} must lie in (0, 1], got {agent.get(key)}")
    if (agent.get("imitate") or {}).get("rule") is not None:
        raise UserError(f"agent.imitate.rule={agent['imitate']['rule']}: {agent['name']} learns values of actions, "
                        "which no rule shows; expected null")


def dqn_arguments(agent: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """The arguments that DQN and QR-DQN have in common."""
    from agents.replay import TimedReplayBuffer

    keys = ("learning_rate", "buffer_size", "learning_starts", "batch_size", "train_freq", "gradient_steps",
            "target_update_interval", "exploration_fraction", "exploration_final_eps", "max_grad_norm")
    return {**{key: agent[key] for key in keys}, "gamma": 1.0,  # time is in the buffer
            "replay_buffer_class": TimedReplayBuffer,
            "replay_buffer_kwargs": {"discount_per_s": agent["discount_per_s"]}, "seed": seed, "device": "cpu"}


def _dqn_class() -> Any:
    from agents.replay import MaskedDQN

    return MaskedDQN


def _dqn(env: Any, agent: Mapping[str, Any], seed: int) -> Any:
    from agents.policies import CandidateDQNPolicy, policy_arguments

    return _dqn_class()(CandidateDQNPolicy, env, policy_kwargs=policy_arguments(agent), **dqn_arguments(agent, seed))


def _qrdqn_class() -> Any:
    from agents.replay import MaskedQRDQN

    return MaskedQRDQN


def _qrdqn(env: Any, agent: Mapping[str, Any], seed: int) -> Any:
    from agents.policies import CandidateQRDQNPolicy, policy_arguments

    policy = {**policy_arguments(agent), "n_quantiles": whole(agent, "n_quantiles", 2, name="agent.n_quantiles")}
    return _qrdqn_class()(CandidateQRDQNPolicy, env, policy_kwargs=policy, **dqn_arguments(agent, seed))


ALGORITHMS: dict[str, Algorithm] = {
    "maskable_ppo": Algorithm(_maskable_ppo_class, _maskable_ppo, check_ppo),
    "ppo": Algorithm(_ppo_class, _ppo, check_ppo),
    "dqn": Algorithm(_dqn_class, _dqn, _check_dqn, on_policy=False, vectors=False, info_keys=("elapsed_s",)),
    "qrdqn": Algorithm(_qrdqn_class, _qrdqn, _check_dqn, on_policy=False, vectors=False, info_keys=("elapsed_s",)),
}
