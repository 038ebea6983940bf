"""Arrivals as a Cox process: rate = mean · tide(time of day) · exp(OU processes) · on/off bursts, then Poisson, or a
renewal process with gamma gaps (`Arrivals.cv`).

Time is cut into blocks of `BLOCK_S`. Each has its own generators, keyed by the block's number, so
any window of a day holds the same requests as the whole day does there. The state of a slow process
at a block's start is computed from the keyed numbers of earlier blocks. A renewal process restarts
each day in its stationary state.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from ooco_gym.rounding import steady
from ooco_gym.schema import Model, Range
from ooco_gym.workload.keyed import keyed_generator

BLOCK_S = 600.0
DAY_S = 86_400.0
_BASE_CELLS = 20
_MIN_CELLS = 80
_BLOCKS_AT_ONCE = 128
_LOWEST_LAYER = 2.0**-8


@dataclass(frozen=True)
class OrnsteinUhlenbeck(Model):
    """A stationary Gaussian log-intensity: standard deviation `sigma`, correlation time `tau_s`."""

    sigma: Annotated[float, Range(0, 3)]
    tau_s: Annotated[float, Range(0.2, DAY_S, "seconds")]


@dataclass(frozen=True)
class Bursts(Model):
    """An on/off process with exponential times of means `on_s` and `off_s`; on, the rate is `factor` times higher."""

    factor: Annotated[float, Range(0, 1e3)]
    on_s: Annotated[float, Range(0.2, DAY_S, "seconds")]
    off_s: Annotated[float, Range(0.2, DAY_S, "seconds")]


@dataclass(frozen=True)
class Arrivals:
    """The arrival process.

    Attributes:
        mean_rate_per_s: requests per second, mean over a day.
        tide: 24 hourly rates relative to each other.
        ou: processes on the log-intensity.
        bursts: an on/off process, or None.
        batch_s: arrival times are rounded down to multiples of this many seconds; 0: not rounded.
        cv: coefficient of variation of the gaps, in expected requests; 1: Poisson. Others have
            gamma gaps, as in vLLM's benchmark (its `burstiness` is 1 / cv²) and in ServeGen's
            clients.
    """

    mean_rate_per_s: float
    tide: tuple[float, ...]
    ou: tuple[OrnsteinUhlenbeck, ...] = ()
    bursts: Bursts | None = None
    batch_s: float = 0.0
    cv: float = 1.0


def tide_at(tide: tuple[float, ...], time_s: np.ndarray) -> np.ndarray:
    """Returns the tide at times of day, float64[n]: half cosines between the hours' middles, periodic in a day.

    The mean over a day equals the mean of the 24 numbers, and no value leaves their range.
    """
    values = np.asarray(tide, dtype=np.float64)
    hours = np.mod(np.asarray(time_s, dtype=np.float64) / 3600.0 - 0.5, 24.0)
    before = np.minimum(hours.astype(np.int64), 23)
    weight = 0.5 - 0.5 * steady(np.cos(np.pi * (hours - before)))
    return values[before] + (values[(before + 1) % 24] - values[before]) * weight


def peak_start_s(tide: tuple[float, ...], duration_s: float = 4 * 3600.0, step_s: float = BLOCK_S) -> float:
    """Returns the start (s of the day, on `step_s`) of the busiest `duration_s` around the peak."""
    middles = np.arange(0.0, DAY_S, step_s) + step_s / 2
    level = tide_at(tide, middles)
    width = max(1, min(len(level), round(duration_s / step_s)))
    peak = int(np.argmax(level))
    sums = np.concatenate([[0.0], np.cumsum(np.tile(level, 3))])
    starts = np.arange(peak - width + 1, peak + 1) + len(level)
    best = int(starts[np.argmax(np.round(sums[starts + width] - sums[starts], 9))])
    return float((best % len(level)) * step_s)


def intensity(arrivals: Arrivals, seed: int, stream: str, first_block: int, blocks: int) -> np.ndarray:
    """Returns the relative rate, float64[blocks, cells], constant in each cell, with mean 1."""
    counts = [_cells(process.tau_s / 5) for process in arrivals.ou]
    if arrivals.bursts is not None:
        counts.append(_cells(min(arrivals.bursts.on_s, arrivals.bursts.off_s) / 4))
    cells = max([_MIN_CELLS, *counts])
    log = np.zeros((blocks, cells))
    for i, process in enumerate(arrivals.ou):
        path = _ou_path(process, counts[i], seed, f"{stream}/ou{i}", first_block, blocks)
        log += np.repeat(path, cells // counts[i], axis=1) - process.sigma**2 / 2
    middles = (np.arange(cells) + 0.5) * (BLOCK_S / cells)
    tide = np.asarray(arrivals.tide) / np.mean(arrivals.tide)
    rate = np.empty_like(log)
    for row in range(blocks):  # block by block, so that the same block is always computed on the same shape
        start_s = math.fmod((first_block + row) * BLOCK_S, DAY_S)
        rate[row] = steady(np.exp(log[row])) * tide_at(tuple(tide), start_s + middles)
    if arrivals.bursts is not None:
        rate *= np.repeat(_burst_path(arrivals.bursts, counts[-1], seed, f"{stream}/bursts", first_block, blocks),
                          cells // counts[-1], axis=1)
    return rate


def draw_requests(arrivals: Arrivals, *, start_s: float, duration_s: float, seed: int, stream: str,
                  rate_scale: float) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yields (arrival_s float64[n] sorted, random numbers float64[4, n], numbers int64[n]), piece by piece.

    The random numbers, two uniform and two normal ones, are for the lengths. A request keeps its
    number in every window and at every scale.

    Each request has a mark, its height under the rate's curve, and is kept if the mark is below
    `rate_scale`. So the requests of a smaller scale are a subset of those of a larger one. Heights
    are drawn in layers (0 to 1/256, then each up to twice the one before), so few draws are
    discarded. A renewal process has its gaps scaled instead, because random thinning would make it
    a Poisson process.
    """
    if arrivals.cv != 1.0:
        yield from _renewals(arrivals, start_s, duration_s, seed, stream, rate_scale)
        return
    end_s = start_s + duration_s
    last = math.ceil(end_s / BLOCK_S)
    for first in range(math.floor(start_s / BLOCK_S), last, _BLOCKS_AT_ONCE):
        count = min(_BLOCKS_AT_ONCE, last - first)
        rates = intensity(arrivals, seed, stream, first, count)
        pieces = [_block_requests(arrivals.mean_rate_per_s, rates[row], seed, stream, first + row, rate_scale)
                  for row in range(count)]
        arrival_s, draws, numbers = (np.concatenate(column, axis=-1) for column in zip(*pieces, strict=True))
        if arrivals.batch_s:
            arrival_s = let_in(arrivals, arrival_s)
        inside = slice(*np.searchsorted(arrival_s, [start_s, end_s], side="left"))
        yield arrival_s[inside], draws[:, inside], numbers[inside]


def let_in(arrivals: Arrivals, arrival_s: np.ndarray) -> np.ndarray:
    """Returns arrival times rounded down to the start of their batch interval, float64[n]."""
    return np.floor(arrival_s / arrivals.batch_s) * arrivals.batch_s


def _block_requests(mean_rate_per_s: float, rate: np.ndarray, seed: int, stream: str, block: int,
                    rate_scale: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the sorted arrival times float64[n] of one block, the draws float64[4, n] and the numbers int64[n]."""
    cell_s = BLOCK_S / len(rate)
    total = np.concatenate([[0.0], np.cumsum(rate)])
    expected = mean_rate_per_s * total[-1] * cell_s
    positions, draws, numbers = [], [], []
    for layer, (low, high) in enumerate(_layers(rate_scale)):
        generator = keyed_generator(seed, f"{stream}/requests", block, layer)
        n = generator.poisson(expected * (high - low))
        uniform = generator.random((4, n))
        values = np.concatenate([uniform[2:], generator.standard_normal((2, n))])
        position = uniform[0]
        number = (block << 32) + (layer << 27) + np.arange(n)
        if high > rate_scale:
            kept = low + (high - low) * uniform[1] < rate_scale
            position, values, number = position[kept], values[:, kept], number[kept]
        positions.append(position)
        draws.append(values)
        numbers.append(number)
    target = np.concatenate(positions) * total[-1]
    order = np.argsort(target, kind="stable")
    target = target[order]
    return (block * BLOCK_S + _cells_until(total, rate, target) * cell_s, np.concatenate(draws, axis=1)[:, order],
            np.concatenate(numbers)[order])


def _cells_until(total: np.ndarray, rate: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Returns when the running `total` of `rate` per cell reaches each target, in cells, float64[n]."""
    cell = np.minimum(np.searchsorted(total, target, side="right") - 1, len(rate) - 1)
    return cell + np.clip((target - total[cell]) / np.where(rate[cell] > 0, rate[cell], 1.0), 0.0, 1.0)


def _renewals(arrivals: Arrivals, start_s: float, duration_s: float, seed: int, stream: str,
              rate_scale: float) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yields what `draw_requests` does, for gamma gaps, day by day."""
    blocks = round(DAY_S / BLOCK_S)
    for day in range(math.floor(start_s / DAY_S), math.ceil((start_s + duration_s) / DAY_S)):
        rate = intensity(arrivals, seed, stream, day * blocks, blocks).reshape(-1)
        cell_s = DAY_S / len(rate)
        rate = rate * (arrivals.mean_rate_per_s * rate_scale * cell_s)
        total = np.concatenate([[0.0], np.cumsum(rate)])
        generator = keyed_generator(seed, f"{stream}/renewals", day)
        expected = _renewal_times(generator, arrivals.cv, total[-1])
        arrival_s = day * DAY_S + _cells_until(total, rate, expected) * cell_s
        draws = np.concatenate([generator.random((2, len(arrival_s))), generator.standard_normal((2, len(arrival_s)))])
        if arrivals.batch_s:
            arrival_s = let_in(arrivals, arrival_s)
        within = slice(*np.searchsorted(arrival_s, [start_s, start_s + duration_s], side="left"))
        yield arrival_s[within], draws[:, within], ((day * blocks) << 32) + np.arange(len(arrival_s))[within]


def _renewal_times(generator: np.random.Generator, cv: float, end: float) -> np.ndarray:
    """Returns times before `end` of a stationary renewal process with gamma gaps of mean 1,
    float64[n].

    The first time is a random share of a gap that is drawn with probability proportional to its
    length.
    """
    shape = 1.0 / cv**2
    times = [np.array([generator.random() * generator.gamma(shape + 1.0) / shape])]
    while times[-1][-1] < end:
        more = max(100, round(1.1 * (end - times[-1][-1])))
        times.append(times[-1][-1] + np.cumsum(generator.gamma(shape, size=more)) / shape)
    every = np.concatenate(times)
    return every[every < end]


def _layers(rate_scale: float) -> Iterator[tuple[float, float]]:
    low, high = 0.0, _LOWEST_LAYER
    while low < rate_scale:
        yield low, high
        low, high = high, 2 * high


def _cells(longest_s: float) -> int:
    """Returns a block's number of cells, 20 times a power of two, such that no cell is longer than `longest_s`."""
    return _BASE_CELLS * 2 ** max(0, math.ceil(math.log2(BLOCK_S / longest_s / _BASE_CELLS)))


def _ou_path(process: OrnsteinUhlenbeck, cells: int, seed: int, stream: str, first: int, blocks: int) -> np.ndarray:
    """Returns the process at the start of each cell, float64[blocks, cells]."""
    decay = steady(math.exp(-BLOCK_S / cells / process.tau_s))
    noise = process.sigma * math.sqrt(1 - decay**2)
    history = max(1, math.ceil(37.0 * process.tau_s / BLOCK_S))  # e^-37 is below float64's resolution
    steps = np.empty((cells, history + blocks))
    for row in range(history + blocks):
        steps[:, row] = keyed_generator(seed, stream, first - history + row).standard_normal(cells)
    path = np.empty((cells + 1, history + blocks))
    path[0] = 0.0
    for cell in range(cells):
        path[cell + 1] = decay * path[cell] + noise * steps[cell]
    start = np.zeros(blocks)
    for back in range(1, history + 1):
        start += decay ** (cells * (back - 1)) * path[cells, history - back:history - back + blocks]
    fade = decay ** np.arange(cells)
    return path[:cells, history:].T + start[:, None] * fade


def _burst_path(bursts: Bursts, cells: int, seed: int, stream: str, first: int, blocks: int) -> np.ndarray:
    """Returns the rate's factor in each cell, float64[blocks, cells], mean 1.

    The two-state Markov process is simulated by renewals at rate 1/on_s + 1/off_s. Each draws the
    state again, on with its stationary probability, so the state depends only on the last renewal.
    """
    share = bursts.on_s / (bursts.on_s + bursts.off_s)
    renewal = -steady(math.expm1(-(1 / bursts.on_s + 1 / bursts.off_s) * BLOCK_S / cells))

    def renewals(block: int) -> tuple[np.ndarray, np.ndarray]:
        uniform = keyed_generator(seed, stream, block).random((2, cells))
        return uniform[0] < renewal, uniform[1] < share

    block, state = first, None
    while state is None:
        block -= 1
        renewed, on = renewals(block)
        state = bool(on[np.flatnonzero(renewed)[-1]]) if renewed.any() else None
    path = np.empty((blocks, cells), dtype=bool)
    for row in range(blocks):
        renewed, on = renewals(first + row)
        latest = np.maximum.accumulate(np.where(renewed, np.arange(cells), -1))
        path[row] = np.where(latest >= 0, on[latest], state)
        state = bool(path[row, -1])
    return np.where(path, bursts.factor, 1.0) / (1 + share * (bursts.factor - 1))
