"""What an agent's configuration may add to training beside its algorithm: one callback for each key named here.

A callback whose effect outlives a rollout has `state_dict()` and `load_state_dict(state)`: plain values that a
checkpoint keeps, so that a run that is resumed goes on as if it had never stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from agents.environments import plain


@runtime_checkable
class Stateful(Protocol):
    """A callback that checkpoints keep."""

    def state_dict(self) -> dict[str, Any]:
        """What must be known to go on: anything that pickles."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from what `state_dict` gave."""
        ...


def _input_baseline(settings: dict[str, Any], trainer: Any) -> Any:
    from agents.input_baseline import InputBaseline

    return InputBaseline(int(settings["group"]), int(trainer.agent["n_envs"]))


def _lagrangian(settings: dict[str, Any], trainer: Any) -> Any:
    from agents.lagrangian import lagrangian

    return lagrangian(settings, trainer)


# From a key of the agent's configuration to the callback that it asks for: (its settings, the trainer) → callback.
# The trainer has `config`, `agent`, `env` (VecNormalize), `model` and `out`. They are called in this order, after the
# durations of transitions are known and before validation.
EXTRAS: dict[str, Callable[[dict[str, Any], Any], Any]] = {
    "input_baseline": _input_baseline, "lagrangian": _lagrangian}


def extra_callbacks(agent: Mapping[str, Any], trainer: Any) -> list[Any]:
    """The callbacks that the keys of an agent's configuration ask for."""
    return [build(plain(agent[key]), trainer) for key, build in EXTRAS.items() if agent.get(key)]
