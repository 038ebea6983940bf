"""Draws an episode as a picture, `render_mode="rgb_array"`: the last minutes of every instance, the queues, the SLOs.

Lanes are drawn by NumPy from what was recorded (`recording`), words by Pillow, of the extra `render`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np

from ooco_gym.envs.recording import (
    DECLINED,
    MIXED_WORK,
    OWN,
    PARTNERS,
    WORK,
    Recording,
    Sample,
    Slice,
    clock_of,
    names_of,
)
from ooco_gym.errors import EXTRAS, UserError
from ooco_gym.sim.state import PS_PER_S

SPAN_S = 180.0  # of the past that is shown
# As `ooco_gym.report.pages` has them: kinds of work (idle last), then lines.
COLOURS = ("#882255", "#DDCC77", "#44AA99", "#CC6677", "#0072B2", "#ECECEC")
KV_COLOUR, LIMIT_COLOUR, GRID_COLOUR, TEXT, GREY = "#111111", "#B00020", "#E3E3E3", "#222222", "#666666"
MARKS = {PARTNERS: "#7F7F7F", DECLINED: "#E69F00", OWN: "#0072B2"}
WIDTH, LEFT, RIGHT = 960, 150, 12  # of the picture and its margins, in pixels
_TOP, _GAP, _MARKS, _LINK, _QUEUES, _SLOS, _FOOT = 52, 6, 12, 14, 64, 52, 26
_LANES = 336  # the height that instances share
_IDLE = len(COLOURS) - 1


class Canvas:
    """A picture under way: uint8 (height, WIDTH, 3), and the words to be written on it."""

    def __init__(self, height: int) -> None:
        self.pixels = np.full((height, WIDTH, 3), 255, np.uint8)
        self.words: list[tuple[int, int, str, str, int]] = []  # x, y, text, colour, size

    def write(self, x: int, y: int, text: str, colour: str = TEXT, size: int = 12) -> None:
        """Puts words with their upper left corner at a point."""
        self.words.append((x, y, text, colour, size))

    def plot(self, top: int, height: int) -> np.ndarray:
        """The part to the right of the names: uint8 (height, plot width, 3)."""
        return self.pixels[top : top + height, LEFT : WIDTH - RIGHT]

    def finish(self) -> np.ndarray:
        """Writes the words; the picture as uint8 (height, WIDTH, 3)."""
        drawing, font_of = pillow()
        image = drawing[0].fromarray(self.pixels)
        draw = drawing[1].Draw(image)
        for x, y, text, colour, size in self.words:
            draw.text((x, y), text, fill=colour, font=font_of(size))
        return np.array(image)


def pillow() -> tuple[tuple[Any, Any], Any]:
    """Pillow's `Image` and `ImageDraw`, and its font of a size.

    Raises:
        UserError: it is not installed.
    """
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError as error:
        raise UserError(f"render_mode='rgb_array' needs Pillow: pip install 'ooco-gym[{EXTRAS['PIL']}]'") from error
    return (Image, ImageDraw), lambda size: ImageFont.load_default(size=size)


def frame(recording: Recording, title: str, window_start_ps: int, budget: float, day_s: float) -> np.ndarray:
    """The picture of an episode as it stands.

    Args:
        recording: what has been recorded of it.
        title: the environment's name.
        window_start_ps: time at which its window begins.
        budget: share of online requests that may miss an SLO.
        day_s: time of day at time 0, in seconds.

    Returns:
        uint8 (height, 960, 3); the height depends on the number of instances alone.
    """
    state = recording.state
    count, links = state.instances.size, state.links.size
    high = max(10, min(72, _LANES // count))
    tops = [_TOP + _MARKS + _GAP + index * (high + _GAP) for index in range(count)]
    transfers = tops[-1] + high + _GAP
    queues = transfers + (_LINK + _GAP if links else 0)
    slos = queues + _QUEUES + _GAP
    canvas = Canvas(slos + _SLOS + _FOOT + _GAP)
    span_ps = round(SPAN_S * PS_PER_S)
    first_ps = max(recording.begin_ps, recording.now_ps - span_ps)
    edges = first_ps + np.linspace(0.0, span_ps, WIDTH - LEFT - RIGHT + 1)
    samples = _since(recording.samples, first_ps)
    held = _held(samples, edges, recording.now_ps)

    _head(canvas, recording, title, window_start_ps, day_s)
    names = names_of(state)
    for index in range(count):
        part = canvas.plot(tops[index], high)
        if samples[-1].mixed_ps:
            shares = _shares_of_sums(samples, index, edges)
        else:
            shares = _shares(recording.slices(index, first_ps), edges)
        _work(part, shares, edges, recording.now_ps)
        memory = np.array([sample.kv_share[index] for sample in samples])
        _line(part, memory[held], KV_COLOUR, edges, recording.now_ps)
        size = 12 if high >= 16 else 9
        canvas.write(8, tops[index] + max(0, high // 2 - 14 if high >= 40 else high // 2 - size // 2 - 1), names[index],
                     size=size)
        if high >= 40:
            spec = state.instances[index]
            canvas.write(8, tops[index] + high // 2 + 2, f"{spec['urgent_members']} + {spec['offline_members']}, "
                         f"KV {memory[-1]:.0%}", GREY, 11)
    if links:
        shares = np.mean([_shares(recording.slices(count + link, first_ps), edges) for link in range(links)], axis=0)
        _work(canvas.plot(transfers, _LINK), shares, edges, recording.now_ps)
        canvas.write(8, transfers, "transfers", size=12)
    _marks(canvas, recording, edges)
    _queues(canvas, queues, samples, held, edges, recording.now_ps)
    _slo(canvas, slos, samples, held, edges, recording.now_ps, budget)
    _foot(canvas, slos + _SLOS, first_ps - window_start_ps)
    return canvas.finish()


# --- Rows of the picture --------------------------------------------------------------------------------------------
def _head(canvas: Canvas, recording: Recording, title: str, window_start_ps: int, day_s: float) -> None:
    seconds = (recording.now_ps - window_start_ps) / PS_PER_S
    canvas.write(8, 4, f"{title}   {seconds:.2f} s, {clock_of(day_s + recording.now_ps / PS_PER_S)}", size=15)
    if recording.answers:
        last = recording.answers[-1]
        where = f" on {last.instance}" if last.instance >= 0 else ""
        words = f"last: {last.decision}{where}: {last.action} ({last.kind}), reward {last.reward:+.3f}"
        canvas.write(520, 6, words[:62])
    x = LEFT
    kinds = [(name, COLOURS[index]) for index, name in enumerate(WORK) if index != MIXED_WORK]
    if not recording.state.links.size:
        kinds.pop()
    for name, colour in (*kinds, ("idle", COLOURS[_IDLE]), ("KV memory", KV_COLOUR)):
        canvas.pixels[30:40, x : x + 10] = _rgb(colour)
        canvas.write(x + 14, 27, name, GREY)
        x += 30 + 7 * len(name)


def _shares(lane: Sequence[Slice], edges: np.ndarray) -> np.ndarray:
    """Share of each kind of work in the time of each column: (kinds, columns)."""
    shares = np.zeros((len(WORK), len(edges) - 1))
    table = np.array([one[:3] for one in lane], np.float64).reshape(-1, 3)
    for work in range(len(WORK)):
        rows = table[table[:, 2] == work]
        if len(rows):
            times = rows[:, :2].ravel()
            done = np.concatenate([[0.0], np.cumsum(np.diff(times) * (np.arange(len(times) - 1) % 2 == 0))])
            shares[work] = np.diff(np.interp(edges, times, done)) / np.diff(edges)
    return shares


def _shares_of_sums(samples: Sequence[Sample], index: int, edges: np.ndarray) -> np.ndarray:
    """The same of a mixed instance, from sums at each decision: one iteration is work of several kinds."""
    shares = np.zeros((len(WORK), len(edges) - 1))
    times = np.array([sample.time_ps for sample in samples], np.float64)
    for work in range(len(samples[0].mixed_ps[index])):
        sums = np.array([sample.mixed_ps[index][work] for sample in samples], np.float64)
        shares[work] = np.diff(np.interp(edges, times, sums)) / np.diff(edges)
    return shares


def _work(part: np.ndarray, shares: np.ndarray, edges: np.ndarray, now_ps: int) -> None:
    """Draws the shares of each kind of work, stacked from below."""
    height = np.cumsum(shares, axis=0)  # the top of each kind
    rows = (part.shape[0] - 0.5 - np.arange(part.shape[0])) / part.shape[0]
    which = (rows[:, None, None] >= height[None]).sum(axis=1)
    part[:] = np.array([_rgb(colour) for colour in COLOURS], np.uint8)[which]
    part[:, edges[:-1] > now_ps] = 255


def _line(part: np.ndarray, values: np.ndarray, colour: str, edges: np.ndarray, now_ps: int) -> None:
    """A line of values from 0 to 1 for each column, two pixels thick."""
    height = part.shape[0]
    y = np.round((height - 2) * (1.0 - np.clip(values, 0.0, 1.0))).astype(int)
    before = np.concatenate([y[:1], y[:-1]])
    rows = np.arange(height)[:, None]
    there = (rows >= np.minimum(y, before)) & (rows <= np.maximum(y, before) + 1) & (edges[:-1] <= now_ps)
    part[there] = _rgb(colour)


def _marks(canvas: Canvas, recording: Recording, edges: np.ndarray) -> None:
    """A tick for each decision, in the colour of what was answered."""
    part, x = canvas.plot(_TOP, _MARKS), 8
    canvas.write(8, _TOP - 2, "decisions")
    answers = recording.answers
    for one in answers[bisect_left(answers, edges[0], key=lambda one: one.time_ps):]:
        column = min(part.shape[1] - 1, int(np.searchsorted(edges, one.time_ps, "right")) - 1)
        part[:, column] = _rgb(MARKS[one.kind])
    x = WIDTH - RIGHT - 210
    for kind, colour in MARKS.items():
        canvas.pixels[30:40, x : x + 3] = _rgb(colour)
        canvas.write(x + 7, 27, {PARTNERS: "as partner", DECLINED: "declined", OWN: "own choice"}[kind], GREY)
        x += 72


def _queues(canvas: Canvas, top: int, samples: Sequence[Sample], held: np.ndarray, edges: np.ndarray, now_ps: int
            ) -> None:
    """Requests that wait for their prefill, on a scale of logarithms that both classes share."""
    part = canvas.plot(top, _QUEUES)
    part[:] = 250
    lines = [("offline", "#857700", [sample.offline_waiting for sample in samples]),
             ("online", COLOURS[0], [sample.online_waiting for sample in samples])]
    most = max(10, *(max(values) for _, _, values in lines))
    canvas.write(8, top, f"waiting (log, to {most})")
    for row, (name, colour, values) in enumerate(lines, start=1):
        _line(part, (np.log1p(values) / np.log1p(most))[held], colour, edges, now_ps)
        canvas.write(8, top + 17 * row, f"{name}: {values[-1]}", colour)


def _slo(canvas: Canvas, top: int, samples: Sequence[Sample], held: np.ndarray, edges: np.ndarray, now_ps: int,
         budget: float) -> None:
    """Share of online requests that missed an SLO, its budget, and a tick where one was missed."""
    part = canvas.plot(top, _SLOS)
    part[:] = 250
    rates = np.array([sample.violations / max(1, sample.arrived) for sample in samples])
    most = max(2 * budget, float(rates.max())) or 1.0
    missed = np.diff([sample.violations for sample in samples], prepend=samples[0].violations) > 0
    times = np.array([sample.time_ps for sample in samples])[missed]
    part[-8:, np.clip(np.searchsorted(edges, times, "right") - 1, 0, part.shape[1] - 1)] = _rgb(LIMIT_COLOUR)
    limit = round((_SLOS - 2) * (1 - budget / most))
    part[limit, (np.arange(part.shape[1]) // 4) % 2 == 0] = _rgb(LIMIT_COLOUR)
    _line(part, (rates / most)[held], KV_COLOUR, edges, now_ps)
    last = samples[-1]
    colour = LIMIT_COLOUR if rates[-1] > budget else TEXT
    canvas.write(8, top, f"missed: {rates[-1]:.2%} of {last.arrived}", colour)
    canvas.write(8, top + 17, f"{last.ttft_misses} TTFT, {last.tpot_misses} TPOT", GREY)
    canvas.write(8, top + 34, f"(dashed: {budget:.0%} allowed)", LIMIT_COLOUR, 11)


def _foot(canvas: Canvas, top: int, first_ps: int) -> None:
    """The axis of time, in seconds since the window began."""
    begin_s = first_ps / PS_PER_S
    wide = WIDTH - LEFT - RIGHT
    for mark in range(int(-(-begin_s // 30)) * 30, int(begin_s + SPAN_S) + 1, 30):
        x = LEFT + min(wide - 1, round((mark - begin_s) / SPAN_S * wide))
        canvas.pixels[top : top + 5, x] = _rgb(GREY)
        canvas.write(min(x + 2, WIDTH - 44), top + 5, f"{mark} s", GREY, 11)


# --- Parts ----------------------------------------------------------------------------------------------------------
def _since(samples: Sequence[Sample], first_ps: int) -> Sequence[Sample]:
    """Samples from the last one before a time on."""
    return samples[max(0, bisect_left(samples, first_ps, key=lambda sample: sample.time_ps) - 1):]


def _held(samples: Sequence[Sample], edges: np.ndarray, now_ps: int) -> np.ndarray:
    """For each column the sample that held at its end: int (columns,)."""
    times = np.array([sample.time_ps for sample in samples])
    return np.clip(np.searchsorted(times, np.minimum(edges[1:], now_ps), "right") - 1, 0, None)


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
