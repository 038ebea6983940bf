"""Callbacks of training: durations, scaling, the clock, figures, validation, checkpoints, progress, and interrupts.

Ctrl-C and SIGTERM are noted (`Interrupts`), and training stops between two rollouts, so that nothing is lost.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from copy import deepcopy
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback

from agents.evaluation.scoring import feasible_first
from agents.learning.networks import Actor, ObservationEncoder
from agents.learning.trust import sign_archive
from agents.learning.vector import GymnasiumVecEnv
from ooco_gym.envs.buffers import DECLINE_ACTION, PARTNER_ACTION
from ooco_gym.files import atomic_write
from ooco_gym.report.terminal import Bar, progress


class Stop(Exception):
    """Ends learning between two rollouts, where all that it depends on can be kept."""


class Interrupts:
    """While it is entered, the first SIGINT or SIGTERM is noted (`asked`); a second one interrupts at once.

    While `patient` is False the first one interrupts at once too: there is nothing to be kept yet. In a thread that is
    not the main one signals cannot be caught, and stay what they are. `signal` is the one that came last.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.asked, self.patient = False, False
        self.signal = signal.SIGINT
        self._before: dict[Any, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in self.SIGNALS}
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


REWARD_PREFIX, COST_PREFIX = "reward/", "cost"


class Kept:
    """What a checkpoint keeps of an object, so that a run that is resumed goes on as if it had never stopped.

    Attributes:
        KEPT: names of the attributes that change; one with a `state_dict` of its own keeps that.
    """

    KEPT: ClassVar[tuple[str, ...]] = ()

    def state_dict(self) -> dict[str, Any]:
        """What must be known to go on: anything that pickles."""
        values = {name: getattr(self, name) for name in self.KEPT}
        return {name: value.state_dict() if hasattr(value, "state_dict") else deepcopy(value)
                for name, value in values.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `state_dict` gave."""
        for name in self.KEPT:
            value = getattr(self, name)
            if hasattr(value, "load_state_dict"):
                value.load_state_dict(state[name])
            else:
                setattr(self, name, deepcopy(state[name]))


class Callback(Kept, BaseCallback):
    """A callback of Stable-Baselines3 that need not do anything at a step, and may have something to keep."""

    @property
    def env(self) -> GymnasiumVecEnv:
        """The environments below all wrappers, with the figures of a step as arrays."""
        env: Any = self.training_env.unwrapped
        assert isinstance(env, GymnasiumVecEnv)
        return env

    @property
    def buffer(self) -> Any:
        """The rollout buffer."""
        return self.model.rollout_buffer  # type: ignore[attr-defined]

    def _on_step(self) -> bool:
        return True


class TimedTransitions(Callback):
    """Writes each transition's simulated duration into the rollout buffer, just before the transition is added."""

    def _on_step(self) -> bool:
        self.buffer.elapsed_s[self.buffer.pos] = self.env.info_array("elapsed_s")
        return True


class ObservationStatistics(Callback):
    """Refreshes the scaling of observations between an update and the next rollout, never within them.

    Inside one rollout and its update the network must be one function, or PPO's ratio would start away from one.
    """

    KEPT = ("_seen",)

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[str, np.ndarray] | None = None

    def _on_rollout_end(self) -> None:
        self._seen = dict(self.buffer.observations)  # its next are others

    def _on_rollout_start(self) -> None:
        encoder = self.model.policy.features_extractor
        if self._seen is not None and isinstance(encoder, ObservationEncoder):
            encoder.update(self._seen)
            self._seen = None


class _Regular(Callback):
    """Has something to do between two rollouts whenever so many decisions have been taken.

    Args:
        every_steps: decisions between two times; None: never.
    """

    KEPT = ("_next",)

    def __init__(self, every_steps: int | None) -> None:
        super().__init__()
        self._every, self._next = every_steps, every_steps or 0

    def _is_due(self) -> bool:
        return self._every is not None and self.num_timesteps >= self._next

    def _count_anew(self) -> None:
        self._next = self.num_timesteps + (self._every or 0)


class Between(_Regular):
    """First of all, between two rollouts: keeps the state now and then, and stops where it is time to.

    Args:
        keep: writes the state to resume from.
        every_steps: decisions between two times; None: by the clock alone.
        every_s: seconds between two times; None: by decisions alone. Where keeping takes longer than a twentieth of
            that, it is done less often.
        interrupts: whether a signal has asked it to end.
        limit_s: of learning; None never ends it.
        learned_s: seconds of learning so far, without validation.
    """

    def __init__(self, keep: Callable[[], None], every_steps: int | None, every_s: float | None,
                 interrupts: Interrupts, limit_s: float | None, learned_s: Callable[[], float]) -> None:
        super().__init__(every_steps)
        self._keep, self._interrupts, self._every_s = keep, interrupts, every_s
        self.limit_s, self.learned_s, self.expired = limit_s, learned_s, False
        self._before: float | None = None
        self._kept, self._took_s = time.monotonic(), 0.0

    def _on_rollout_start(self) -> None:
        now = self.learned_s()
        last = 0.0 if self._before is None else now - self._before  # as long may the next one take
        self.expired = self.limit_s is not None and now + last >= self.limit_s
        if self._interrupts.asked or (self.expired and self._before is not None):
            raise Stop
        self._before = now
        if self._is_due():
            self._count_anew()  # is part of what is kept
            self.keep()
        elif self._every_s is not None and time.monotonic() - self._kept >= max(self._every_s, 20.0 * self._took_s):
            self.keep()

    def keep(self) -> None:
        """Keeps the state now."""
        started = time.monotonic()
        self._keep()
        self._kept = time.monotonic()
        self._took_s = self._kept - started


class Figures(Callback):
    """Logs, each rollout, the reward's parts and costs per simulated second, and the figures of ended episodes."""

    KEPT = ("episodes",)

    def __init__(self) -> None:
        super().__init__()
        self.episodes = 0
        self._begin()

    def _begin(self) -> None:
        self._sums: dict[str, float] = defaultdict(float)
        self._ended: list[dict[str, Any]] = []
        self._elapsed_s, self._decisions, self._noes, self._partners, self._choices = 0.0, 0, 0, 0, False
        self._started = time.monotonic()

    def _on_rollout_start(self) -> None:
        self._begin()

    def _on_step(self) -> bool:
        env, actions = self.env, self.locals["actions"]
        self._choices = actions.ndim == 1  # a vector of levels says no 'no', and leaves nothing to the partner
        if self._choices:
            self._noes += int(np.count_nonzero(actions == DECLINE_ACTION))
            self._partners += int(np.count_nonzero(actions == PARTNER_ACTION))
        self._decisions += len(actions)
        self._elapsed_s += float(env.info_array("elapsed_s").sum())
        for key in (*env.info_keys(REWARD_PREFIX), *env.info_keys(COST_PREFIX)):
            self._sums[key] += float(env.info_array(key).sum())
        self._ended += [self.locals["infos"][i]["summary"] for i in np.flatnonzero(self.locals["dones"])
                        if "summary" in self.locals["infos"][i]]
        return True

    def _on_rollout_end(self) -> None:
        elapsed_s = max(self._elapsed_s, 1e-9)
        for key, value in self._sums.items():
            self.logger.record(f"{key if key.startswith(REWARD_PREFIX) else f'cost/{key}'}_per_s", value / elapsed_s)
        if self._choices:
            self.logger.record("rollout/no_share", self._noes / max(self._decisions, 1))
            self.logger.record("rollout/partner_share", self._partners / max(self._decisions, 1))
        self.logger.record("rollout/simulated_s", self._elapsed_s)
        self.logger.record("time/decisions_per_s", self._decisions / max(time.monotonic() - self._started, 1e-9))
        self.episodes += len(self._ended)
        self.logger.record("episode/count", self.episodes)
        keys = {key for summary in self._ended for key, value in summary.items() if isinstance(value, (int, float))}
        for key in sorted(keys):
            self.logger.record(f"episode/{key}", float(np.mean([summary[key] for summary in self._ended])))


class Validation(_Regular):
    """Every `every_steps` decisions plays the validation windows, and keeps the best policy so far.

    Best: by `scoring.feasible_first` of the mean violation rate and the mean reward of an episode.

    Args:
        play: plays the current policy through all validation windows and returns their records.
        limit: the violation rate that still counts as feasible.
        first: whether to validate before learning too, because the policy already knows something.
    """

    KEPT = ("_next", "history", "best")

    def __init__(self, play: Callable[[], list[dict[str, Any]]], path: Path, every_steps: int, limit: float,
                 first: bool = False) -> None:
        super().__init__(every_steps)
        self._play, self._path, self._limit, self._first = play, path, limit, first
        self.history: list[dict[str, float]] = []
        self.best: dict[str, float] | None = None

    def _on_training_start(self) -> None:
        if self._first and not self.history:
            self.validate()

    def _on_rollout_start(self) -> None:
        if self._is_due():
            self.validate()
            self._count_anew()  # not before: one that is interrupted is still due

    def validate(self) -> None:
        """Plays the validation windows now; the policy is saved if it is the best."""
        records = self._play()
        rates = [record["summary"].get("violation_rate", 0.0) for record in records]
        entry = {"timesteps": int(self.num_timesteps), "reward": float(np.mean([r["reward"] for r in records])),
                 "violation_rate": float(np.mean(rates)), "windows": len(records)}
        service = [record["summary"].get("offline_reference_gpu_s_per_s") for record in records]
        if all(value is not None for value in service):
            entry["offline_reference_gpu_s_per_s"] = float(np.mean(service))  # type: ignore[arg-type]
        self.history.append(entry)
        for key, value in entry.items():
            self.logger.record(f"validation/{key}", value)
        if self.best is None or self._rank(entry) > self._rank(self.best):
            self.best = entry
            save(self.model, self._path)

    def _rank(self, entry: dict[str, float]) -> tuple[bool, float]:
        return feasible_first(entry["violation_rate"], entry["reward"], self._limit)


class CriticFirst(Callback):
    """Leaves the actor as it is for the first `updates` updates, until the critic can judge it.

    An imitated actor would otherwise be undone by the advantages of a critic that has seen nothing.
    """

    KEPT = ("_rollouts",)

    def __init__(self, updates: int) -> None:
        super().__init__()
        self._updates, self._rollouts = updates, 0

    def _on_rollout_end(self) -> None:
        self._rollouts += 1
        for parameter in Actor(self.model.policy).actor_parameters():  # type: ignore[arg-type]
            parameter.requires_grad_(self._rollouts > self._updates)


class Checkpoints(_Regular):
    """Saves the policy every `every_steps` decisions as `<folder>/step_<decisions>.zip`."""

    def __init__(self, folder: Path, every_steps: int) -> None:
        super().__init__(every_steps)
        self._folder = folder

    def _on_rollout_start(self) -> None:
        if self._is_due():
            self._count_anew()
            save(self.model, self._folder / f"step_{self.num_timesteps:010d}.zip")


class Progress(Callback):
    """How far training is: the larger share of the decisions and of the learning time allowed.

    It is shown from the preparation on (`begin`), and says what else is done meanwhile (`text`).
    """

    def __init__(self, total: int, max_wall_s: float | None, learned_s: Callable[[], float]) -> None:
        super().__init__()
        self._total, self._max_wall_s, self._learned_s = total, max_wall_s, learned_s
        self._open, self._shown, self._bar = ExitStack(), 0.0, Bar()

    def begin(self) -> None:
        """Shows the bar."""
        self._bar = self._open.enter_context(progress("preparing", total=100, percent=True))

    def text(self, text: str) -> None:
        """Says what is being done."""
        self._bar.text(text)

    def _on_step(self) -> bool:
        if self.n_calls % 32 == 0:
            share = self.num_timesteps / self._total
            if self._max_wall_s:
                share = max(share, self._learned_s() / self._max_wall_s)
            percent = 100.0 * min(share, 1.0)
            self._bar.text(f"training: {self.num_timesteps:,} decisions")
            self._bar.advance(percent - self._shown)
            self._shown = percent
        return True

    def stop(self) -> None:
        """Removes the bar; safe to call twice, or without a bar."""
        self._open.close()


def save(model: Any, path: Path) -> None:
    """Saves a Stable-Baselines3 model under `path` in one move."""
    with atomic_write(path) as temporary:
        model.save(temporary)
        sign_archive(temporary)
