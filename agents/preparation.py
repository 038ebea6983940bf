"""Before learning: who is watched, to scale observations and to start from what they do.

`agent.imitate.rule` is null (random play, only to scale), a name of `TEACHERS`, or else a heuristic of the environment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agents.environments import plain

Teacher = Callable[[Any, dict[str, Any]], dict[str, Any]]


def imitated(agent: Mapping[str, Any]) -> str | None:
    """Whom the agent imitates before it learns; None: nobody."""
    return plain(agent.get("imitate") or {}).get("rule")


def prepare(trainer: Any) -> dict[str, Any] | None:
    """Scales observations and, if the agent asks for it, imitates; returns how well, None without imitation."""
    from agents.imitation import play_and_scale

    agent, rule = trainer.agent, imitated(trainer.agent)
    if rule is None:
        play_and_scale(trainer.model, trainer.env.venv, None, int(agent["scale_decisions"]),
                       int(trainer.config["seed"]))
        return None
    return TEACHERS.get(rule, _rule)(trainer, plain(agent["imitate"]))


def _rule(trainer: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Watches a heuristic of the environment and fits the actor to its answers."""
    from agents.imitation import imitate, play_and_scale

    seen = play_and_scale(trainer.model, trainer.env.venv, settings["rule"], int(settings["decisions"]),
                          int(trainer.config["seed"]))
    agreement = imitate(trainer.model, seen, int(settings["epochs"]), int(trainer.agent["batch_size"]) // 4,
                        float(settings["learning_rate"]))
    return {"rule": settings["rule"], "decisions": len(seen["answer"]), "agreement": agreement}


# Those that are no heuristic of the environment: (trainer, `agent.imitate`) → `rule`, `decisions`, `agreement`.
TEACHERS: dict[str, Teacher] = {}
