"""What trackers show of a run beside its losses: what is chosen, held-out windows as table and picture, regret.

Nothing here changes what is learned: it watches rollouts and the validation that is played anyway, and looks ahead
at a few decisions of it. Without a tracker (`logger=none`) it does nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Image

from agents.checks import is_number, number, whole
from agents.environments import plain
from agents.loggers import Table, logger_settings
from agents.play import Player
from agents.tracking_picture import Moment, timeline
from agents.tracking_series import ACTIONS, TIMELINE, WINDOWS
from ooco_gym.envs.base import DecisionEnv
from ooco_gym.envs.features import CLUSTER_SIZE, DECISIONS

_NUMBERS_ONLY = ("csv",)  # progress.csv takes no pictures, tables and histograms
_TABLE = ("violation_rate", "offline_reference_gpu_s_per_s", "output_tokens_per_s", "wasted_tokens_per_s",
          "wasted_gpu_s_per_s", "online_arrived", "online_violated", "offline_finished", "evictions", "interruptions",
          "migrations")
_MEANS = ("wasted_tokens_per_s", "output_tokens_per_s")
_TIE = 1e-9


class Tracking(BaseCallback):
    """Logs histograms of actions by kind of decision each rollout, and what each validation shows.

    Args:
        options: the `logger` configuration; `regret.decisions` looks ahead at so many decisions of a validation (0:
            none), each over `regret.horizon_s` of simulated time, `timeline` draws the first validation window.

    Raises:
        UserError: a setting is out of range.
    """

    def __init__(self, options: Any) -> None:
        super().__init__()
        settings = logger_settings(options)
        self.active = settings["name"] != "none"
        regret = plain(settings.get("regret") or {"decisions": 0})
        self.looks = whole(regret, "decisions", 0, name="logger.regret.decisions")
        self.horizon_s = number(regret, "horizon_s", 1e-3, name="logger.regret.horizon_s") if self.looks else 0.0
        self.drawn = bool(settings.get("timeline", True))
        self._asked: list[np.ndarray] = []
        self._taken: list[np.ndarray] = []
        self._watch: Watch | None = None

    # --- Rollouts --------------------------------------------------------------------------------------------------
    def _on_rollout_start(self) -> None:
        self._asked, self._taken = [], []

    def _on_step(self) -> bool:
        if self.active:
            before: Any = self.model._last_obs  # type: ignore[attr-defined]
            self._asked.append(np.argmax(before["decision"], axis=-1))
            self._taken.append(np.copy(self.locals["actions"]))
        return True

    def _on_rollout_end(self) -> None:
        if not self._taken:
            return
        kinds, actions = np.concatenate(self._asked), np.concatenate(self._taken)
        for kind in np.unique(kinds):
            chosen = actions[kinds == kind]
            if chosen.ndim == 1:
                self._histogram(DECISIONS[kind], chosen)
                continue
            for part, name in enumerate(self._parts(chosen.shape[1])):
                self._histogram(f"{DECISIONS[kind]}/{name}", chosen[:, part])

    def _parts(self, count: int) -> list[str]:
        """What the parts of an action of several set."""
        episodes: Any = getattr(getattr(self.training_env.unwrapped, "env", None), "episodes", None)
        controls = getattr(episodes, "controls", None)
        return [str(part) for part in range(count)] if controls is None else list(controls.names)

    def _histogram(self, name: str, actions: np.ndarray) -> None:
        self.logger.record(f"{ACTIONS}/{name}", actions.astype(np.int64), exclude=_NUMBERS_ONLY)

    # --- Validation ------------------------------------------------------------------------------------------------
    def watched(self, player: Player, windows: Sequence[Any]) -> Player:
        """The player of the validation that is about to begin, watched where a tracker wants to know."""
        if not self.active or not windows:
            return player
        self._watch = Watch(player, windows, self.looks, self.horizon_s, self.drawn)
        return self._watch

    def validated(self, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Logs what a validation showed; returns its records as they are."""
        if not self.active or not records:
            return records
        for key in _MEANS:
            if all(key in record["summary"] for record in records):
                name = "offline_output_tokens_per_s" if key == "output_tokens_per_s" else key
                self.logger.record(f"validation/{name}", float(np.mean([r["summary"][key] for r in records])))
        self.logger.record(WINDOWS, window_table(records), exclude=_NUMBERS_ONLY)
        if self._watch is not None:
            self._log_watch(self._watch)
        return records

    def _log_watch(self, watch: Watch) -> None:
        self._watch = None
        for key, value in watch.regret().items():
            self.logger.record(f"regret/{key}", value)
        if watch.moments:
            seed, place = watch.first
            picture = timeline(watch.moments, f"seed {seed}, window {place}, after {self.num_timesteps:,} decisions")
            self.logger.record(TIMELINE, Image(picture, "HWC"), exclude=_NUMBERS_ONLY)


def window_table(records: Sequence[Mapping[str, Any]]) -> Table:
    """One row a validation window: which one, its decisions and reward, and the protocol's figures."""
    keys = [key for key in _TABLE if all(key in record["summary"] for record in records)]
    parts = sorted({key for record in records for key in record["summary"] if key.startswith("reward/")})
    head = ["seed", "window", "decisions", "reward", *keys, *parts]
    return Table(head, [[*(record[key] for key in head[:4]), *(record["summary"].get(key) for key in head[4:])]
                        for record in records])


class Watch:
    """A player that notes what another one does: the course of one window, and its regret at a few decisions.

    Regret is what the best action is worth over the chosen one, when both are played out on the true future for a
    horizon with the partner playing on (`agents.rollout.Rollout`, one base): in units of the reward, never below 0.
    Each window is looked at equally often, at moments that depend on the window alone, so that validations compare.

    Args:
        player: who decides.
        windows: what will be played; the first is the one whose course is noted.
        looks: decisions that are looked at in all.
        horizon_s: of a play-out, seconds of simulated time.
        drawn: whether the course is noted.
    """

    learned = True

    def __init__(self, player: Player, windows: Sequence[Any], looks: int, horizon_s: float, drawn: bool) -> None:
        self.name, self._player, self.horizon_s, self._drawn = player.name, player, horizon_s, drawn
        self.history = getattr(player, "history", 1)
        self.first = (int(windows[0][0]), int(windows[0][1]))
        self.moments: list[Moment] = []
        self.regrets: list[float] = []
        self._due = {(int(seed), int(place)): _shares(int(seed), int(place), count)
                     for (seed, place), count in zip(windows, _spread(looks, len(windows)), strict=True)}

    def act(self, envs: Sequence[Any], observations: Sequence[Mapping[str, np.ndarray]]) -> Sequence[Any]:
        """The player's own answers."""
        actions = self._player.act(envs, observations)
        for env, observation, action in zip(envs, observations, actions, strict=True):
            inside = env.unwrapped
            if isinstance(inside, DecisionEnv):
                self._look(inside, observation, action)
        return actions

    def _look(self, env: DecisionEnv, observation: Mapping[str, np.ndarray], action: Any) -> None:
        now_s = env.simulation.now_s - env.config.warmup_s
        if self._drawn and env.window == self.first:
            self.moments.append(Moment(now_s, int(np.argmax(observation["decision"])), action,
                                       observation["cluster"][:CLUSTER_SIZE].copy()))  # the newest comes first
        due = self._due.get(env.window)
        if due and now_s >= due[0] * env.config.window_s:
            while due and now_s >= due[0] * env.config.window_s:
                due.pop(0)
            self.regrets.append(regret_of(env, action, self.horizon_s))

    def regret(self) -> dict[str, float]:
        """Mean and largest regret, the share of decisions with none, and how many were looked at; empty if none."""
        found = [value for value in self.regrets if is_number(value)]
        if not found:
            return {}
        return {"mean": float(np.mean(found)), "max": float(np.max(found)), "looks": len(found),
                "best_share": float(np.mean(np.array(found) <= _TIE))}


def regret_of(env: DecisionEnv, action: Any, horizon_s: float) -> float:
    """What the best action at the open decision is worth over `action`, looking `horizon_s` ahead with the partner.

    Of controls, which are not all played out, only those with one parameter turned are: an action that is not among
    them has no regret that is known (nan).
    """
    from agents.rollout import Rollout

    actions, _, values = Rollout(env, horizon_s=horizon_s, bases=["partner"]).values()
    mine = np.flatnonzero((actions == np.atleast_1d(np.asarray(action, np.int64))).all(axis=1))
    return float(values.max() - values[mine].max()) if len(mine) else float("nan")


def _spread(count: int, windows: int) -> list[int]:
    """`count` looks over windows, as evenly as can be."""
    return [count // windows + (place < count % windows) for place in range(windows)]


def _shares(seed: int, place: int, count: int) -> list[float]:
    """Where in a window it is looked at: shares of its length, ascending, keyed by the window."""
    return sorted(np.random.default_rng([seed, place, 17]).uniform(0.0, 0.9, count).tolist())
