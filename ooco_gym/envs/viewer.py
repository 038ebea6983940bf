"""What an environment shows of its episodes: text, pictures, a live view; nothing is kept unasked."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from ooco_gym.envs import buffers as b
from ooco_gym.envs.episodes import Episodes
from ooco_gym.envs.recording import Answered, Recorder, Watcher, clock_of
from ooco_gym.errors import EXTRAS, UserError, unknown
from ooco_gym.sim import state as s
from ooco_gym.sim.loop import look


class Watch:
    """Shows the episodes of an environment as its `render_mode` says.

    Args:
        episodes: which it watches, from their next start on.
        title: the environment's name.
        mode: `human`, `rgb_array`, `ansi` or None.
        modes: those that are known.
        fps: how often the live view changes, at most.

    Raises:
        UserError: an unknown mode, or Pillow is missing for pictures.
    """

    def __init__(self, episodes: Episodes, title: str, mode: str | None, modes: Sequence[str], fps: float) -> None:
        if mode is not None and mode not in modes:
            raise unknown("render_mode", str(mode), modes)
        self.episodes, self.title, self.mode = episodes, title, mode
        self.recorder: Recorder | None = None
        self.live: Any = None
        if mode == "rgb_array":
            if find_spec("PIL") is None:
                raise UserError(f"render_mode='rgb_array' needs Pillow: pip install 'ooco-gym[{EXTRAS['PIL']}]'")
            self.recorder = Recorder(episodes)
            episodes.watchers.append(self.recorder)
        if mode == "human":
            self.live = LiveView(episodes, title, fps)
            episodes.watchers.append(self.live)

    def render(self) -> list[Any] | None:
        """What each slot looks like: text or uint8 pictures; None where nothing is returned.

        Raises:
            UserError: a picture, before the first reset.
        """
        slots = range(len(self.episodes.simulations))
        if self.mode == "ansi":
            return [self.episodes.line(i) for i in slots]
        if self.mode == "rgb_array":
            return [self.frame(i) for i in slots]
        if self.live is not None:
            self.live.show()
        return None

    def frame(self, i: int) -> Any:
        """The picture of slot i: uint8 (height, width, 3)."""
        from ooco_gym.envs.rendering import Picture

        assert self.recorder is not None
        samples, answers = self.recorder.of(i)
        simulation, buffers = self.episodes.simulations[i], self.episodes.buffers
        assert simulation is not None
        return Picture(samples, answers, simulation.state).drawn(
            self.title, round(simulation.window_s[0] * s.PS_PER_S), float(buffers.settings[b.VIOLATION_BUDGET]),
            float(buffers.days[i]))

    def copied(self, i: int) -> Any:
        """What has been recorded in slot i, for `put_back`; None where nothing is."""
        return None if self.recorder is None else self.recorder.copied(i)

    def put_back(self, i: int, copied: Any) -> None:
        """The episode in slot i has been put back to where it stood at `copied`."""
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


# --- The live view in the terminal ------------------------------------------------------------------------------------
BAR = 12  # characters of a bar of memory
MOST_INSTANCES = 16  # rows; of more, the first ones
_STYLES = {s.IDLE: "dim", s.PREFILL_ONLINE: "magenta", s.PREFILL_OFFLINE: "yellow", s.DECODE: "green",
           s.MIXING: "red"}


class LiveView(Watcher):
    """Watches the first of some episodes and shows it in the terminal, `fps` times a second at most.

    Where the output is no terminal, the last view is printed when it closes.

    Args:
        episodes: of which it watches the first.
        title: above the view.
        fps: how often it changes, at most.
        console: a rich `Console`; None: standard output.
    """

    def __init__(self, episodes: Episodes, title: str, fps: float, console: Any = None) -> None:
        super().__init__(episodes)
        self.title, self._pause_s, self._console = title, 1.0 / fps, console
        self._live: Any = None
        self._shown = 0.0
        self.begin(0)

    def begin(self, i: int) -> None:
        """A new episode begins in slot i."""
        self.last: Answered | None = None
        self._total, self._steps = 0.0, 0

    def opened(self, i: int) -> None:
        """It has come to its first decision."""
        super().opened(i)
        self.show()

    def took(self, i: int) -> None:
        """The open decision was answered."""
        self.last = self.answered(i)
        self._total += self.last.reward
        self._steps += 1
        if time.perf_counter() - self._shown >= self._pause_s or not self.episodes.open(i):
            self.show()

    def show(self) -> None:
        """Brings the view up to now."""
        from rich.console import Console
        from rich.live import Live

        view = self.view()
        if view is None:
            return
        if self._live is None:
            console = self._console if self._console is not None else Console(highlight=False)
            self._live = Live(view, console=console, auto_refresh=False)
            self._live.start()
        self._live.update(view, refresh=True)
        self._shown = time.perf_counter()

    def close(self) -> None:
        """Leaves the last view standing and gives the terminal back."""
        if self._live is not None:
            self.show()
            self._live.stop()
            if not self._live.console.is_terminal:
                self._live.console.print()  # the last line has no end there
            self._live = None

    def view(self) -> Any:
        """What is shown now, a rich renderable; None before the first episode."""
        from rich.console import Group

        simulation = self.episodes.simulations[0]
        if simulation is None:
            return None
        state, now_s = look(simulation.state), simulation.now_s
        (seed, window), totals = self.episodes.windows[0], state.totals
        arrived, missed = int(totals.online_arrived), int(totals.violations)
        return Group(
            f"[bold]{self.title}[/]  seed {seed}, window {window}: {now_s - simulation.window_s[0]:.2f} s of "
            f"{self.episodes.config.window_s:g} s, {clock_of(float(self.episodes.buffers.days[0]) + now_s)}",
            f"{self._steps} decisions, reward {self._total:+.2f}", _instances(state),
            f"{missed} of {arrived} online requests missed an SLO ({missed / max(1, arrived):.2%}; "
            f"{int(totals.ttft_misses)} TTFT, {int(totals.tpot_misses)} TPOT)",
            f"{int(totals.offline_finished)} offline finished, {int(totals.evictions)} evictions, "
            f"{int(totals.interruptions)} interruptions",
            "[dim]no decision yet[/]" if self.last is None else f"last: {self.last.line()}")


def _instances(state: s.State) -> Any:
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    table = Table("instance", "runs", "KV memory", "", box=None, padding=(0, 2, 0, 0), header_style="dim")
    for head in ("on + off here", "waiting"):
        table.add_column(head, justify="right", no_wrap=True)
    for index, row in enumerate(state.instances[:MOST_INSTANCES]):
        share, activity = 1.0 - row["free_blocks"] / row["total_blocks"], int(row["activity"])
        runs = s.ACTIVITY_NAMES[activity].replace("_", " ") + (f" of {row['running']}" if activity != s.IDLE else "")
        colour = "red" if share > 0.95 else "yellow" if share > 0.8 else "green"
        table.add_row(f"{index}: {s.ROLE_NAMES[row['role']]}", f"[{_STYLES[activity]}]{runs}[/]",
                      ProgressBar(1.0, share, BAR, complete_style=colour, finished_style=colour), f"{share:.0%}",
                      f"{row['urgent_members']} + {row['offline_members']}",
                      f"{row['online_waiting']} + {row['offline_waiting']}")
    more = state.instances.size - MOST_INSTANCES
    if more > 0:
        table.add_row(f"[dim]and {more} more[/]")
    return table
