"""What an environment shows of its episodes: pictures, or lines of text; nothing is kept unasked.

Pictures are drawn from the simulator's sums, sampled at each decision.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from ooco_gym.envs import buffers as b
from ooco_gym.envs.episodes import Episodes
from ooco_gym.errors import EXTRAS, UserError, unknown
from ooco_gym.sim import state as s
from ooco_gym.sim.loop import look

_WORK = ("online_prefill_ps", "offline_prefill_ps", "decode_ps")
_IN_PROGRESS = (s.PREFILL_ONLINE, s.PREFILL_OFFLINE)  # of which the sums know at their end


class Sample(NamedTuple):
    """What stood at a decision (or at the episode's beginning and end)."""

    time_ps: int
    work_ps: np.ndarray  # float64[3, instances], online and offline prefill and decodes, time spent so far
    transfers_ps: float  # the same, mean of the links; 0 where there are none
    kv_share: np.ndarray  # float64[instances], of its KV memory in use
    online_waiting: int
    offline_waiting: int
    ttft_misses: int
    tpot_misses: int
    violations: int
    arrived: int


class Watch:
    """Shows the episodes of an environment as its `render_mode` says.

    Args:
        episodes: which it watches, from their next start on.
        title: the environment's name.
        mode: `human`, `rgb_array`, `ansi` or None.
        modes: those that are known.
        fps: how many lines are printed a second, at most.

    Raises:
        UserError: an unknown mode, or Pillow is missing for pictures.
    """

    def __init__(self, episodes: Episodes, title: str, mode: str | None, modes: Sequence[str], fps: float) -> None:
        if mode is not None and mode not in modes:
            raise unknown("render_mode", str(mode), modes)
        if mode == "rgb_array" and find_spec("PIL") is None:
            raise UserError(f"render_mode='rgb_array' needs Pillow: pip install 'ooco-gym[{EXTRAS['PIL']}]'")
        self.episodes, self.title, self.mode = episodes, title, mode
        self._pause_s, self._shown = 1.0 / fps, 0.0
        self._samples: list[list[Sample]] = [[] for _ in episodes.simulations]
        if mode in ("human", "rgb_array"):
            episodes.watchers.append(self)

    def begin(self, i: int) -> None:
        """An episode begins in slot i, or goes on from a snapshot."""
        self._shown = 0.0
        if self.mode == "rgb_array":
            self._samples[i] = [self._sample(i)]

    def took(self, i: int) -> None:
        """The episode in slot i has come to its first decision, or has gone on from one."""
        if self.mode == "rgb_array":
            self._samples[i].append(self._sample(i))
        elif time.perf_counter() - self._shown >= self._pause_s or not self.episodes.open(i):
            print(line_of(self.episodes, i), end="", flush=True)
            self._shown = time.perf_counter()

    def render(self) -> list[Any] | None:
        """What each slot looks like: text or uint8 pictures; None where lines are printed, or nothing is shown.

        Raises:
            UserError: a picture, before the first reset.
        """
        slots = range(len(self.episodes.simulations))
        if self.mode == "ansi":
            return [line_of(self.episodes, i) for i in slots]
        return [self._frame(i) for i in slots] if self.mode == "rgb_array" else None

    def _frame(self, i: int) -> Any:
        """The picture of slot i: uint8 (height, width, 3)."""
        from ooco_gym.envs.rendering import Picture

        simulation, buffers = self.episodes.simulations[i], self.episodes.buffers
        if simulation is None:
            raise UserError("call reset() first: there is no episode yet")
        return Picture(self._samples[i], simulation.state).drawn(
            self.title, round(simulation.window_s[0] * s.PS_PER_S), float(buffers.settings[b.VIOLATION_BUDGET]),
            float(buffers.days[i]))

    def _sample(self, i: int) -> Sample:
        simulation = self.episodes.simulations[i]
        assert simulation is not None
        state = look(simulation.state)  # steps that are not booked yet count
        totals, instances, now_ps = state.totals, state.instances, int(state.clock.now_ps)
        work = np.array([instances[name] for name in _WORK], np.float64)
        for kind, activity in enumerate(_IN_PROGRESS):
            work[kind] += np.where(instances["activity"] == activity, now_ps - instances["start_ps"], 0)
        transfers = state.links["busy_ps"].mean() if state.links.size else 0.0
        return Sample(
            now_ps, work, float(transfers), 1.0 - instances["free_blocks"] / instances["total_blocks"],
            int(instances["online_waiting"].sum()), int(instances["offline_waiting"].sum()), int(totals.ttft_misses),
            int(totals.tpot_misses), int(totals.violations), int(totals.online_arrived))


def line_of(episodes: Episodes, i: int) -> str | None:
    """One line of text on the instances of episode i; None before its start."""
    simulation = episodes.simulations[i]
    if simulation is None:
        return None
    parts = [f"t={simulation.now_s:9.2f} s"]
    for instance in simulation.state.instances:
        free = instance["free_blocks"] / instance["total_blocks"]
        parts.append(f"{s.ROLE_NAMES[instance['role']]}: {s.ACTIVITY_NAMES[instance['activity']]}, "
                     f"{instance['urgent_members']} online, {instance['offline_members']} offline, "
                     f"{instance['offline_waiting']} waiting, {free:.0%} KV free")
    return " | ".join(parts) + "\n"
