"""Learning algorithms by the name that an agent's configuration gives them: how a model is built, and read again.

To add one: a file `conf/agent/<name>.yaml` with `name: <name>`, and an entry of `ALGORITHMS` here. What several
algorithms can be combined with is chosen by keys of the agent's configuration: `imitate.rule`
(`TEACHERS`), and those of `EXTRAS`, one callback each. A callback whose effect outlives a rollout has `state_dict()`
and `load_state_dict(state)`: plain values that a checkpoint keeps, so that a run that is resumed goes on as if it had
never stopped.

`agent.imitate.rule` is null (random play, only to scale), a name of `TEACHERS`, or else a heuristic of the environment:
by its name, or one for each decision, such as `{pull: ooco_xllm, gate: shortest}`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from agents.environments import history_of
from agents.settings import ATTENTION_HEADS, number, plain, positive, positive_or_null, whole
from ooco_gym.errors import UserError, is_number, unknown

NETWORKS = ("candidate_scorer", "attention", "mlp")
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
    if is_teacher(imitate["rule"]):
        TEACHERS[imitate["rule"]](imitate)
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
    return str(agent["name"]) if not is_teacher(rule) else f"ppo_{rule}"


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
    from agents.learning.ppo import LeanMaskablePPO

    return LeanMaskablePPO


def _maskable_ppo(env: Any, agent: Mapping[str, Any], seed: int) -> Any:
    from agents.learning.ppo import CandidatePolicy, TimedRolloutBuffer

    return _maskable_ppo_class()(CandidatePolicy, env, policy_kwargs=policy_arguments(agent),
                                 **ppo_arguments(agent, seed, TimedRolloutBuffer))


def _ppo_class() -> Any:
    from stable_baselines3 import PPO

    return PPO


def _ppo(env: Any, agent: Mapping[str, Any], seed: int) -> Any:
    from agents.learning.ppo import UnmaskedCandidatePolicy, UnmaskedTimedRolloutBuffer

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
    from agents.learning.dqn import TimedReplayBuffer

    keys = ("learning_rate", "buffer_size", "learning_starts", "batch_size", "train_freq", "gradient_steps",
            "target_update_interval", "exploration_fraction", "exploration_final_eps", "max_grad_norm")
    return {**{key: agent[key] for key in keys}, "gamma": 1.0,  # time is in the buffer
            "replay_buffer_class": TimedReplayBuffer,
            "replay_buffer_kwargs": {"discount_per_s": agent["discount_per_s"]}, "seed": seed, "device": "cpu"}


def _dqn_class() -> Any:
    from agents.learning.dqn import MaskedDQN

    return MaskedDQN


def _dqn(env: Any, agent: Mapping[str, Any], seed: int) -> Any:
    from agents.learning.dqn import CandidateDQNPolicy

    return _dqn_class()(CandidateDQNPolicy, env, policy_kwargs=policy_arguments(agent), **dqn_arguments(agent, seed))


def _qrdqn_class() -> Any:
    from agents.learning.dqn import MaskedQRDQN

    return MaskedQRDQN


def _qrdqn(env: Any, agent: Mapping[str, Any], seed: int) -> Any:
    from agents.learning.dqn import CandidateQRDQNPolicy

    policy = {**policy_arguments(agent), "n_quantiles": whole(agent, "n_quantiles", 2, name="agent.n_quantiles")}
    return _qrdqn_class()(CandidateQRDQNPolicy, env, policy_kwargs=policy, **dqn_arguments(agent, seed))


ALGORITHMS: dict[str, Algorithm] = {
    "maskable_ppo": Algorithm(_maskable_ppo_class, _maskable_ppo, check_ppo),
    "ppo": Algorithm(_ppo_class, _ppo, check_ppo),
    "dqn": Algorithm(_dqn_class, _dqn, _check_dqn, on_policy=False, vectors=False, info_keys=("elapsed_s",)),
    "qrdqn": Algorithm(_qrdqn_class, _qrdqn, _check_dqn, on_policy=False, vectors=False, info_keys=("elapsed_s",)),
}


@runtime_checkable
class Stateful(Protocol):
    """A callback that checkpoints keep."""

    def state_dict(self) -> dict[str, Any]:
        """What must be known to go on: anything that pickles."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from what `state_dict` gave."""
        ...


class Extra(NamedTuple):
    """What a key of an agent's configuration adds to training.

    Attributes:
        build: (its settings, the trainer) → callback. The trainer has `config`, `agent`, `env` (VecNormalize), `model`
            and `out`.
        check: (its settings, the agent's configuration), before anything is built and without torch; raises UserError.
    """

    build: Callable[[dict[str, Any], Any], Any]
    check: Callable[[Mapping[str, Any], Mapping[str, Any]], None]


def _check_input_baseline(settings: Mapping[str, Any], agent: Mapping[str, Any]) -> None:
    group = whole(settings, "group", 2, name="agent.input_baseline.group")
    if int(agent["n_envs"]) % group:
        raise UserError(f"agent.input_baseline.group={group} does not divide agent.n_envs={agent['n_envs']}: groups "
                        "are of equal size")


def _input_baseline(settings: dict[str, Any], trainer: Any) -> Any:
    from agents.learning.input_baseline import InputBaseline

    return InputBaseline(int(settings["group"]), int(trainer.agent["n_envs"]))


def _check_lagrangian(settings: Mapping[str, Any], agent: Mapping[str, Any]) -> None:
    for key in ("proportional", "integral", "derivative", "initial", "most", "smoothing", "learning_rate"):
        number(settings, key, most=0.999 if key == "smoothing" else np.inf, name=f"agent.lagrangian.{key}")
    positive(settings, "requests", name="agent.lagrangian.requests")
    whole(settings, "epochs", 1, name="agent.lagrangian.epochs")
    budget = settings.get("budget")
    if budget is not None and not 0.0 < number(settings, "budget", name="agent.lagrangian.budget") < 1.0:
        raise UserError(f"agent.lagrangian.budget={budget!r} must lie between 0 and 1, or be null for the protocol's")


def _lagrangian(settings: dict[str, Any], trainer: Any) -> Any:
    from agents.learning.lagrangian import lagrangian

    return lagrangian(settings, trainer)


# By the key of the agent's configuration that asks for them. Their callbacks are called in this order, after the
# durations of transitions are known and before validation.
EXTRAS: dict[str, Extra] = {
    "input_baseline": Extra(_input_baseline, _check_input_baseline),
    "lagrangian": Extra(_lagrangian, _check_lagrangian),
}


def check_extras(agent: Mapping[str, Any]) -> None:
    """Checks what the keys of an agent's configuration ask for.

    Raises:
        UserError: no mapping, or a value out of range.
    """
    for key, extra in EXTRAS.items():
        if agent.get(key):
            if not isinstance(agent[key], Mapping):
                raise UserError(f"agent.{key}={agent[key]!r} must be a mapping, or null to leave it out")
            extra.check(agent[key], agent)


def extra_callbacks(agent: Mapping[str, Any], trainer: Any) -> list[Any]:
    """The callbacks that the keys of an agent's configuration ask for."""
    return [extra.build(plain(agent[key]), trainer) for key, extra in EXTRAS.items() if agent.get(key)]


def imitated(agent: Mapping[str, Any]) -> Any:
    """Whom the agent imitates before it learns; None: nobody."""
    return plain(agent.get("imitate") or {}).get("rule")


def is_teacher(rule: Any) -> bool:
    """Whether `agent.imitate.rule` names one of `TEACHERS`, rather than heuristics."""
    return isinstance(rule, str) and rule in TEACHERS


def _check_hindsight(settings: Mapping[str, Any]) -> None:
    for key in ("looks", "every", "rounds", "workers", "epochs"):
        whole(settings, key, 1, name=f"agent.imitate.{key}")
    for key in ("horizon_s", "weight", "lead", "learning_rate"):
        number(settings, key, name=f"agent.imitate.{key}")
    positive(settings, "temperature", name="agent.imitate.temperature")


def _check_search(settings: Mapping[str, Any]) -> None:
    for key in ("windows", "generations", "population", "elite", "scale_decisions"):
        whole(settings, key, 0 if key == "generations" else 1, name=f"agent.imitate.{key}")
    for key in ("price", "budget"):
        number(settings, key, name=f"agent.imitate.{key}")
    positive(settings, "window_s", name="agent.imitate.window_s")


def _check_best(settings: Mapping[str, Any]) -> None:
    whole(settings, "windows", 2, name="agent.imitate.windows")


# Teachers that are no heuristic of the environment, by `agent.imitate.rule`: the check of `agent.imitate`, before
# anything is built and without torch; raises UserError. `trainer.prepare` knows how each teaches.
TEACHERS: dict[str, Callable[[Mapping[str, Any]], None]] = {
    "best_heuristic": _check_best, "hindsight": _check_hindsight, "search": _check_search}


def policy_arguments(agent: Mapping[str, Any]) -> dict[str, Any]:
    """What the policies of this module take from an agent's configuration."""
    return {"network": agent["network"], "hidden": int(agent["hidden"]), "joint": agent.get("heads") == "joint"}

