"""A team of threads that steps the episodes of a vector: the one that asks, and others that wait for the next step.

Every thread has a share of neighbouring episodes, whose memory stays in its own core's cache, and takes it chunk by
chunk; one that has finished helps the others, so that a thread that is asleep, or has no core to run on, is not
waited for. An episode is stepped by one thread alone and shares nothing that is written: results do not hang on who
does it.

The threads hold no lock of Python's. They watch for the next step for a moment, as one that comes soon is not worth to
be woken for, and then sleep. After a fork the child has none of them; its first step makes a team of its own.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

import numpy as np
from numba import types

from ooco_gym.compile import function_at, inlined, inner, jit
from ooco_gym.compile.threads import (
    CONDITION_WORDS,
    MUTEX_WORDS,
    add_word,
    begin_condition,
    begin_mutex,
    give_way,
    load_word,
    lock,
    pause,
    sleep,
    store_word,
    unlock,
    wake_all,
)
from ooco_gym.sim.records import CACHE_LINE, aligned_zeros

# --- Words of the block that a team shares, each in a line of the cache of its own ------------------------------------
_LINE = CACHE_LINE // 8
# ROUND: steps so far; DONE: episodes of this one that were stepped; ENDED: of them, those that came to their end
(_ROUND, _DONE, _ENDED, _ASLEEP, _OVER, _MUTEX) = range(0, 6 * _LINE, _LINE)
_CONDITION = _MUTEX + MUTEX_WORDS
_SHARES = _CONDITION + CONDITION_WORDS  # a line for each thread
(_NEXT, _FIRST, _LAST, _TAKEN) = range(4)  # of a share: its next episode, its bounds; how many its thread steps now

_CHUNKS = 4  # of a share
_LOOKS = 2000  # at the block, one after the other
_YIELDS = 2000  # more looks, between which other work may have the core, before a thread sleeps

STEP_ALL = types.int64(types.int64, types.int64, types.int64, types.int64)  # of `stepping.step_all`
_step_at = function_at(types.FunctionType(STEP_ALL))


@inner
def _take_part(block, me, threads, chunk, step, buffers, run):
    """Steps chunks of the thread's own share, then of the others', until all are taken."""
    for turn in range(threads):
        share = _SHARES + _LINE * ((me + turn) % threads)
        end = load_word(block, share + _LAST)
        while load_word(block, share + _NEXT) < end:  # a look costs less than to take nothing
            first = add_word(block, share + _NEXT, chunk)
            if first >= end:
                break
            last = min(first + chunk, end)
            store_word(block, _SHARES + _LINE * me + _TAKEN, last - first)
            add_word(block, _ENDED, _step_at(step)(buffers, run, first, last))
            add_word(block, _DONE, last - first)


@inlined
def _wait(look):
    """Between one look at the block and the next."""
    if look < _LOOKS:
        pause()
    else:
        give_way()


@inner
def _next_round(block, seen):
    """Waits for a step after the one that was seen. Returns its number."""
    for look in range(_LOOKS + _YIELDS):
        now = load_word(block, _ROUND)
        if now != seen:
            return now
        _wait(look)
    lock(block + 8 * _MUTEX)
    add_word(block, _ASLEEP, 1)
    while load_word(block, _ROUND) == seen:
        sleep(block + 8 * _CONDITION, block + 8 * _MUTEX)
    add_word(block, _ASLEEP, -1)
    unlock(block + 8 * _MUTEX)
    return load_word(block, _ROUND)


@inner
def _call(block):
    """Begins a round; those that are on their way to sleep see it before they do."""
    add_word(block, _ROUND, 1)
    if load_word(block, _ASLEEP):
        lock(block + 8 * _MUTEX)
        wake_all(block + 8 * _CONDITION)
        unlock(block + 8 * _MUTEX)


_PART = (types.int64,) * 7


@jit(types.void(*_PART), nogil=True)
def _serve(block, me, threads, chunk, step, buffers, run):
    """The life of a thread."""
    seen = np.int64(0)
    while True:
        seen = _next_round(block, seen)
        if load_word(block, _OVER):
            return
        _take_part(block, me, threads, chunk, step, buffers, run)


@jit(types.int64(*_PART, types.int64, types.boolean), nogil=True)
def _step(block, me, threads, chunk, step, buffers, run, count, begins):
    """Steps `count` episodes together with the others. Returns how many came to their end.

    Args:
        begins: False: the round goes on after a mistake in this thread.
    """
    if begins:
        store_word(block, _DONE, 0)
        store_word(block, _ENDED, 0)
        for thread in range(threads):
            share = _SHARES + _LINE * thread
            store_word(block, share + _NEXT, load_word(block, share + _FIRST))
        _call(block)
    _take_part(block, me, threads, chunk, step, buffers, run)
    look = 0
    while load_word(block, _DONE) < count:
        _wait(look)
        look += 1
    return load_word(block, _ENDED)


@jit(types.void(types.int64, types.int64))
def _give_up(block, me):
    """Counts the chunk that a thread made a mistake in as done."""
    add_word(block, _DONE, load_word(block, _SHARES + _LINE * me + _TAKEN))


@jit(types.void(types.int64))
def _found(block):
    """Prepares lock and condition of a new block."""
    begin_mutex(block + 8 * _MUTEX, 0)
    begin_condition(block + 8 * _CONDITION, 0)


@jit(types.void(types.int64))
def _dissolve(block):
    """Ends all threads that wait."""
    store_word(block, _OVER, 1)
    _call(block)


class Team:
    """Threads that step the episodes of one vector side by side; they begin with its first step.

    Args:
        threads: with the one that asks; no more than there are episodes are made.
        count: episodes.
        step, buffers, run: addresses: of `stepping.step_all`, and what it takes.
    """

    def __init__(self, threads: int, count: int, step: int, buffers: int, run: int) -> None:
        self.threads, self._count = min(threads, count), count
        self._chunk = -(-count // (_CHUNKS * self.threads))
        self._addresses = step, buffers, run
        self._process: int | None = None  # where the threads are
        self._mistakes: list[BaseException] = []
        self._part: tuple[int, ...] = ()
        self._end: Any = None

    def step(self) -> int:
        """Takes the open episodes' actions; returns how many episodes came to their end.

        Raises:
            UserError: as the step of a single thread; all other episodes have been stepped.
        """
        if self._process != os.getpid():
            self._begin()
        begins = True
        while True:
            try:
                ended = _step(*self._part, self._count, begins)
                break
            except Exception as mistake:
                self._mistakes.append(mistake)
                _give_up(*self._part[:2])
                begins = False
        if self._mistakes:
            mistake = self._mistakes[0]
            self._mistakes.clear()
            raise mistake
        return ended

    def close(self) -> None:
        """Ends the threads; another step makes new ones."""
        if self._end is not None:
            self._end()
        self._process = None

    def _begin(self) -> None:
        block = aligned_zeros(_SHARES + _LINE * self.threads, np.dtype(np.int64))
        bounds = np.arange(self.threads + 1) * self._count // self.threads
        shares = block[_SHARES:].reshape(self.threads, _LINE)
        shares[:, _NEXT] = shares[:, _LAST] = bounds[1:]
        shares[:, _FIRST] = bounds[:-1]
        address = int(block.ctypes.data)
        _found(address)
        parts = [(address, me, self.threads, self._chunk, *self._addresses) for me in range(self.threads)]
        self._part, self._process, self._mistakes = parts[0], os.getpid(), []
        others = [threading.Thread(target=_live, args=(part, self._mistakes), name="ooco_gym-step", daemon=True)
                  for part in parts[1:]]
        for other in others:
            other.start()
        self._end = weakref.finalize(self, _end, block, others, self._process)


def _live(part: tuple[int, ...], mistakes: list[BaseException]) -> None:
    """A thread's life; after a mistake it goes on, and the one that asked raises it."""
    while True:
        try:
            _serve(*part)
            return
        except Exception as mistake:
            mistakes.append(mistake)
            _give_up(*part[:2])


def _end(block: np.ndarray, others: list[threading.Thread], process: int) -> None:
    if process != os.getpid():  # a fork has the block, but not the threads
        return
    _dissolve(int(block.ctypes.data))
    for other in others:
        if other is not threading.current_thread():  # which may be the one that collects garbage
            other.join()
