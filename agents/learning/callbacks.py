"""Training callbacks: metrics, scaling, validation, checkpoints, progress, time limits and interrupts."""

from __future__ import annotations

import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback

from agents.environments import Window
from agents.evaluation.players import BatchPlayer, play
from agents.evaluation.scoring import feasible_first, validated
from agents.learning.vector import GymnasiumVecEnv
from agents.policies.networks import Actor
from ooco_gym.envs.buffers import BASE_ACTION, DECLINE_ACTION
from ooco_gym.files import atomic_write
from ooco_gym.report.terminal import Bar, progress

REWARD_PREFIX, COST_PREFIX = "reward/", "cost"
SPARE = 1.1  # on predicted times


class Stop(Exception):
    """Ends learning between two rollouts, where its whole state can be saved."""


class Interrupts:
    """Notes the first SIGINT or SIGTERM inside its `with` block (`asked`), so that training stops between two rollouts.
    A second signal interrupts immediately, and so does the first while `patient` is False: nothing is to be saved yet.
    Only the main thread can catch signals. `signal` is the last one."""

    def __init__(self) -> None:
        self.asked, self.patient = False, False
        self.signal = signal.SIGINT
        self._before: dict[Any, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = signal.Signals(number)
        if self.asked or not self.patient:
            self.asked = True
            raise KeyboardInterrupt
        self.asked = True


class WallClock:
    """Wall time of a call of `train` from `begun` on; `limit_s` covers all of it, the last validation included. `spent`
    has the seconds of learning with validation, and of validation; `rollout_s` and `once_s` are the latest."""

    def __init__(self, limit_s: float | None, begun: float) -> None:
        self.limit_s, self.begun, self.expired = float(limit_s or np.inf), begun, False
        self.spent, self.rollout_s, self.once_s = {"learning": 0.0, "validation": 0.0}, 0.0, 0.0

    @contextmanager
    def counting(self, what: str) -> Iterator[None]:
        """Adds the time within to what was `spent`."""
        before = time.monotonic()
        try:
            yield
        finally:
            self.once_s = time.monotonic() - before
            self.spent[what] += self.once_s

    @property
    def used(self) -> float:
        """The share of the limit that has passed."""
        return (time.monotonic() - self.begun) / self.limit_s

    def fits(self, more_s: float = 0.0) -> bool:
        """Whether `more_s` seconds fit into the limit beside another rollout and the validation of what it learns."""
        return self.used + SPARE * (more_s + self.rollout_s + self.once_s) / self.limit_s < 1.0


class Callback(BaseCallback):
    """A Stable-Baselines3 callback whose `_on_step` may do nothing.

    The attributes named in `STATE_ATTRIBUTES` are saved with a run's state, so that a resumed run continues exactly.
    """

    STATE_ATTRIBUTES: ClassVar[tuple[str, ...]] = ()

    def state(self) -> dict[str, Any]:
        """The attributes that are saved with a run's state."""
        return {name: getattr(self, name) for name in self.STATE_ATTRIBUTES}

    @property
    def env(self) -> GymnasiumVecEnv:
        """The environments below all wrappers, with a step's infos as arrays."""
        env: Any = self.training_env.unwrapped
        assert isinstance(env, GymnasiumVecEnv)
        return env

    @property
    def buffer(self) -> Any:
        return getattr(self.model, "rollout_buffer", None) or self.model.replay_buffer  # type: ignore[attr-defined]

    def _on_step(self) -> bool:
        return True


class LogMetrics(Callback):
    """Writes each transition's simulated duration and reward into the rollout buffer just before the transition is
    added. After each rollout it logs reward terms and costs per simulated second, and the metrics of ended episodes.

    With `histograms`, which only trackers store, it also logs actions by kind of decision.
    """

    STATE_ATTRIBUTES = ("episodes",)

    def __init__(self, histograms: bool) -> None:
        super().__init__()
        self.episodes, self._histograms = 0, histograms

    def _on_rollout_start(self) -> None:
        self._sums: dict[str, float] = defaultdict(float)
        self._ended: list[dict[str, Any]] = []
        self._actions: list[np.ndarray] = []
        self._asked: list[np.ndarray] = []
        self._started, self._elapsed_s = time.monotonic(), 0.0

    def _on_step(self) -> bool:
        self.buffer.elapsed_s[self.buffer.pos] = elapsed_s = self.env.info_array("elapsed_s")
        self._elapsed_s += float(elapsed_s.sum())
        self.buffer.paid[self.buffer.pos] = self.locals["rewards"]
        self._actions.append(np.copy(self.locals["actions"]))
        self._asked.append(np.argmax(self.model._last_obs["decision"], axis=-1))  # type: ignore[attr-defined]
        for key in (*self.env.info_keys(REWARD_PREFIX), *self.env.info_keys(COST_PREFIX)):
            self._sums[key] += float(self.env.info_array(key).sum())
        self._ended += [self.locals["infos"][i]["summary"] for i in np.flatnonzero(self.locals["dones"])
                        if "summary" in self.locals["infos"][i]]
        return True

    def _on_rollout_end(self) -> None:
        elapsed_s, actions = self._elapsed_s, np.concatenate(self._actions)
        for key, value in self._sums.items():
            self.logger.record(f"{key if key.startswith(REWARD_PREFIX) else f'cost/{key}'}_per_s",
                               value / max(elapsed_s, 1e-9))
        if actions.ndim == 1:  # a vector of levels has no 'no' and no base action
            self.logger.record("rollout/no_share", float(np.mean(actions == DECLINE_ACTION)))
            self.logger.record("rollout/base_share", float(np.mean(actions == BASE_ACTION)))
        self.logger.record("rollout/simulated_s", elapsed_s)
        self.logger.record("time/decisions_per_s", len(actions) / max(time.monotonic() - self._started, 1e-9))
        self.episodes += len(self._ended)
        self.logger.record("episode/count", self.episodes)
        for key in sorted({key for summary in self._ended for key, value in summary.items()
                           if isinstance(value, (int, float))}):
            self.logger.record(f"episode/{key}", float(np.mean([summary[key] for summary in self._ended])))
        if self._histograms:
            self._record_actions(np.concatenate(self._asked), actions)

    def _record_actions(self, kinds: np.ndarray, actions: np.ndarray) -> None:
        episodes: Any = getattr(getattr(self.training_env.unwrapped, "env", None), "episodes", None)
        controls = getattr(episodes, "controls", None)
        asked: Any = getattr(episodes, "decisions", ())
        for kind in np.unique(kinds):
            chosen = actions[kinds == kind]
            of = asked[kind].name if kind < len(asked) else f"decision {kind}"
            names = [""] if chosen.ndim == 1 else [f"/{one}" for one in (
                range(chosen.shape[1]) if controls is None else controls.names)]
            for name, part in zip(names, chosen.reshape(len(chosen), -1).T, strict=True):
                self.logger.record(f"actions/{of}{name}", part.astype(np.int64), exclude=("csv",))


class ObservationStatistics(Callback):
    """Updates the scaling of observations between an update and the next rollout, never within them.

    The network must be the same function in a rollout and its update, or PPO's ratio would not start at one.
    """

    STATE_ATTRIBUTES = ("_seen",)

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[str, np.ndarray] | None = None

    def _on_rollout_end(self) -> None:
        self._seen = dict(self.buffer.observations)  # its next ones are a new dict's

    def _on_rollout_start(self) -> None:
        if self._seen is not None:
            encoder: Any = self.model.policy.features_extractor
            encoder.update(self._seen)
            self._seen = None


class _Periodic(Callback):
    """Acts between two rollouts, every `every_steps` decisions; None: never."""

    STATE_ATTRIBUTES = ("_next",)

    def __init__(self, every_steps: int | None) -> None:
        super().__init__()
        self._every, self._next = every_steps, every_steps or 0

    def _is_due(self) -> bool:
        return self._every is not None and self.num_timesteps >= self._next

    def _count_anew(self) -> None:
        self._next = self.num_timesteps + (self._every or 0)


class CheckpointAndStopCallback(_Periodic):
    """Before each rollout: stops training if asked to or out of time; else saves the state every `every_steps`
    decisions or `every_s` seconds. Saving by time is kept below a twentieth of wall time."""

    def __init__(self, keep: Callable[[], None], every_steps: int | None, every_s: float | None,
                 interrupts: Interrupts, clock: WallClock) -> None:
        super().__init__(every_steps)
        self._keep, self._interrupts, self._every_s, self._clock = keep, interrupts, every_s, clock
        self._before: float | None = None
        self._kept, self._took_s = time.monotonic(), 0.0

    def _on_rollout_start(self) -> None:
        now = time.monotonic() - self._clock.spent["validation"]
        if self._before is not None:
            self._clock.rollout_s = now - self._before
        self._clock.expired = self._before is not None and not self._clock.fits()
        if self._interrupts.asked or self._clock.expired:
            raise Stop
        self._before = now
        if self._is_due():
            self._count_anew()  # part of the saved state
            self.keep()
        elif self._every_s is not None and time.monotonic() - self._kept >= max(self._every_s, 20.0 * self._took_s):
            self.keep()

    def keep(self) -> None:
        started = time.monotonic()
        self._keep()
        self._kept = time.monotonic()
        self._took_s = self._kept - started


class Validation(_Periodic):
    """Runs the validation windows every `settings.every_steps` decisions and saves the best policy so far, by
    `scoring.feasible_first` of the mean violation rate and the mean reward of an episode.

    Args:
        games, envs: the windows, and a list for their environments, filled at first use.
        path: file of the best policy.
        first: whether to validate before learning too, because the policy was imitated.
    """

    STATE_ATTRIBUTES = ("_next", "history", "best")

    def __init__(self, config: Mapping[str, Any], games: list[Window], envs: list[Any], path: Path,
                 settings: Mapping[str, Any], first: bool, interrupts: Interrupts, clock: WallClock, progress: Progress
                 ) -> None:
        super().__init__(int(settings["every_steps"]))
        self._config, self._games, self._envs, self._path, self._first = config, games, envs, path, first
        self._limit = float(settings["violation_limit"])
        self._interrupts, self._clock, self._progress = interrupts, clock, progress
        self.history: list[dict[str, float]] = []
        self.best: dict[str, float] | None = None

    @property
    def judged(self) -> bool:
        """Whether the current policy has been validated."""
        return bool(self.history) and self.history[-1]["timesteps"] == self.model.num_timesteps

    def _on_training_start(self) -> None:
        if self._first and not self.history:
            self.validate()

    def _on_rollout_start(self) -> None:
        # With a limit the first comes after half of it at the latest: the last one needs a time to reckon with.
        if (self._is_due() or (not self._clock.once_s and self._clock.used > 0.5)) and (
                self._clock.fits(self._clock.once_s)):
            self.validate()
            self._count_anew()  # afterwards: an interrupted validation stays pending
            if not self._clock.fits():
                self._clock.expired = True
                raise Stop

    def validate(self) -> None:
        """Runs the validation windows now, and saves the policy if it is the best."""
        with self._clock.counting("validation"):
            entry = validated(int(self.num_timesteps), self._play())
        self.history.append(entry)
        for key, value in entry.items():
            self.logger.record(f"validation/{key}", value)
        self.logger.record("validation/violation_limit", self._limit)
        if self.best is None or self._rank(entry) > self._rank(self.best):
            self.best = entry
            save(self.model, self._path)

    def _play(self) -> list[dict[str, Any]]:
        actor = Actor.of(self.model.policy)

        def decide(*parts: np.ndarray) -> np.ndarray:
            if self._interrupts.asked:
                raise Stop
            return actor.answer(*parts)[0]

        return play(self._config, BatchPlayer(decide), self._games, envs=self._envs,
                    told=lambda done, of: self._progress.text(f"validating {done}/{of}"))

    def _rank(self, entry: Mapping[str, float]) -> tuple[bool, float]:
        return feasible_first(entry["violation_rate"], entry["reward"], self._limit)


class FreezeActor(Callback):
    """Freezes the actor for the first `updates` updates.

    The advantages of an untrained critic would otherwise undo an imitated actor.
    """

    STATE_ATTRIBUTES = ("_rollouts",)

    def __init__(self, updates: int) -> None:
        super().__init__()
        self._updates, self._rollouts = updates, 0

    def _on_rollout_end(self) -> None:
        self._rollouts += 1
        for parameter in Actor.of(self.model.policy).actor_parameters():
            parameter.requires_grad_(self._rollouts > self._updates)


class Checkpoints(_Periodic):
    """Saves the policy every `every_steps` decisions as `<folder>/step_<decisions>.zip`."""

    def __init__(self, folder: Path, every_steps: int) -> None:
        super().__init__(every_steps)
        self._folder = folder

    def _on_rollout_start(self) -> None:
        if self._is_due():
            self._count_anew()
            save(self.model, self._folder / f"step_{self.num_timesteps:010d}.zip")


class Progress(Callback):
    """Shows training progress: the larger share of the allowed decisions and time."""

    def __init__(self, total: int, clock: WallClock) -> None:
        super().__init__()
        self._total, self._clock = total, clock
        self._open, self._shown, self._bar = ExitStack(), 0.0, Bar()

    def begin(self) -> None:
        self._bar = self._open.enter_context(progress("preparing", total=100))

    def text(self, text: str) -> None:
        """Sets the text beside the bar."""
        self._bar.text(text)

    def _on_step(self) -> bool:
        if self.n_calls % 32 == 0:
            percent = 100.0 * min(max(self.num_timesteps / self._total, self._clock.used), 1.0)
            self._bar.text(f"training: {self.num_timesteps:,} decisions")
            self._bar.advance(percent - self._shown)
            self._shown = percent
        return True

    def stop(self) -> None:
        """Removes the bar; safe to call twice, or without a bar."""
        self._open.close()


def save(model: Any, path: Path) -> None:
    """Saves a Stable-Baselines3 model under `path` atomically."""
    with atomic_write(path) as temporary:
        model.save(temporary)
