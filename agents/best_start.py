"""The heuristic of an environment that does best on training windows, as the one to start from.

Where constants are strong, as each parameter at another level is in Control, an agent that starts from the partner
spends its training on finding what a few dozen windows show at once. Each training seed draws windows of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from itertools import islice
from typing import Any

from agents.contenders import heuristics_of, play_heuristic, seated
from agents.environments import Window, make_env
from agents.imitation import learn_rule, training_config, training_windows
from agents.scoring import HEADLINE, best_heuristic, values


def best_on_training(config: Mapping[str, Any], count: int, seed: int) -> dict[str, Any]:
    """Plays all heuristics that decide in this very environment on the same windows of the training split.

    Published policies that would take the partner's seat, where only the clock asks, are not among them: they warm the
    window up as well, which an agent cannot.

    Args:
        config: the `env` configuration.
        count: windows.
        seed: which.

    Returns:
        `rule`, the name of the best (within the violation budget in the mean first, then by service), its `service`
        (reference GPU-seconds a second) and `violation_rate` in the mean, and `among` how many.
    """
    games = [Window(*place) for place in islice(training_windows(config, (seed, 13)), count)]
    with closing(make_env(config)) as env:
        listed = [one.name for one in heuristics_of(env.unwrapped, None)]
        names = [name for name in listed if seated(config, name, env.unwrapped) == (dict(config), name)]
    played = {name: play_heuristic(config, name, games) for name in names}
    rates = {name: float(values(records, "violation_rate").mean()) for name, records in played.items()}
    best = best_heuristic(played, limits=rates)  # in the mean: of so few windows the upper limits only favour caution
    assert best is not None  # the partner is always among them
    return {"rule": best, "service": float(values(played[best], HEADLINE).mean()), "violation_rate": rates[best],
            "among": len(names)}


def learn_best(trainer: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Copies the best heuristic, and returns what the summary of a run says about it.

    Args:
        trainer: `agents.trainer.Trainer`.
        settings: `agent.imitate`, with `windows`.
    """
    found = best_on_training(training_config(trainer), int(settings["windows"]), int(trainer.config["seed"]))
    return {**learn_rule(trainer, {**settings, "rule": found["rule"]}), **found}
