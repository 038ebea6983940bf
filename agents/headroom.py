"""`ooco-gym headroom`: plays heuristics and look-ahead through the same windows, beside a bound (docs/headroom.md)."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from agents.bound import fluid_bound
from agents.contenders import Contender, contenders, heuristics_of
from agents.environments import group, make_env, plain, split_seeds
from agents.gaps import markdown, score, show
from ooco_gym.cli.progress import track
from ooco_gym.errors import UserError
from ooco_gym.files import atomic_write
from ooco_gym.sim import state as s

BOUND = "fluid bound"


def main(cfg: Any) -> dict[str, Any]:
    """Plays all contenders through `cfg.episodes` windows; writes headroom.md, and headroom.json by the summary.

    Raises:
        UserError: a count, a weight or a rule is none.
    """
    config = plain(cfg)
    started = time.monotonic()
    config["env"] = {**group(config, "env"), "window_s": config["window_s"], "warmup_s": config["warmup_s"]}
    _check(config)
    seeds = config["seeds"] or split_seeds(config["env"], "test")
    windows = [(int(seeds[i % len(seeds)]), i // len(seeds)) for i in range(config["episodes"])]
    rules = heuristics_of(_bare(config), config["rules"])
    records = list(_played(config, windows, rules))
    played = {name: [record[name] for record in records] for name in records[0]}
    name = str(config["env"].get("name") or config["env"]["id"])
    summary = {"env": config["env"]["id"], "seeds": list(map(int, seeds)), "episodes": len(windows),
               **{key: config[key] for key in ("window_s", "every", "horizon_s", "samples", "progress", "weights")},
               **score(played, [rule.name for rule in rules], BOUND, float(config["violation_budget"])),
               "wall_s": time.monotonic() - started}
    out = Path(config["out"])
    out.mkdir(parents=True, exist_ok=True)
    with atomic_write(out / "headroom.md") as temporary:
        temporary.write_text(markdown(summary, name), encoding="utf-8")
    with atomic_write(out / "headroom.json") as temporary:
        import json

        temporary.write_text(json.dumps({**summary, "records": played}, indent=1) + "\n", encoding="utf-8")
    show(summary, name)
    return summary


def _check(config: Mapping[str, Any]) -> None:
    for key, least in (("episodes", 2), ("every", 1), ("samples", 0), ("workers", 1)):
        if not isinstance(config[key], int) or isinstance(config[key], bool) or config[key] < least:
            raise UserError(f"{key}={config[key]!r} must be a whole number of at least {least}")
    for key in ("window_s", "warmup_s", "progress"):
        if not isinstance(config[key], (int, float)) or config[key] < 0:
            raise UserError(f"{key}={config[key]!r} must be a number of at least 0")
    if config["horizon_s"] is not None and not config["horizon_s"] > 0:
        raise UserError(f"horizon_s={config['horizon_s']!r} must be positive, or null for the end of the episode")
    weights = config["weights"]
    if not isinstance(weights, list) or not weights or any(
            not isinstance(weight, (int, float)) or weight < 0 for weight in weights):
        raise UserError(f"weights={weights!r} must be a list of numbers of at least 0, such as [1.0,4.0]")


def _bare(config: Mapping[str, Any]) -> Any:
    return make_env(config["env"]).unwrapped


def _played(config: Mapping[str, Any], windows: Sequence[tuple[int, int]],
            rules: Sequence[Contender]) -> Iterator[dict[str, Any]]:
    """The records of each window, in order: contender -> record."""
    names = [rule.name for rule in rules]
    workers = min(int(config["workers"]), len(windows))
    play = partial(play_window, dict(config), names)
    if workers == 1:
        env = _bare(config)
        yield from track((play(window, env) for window in windows), "looking ahead", total=len(windows))
        return
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from track(pool.map(play, windows), "looking ahead", total=len(windows))


def play_window(config: Mapping[str, Any], names: Sequence[str], window: tuple[int, int],
                env: Any = None) -> dict[str, Any]:
    """Plays one window with every contender.

    Args:
        config: the command's.
        names: heuristics, as `contenders.heuristics_of` names them.
        window: seed and number.
        env: an environment to use again.
    """
    env = env or _bare(config)
    found = {}
    for contender in contenders(env, config, names):
        found[contender.name] = _play(env, contender, window)
    if config["bound"]:
        env.reset(seed=window[0], options={"window": window[1]})
        simulation = env.simulation
        most = fluid_bound(_at_start(env, window), round(simulation.window_s[1] * s.PS_PER_S),
                           float(config["violation_budget"]))
        found[BOUND] = {"offline_reference_gpu_s_per_s": most / env.config.window_s}
    return found


def _at_start(env: Any, window: tuple[int, int]) -> s.State:
    """The state at the window's start, before any decision of it."""
    from ooco_gym.sim.driver import Simulation

    simulation = Simulation(env.config.window(*window), env.simulation.policy)
    simulation.advance(simulation.window_s[0])
    return simulation.state


def _play(env: Any, contender: Contender, window: tuple[int, int]) -> dict[str, Any]:
    """One window by one contender."""
    env.reset(seed=window[0], options={"window": window[1]})
    act, decisions, begun = contender.begin(env), 0, time.perf_counter()
    while env.episodes.open(0):
        env.step(act())
        decisions += 1
    summary = env.summary()
    return {"seed": window[0], "window": window[1], "decisions": decisions, "wall_s": time.perf_counter() - begun,
            **{key: float(np.float64(value)) for key, value in summary.items()}}
