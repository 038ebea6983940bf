"""What an environment shows of its episodes: text, pictures, a live view, traces; nothing is kept unasked."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any

from ooco_gym.envs import buffers as b
from ooco_gym.envs.episodes import Episodes
from ooco_gym.envs.recording import Recorder
from ooco_gym.errors import UserError, unknown
from ooco_gym.sim.state import PS_PER_S


class Watch:
    """Shows the episodes of an environment as its `render_mode` says, and writes traces.

    Args:
        episodes: whom it watches; it begins with their next start.
        title: the environment's name.
        mode: `human`, `rgb_array`, `ansi` or None.
        trace: whether what `export_trace` writes is kept in other modes than `rgb_array`, which keeps it anyway.
        modes: those that are known.
        fps: how often the live view changes, at most.

    Raises:
        UserError: an unknown mode, or Pillow is missing for pictures.
    """

    def __init__(self, episodes: Episodes, title: str, mode: str | None, trace: bool, modes: Sequence[str],
                 fps: float) -> None:
        if mode is not None and mode not in modes:
            raise unknown("render_mode", str(mode), modes)
        self.episodes, self.title, self.mode = episodes, title, mode
        self.recorder: Recorder | None = None
        self.live: Any = None
        if mode == "rgb_array":
            from ooco_gym.envs.rendering import pillow

            pillow()
        if mode == "rgb_array" or trace:
            self.recorder = Recorder(episodes)
            episodes.watchers.append(self.recorder)
        if mode == "human":
            from ooco_gym.envs.live import LiveView

            self.live = LiveView(episodes, title, fps)
            episodes.watchers.append(self.live)

    def render(self) -> list[Any] | None:
        """What each place looks like: text or uint8 pictures; None where nothing is returned.

        Raises:
            UserError: a picture, before the first reset.
        """
        places = range(len(self.episodes.simulations))
        if self.mode == "ansi":
            return [self.episodes.line(i) for i in places]
        if self.mode == "rgb_array":
            return [self.frame(i) for i in places]
        if self.live is not None:
            self.live.show()
        return None

    def frame(self, i: int) -> Any:
        """The picture of place i: uint8 (height, width, 3)."""
        from ooco_gym.envs.rendering import frame

        assert self.recorder is not None
        recording, buffers = self.recorder.recording(i), self.episodes.buffers
        return frame(recording, self.title, self._window_start_ps(i), float(buffers.settings[b.VIOLATION_BUDGET]),
                     float(buffers.days[i]))

    def export_trace(self, path: str | PathLike[str], i: int = 0) -> None:
        """Writes the trace of place i so far.

        Raises:
            UserError: nothing was recorded, or the file cannot be written.
        """
        from ooco_gym.envs.perfetto import write_trace

        if self.recorder is None:
            raise UserError("export_trace() needs what happened so far: make the environment with trace=True, or "
                            "render_mode='rgb_array'")
        recording, (seed, window) = self.recorder.recording(i), self.episodes.windows[i]
        write_trace(path, recording, self._window_start_ps(i), {
            "environment": self.title, "seed": seed, "window": window,
            "scenario": str(self.episodes.config.scenario)})

    def _window_start_ps(self, i: int) -> int:
        simulation = self.episodes.simulations[i]
        assert simulation is not None
        return round(simulation.window_s[0] * PS_PER_S)

    def copied(self, i: int) -> Any:
        """What has been recorded in place i, for `put_back`; None where nothing is."""
        return None if self.recorder is None else self.recorder.copied(i)

    def put_back(self, i: int, copied: Any) -> None:
        """The episode in place i has been put back to where it stood at `copied`."""
        if self.episodes.simulations[i] is None:
            return
        if self.recorder is not None:
            self.recorder.put_back(i, copied)
        if self.live is not None:
            self.live.begin(i)
            self.live.opened(i)

    def close(self) -> None:
        """Ends the live view."""
        if self.live is not None:
            self.live.close()
