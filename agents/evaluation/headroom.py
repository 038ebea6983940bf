"""`ooco-gym headroom`: how far an environment's best heuristic is from the best plan for windows that are known.

Random actions, the base policy and the best heuristic are compared with a plan for each window (docs/evaluation.md):

- Where an action sets parameters for some seconds, the plan has one answer for each part of the window. It is improved
  by coordinate ascent: one part and one parameter at a time, every level, on the same window.
- At other decisions, a sample takes the action with the best roll-out on the window's own future: the base policy
  continues for `horizon_s`. The best heuristic takes all other decisions.
- With `oracle`, changes of the scenario, the base policy also plays with what they tell it (true lengths, returns), or
  another one (`policy`).

A search gives the best plan found, which is no upper bound. A window's plan is never worse than the best heuristic,
which is a plan as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from agents.environments import Window, check_ours, env_of, make_env, split_seeds, windows
from agents.evaluation.heuristics import BASE, RANDOM, Heuristic, as_base_policy, by_name, heuristics_of, play_heuristic
from agents.evaluation.play_outs import PlayOuts
from agents.evaluation.scoring import VIOLATION_LIMIT, feasible_first
from agents.settings import Decisions
from ooco_gym.envs.config import under
from ooco_gym.errors import UserError
from ooco_gym.files import write_json
from ooco_gym.metrics.statistics import interval
from ooco_gym.report import Table, percent, with_interval
from ooco_gym.schema import Count, Range, Seconds, check_all, demand, plain
from ooco_gym.sim.state import PS_PER_S
from ooco_gym.simulation import Run, simulate
from ooco_gym.study.options import seeds_of
from ooco_gym.study.runs import in_processes

CLOSED = 0.02  # of the best heuristic's offline service or reward: a smaller gain is called none
CHOSEN_ON = 8  # validation windows, or one of each seed, on which the best heuristic is chosen


# --- Plans ------------------------------------------------------------------------------------------------------------
def ascend(worth: Callable[[np.ndarray], float], start: np.ndarray, counts: Sequence[int], parts: int, sweeps: int
           ) -> tuple[float, float, int]:
    """Searches a plan int64[parts, len(counts)] by coordinate ascent from `start` int64[len(counts)] in all parts:
    first over plans that are the same in all parts, then over each part.

    Returns:
        The worth of the best constant plan, that of the best plan, and the number of plans tried.
    """
    plan, tried = np.tile(start, (parts, 1)), 1
    best = worth(plan)

    def improve(rows: slice) -> None:
        nonlocal plan, best, tried
        for column, count in enumerate(counts):
            for level in np.delete(np.arange(count), plan[rows.start or 0, column]):
                other = plan.copy()
                other[rows, column] = level
                tried += 1
                if (value := worth(other)) > best:
                    plan, best = other, value

    improve(slice(None))
    constant = best
    for _ in range(sweeps):
        for part in range(parts):
            improve(slice(part, part + 1))
    return constant, best, tried


def _planned(env: Any, window: Window, total: int, parts: int, sweeps: int) -> dict[str, Any]:
    """The best plan of levels found for a window of `total` decisions."""
    controls = env.episodes.controls

    def worth(plan: np.ndarray) -> float:
        return _play(env, window, lambda taken: plan[min(taken * parts // total, parts - 1)])[0]

    constant, best, tried = ascend(worth, controls.tuned, controls.counts, parts, sweeps)
    return {"plan": best, "constant": constant, "play_outs": tried}


def _rolled_out(env: Any, window: Window, total: int, heuristic: str, asked: int, horizon_s: float) -> dict[str, Any]:
    """The reward of a window in which `asked` of its decisions take the action with the best roll-out, and the
    heuristic takes the others."""
    chosen = set(np.linspace(0, total - 1, min(asked, total)).round().astype(int).tolist())
    look, usual, tried = PlayOuts(env, horizon_s), Heuristic(heuristic), 0

    def act(taken: int) -> Any:
        nonlocal tried
        own = usual.act([env], [{}])[0]
        if taken not in chosen:
            return own
        actions, values = look.values()
        tried += len(actions)
        same = np.flatnonzero(actions[:, 0] == own)
        mine = values[same[0] if same.size else 0]
        return own if values.max() <= mine else int(actions[values.argmax(), 0])

    return {"plan": _play(env, window, act)[0], "play_outs": tried}


def _play(env: Any, window: Window, act: Callable[[int], Any]) -> tuple[float, int, dict[str, Any]]:
    """Plays a window with `act(number of the decision)`; returns its reward, its decisions, and its summary."""
    env.reset(seed=window.seed, options={"window": window.number})
    reward, taken, over = 0.0, 0, not env.episodes.open(0)
    while not over:
        _, gained, terminated, truncated, _ = env.step(act(taken))
        reward, taken, over = reward + float(gained), taken + 1, terminated or truncated
    return reward, taken, env.summary()


def play_window(config: Mapping[str, Any], env_config: Mapping[str, Any], heuristic: str, window: Window
                ) -> dict[str, Any]:
    """Plays one window with random actions, the base policy, the best heuristic, its plan and the oracle."""
    record: dict[str, Any] = {"window": list(window)}
    played = {name: play_heuristic(env_config, name, [window], 1)[0] for name in {RANDOM, BASE, heuristic}}
    for name, player in (("random", RANDOM), ("base_policy", BASE), ("heuristic", heuristic)):
        one = played[player]
        record[name] = {"reward": one["reward"], "decisions": one["decisions"],
                        "service": one["summary"]["offline_reference_gpu_s_per_s"],
                        "violations": one["summary"]["violation_rate"]}
    if not config["ceiling"]:
        return record
    total = record["heuristic"]["decisions"]
    with closing(make_env(env_config)) as made:
        env = made.unwrapped
        there, by = as_base_policy(env_config, heuristic, env)
        if config["oracle"]:
            changes = dict(config["oracle"])
            policy = changes.pop("policy", env.config.base_policy)
            run = simulate(under(env.config, changes, "oracle").window(*window), policy)
            record["oracle"] = {"service": run.summary["offline"]["reference_gpu_s_per_s"],
                                "violations": run.summary["online"]["violation_rate"] or 0.0, "reward": -_open_s(run)}
        planned = env.episodes.controls is not None
        if planned:
            found = _planned(env, window, total, config["parts"], config["sweeps"])
    if not planned:
        with closing(make_env(there)) as made:
            found = _rolled_out(made.unwrapped, window, total, by, config["decisions"], config["horizon_s"])
    return {**record, **found, "plan": max(found["plan"], record["heuristic"]["reward"])}


def best_heuristic(env_config: Mapping[str, Any], games: Sequence[Window]) -> str:
    """The heuristic with the highest mean reward on `games`, among those that keep the violation budget if any does."""
    with closing(make_env(env_config)) as env:
        listed = [one.name for one in heuristics_of(env.unwrapped)]
    scores = {}
    for name in listed:
        played = play_heuristic(env_config, name, games)
        rate = float(np.mean([one["summary"]["violation_rate"] for one in played]))
        scores[name] = feasible_first(rate, float(np.mean([one["reward"] for one in played])), VIOLATION_LIMIT)
    return max(scores, key=lambda name: scores[name])


# --- The command ------------------------------------------------------------------------------------------------------
def main(cfg: Any) -> dict[str, Any]:
    """Plays the windows, and writes headroom.json.

    Raises:
        UserError: a number is out of range, the heuristic is unknown, or the environment is not ours.
    """
    config, started = plain(cfg), time.monotonic()
    check_all(config, episodes=Annotated[int, Range(2, 1 << 20)], workers=Count, decisions=Decisions, parts=Count,
              sweeps=Count, horizon_s=Seconds)
    demand(isinstance(config["oracle"] or {}, Mapping), "oracle", config["oracle"],
           "a mapping of changes of the scenario, such as {lengths.error: 0.0}, or null")
    env = env_of(config)
    check_ours(env, "headroom")
    games = windows(list(seeds_of(config["seeds"], known=split_seeds(env, "test"))), config["episodes"])
    with closing(make_env(env)) as made:
        window_s = made.unwrapped.config.window_s
        if made.unwrapped.config.box:
            raise UserError("action=box: plans are made of levels; leave action=discrete")
        if config["heuristic"] is not None:
            by_name(made.unwrapped, as_base_policy(env, str(config["heuristic"]), made)[1])  # raises if it is unknown
    chosen_on = split_seeds(env, "validation")[:CHOSEN_ON]
    heuristic = config["heuristic"] or best_heuristic(
        env, windows(chosen_on, -(-CHOSEN_ON // len(chosen_on)) * len(chosen_on)))
    records = list(in_processes(partial(play_window, config, env, heuristic), games, config["workers"],
                                "planning known windows"))
    settings = {key: config[key] for key in ("seeds", "parts", "sweeps", "decisions", "horizon_s", "oracle")}
    summary = {"env": env["id"], "episodes": len(games), "window_s": window_s, "settings": settings,
               "best_heuristic": heuristic, **summarised(records, window_s, unit_of(env)),
               "wall_s": time.monotonic() - started}
    write_json(Path(config["out"]) / "headroom.json", {**summary, "records": records})
    table(summary).show()
    return summary


def unit_of(env_config: Mapping[str, Any]) -> str:
    """What gains are shares of: offline service, or the reward of an environment that rewards none (Jobs-v1)."""
    reward = env_config.get("reward")
    return "reward" if isinstance(reward, Mapping) and not reward.get("service") else "service"


def summarised(records: Sequence[Mapping[str, Any]], window_s: float, unit: str = "service") -> dict[str, Any]:
    """Returns rewards a second, violations, and gains over the best heuristic in shares of its offline service, or of
    its reward (means, 95 % intervals over windows), and the label."""
    best = [one["heuristic"] for one in records]
    per_s = window_s if unit == "reward" else 1.0
    whole = max(abs(float(np.mean([one[unit] for one in best]))) / per_s, 1e-9)
    found: dict[str, Any] = {"decisions_per_s": float(np.mean([one["decisions"] for one in best])) / window_s}
    for name in ("random", "base_policy", "heuristic"):
        rewards = np.array([one[name]["reward"] for one in records]) / window_s
        found[name] = {**_interval(rewards), "violations": float(np.mean([one[name]["violations"] for one in records])),
                       "service": float(np.mean([one[name]["service"] for one in records]))}
    if "plan" in records[0]:
        over = np.array([one["plan"] - one["heuristic"]["reward"] for one in records]) / window_s / whole
        found["plan"] = {**_interval(over), "play_outs": int(sum(one["play_outs"] for one in records))}
        found["label"] = "open" if found["plan"]["mean"] > CLOSED else "nothing found"
    if "constant" in records[0]:
        over = np.array([one["plan"] - one["constant"] for one in records]) / window_s / whole
        found["plan_over_constant"] = _interval(over)
    if "oracle" in records[0]:
        over = np.array([(one["oracle"][unit] - one["heuristic"][unit]) / abs(one["heuristic"][unit])
                         for one in records])
        found["oracle"] = {**_interval(over),
                           "violations": float(np.mean([one["oracle"]["violations"] for one in records]))}
        if found["oracle"]["mean"] > CLOSED:
            found["label"] = "open"
    return found


def _open_s(run: Run) -> float:
    """Seconds that the jobs of a run are open in its window, the mean over all of them: Jobs-v1's reward; 0 without."""
    if run.job is None:
        return 0.0
    jobs, place = np.unique(run.job, return_inverse=True)
    begin, end = np.full(len(jobs), np.inf), np.zeros(len(jobs))
    done_s = np.where(run.requests["finish_ps"] > 0, run.requests["finish_ps"] / PS_PER_S, np.inf)
    np.minimum.at(begin, place, run.requests["arrival_ps"] / PS_PER_S)
    np.maximum.at(end, place, done_s)
    return float((np.clip(end, *run.window_s) - np.clip(begin, *run.window_s)).mean())


def _interval(values: np.ndarray) -> dict[str, float]:
    return dict(zip(("mean", "low", "high"), map(float, interval(values)), strict=True))


def table(summary: Mapping[str, Any]) -> Table:
    rows = []
    for name, label, form in (
            ("random", "random actions", ".4g"), ("base_policy", "base policy", ".4g"),
            ("heuristic", f"best heuristic, {summary['best_heuristic']}", ".4g"),
            ("plan", "best plan found, above the best heuristic", "+.1%"),
            ("plan_over_constant", "best plan found, above each window's best constant", "+.1%"),
            ("oracle", "oracle, above the best heuristic", "+.1%")):
        if (one := summary.get(name)) is not None:
            violations = percent(one["violations"], 1) if "violations" in one else ""
            rows.append((label, with_interval(one["mean"], one["low"], one["high"], form), violations))
    title = f"{summary['env']}, {summary['episodes']} windows"
    if "plan" in summary:
        title += f", {summary['plan']['play_outs']:,} play-outs: {summary['label']}"
    return Table(title, ("policy", "reward a second, or gain (95 %)", "violations"), rows)
