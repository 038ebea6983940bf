"""The possible content of an agent's configuration (`conf/agent`): algorithm, teacher, constraint.

All is checked before anything is built, and without torch. An algorithm of Stable-Baselines3 needs a file
`conf/agent/<name>.yaml` with `name: <name>`, its keys in a model here, and its place in `models.build_model`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from agents.search.optimisers import CMA, CMA_LINEAR
from agents.settings import Decisions
from ooco_gym.errors import UserError, unknown
from ooco_gym.schema import Amount, Count, Model, Positive, Range, Seconds, Share, check

Settings = Mapping[str, Any]
MOST_STEPS = 1 << 20  # decisions of an update, with which memory grows


def discounts_of(agent: Settings) -> dict[str, Any]:
    """γ and λ over one simulated second."""
    return {key: agent.get(key) for key in ("discount_per_s", "gae_lambda_per_s")}


@dataclass(frozen=True)
class Imitation(Model):
    """How an agent begins with a heuristic's actions."""

    rule: Any = None
    decisions: Decisions | None = None
    epochs: Annotated[int, Range(0)] | None = None
    learning_rate: Positive | None = None
    smoothing: Share | None = None
    critic_first_updates: Annotated[int, Range(0)] | None = None


@dataclass(frozen=True)
class LagrangianKeys(Model):
    """A constraint on violations, with the gains of its multiplier."""

    requests: Positive
    proportional: Amount
    integral: Amount
    derivative: Amount
    initial: Amount
    most: Amount
    smoothing: Annotated[float, Range(0, 0.999)]
    learning_rate: Amount
    epochs: Count
    budget: Annotated[float, Range(0, 1, above=True)] | None = None


@dataclass(frozen=True)
class Agent(Model):
    """Maskable PPO; conf/agent/maskable_ppo.yaml has what each key means."""

    PLACE = "agent"

    name: Literal["maskable_ppo"]
    n_envs: Annotated[int, Range(1, 4096)]
    hidden: Annotated[int, Range(1, 1 << 13)]
    batch_size: Annotated[int, Range(2, 1 << 20)]
    n_epochs: Count
    learning_rate: Amount
    clip_range: Positive
    max_grad_norm: Positive
    vf_coef: Amount
    discount_per_s: Annotated[float, Range(0, 1, above=True)]
    gae_lambda_per_s: Annotated[float, Range(0, 1, above=True)]
    ent_coef: float = 0.0
    anneal: bool = True
    n_steps: Annotated[int, Range(2, 1 << 20)] | None = None
    rollout_s: Seconds | None = None
    target_kl: Positive | None = None
    scale_decisions: Count | None = None
    imitate: Imitation | None = None
    lagrangian: LagrangianKeys | None = None


@dataclass(frozen=True)
class DqnAgent(Model):
    """Deep Q-learning; conf/agent/dqn.yaml has what each key means."""

    PLACE = "agent"

    name: Literal["dqn"]
    hidden: Annotated[int, Range(1, 1 << 13)]
    n_envs: Annotated[int, Range(1, 4096)]
    n_steps: Count
    gradient_steps: Count
    batch_size: Annotated[int, Range(2, 1 << 20)]
    buffer_size: Annotated[int, Range(2, 1 << 24)]
    learning_rate: Amount
    anneal: bool
    discount_per_s: Annotated[float, Range(0, 1, above=True)]
    exploration_fraction: Annotated[float, Range(0, 1, above=True)]
    exploration_final_eps: Share
    target_update_interval: Count
    max_grad_norm: Positive
    scale_decisions: Count


MODELS: dict[str, type[Model]] = {"maskable_ppo": Agent, "dqn": DqnAgent}  # of what learns by gradients


def check_agent(agent: Settings) -> None:
    """Checks an agent's configuration.

    Raises:
        UserError: an unknown algorithm or key, or a value out of range.
    """
    if agent.get("name") not in MODELS:
        raise unknown("agent", agent.get("name"), [*MODELS, CMA, CMA_LINEAR])
    if agent["name"] == "dqn":
        DqnAgent.read(agent)
        return
    found = Agent.read({**agent, **{part: agent.get(part) or None for part in ("imitate", "lagrangian")}})
    if found.n_steps is None:
        check(Seconds, "agent.rollout_s", found.rollout_s)
    elif found.n_steps * found.n_envs > MOST_STEPS:
        raise UserError(f"agent.n_steps={found.n_steps} of agent.n_envs={found.n_envs} give "
                        f"{found.n_steps * found.n_envs:,} decisions an update; expected at most {MOST_STEPS:,}")
