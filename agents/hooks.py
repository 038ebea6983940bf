"""What an agent's configuration may add to training beside its algorithm: one callback for each key named here.

A callback whose effect outlives a rollout has `state_dict()` and `load_state_dict(state)`: plain values that a
checkpoint keeps, so that a run that is resumed goes on as if it had never stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from agents.checks import number, positive, whole
from agents.environments import plain
from ooco_gym.errors import UserError


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
    from agents.input_baseline import InputBaseline

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
    from agents.lagrangian import lagrangian

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
