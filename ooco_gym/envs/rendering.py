"""Draws an episode as a picture, `render_mode="rgb_array"`: the last minutes of every instance, the queues, the SLOs.

Pillow (of the extra `render`) draws what was sampled (`viewer.Sample`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from PIL.ImageColor import getrgb

from ooco_gym.sim import state as s

SPAN_S = 180.0  # of the past that is shown
# As `ooco_gym.report.pages` has them: kinds of work, transfers and idle, then lines.
WORK = {"online prefill": "#882255", "offline prefill": "#DDCC77", "decode": "#44AA99"}
TRANSFERS, IDLE = "#0072B2", "#ECECEC"
KV_COLOUR, LIMIT_COLOUR, PLAIN, TEXT, GREY = "#111111", "#B00020", "#FAFAFA", "#222222", "#666666"
WIDTH, LEFT, RIGHT = 960, 150, 12  # of the picture and its margins, in pixels
_PLOT = WIDTH - LEFT - RIGHT
_TOP, _GAP, _LINK, _QUEUES, _SLOS, _FOOT = 52, 6, 14, 64, 52, 26
_LANES = 336  # the height that instances share


class Picture:
    """A picture under way: names to the left, and rows in which a column of pixels is a stretch of time."""

    def __init__(self, samples: Sequence[Any], state: s.State) -> None:
        self.state, self.now_ps = state, samples[-1].time_ps
        span_ps = round(SPAN_S * s.PS_PER_S)
        self.first_ps = max(samples[0].time_ps, self.now_ps - span_ps)
        self.edges = self.first_ps + np.linspace(0.0, span_ps, _PLOT + 1)
        first = bisect_left(samples, self.first_ps, key=lambda sample: sample.time_ps)
        self.samples = samples[max(0, first - 1):]
        self.times = np.array([sample.time_ps for sample in self.samples])
        # of each column that is past, the sample that held at its end
        past = self.edges[1:][self.edges[:-1] <= self.now_ps]
        self.held = np.clip(np.searchsorted(self.times, np.minimum(past, self.now_ps), "right") - 1, 0, None)

    def drawn(self, title: str, window_start_ps: int, budget: float, day_s: float) -> np.ndarray:
        """The picture of the episode as it stands: uint8 (height, 960, 3), as high as instances and links ask for.

        Args:
            title: the environment's name.
            window_start_ps: time at which its window begins.
            budget: share of online requests that may miss an SLO.
            day_s: time of day at time 0, in seconds.
        """
        count, links = self.state.instances.size, self.state.links.size
        high = max(10, min(72, _LANES // count))
        transfers = _TOP + count * (high + _GAP)
        queues = transfers + (_LINK + _GAP if links else 0)
        slos = queues + _QUEUES + _GAP
        self.image = Image.new("RGB", (WIDTH, slos + _SLOS + _FOOT + _GAP), "white")
        self.draw = ImageDraw.Draw(self.image)
        self._head(title, window_start_ps, day_s)
        for index in range(count):
            self._instance(index, _TOP + index * (high + _GAP), high)
        if links:
            self._work(transfers, _LINK, [[sample.transfers_ps for sample in self.samples]], (TRANSFERS,))
            self._write(8, transfers, "transfers")
        self._waiting(queues)
        self._missed(slos, budget)
        self._axis(slos + _SLOS, self.first_ps - window_start_ps)
        return np.array(self.image)

    # --- Rows of the picture ----------------------------------------------------------------------------------------
    def _head(self, title: str, window_start_ps: int, day_s: float) -> None:
        seconds, day = (self.now_ps - window_start_ps) / s.PS_PER_S, int(day_s + self.now_ps / s.PS_PER_S) % 86_400
        clock = f"{day // 3600:02d}:{day // 60 % 60:02d}:{day % 60:02d}"
        self._write(8, 4, f"{title}   {seconds:.2f} s, {clock}", size=15)
        x = LEFT
        links = [("transfer", TRANSFERS)] if self.state.links.size else []
        for name, colour in (*WORK.items(), *links, ("idle", IDLE), ("KV memory", KV_COLOUR)):
            self.draw.rectangle((x, 30, x + 9, 39), colour)
            self._write(x + 14, 27, name, GREY)
            x += 30 + 7 * len(name)

    def _instance(self, index: int, top: int, high: int) -> None:
        """What an instance has run, and a line of its memory in use."""
        spec = self.state.instances[index]
        name = f"{index}: {s.ROLE_NAMES[int(spec['role'])]}"
        sums = np.array([sample.work_ps[:, index] for sample in self.samples]).T
        self._work(top, high, sums, tuple(WORK.values()))
        memory = np.array([sample.kv_share[index] for sample in self.samples])
        self._line(top, high, memory, KV_COLOUR)
        if high < 40:
            size = 12 if high >= 16 else 9
            self._write(8, top + max(0, high // 2 - size // 2 - 1), name, size=size)
            return
        self._write(8, top + high // 2 - 14, name)
        self._write(8, top + high // 2 + 2, f"{spec['urgent_members']} + {spec['offline_members']}, "
                    f"KV {memory[-1]:.0%}", GREY, 11)

    def _waiting(self, top: int) -> None:
        """Requests that wait for their prefill, on a scale of logarithms that both classes share."""
        lines = (("offline", "#857700", [sample.offline_waiting for sample in self.samples]),
                 ("online", WORK["online prefill"], [sample.online_waiting for sample in self.samples]))
        most = max(10, *(max(values) for _, _, values in lines))
        self._plain(top, _QUEUES)
        self._write(8, top, f"waiting (log, to {most})")
        for row, (name, colour, values) in enumerate(lines, start=1):
            self._line(top, _QUEUES, np.log1p(values) / np.log1p(most), colour)
            self._write(8, top + 17 * row, f"{name}: {values[-1]}", colour)

    def _missed(self, top: int, budget: float) -> None:
        """Share of online requests that missed an SLO, its budget, and a tick where one was missed."""
        violations = np.array([sample.violations for sample in self.samples])
        rates = violations / np.maximum(1, [sample.arrived for sample in self.samples])
        most = max(2 * budget, float(rates.max())) or 1.0
        self._plain(top, _SLOS)
        for time_ps in self.times[1:][np.diff(violations) > 0]:
            self._tick(time_ps, top + _SLOS - 8, 8, LIMIT_COLOUR)
        limit = top + round((_SLOS - 2) * (1 - budget / most))
        for x in range(LEFT, LEFT + _PLOT, 8):
            self.draw.line((x, limit, min(x + 3, LEFT + _PLOT - 1), limit), LIMIT_COLOUR)
        self._line(top, _SLOS, rates / most, KV_COLOUR)
        last = self.samples[-1]
        self._write(8, top, f"missed: {rates[-1]:.2%} of {last.arrived}", LIMIT_COLOUR if rates[-1] > budget else TEXT)
        self._write(8, top + 17, f"{last.ttft_misses} TTFT, {last.tpot_misses} TPOT", GREY)
        self._write(8, top + 34, f"(dashed: {budget:.0%} allowed)", LIMIT_COLOUR, 11)

    def _axis(self, top: int, first_ps: int) -> None:
        """The axis of time, in seconds since the window began."""
        begin_s = first_ps / s.PS_PER_S
        for mark in range(int(-(-begin_s // 30)) * 30, int(begin_s + SPAN_S) + 1, 30):
            x = LEFT + min(_PLOT - 1, round((mark - begin_s) / SPAN_S * _PLOT))
            self.draw.line((x, top, x, top + 4), GREY)
            self._write(min(x + 2, WIDTH - 44), top + 5, f"{mark} s", GREY, 11)

    # --- Parts ------------------------------------------------------------------------------------------------------
    def _write(self, x: int, y: int, text: str, colour: str = TEXT, size: int = 12) -> None:
        self.draw.text((x, y), text, fill=colour, font=ImageFont.load_default(size=size))

    def _plain(self, top: int, height: int) -> None:
        self.draw.rectangle((LEFT, top, LEFT + _PLOT - 1, top + height - 1), PLAIN)

    def _tick(self, time_ps: int, top: int, height: int, colour: str) -> None:
        x = LEFT + int(np.clip(np.searchsorted(self.edges, time_ps, "right") - 1, 0, _PLOT - 1))
        self.draw.line((x, top, x, top + height - 1), colour)

    def _line(self, top: int, height: int, values: np.ndarray, colour: str) -> None:
        """A line of one value from 0 to 1 for each sample."""
        y = top + np.round((height - 2) * (1.0 - np.clip(values[self.held], 0.0, 1.0)))
        self.draw.line([(LEFT + column, at) for column, at in enumerate(y.tolist())], colour, width=2)

    def _work(self, top: int, height: int, sums: Any, colours: Sequence[str]) -> None:
        """Shares of each kind of work in the time of each column, stacked from below; `sums`, float64[kinds, samples],
        is the time spent so far."""
        shares = np.array([np.diff(np.interp(self.edges, self.times, one)) for one in sums]) / np.diff(self.edges)
        rows = (height - 0.5 - np.arange(height)) / height
        which = (rows[:, None, None] >= np.cumsum(shares, axis=0)[None]).sum(axis=1)
        part = np.array([getrgb(colour) for colour in (*colours, IDLE)], np.uint8)[which]
        part[:, len(self.held):] = 255
        self.image.paste(Image.fromarray(part), (LEFT, top))
