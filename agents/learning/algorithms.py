"""What an agent's configuration may name: learning algorithms, what is added to them, and teachers to start from.

To add an algorithm: a file `conf/agent/<name>.yaml` with `name: <name>` and an entry of `ALGORITHMS` here. What several
algorithms can be combined with is chosen by keys of the agent's configuration: those of `EXTRAS` add a callback each
(what a checkpoint keeps of it is named by its `KEPT`, `callbacks.Kept`), and `imitate.rule` is null (random play, only
to scale observations), a name of `TEACHERS`, or a heuristic of the environment: by its name, or one for each decision,
such as `{pull: ooco_xllm, gate: shortest}`.

All is checked before anything is built, and without torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from agents.environments import history_of
from agents.search.optimisers import METHODS
from agents.settings import ATTENTION_HEADS, check_numbers, number, plain, positive_or_null, whole
from ooco_gym.errors import UserError, is_number, unknown

NETWORKS = ("candidate_scorer", "attention", "mlp")
HEADS = ("shared", "joint")  # of several decisions: last layers that all share, or one for each kind
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Algorithm:
    """A learning algorithm of Stable-Baselines3 or sb3-contrib, or one built on them.

    Attributes:
        classes: returns the classes of the algorithm, its policy and its buffer.
        arguments: (agent, seed, the buffer's class) → the algorithm's arguments beside policy and environment.
        check: raises UserError for what a user may have got wrong in the agent's configuration.
        on_policy: whether it learns from rollouts, with a rollout buffer, rather than from a replay buffer.
        vectors: whether its actions may be vectors (`MultiDiscrete`), as those of Control-v0.
        policy_keys: what its policy takes beside the network.
        info_keys: what it reads from the dicts of infos that a step gives.
    """

    classes: Callable[[], tuple[Any, Any, Any]]
    arguments: Callable[[Settings, int, Any], dict[str, Any]]
    check: Callable[[Settings], None]
    on_policy: bool = True
    vectors: bool = True
    policy_keys: tuple[str, ...] = ()
    info_keys: tuple[str, ...] = ()

    def build(self, env: Any, agent: Settings, seed: int) -> Any:
        """The model that learns in `env` (a `VecEnv`) as the agent's configuration says."""
        model, policy, buffer = self.classes()
        network = {"network": agent["network"], "hidden": int(agent["hidden"]), "joint": agent.get("heads") == "joint"}
        return model(policy, env, policy_kwargs={**network, **{key: agent[key] for key in self.policy_keys}},
                     seed=seed, device="cpu", gamma=1.0, **self.arguments(agent, seed, buffer))


def algorithm_of(agent: Settings) -> Algorithm:
    """The algorithm of an agent's configuration.

    Raises:
        UserError: no algorithm of that name.
    """
    name = agent.get("name")
    if name not in ALGORITHMS:
        raise unknown("agent", name, [*ALGORITHMS, *METHODS])
    return ALGORITHMS[name]


def recipe_of(agent: Settings) -> str:
    """What an agent's configuration is called in conf/agent: several recipes there are built on one algorithm, whose
    name is all that loading needs and `agent.name` says."""
    multiplier, rule = agent.get("lagrangian"), (agent.get("imitate") or {}).get("rule")
    if multiplier:
        damped = multiplier.get("proportional") or multiplier.get("derivative")
        return "pid_lagrangian" if damped else "ppo_lagrangian"
    if agent.get("input_baseline"):
        return "ppo_input"
    return str(agent["name"]) if not is_teacher(rule) else f"ppo_{rule}"


def check_agent(agent: Settings) -> None:
    """Checks an agent's configuration.

    Raises:
        UserError: an unknown algorithm or network, or a value out of range.
    """
    algorithm = algorithm_of(agent)
    if agent.get("network") not in NETWORKS:
        raise unknown("agent.network", agent.get("network"), NETWORKS)
    if (agent.get("heads") or "shared") not in HEADS:
        raise unknown("agent.heads", agent["heads"], HEADS)
    check_numbers(agent, "agent", {"n_envs": 1, "hidden": 1})
    if agent["network"] == "attention" and agent["hidden"] % ATTENTION_HEADS:
        raise UserError(f"agent.hidden={agent['hidden']} must be a multiple of {ATTENTION_HEADS} for "
                        "agent.network=attention")
    for key in ("history", "scale_decisions"):
        if agent.get(key) is not None:
            whole(agent, key, 1, name=f"agent.{key}")
    algorithm.check(agent)
    _check_imitation(agent)
    for key, extra in EXTRAS.items():
        if agent.get(key):
            if not isinstance(agent[key], Mapping):
                raise UserError(f"agent.{key}={agent[key]!r} must be a mapping, or null to leave it out")
            extra.check(agent[key], agent)


# --- Proximal policy optimisation -----------------------------------------------------------------------------------
def _check_ppo(agent: Settings) -> None:
    check_numbers(agent, "agent", {"n_steps": 2, "batch_size": 2, "n_epochs": 1}, positives=("clip_range",
                  "max_grad_norm"), numbers=("learning_rate", "vf_coef"))
    positive_or_null(agent, "target_kl", "no end to an update", name="agent.target_kl")
    _check_shares(discounts_of(agent))


def _check_shares(values: Settings) -> None:
    for key, value in values.items():
        if not is_number(value) or not 0.0 < value <= 1.0:
            raise UserError(f"agent.{key} must lie in (0, 1], got {value}")


def discounts_of(agent: Settings) -> dict[str, Any]:
    """γ and λ over one simulated second; λ also by the name that it had before, `trace_per_s`."""
    former = agent.get("trace_per_s")
    return {"discount_per_s": agent.get("discount_per_s"),
            "gae_lambda_per_s": agent.get("gae_lambda_per_s") if former is None else former}


def _ppo_arguments(agent: Settings, seed: int, buffer: Any) -> dict[str, Any]:
    """gamma is 1: a truncated episode's last value is bootstrapped over one short step; time is in the buffer."""
    keys = ("learning_rate", "n_steps", "batch_size", "n_epochs", "clip_range", "ent_coef", "vf_coef", "max_grad_norm")
    return {**{key: agent[key] for key in keys}, "target_kl": agent.get("target_kl"), "rollout_buffer_class": buffer,
            "rollout_buffer_kwargs": discounts_of(agent)}


def _maskable_ppo() -> tuple[Any, Any, Any]:
    from agents.learning.models import CandidatePolicy, LeanMaskablePPO, TimedRolloutBuffer

    return LeanMaskablePPO, CandidatePolicy, TimedRolloutBuffer


def _ppo() -> tuple[Any, Any, Any]:
    from stable_baselines3 import PPO

    from agents.learning.models import UnmaskedCandidatePolicy, UnmaskedTimedRolloutBuffer

    return PPO, UnmaskedCandidatePolicy, UnmaskedTimedRolloutBuffer


# --- Q-learning -----------------------------------------------------------------------------------------------------
def _check_dqn(agent: Settings) -> None:
    check_numbers(agent, "agent", {"buffer_size": 1, "batch_size": 2, "learning_starts": 0, "train_freq": 1,
                                   "gradient_steps": 1, "target_update_interval": 1}, numbers=("learning_rate",))
    _check_shares({key: agent.get(key) for key in ("discount_per_s", "exploration_fraction", "exploration_final_eps")})
    if (agent.get("imitate") or {}).get("rule") is not None:
        raise UserError(f"agent.imitate.rule={agent['imitate']['rule']}: {agent['name']} learns values of actions, "
                        "which no rule shows; expected null")


def _check_qrdqn(agent: Settings) -> None:
    _check_dqn(agent)
    whole(agent, "n_quantiles", 2, name="agent.n_quantiles")


def _dqn_arguments(agent: Settings, seed: int, buffer: Any) -> dict[str, Any]:
    """gamma is 1: time is in the buffer."""
    keys = ("learning_rate", "buffer_size", "learning_starts", "batch_size", "train_freq", "gradient_steps",
            "target_update_interval", "exploration_fraction", "exploration_final_eps", "max_grad_norm")
    return {**{key: agent[key] for key in keys}, "replay_buffer_class": buffer,
            "replay_buffer_kwargs": {"discount_per_s": agent["discount_per_s"]}}


def _dqn() -> tuple[Any, Any, Any]:
    from agents.learning.models import CandidateDQNPolicy, MaskedDQN, TimedReplayBuffer

    return MaskedDQN, CandidateDQNPolicy, TimedReplayBuffer


def _qrdqn() -> tuple[Any, Any, Any]:
    from agents.learning.models import CandidateQRDQNPolicy, MaskedQRDQN, TimedReplayBuffer

    return MaskedQRDQN, CandidateQRDQNPolicy, TimedReplayBuffer


ALGORITHMS: dict[str, Algorithm] = {
    "maskable_ppo": Algorithm(_maskable_ppo, _ppo_arguments, _check_ppo),
    "ppo": Algorithm(_ppo, _ppo_arguments, _check_ppo),
    "dqn": Algorithm(_dqn, _dqn_arguments, _check_dqn, on_policy=False, vectors=False, info_keys=("elapsed_s",)),
    "qrdqn": Algorithm(_qrdqn, _dqn_arguments, _check_qrdqn, on_policy=False, vectors=False,
                       policy_keys=("n_quantiles",), info_keys=("elapsed_s",)),
}


# --- What is added to an algorithm ----------------------------------------------------------------------------------
class Extra(NamedTuple):
    """What a key of an agent's configuration adds to training.

    Attributes:
        build: (its settings, the trainer) → callback. The trainer has `config`, `agent`, `env` (VecNormalize), `model`
            and `out`.
        check: (its settings, the agent's configuration); raises UserError.
    """

    build: Callable[[dict[str, Any], Any], Any]
    check: Callable[[Settings, Settings], None]


def _check_input_baseline(settings: Settings, agent: Settings) -> None:
    group = whole(settings, "group", 2, name="agent.input_baseline.group")
    if int(agent["n_envs"]) % group:
        raise UserError(f"agent.input_baseline.group={group} does not divide agent.n_envs={agent['n_envs']}: groups "
                        "are of equal size")


def _input_baseline(settings: dict[str, Any], trainer: Any) -> Any:
    from agents.learning.advantages import InputBaseline

    return InputBaseline(int(settings["group"]), int(trainer.agent["n_envs"]))


def _check_lagrangian(settings: Settings, agent: Settings) -> None:
    number(settings, "smoothing", most=0.999, name="agent.lagrangian.smoothing")
    check_numbers(settings, "agent.lagrangian", {"epochs": 1}, positives=("requests",), numbers=(
        "proportional", "integral", "derivative", "initial", "most", "learning_rate"))
    budget = settings.get("budget")
    if budget is not None and not 0.0 < number(settings, "budget", name="agent.lagrangian.budget") < 1.0:
        raise UserError(f"agent.lagrangian.budget={budget!r} must lie between 0 and 1, or be null for the protocol's")


def _lagrangian(settings: dict[str, Any], trainer: Any) -> Any:
    from agents.learning.advantages import lagrangian

    return lagrangian(settings, trainer, list(discounts_of(trainer.agent).values()))


# By the key of the agent's configuration that asks for them. Their callbacks are called in this order, after the
# durations of transitions are known and before validation.
EXTRAS: dict[str, Extra] = {
    "input_baseline": Extra(_input_baseline, _check_input_baseline),
    "lagrangian": Extra(_lagrangian, _check_lagrangian),
}


def extra_callbacks(agent: Settings, trainer: Any) -> list[Any]:
    """The callbacks that the keys of an agent's configuration ask for."""
    return [extra.build(plain(agent[key]), trainer) for key, extra in EXTRAS.items() if agent.get(key)]


# --- Teachers -------------------------------------------------------------------------------------------------------
def imitated(agent: Settings) -> Any:
    """`agent.imitate.rule`: what the agent imitates before it learns, or None."""
    return plain(agent.get("imitate") or {}).get("rule")


def is_teacher(rule: Any) -> bool:
    """Whether `agent.imitate.rule` names one of `TEACHERS`, rather than heuristics."""
    return isinstance(rule, str) and rule in TEACHERS


def _check_imitation(agent: Settings) -> None:
    imitate = agent.get("imitate") or {}
    if not isinstance(imitate, Mapping):
        raise UserError(f"agent.imitate={imitate!r} must be a mapping, or null to imitate nothing")
    rule = imitate.get("rule")
    if rule is None:
        return
    check_numbers(imitate, "agent.imitate", {"decisions": 1, "epochs": 0, "critic_first_updates": 0},
                  positives=("learning_rate",))
    if imitate.get("smoothing") is not None:
        number(imitate, "smoothing", most=1.0, name="agent.imitate.smoothing")
    if is_teacher(rule):
        check_numbers(imitate, "agent.imitate", **TEACHERS[rule])
    if rule == "hindsight" and history_of(agent) > 1:
        raise UserError(f"agent.history={agent['history']}: a learner in hindsight sees the present alone; expected "
                        "1, or another agent.imitate.rule")


# Teachers that are no heuristic of the environment, by `agent.imitate.rule`: the numbers in `agent.imitate` that they
# need, as `check_numbers` takes them. `trainer.prepare` knows how each teaches.
TEACHERS: dict[str, dict[str, Any]] = {
    "best_heuristic": {"wholes": {"windows": 2}},
    "hindsight": {"wholes": dict.fromkeys(("looks", "every", "rounds", "workers", "epochs"), 1),
                  "numbers": ("horizon_s", "weight", "lead", "learning_rate"), "positives": ("temperature",)},
    "search": {"wholes": {"windows": 1, "generations": 0, "population": 1, "elite": 1, "scale_decisions": 1},
               "numbers": ("price", "budget"), "positives": ("window_s",)},
}
