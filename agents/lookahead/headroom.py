"""`ooco-gym headroom`: plays heuristics and a look-ahead through the same windows (docs/evaluation.md).

It writes means, paired differences to the best heuristic, and a verdict.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from agents.environments import check_ours, make_env, split_seeds
from agents.evaluation.heuristics import RANDOM, Heuristic, by_name, heuristics_of, rule_names
from agents.evaluation.scoring import feasible_first, interval_note, too_few
from agents.evaluation.tables import cell
from agents.lookahead.rollout import Rollout
from agents.settings import group, number, plain, positive_or_null, whole
from agents.settings import seeds as checked_seeds
from ooco_gym.files import atomic_write, write_json
from ooco_gym.jobs import in_processes
from ooco_gym.metrics.statistics import interval
from ooco_gym.report import Table
from ooco_gym.report.terminal import Bar, progress, track
from ooco_gym.scenario import DAY_S

CLAIRVOYANT = "clairvoyant rollout"


def main(cfg: Any) -> dict[str, Any]:
    """Plays `cfg.episodes` windows with all heuristics and the look-ahead; writes headroom.md and headroom.json.

    Raises:
        UserError: a count, a share, a seed or a rule is none, or no rule answers these decisions.
    """
    config = plain(cfg)
    if config.get("learnable"):
        from agents.lookahead.learnable import main as judge

        return judge(config)
    started = time.monotonic()
    config["env"] = {**group(config, "env"), "window_s": config["window_s"], "warmup_s": config["warmup_s"]}
    _check(config)
    check_ours(config["env"], "headroom")
    seeds = checked_seeds(config["seeds"]) or split_seeds(config["env"], "test")
    windows = [(int(seeds[i % len(seeds)]), i // len(seeds)) for i in range(config["episodes"])]
    env = make_env(config["env"]).unwrapped
    rules = heuristics_of(env, rule_names(config["rules"]))
    records = list(_played(config, windows, rules, env))
    played = {name: [record[name] for record in records] for name in records[0]}
    name = str(config["env"].get("name") or config["env"]["id"])
    summary = {"env": config["env"]["id"], "seeds": list(map(int, seeds)), "episodes": len(windows),
               **{key: config[key] for key in ("window_s", "every", "horizon_s", "progress")},
               **score(played, [rule.name for rule in rules], float(config["violation_budget"])),
               "wall_s": time.monotonic() - started}
    out = Path(config["out"])
    out.mkdir(parents=True, exist_ok=True)
    with atomic_write(out / "headroom.md") as temporary:
        temporary.write_text(f"# Headroom of {name}\n\n{words(summary)}\n\n{table(summary).markdown()}\n",
                             encoding="utf-8")
    write_json(out / "headroom.json", {**summary, "records": played})
    show(summary, name)
    return summary


def _check(config: Mapping[str, Any]) -> None:
    """Checks what a user may have got wrong."""
    for key, least in (("episodes", 2), ("workers", 1), ("every", 1)):
        if key != "every" or config[key] is not None:
            whole(config, key, least)
    number(config, "violation_budget", most=1.0)
    for key, most in (("window_s", DAY_S), ("warmup_s", DAY_S), ("progress", 1.0)):
        number(config, key, most=most)
    positive_or_null(config, "horizon_s", "the end of the episode")


def _played(config: Mapping[str, Any], windows: Sequence[tuple[int, int]],
            rules: Sequence[Heuristic], env: Any) -> Iterator[dict[str, Any]]:
    """The records of each window, in order: name -> record."""
    names = [rule.name for rule in rules]
    workers = int(config["workers"])
    play = partial(play_window, dict(config), names)
    if workers > 1:
        yield from track(in_processes(play, windows, workers), "looking ahead", total=len(windows))
        return
    with progress("looking ahead", len(windows)) as bar:
        for window in windows:
            yield play(window, env, bar)


def play_window(config: Mapping[str, Any], names: Sequence[str], window: tuple[int, int],
                env: Any = None, bar: Bar | None = None) -> dict[str, Any]:
    """Plays one window with each of them.

    Args:
        names: heuristics, as `heuristics_of` names them.
        bar: is moved on by one in all, and says what plays.
    """
    env, bar = env or make_env(config["env"]).unwrapped, bar or Bar()
    found: dict[str, Any] = {}
    players = [by_name(env, name) for name in (RANDOM, *names)]
    if config["every"] is not None:
        players.append(look_ahead(config))
    for player in players:
        bar.text(f"seed {window[0]}, window {window[1]}: {player.name}")
        found[player.name] = _play(env, player, window)
        bar.advance(1 / len(players))
    return found


def look_ahead(config: Mapping[str, Any]) -> Heuristic:
    """Look-ahead as conf/headroom.yaml says."""
    how = {"horizon_s": config["horizon_s"], "progress": float(config["progress"]), "every": config["every"]}
    return Heuristic(CLAIRVOYANT, lambda env: Rollout(env, **how).act)


def _play(env: Any, player: Heuristic, window: tuple[int, int]) -> dict[str, Any]:
    """One window by one of them."""
    env.reset(seed=window[0], options={"window": window[1]})
    act, decisions, begun = player.begin(env), 0, time.perf_counter()
    while env.episodes.open(0):
        env.step(act())
        decisions += 1
    summary = env.summary()
    return {"seed": window[0], "window": window[1], "decisions": decisions, "wall_s": time.perf_counter() - begun,
            **{key: float(np.float64(value)) for key, value in summary.items()}}


SERVICE, VIOLATIONS, REWARD = "offline_reference_gpu_s_per_s", "violation_rate", "reward_total"
METRICS = (SERVICE, VIOLATIONS, REWARD, "wasted_gpu_s_per_s", "evictions")
_COMPARED = (SERVICE, VIOLATIONS, REWARD)
Played = Mapping[str, Sequence[Mapping[str, Any]]]


def score(played: Played, heuristics: Sequence[str], budget: float) -> dict[str, Any]:
    """Means with intervals, differences to the best heuristic window by window, and what that says.

    The best heuristic has the most offline service of those within the budget (in the mean); if none is, the fewest
    violations. The verdict is of the clairvoyant rollout, if it has no more violations than that; its `headroom` is
    true, false, or None where there are too few windows to say, as its `reason` then does.

    Args:
        played: name -> one record a window, the same windows for all.
        heuristics: names of those that are heuristics.
        budget: share of online requests that may miss an SLO.
    """
    rows = [{"policy": name, **{metric: _interval(_values(records, metric)) for metric in METRICS
                                if metric in records[0]}} for name, records in played.items()]
    best = max(heuristics, key=lambda name: feasible_first(_mean(played[name], VIOLATIONS),
                                                           _mean(played[name], SERVICE), budget))
    for row in rows:
        records = played[row["policy"]]
        row["difference"] = {metric: _interval(_values(records, metric) - _values(played[best], metric))
                             for metric in _COMPARED if metric in records[0]}
    return {"best_heuristic": best, "violation_budget": budget, "rows": rows,
            "decisions_per_s": _mean(played["partner"], "decisions"), "verdict": _verdict(played, rows, best)}


def _verdict(played: Played, rows: Sequence[Mapping[str, Any]], best: str) -> dict[str, Any]:
    few = too_few(len(played[best]), "windows")
    if few:
        return {"headroom": None, "policy": None, "reason": few}
    if CLAIRVOYANT not in played:
        return {"headroom": None, "policy": None, "reason": "nothing looked ahead: heuristics alone"}
    limit = _mean(played[best], VIOLATIONS)
    row = next(row for row in rows if row["policy"] == CLAIRVOYANT)
    if row[VIOLATIONS]["mean"] > limit + 1e-12:
        return {"headroom": False, "policy": None, "reason": "the look-ahead had more violations"}
    gain = row["difference"][SERVICE]
    return {"headroom": gain["low"] is not None and gain["low"] > 0.0, "policy": row["policy"],
            "relative_gain": gain["mean"] / _mean(played[best], SERVICE) if _mean(played[best], SERVICE) else None,
            "gain": gain, "violations": row["difference"][VIOLATIONS]}


def _values(records: Sequence[Mapping[str, Any]], metric: str) -> np.ndarray:
    return np.array([record[metric] for record in records], float)


def _mean(records: Sequence[Mapping[str, Any]], metric: str) -> float:
    return float(_values(records, metric).mean())


def _interval(values: np.ndarray) -> dict[str, float | None]:
    """Mean with its 95 % interval; windows are drawn independently, each by its own seed and number."""
    mean, low, high = interval(values)
    return {key: None if math.isnan(value) else value
            for key, value in (("mean", mean), ("low", low), ("high", high))}


_HEAD = ["policy", "offline ref. GPU-s/s", "violations", "reward", "Δ offline ref. GPU-s/s", "Δ violations", "Δ reward"]
_SHOWN, _WHOLE = (0, 1, 2, 3, 4), (0, 4)  # columns at the terminal; of these, those with their intervals


def table(summary: Mapping[str, Any]) -> Table:
    """One row a policy, those with the least service first."""
    rows = sorted(summary["rows"], key=lambda row: row[SERVICE]["mean"] if row[SERVICE]["mean"] is not None else 0.0)
    best = summary["best_heuristic"]
    lines = []
    for row in rows:
        is_best = row["policy"] == best
        differences = [""] * 3 if is_best else [_cell(row["difference"].get(metric), metric) for metric in _COMPARED]
        lines.append([row["policy"] + " (best heuristic)" * is_best,
                      *(_cell(row.get(metric), metric) for metric in _COMPARED), *differences])
    return Table("", _HEAD, lines, align="l")


def words(summary: Mapping[str, Any]) -> str:
    """What came out, in sentences."""
    verdict = summary["verdict"]
    n = summary["episodes"]
    text = f"{n} windows of {summary['window_s']:g} s that all share. {interval_note(n, what='windows')} "
    if verdict["headroom"] is None:
        return f"{text}{verdict['reason'].capitalize()}."
    if verdict["policy"] is None:
        return text + f"No headroom shown: {verdict['reason']} than {summary['best_heuristic']}."
    gain = verdict["gain"]
    says = "Headroom" if verdict["headroom"] else "No headroom shown"
    return text + (f"{says}: {verdict['policy']} does {_cell(gain, SERVICE)} reference GPU-s/s more than "
                   f"{summary['best_heuristic']}" + (f" ({verdict['relative_gain']:+.1%})" if verdict["relative_gain"]
                                                     is not None else "") + ", and its violations differ by "
                   f"{_cell(verdict['violations'], VIOLATIONS)}.")


def show(summary: Mapping[str, Any], name: str) -> None:
    """Prints the table."""
    Table(f"Headroom of {name}", [_HEAD[index] for index in _SHOWN],
          [[row[index] if index in _WHOLE else row[index].split(" [")[0] for index in _SHOWN]
           for row in table(summary).rows], align="l").show()
    print(words(summary))


def _cell(figure: Mapping[str, float | None] | None, metric: str) -> str:
    return "" if figure is None else cell(figure, metric, low="low", high="high", none="")
