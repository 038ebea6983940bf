"""`ooco-gym headroom`: tests whether a model can learn from single decisions (docs/evaluation.md).

Decisions are sampled along the base policy's run of whole windows. From each, every legal action is simulated, and then
the base policy to the end. All actions meet the same future arrivals, so their outcomes differ by the action only.

A ridge regression of outcomes on the agent's observations is fitted on some windows and chooses in others. A network
could hope for its gain over the best constant action, found on the same windows. A placebo, fitted on outcomes shuffled
among each decision's actions, shows the noise. Intervals are over windows, since decisions of one window share its
future.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from agents.environments import Window, env_of, make_env, split_seeds
from agents.evaluation.play_outs import PlayOuts
from agents.settings import plain, positive, whole
from ooco_gym.envs import buffers as b
from ooco_gym.envs.features import candidate_table
from ooco_gym.errors import UserError
from ooco_gym.files import write_json
from ooco_gym.metrics.statistics import interval
from ooco_gym.report import Table, with_interval
from ooco_gym.study.options import seeds_of
from ooco_gym.study.runs import in_processes

FOLDS = 5  # of windows: the model chooses in each fold after it was fitted to the others
PENALTIES = (1.0, 10.0, 100.0, 1e3, 1e4)  # of the ridge regression; chosen by cross-validation over windows


@dataclass(frozen=True)
class Played:
    """One decision of the window with index `window`, simulated with each of its n legal actions: `choices`, int64[n],
    are what a constant action calls each (an action's number, or an index into a list of levels), `features`,
    float64[n, d], are of each action, and `outcomes`, float64[n], the episode's rewards after each."""

    window: int
    choices: np.ndarray
    features: np.ndarray
    outcomes: np.ndarray


# --- Estimating -------------------------------------------------------------------------------------------------------
def gains(decisions: Sequence[Played]) -> np.ndarray:
    """Returns each decision's gain over the best constant action, of the model and of the best action: float64[n, 2].
    Model and constant action are fitted on other windows."""
    found, windows = np.zeros((len(decisions), 2)), np.array([one.window for one in decisions])
    for fold in range(FOLDS):
        inside = windows % FOLDS == fold
        known = [one for one, is_inside in zip(decisions, inside, strict=True) if not is_inside]
        weights, constant = _fitted(known), best_constant(known)
        for index in np.flatnonzero(inside).tolist():
            one = decisions[index]
            same = np.flatnonzero(one.choices == constant)  # the base policy's action (0) if it is not legal
            mine = one.outcomes[int(np.argmax(one.features @ weights))]
            found[index] = np.array([mine, one.outcomes.max()]) - one.outcomes[same[0] if same.size else 0]
    return found


def best_constant(decisions: Sequence[Played]) -> int:
    """The choice with the best mean outcome, centred within each decision. Where it is illegal it counts as the base
    policy's action."""
    totals: dict[int, float] = {}
    base = 0.0
    for one in decisions:
        centred = one.outcomes - one.outcomes.mean()
        base += centred[0]
        for choice, outcome in zip(one.choices.tolist(), centred.tolist(), strict=True):
            totals[choice] = totals.get(choice, 0.0) + outcome - centred[0]
    return max(totals, key=lambda choice: base + totals[choice])


def _fitted(decisions: Sequence[Played]) -> np.ndarray:
    """Weights of a ridge regression of outcomes on features, both centred within each decision."""
    rows = np.concatenate([one.features - one.features.mean(axis=0) for one in decisions])
    values = np.concatenate([one.outcomes - one.outcomes.mean() for one in decisions])
    apart = np.repeat([one.window for one in decisions], [len(one.outcomes) for one in decisions]) % 2 == 0
    errors = [float(((rows[apart] @ _ridge(rows[~apart], values[~apart], penalty) - values[apart]) ** 2).sum())
              for penalty in PENALTIES]
    return _ridge(rows, values, PENALTIES[int(np.argmin(errors))])


def _ridge(rows: np.ndarray, values: np.ndarray, penalty: float) -> np.ndarray:
    scale = np.maximum(rows.std(axis=0), 1e-9)
    scaled = rows / scale
    return np.linalg.solve(scaled.T @ scaled + penalty * np.eye(rows.shape[1]), scaled.T @ values) / scale


# --- Playing ----------------------------------------------------------------------------------------------------------
def features_of(env: Any, actions: np.ndarray) -> np.ndarray:
    """Returns the features of each action (int64[n, parts]), float64[n, d]: the candidate that it takes, a one-hot of
    its kind (each fixed action, or a candidate), and this kind times the observation's `cluster`. Levels have their
    relative position, its square, and the position times `cluster`."""
    observation, controls = env._observation(), env.episodes.controls
    if controls is not None:
        kinds = actions / np.maximum(controls.counts - 1, 1)
        own = np.concatenate([kinds, kinds**2], axis=1)
    else:
        table = np.asarray(candidate_table(observation), np.float64)
        taken = actions[:, 0] - b.FIXED
        kinds = np.stack([actions[:, 0] == fixed for fixed in range(b.FIXED)] + [taken >= 0], axis=1).astype(np.float64)
        own = np.concatenate([kinds, np.where((taken >= 0)[:, None], table[np.maximum(taken, 0)], 0.0)], axis=1)
    cluster = np.asarray(observation["cluster"], np.float64)
    return np.concatenate([own, (kinds[:, :, None] * cluster).reshape(len(actions), -1)], axis=1)


def play_window(env_config: Mapping[str, Any], horizon_s: float | None, share: int, numbered: tuple[int, Window]
                ) -> dict[str, Any]:
    """Runs the base policy in one window, and simulates all legal actions at `share` of its decisions."""
    place, window = numbered
    env = make_env(env_config).unwrapped
    total = _play(env, window)
    service = env.summary()["offline_reference_gpu_s_per_s"] * env.config.window_s
    asked = set(np.random.default_rng(window).choice(total, min(share, total), replace=False).tolist())
    played, look = [], PlayOuts(env, horizon_s)

    def play_one_out(taken: int) -> None:
        if taken in asked:
            actions, outcomes = look.values()
            if len(actions) > 1:
                choices = actions[:, 0] if actions.shape[1] == 1 else np.arange(len(actions))
                played.append(Played(place, choices, features_of(env, actions), outcomes))

    _play(env, window, play_one_out)
    return {"decisions": total, "played": played, "service": service}


def _play(env: Any, window: Window, before: Callable[[int], None] = lambda taken: None) -> int:
    """Runs the base policy in a window; `before` is called with each decision's number. Returns their number."""
    env.reset(seed=window.seed, options={"window": window.number})
    taken = 0
    while env.episodes.open(0):
        before(taken)
        env.step(env.base_action())
        taken += 1
    return taken


# --- The command ------------------------------------------------------------------------------------------------------
def main(cfg: Any) -> dict[str, Any]:
    """Simulates decisions' actions, fits the model, and writes headroom.json.

    Raises:
        UserError: a count is out of range, or the environment is not ours.
    """
    config, started = plain(cfg), time.monotonic()
    if not config["learnable"]:
        raise UserError("learnable=false is gone: 'ooco-gym evaluate policies=[all]' compares heuristics")
    for key, least in (("episodes", FOLDS), ("workers", 1), ("decisions", FOLDS)):
        whole(config, key, least)
    positive(config, "horizon_s", null="the end of the episode")
    env = env_of(config, "headroom")
    seeds = seeds_of(config["seeds"], known=split_seeds(env, "train"))
    windows = [Window(seeds[place % len(seeds)], place // len(seeds)) for place in range(config["episodes"])]
    play = partial(play_window, env, config["horizon_s"], -(-config["decisions"] // len(windows)))
    records = list(in_processes(play, list(enumerate(windows)), config["workers"], "simulating decisions' outcomes"))
    summary = {"env": env["id"], "episodes": len(windows), "horizon_s": config["horizon_s"],
               **judged(records, seeds[0]), "wall_s": time.monotonic() - started}
    write_json(Path(config["out"]) / "headroom.json", summary)
    table(summary).show()
    print(words(summary))
    return summary


def judged(records: Sequence[Mapping[str, Any]], seed: int) -> dict[str, Any]:
    """Returns the mean gain of a decision by the model, the placebo and the best action in hindsight, with intervals
    over windows, and the service of a window."""
    decisions = [one for record in records for one in record["played"]]
    windows, draws = np.array([one.window for one in decisions]), np.random.default_rng(seed)
    if len(set(windows)) < FOLDS:
        raise UserError(f"fewer than {FOLDS} windows have decisions with a choice: run more or longer episodes")
    shuffled = [replace(one, outcomes=draws.permutation(one.outcomes)) for one in decisions]
    found, intervals = gains(decisions), {}
    for name, values in (("model", found[:, 0]), ("placebo", gains(shuffled)[:, 0]), ("best action", found[:, 1])):
        means = np.array([values[windows == window].mean() for window in np.unique(windows)])
        intervals[name] = dict(zip(("mean", "low", "high"), map(float, interval(means)), strict=True))
    return {"decisions": len(decisions), "decisions_a_window": float(np.mean([one["decisions"] for one in records])),
            "service_a_window": float(np.mean([one["service"] for one in records])),
            "spread": float(np.mean([one.outcomes.std() for one in decisions])), **intervals,
            "learnable": bool(intervals["model"]["low"] > max(0.0, intervals["placebo"]["mean"]))}


def resolution(summary: Mapping[str, Any]) -> float:
    """The smallest gain that the interval would have shown, as a share of a window's service: half the wider of the
    model's and the placebo's intervals, times the decisions of a window."""
    width = max(summary[who]["high"] - summary[who]["low"] for who in ("model", "placebo"))
    gain = 0.5 * width * summary["decisions_a_window"]
    return gain / summary["service_a_window"] if summary["service_a_window"] else math.inf


def in_deviations(summary: Mapping[str, Any], who: str) -> str:
    """A gain of `table` in standard deviations of a decision's outcomes, with its interval."""
    mean, low, high = (summary[who][key] / (summary["spread"] or 1.0) for key in ("mean", "low", "high"))
    return with_interval(mean, low, high, "+.3f")


def table(summary: Mapping[str, Any]) -> Table:
    """A table of the model, the placebo and the best action."""
    rows = []
    for name in ("model", "placebo", "best action"):
        mean, low, high = (summary[name][key] for key in ("mean", "low", "high"))
        rows.append((name, with_interval(mean, low, high, "+.4g"), in_deviations(summary, name)))
    return Table(f"Learnable in {summary['env']}", (
        "chosen by", "reward of a decision minus the best constant action (95 %)",
        "in standard deviations of the outcomes"), rows)


def words(summary: Mapping[str, Any]) -> str:
    """The result in sentences."""
    says = "Learnable" if summary["learnable"] else "Nothing learnable found"
    return (f"{says}: {summary['decisions']:,} of about {summary['decisions_a_window']:,.0f} decisions a window, in "
            f"{summary['episodes']} windows; the outcomes of one decision have a standard deviation of "
            f"{summary['spread']:.4g}. A gain below {resolution(summary):.0%} of a window's offline service would not "
            "be detected, if the gains of its decisions add up.")
