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
from agents.checks import number, positive_or_null, whole
from agents.checks import seeds as checked_seeds
from agents.contenders import Contender, contenders, heuristics_of, rule_names
from agents.environments import check_ours, group, make_env, plain, split_seeds
from agents.gaps import markdown, score, show
from ooco_gym.errors import UserError, is_number
from ooco_gym.files import atomic_write, write_json
from ooco_gym.report.terminal import Bar, progress, track
from ooco_gym.scenario import DAY_S
from ooco_gym.sim import state as s

BOUND = "fluid bound"


def main(cfg: Any) -> dict[str, Any]:
    """Plays all contenders through `cfg.episodes` windows; writes headroom.md, and headroom.json by the summary.

    Raises:
        UserError: a count, a share, a seed, a weight or a rule is none, or no rule answers these decisions.
    """
    config = plain(cfg)
    started = time.monotonic()
    config["env"] = {**group(config, "env"), "window_s": config["window_s"], "warmup_s": config["warmup_s"]}
    _check(config)
    check_ours(config["env"], "headroom")
    seeds = checked_seeds(config["seeds"]) or split_seeds(config["env"], "test")
    windows = [(int(seeds[i % len(seeds)]), i // len(seeds)) for i in range(config["episodes"])]
    env = _bare(config)
    rules = heuristics_of(env, rule_names(config["rules"]))
    records = list(_played(config, windows, rules, env))
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
    write_json(out / "headroom.json", {**summary, "records": played})
    show(summary, name)
    return summary


def _check(config: Mapping[str, Any]) -> None:
    for key, least in (("episodes", 2), ("workers", 1)):
        whole(config, key, least)
    number(config, "violation_budget", most=1.0)
    check_looking(config)


def check_looking(config: Mapping[str, Any]) -> None:
    """Checks what a look-ahead is made with, and the windows on which it is.

    Raises:
        UserError: a count that is none, a number out of range, or weights that are no list of different numbers.
    """
    for key, least in (("every", 1), ("samples", 0)):
        whole(config, key, least)
    if config["honest_every"] is not None:
        whole(config, "honest_every", 1)
    for key, most in (("window_s", DAY_S), ("warmup_s", DAY_S), ("progress", 1.0)):
        number(config, key, most=most)
    positive_or_null(config, "horizon_s", "the end of the episode")
    weights = config["weights"]
    if not isinstance(weights, list) or not weights or any(
            not is_number(weight) or weight < 0 for weight in weights) or len(set(weights)) < len(weights):
        raise UserError(f"weights={weights!r} must be a list of different numbers of at least 0, such as [1.0,4.0]")


def _bare(config: Mapping[str, Any]) -> Any:
    return make_env(config["env"]).unwrapped


def _played(config: Mapping[str, Any], windows: Sequence[tuple[int, int]],
            rules: Sequence[Contender], env: Any) -> Iterator[dict[str, Any]]:
    """The records of each window, in order: contender -> record."""
    names = [rule.name for rule in rules]
    workers = min(int(config["workers"]), len(windows))
    play = partial(play_window, dict(config), names)
    if workers > 1:
        with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
            yield from track(pool.map(play, windows), "looking ahead", total=len(windows))
        return
    with progress("looking ahead", len(windows)) as bar:
        for window in windows:
            yield play(window, env, bar)


def play_window(config: Mapping[str, Any], names: Sequence[str], window: tuple[int, int],
                env: Any = None, bar: Bar | None = None) -> dict[str, Any]:
    """Plays one window with every contender.

    Args:
        config: the command's.
        names: heuristics, as `contenders.heuristics_of` names them.
        window: seed and number.
        env: an environment to use again.
        bar: is moved on by one in all, and says who plays.
    """
    env, bar = env or _bare(config), bar or Bar()
    found, players = {}, contenders(env, config, names)
    for contender in players:
        bar.text(f"seed {window[0]}, window {window[1]}: {contender.name}")
        found[contender.name] = _play(env, contender, window)
        bar.advance(1 / len(players))
    if config["bound"]:
        found[BOUND] = {"offline_reference_gpu_s_per_s": bound_of(env, window, float(config["violation_budget"]))}
    return found


def bound_of(env: Any, window: tuple[int, int], budget: float = 0.03) -> float:
    """The fluid bound of a window, in reference GPU-seconds a second.

    Args:
        env: the environment, bare; the window is begun anew in it.
        window: seed and number.
        budget: share of online requests that may miss an SLO.
    """
    env.reset(seed=window[0], options={"window": window[1]})
    end_ps = round(env.simulation.window_s[1] * s.PS_PER_S)
    return fluid_bound(_at_start(env, window), end_ps, budget) / env.config.window_s


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
