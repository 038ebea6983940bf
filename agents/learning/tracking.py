"""What trackers show of a run beside its losses: what is chosen, held-out windows as a table, regret; nothing of it
changes what is learned, and without a tracker (`logger=none`) nothing is watched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback

from agents.evaluation.players import Player
from agents.learning.dashboard import ACTIONS, WINDOWS
from agents.learning.loggers import Table, logger_settings
from agents.settings import is_number, number, plain, whole
from ooco_gym.envs.base import DecisionEnv
from ooco_gym.envs.features import kind_name

_NUMBERS_ONLY = ("csv",)  # progress.csv takes no tables and histograms
_TABLE = ("violation_rate", "offline_reference_gpu_s_per_s", "output_tokens_per_s", "wasted_tokens_per_s",
          "wasted_gpu_s_per_s", "online_arrived", "online_violated", "offline_finished", "evictions", "interruptions",
          "migrations")
_MEANS = ("wasted_tokens_per_s", "output_tokens_per_s")
_TIE = 1e-9


class Tracking(BaseCallback):
    """Logs histograms of actions by kind of decision each rollout, and what each validation shows.

    Args:
        options: the `logger` configuration; `regret.decisions` looks ahead at so many decisions of a validation (0:
            none), each over `regret.horizon_s` of simulated time.

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
        self._asked: list[np.ndarray] = []
        self._taken: list[np.ndarray] = []
        self._watch: Watch | None = None

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
                self._histogram(kind_name(kind), chosen)
                continue
            episodes: Any = getattr(getattr(self.training_env.unwrapped, "env", None), "episodes", None)
            controls = getattr(episodes, "controls", None)
            for part, name in enumerate(range(chosen.shape[1]) if controls is None else controls.names):
                self._histogram(f"{kind_name(kind)}/{name}", chosen[:, part])

    def _histogram(self, name: str, actions: np.ndarray) -> None:
        self.logger.record(f"{ACTIONS}/{name}", actions.astype(np.int64), exclude=_NUMBERS_ONLY)

    def watched(self, player: Player, windows: Sequence[Any]) -> Player:
        """The player of the validation that is about to begin, watched where a tracker wants to know."""
        if not self.active or not windows:
            return player
        self._watch = Watch(player, windows, self.looks, self.horizon_s)
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
            for key, value in self._watch.regret().items():
                self.logger.record(f"regret/{key}", value)
            self._watch = None
        return records


def window_table(records: Sequence[Mapping[str, Any]]) -> Table:
    """One row a validation window: which one, its decisions and reward, and the protocol's figures."""
    keys = [key for key in _TABLE if all(key in record["summary"] for record in records)]
    parts = sorted({key for record in records for key in record["summary"] if key.startswith("reward/")})
    head = ["seed", "window", "decisions", "reward", *keys, *parts]
    return Table(head, [[*(record[key] for key in head[:4]), *(record["summary"].get(key) for key in head[4:])]
                        for record in records])


class Watch:
    """A player that notes the regret of another one at a few decisions.

    Regret is what the best action is worth over the chosen one, when both are played out on the true future for a
    horizon with the partner playing on (`lookahead.rollout.Rollout`, one base): in units of the reward, never below 0.
    Each window is looked at equally often, at moments that depend on the window alone, so that validations compare.

    Args:
        windows: what will be played.
        looks: decisions that are looked at in all.
        horizon_s: of a play-out, seconds of simulated time.
    """

    learned = True

    def __init__(self, player: Player, windows: Sequence[Any], looks: int, horizon_s: float) -> None:
        self.name, self._player, self.horizon_s = player.name, player, horizon_s
        self.history = getattr(player, "history", 1)
        self.regrets: list[float] = []
        # Shares of each window's length at which it is looked at, ascending: as evenly many of each as can be.
        self._due = {(int(seed), int(number)): sorted(np.random.default_rng([int(seed), int(number), 17]).uniform(
            0.0, 0.9, looks // len(windows) + (place < looks % len(windows))).tolist())
            for place, (seed, number) in enumerate(windows)}

    def act(self, envs: Sequence[Any], observations: Sequence[Mapping[str, np.ndarray]]) -> Sequence[Any]:
        """The player's own answers."""
        actions = self._player.act(envs, observations)
        for env, action in zip(envs, actions, strict=True):
            inside = env.unwrapped
            if not isinstance(inside, DecisionEnv):
                continue
            now_s, due = inside.simulation.now_s - inside.config.warmup_s, self._due.get(inside.window)
            if due and now_s >= due[0] * inside.config.window_s:
                while due and now_s >= due[0] * inside.config.window_s:
                    due.pop(0)
                self.regrets.append(regret_of(inside, action, self.horizon_s))
        return actions

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
    from agents.lookahead.rollout import Rollout

    actions, _, values = Rollout(env, horizon_s=horizon_s, bases=["partner"]).values()
    mine = np.flatnonzero((actions == np.atleast_1d(np.asarray(action, np.int64))).all(axis=1))
    return float(values.max() - values[mine].max()) if len(mine) else float("nan")

