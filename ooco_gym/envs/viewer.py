"""Rendering of an environment's episodes: pictures, or lines of text, of the cluster."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from ooco_gym.envs.episodes import Episodes
from ooco_gym.errors import EXTRAS, UserError, unknown
from ooco_gym.sim import state as s

WIDTH, ROW, TEXT = 960, 26, "#222222"  # picture width, row height, text colour
COLOURS = {s.IDLE: "#ECECEC", s.PREFILL_ONLINE: "#882255", s.PREFILL_OFFLINE: "#DDCC77"}  # of bars; else DECODES
DECODES = "#44AA99"


class Viewer:
    """Renders the episodes of an environment by its `render_mode`.

    Args:
        episodes: the episodes to show, from their next start on.
        title: the environment's name.
        mode: `human`, `rgb_array`, `ansi` or None.
        modes: the known modes.
        fps: most lines printed per second.

    Raises:
        UserError: an unknown mode, or pictures without Pillow.
    """

    def __init__(self, episodes: Episodes, title: str, mode: str | None, modes: Sequence[str], fps: float) -> None:
        if mode is not None and mode not in modes:
            raise unknown("render_mode", str(mode), modes)
        if mode == "rgb_array" and find_spec("PIL") is None:
            raise UserError(f"render_mode='rgb_array' needs Pillow: pip install 'ooco-gym[{EXTRAS['PIL']}]'")
        self.episodes, self.title, self.mode = episodes, title, mode
        self._pause_s, self._shown = 1.0 / fps, 0.0
        if mode == "human":
            episodes.watchers.append(self)

    def begin(self, i: int) -> None:
        """Called when an episode begins in slot i, or continues from a snapshot."""
        self._shown = 0.0

    def on_step(self, i: int) -> None:
        """Called when the episode in slot i has reached its first or next decision."""
        if time.perf_counter() - self._shown >= self._pause_s or not self.episodes.open(i):
            print(line_of(self.episodes, i), end="", flush=True)
            self._shown = time.perf_counter()

    def render(self) -> list[Any] | None:
        """Returns text or a uint8 picture for each slot; None if lines are printed, or nothing is
        shown.

        Raises:
            UserError: a picture is requested before the first reset.
        """
        slots = range(len(self.episodes.simulations))
        if self.mode == "ansi":
            return [line_of(self.episodes, i) for i in slots]
        return [self._picture(i) for i in slots] if self.mode == "rgb_array" else None

    def _picture(self, i: int) -> np.ndarray:
        """The picture of slot i, uint8 (height, width, 3): a row per instance with its work, its
        requests and a bar of its used KV memory; then waiting requests and violations."""
        from PIL import Image, ImageDraw, ImageFont

        line, simulation = line_of(self.episodes, i), self.episodes.simulations[i]
        if line is None or simulation is None:
            raise UserError("call reset() first: there is no episode yet")
        clock, *parts = line.rstrip().split(" | ")
        state = simulation.state
        image = Image.new("RGB", (WIDTH, ROW * (len(parts) + 3)), "white")
        draw, font = ImageDraw.Draw(image), ImageFont.load_default(size=12)
        draw.text((8, 6), f"{self.title}   {clock}", TEXT, ImageFont.load_default(size=15))
        for row, (instance, text) in enumerate(zip(state.instances, parts, strict=True), start=1):
            used = 1.0 - float(instance["free_blocks"]) / float(instance["total_blocks"])
            colour = COLOURS.get(int(instance["activity"]), DECODES)
            draw.rectangle((8, ROW * row, WIDTH - 8, ROW * (row + 1) - 4), outline=colour)
            draw.rectangle((8, ROW * row, 8 + used * (WIDTH - 16), ROW * (row + 1) - 4), fill=colour)
            draw.text((14, ROW * row + 4), text, TEXT, font, stroke_width=2, stroke_fill="white")
        totals, online = state.totals, int(state.instances["online_waiting"].sum())
        words = (f"{online} online requests wait; {int(totals.violations)} of {int(totals.online_arrived)} arrived "
                 f"ones violated an SLO (TTFT {int(totals.ttft_misses)}, TPOT {int(totals.tpot_misses)})")
        draw.text((8, ROW * (len(parts) + 1) + 4), words, TEXT, font)
        return np.array(image)


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
