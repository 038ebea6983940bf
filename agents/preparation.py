"""Before learning: who is watched, to scale observations and to start from what they do.

`agent.imitate.rule` is null (random play, only to scale), a name of `TEACHERS`, or else a heuristic of the environment:
by its name, or one for each decision, such as `{pull: ooco_xllm, gate: shortest}`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agents.environments import plain

Teacher = Callable[[Any, dict[str, Any]], dict[str, Any]]


def imitated(agent: Mapping[str, Any]) -> Any:
    """Whom the agent imitates before it learns; None: nobody."""
    return plain(agent.get("imitate") or {}).get("rule")


def prepare(trainer: Any) -> dict[str, Any] | None:
    """Scales observations and, if the agent asks for it, imitates; returns how well, None without imitation."""
    from agents.imitation import learn_rule, play_and_scale

    agent, rule = trainer.agent, imitated(trainer.agent)
    if rule is None:
        play_and_scale(trainer.model, trainer.env.venv, int(agent["scale_decisions"]), int(trainer.config["seed"]))
        return None
    teacher = TEACHERS.get(rule, learn_rule) if isinstance(rule, str) else learn_rule
    return teacher(trainer, plain(agent["imitate"]))


def _hindsight(trainer: Any, settings: dict[str, Any]) -> dict[str, Any]:
    from agents.hindsight import learn_in_hindsight

    return learn_in_hindsight(trainer, settings)


def _search(trainer: Any, settings: dict[str, Any]) -> dict[str, Any]:
    from agents.search import learn_searched

    return learn_searched(trainer, settings)


# Those that are no heuristic of the environment: (trainer, `agent.imitate`) → `rule`, `decisions`, `agreement`.
TEACHERS: dict[str, Teacher] = {"hindsight": _hindsight, "search": _search}
