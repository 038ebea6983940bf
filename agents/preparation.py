"""Before learning: who is watched, to scale observations and to start from what they do.

`agent.imitate.rule` is null (random play, only to scale), a name of `TEACHERS`, or else a heuristic of the environment:
by its name, or one for each decision, such as `{pull: ooco_xllm, gate: shortest}`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from agents.checks import number, positive, whole
from agents.environments import plain


class Teacher(NamedTuple):
    """Somebody to start from who is no heuristic of the environment.

    Attributes:
        teach: (the trainer, `agent.imitate`) → what the summary of a run says: `rule`, `decisions`, `agreement`.
        check: of `agent.imitate`, before anything is built and without torch; raises UserError.
    """

    teach: Callable[[Any, dict[str, Any]], dict[str, Any]]
    check: Callable[[Mapping[str, Any]], None]


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
    teacher = teacher_named(rule)
    return (learn_rule if teacher is None else teacher.teach)(trainer, plain(agent["imitate"]))


def teacher_named(rule: Any) -> Teacher | None:
    """The teacher that `agent.imitate.rule` names; None where it names heuristics."""
    return TEACHERS.get(rule) if isinstance(rule, str) else None


def _check_hindsight(settings: Mapping[str, Any]) -> None:
    for key in ("looks", "every", "rounds", "workers", "epochs"):
        whole(settings, key, 1, name=f"agent.imitate.{key}")
    for key in ("horizon_s", "weight", "lead", "learning_rate"):
        number(settings, key, name=f"agent.imitate.{key}")
    positive(settings, "temperature", name="agent.imitate.temperature")


def _hindsight(trainer: Any, settings: dict[str, Any]) -> dict[str, Any]:
    from agents.hindsight import learn_in_hindsight

    return learn_in_hindsight(trainer, settings)


def _check_search(settings: Mapping[str, Any]) -> None:
    for key in ("windows", "generations", "population", "elite", "scale_decisions"):
        whole(settings, key, 0 if key == "generations" else 1, name=f"agent.imitate.{key}")
    for key in ("price", "budget"):
        number(settings, key, name=f"agent.imitate.{key}")
    positive(settings, "window_s", name="agent.imitate.window_s")


def _search(trainer: Any, settings: dict[str, Any]) -> dict[str, Any]:
    from agents.search import learn_searched

    return learn_searched(trainer, settings)


def _check_best(settings: Mapping[str, Any]) -> None:
    whole(settings, "windows", 2, name="agent.imitate.windows")


def _best(trainer: Any, settings: dict[str, Any]) -> dict[str, Any]:
    from agents.best_start import learn_best

    return learn_best(trainer, settings)


TEACHERS = {"best_heuristic": Teacher(_best, _check_best), "hindsight": Teacher(_hindsight, _check_hindsight),
            "search": Teacher(_search, _check_search)}
