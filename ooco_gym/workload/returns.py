"""Which sessions return, and when: fitted to a trace by turn."""

from __future__ import annotations

from typing import Any

import numpy as np

from ooco_gym.workload.context_names import ContextNames, context_names, walk
from ooco_gym.workload.trace import Trace

TURNS = 5  # turns with a probability and a time of their own
FEWEST = 50  # turns that a probability or a time is fitted to
COMMON_SHARE = 0.01  # of requests: text at the beginning of more prompts is no session's, but a system prompt


def fit_returns(trace: Trace) -> dict[str, Any] | None:
    """Returns `sharing: {form: chat}` as the trace's sessions return: `returns`, `think_s`, `think_sigma`.

    A turn follows another if its prompt begins with the other's, in whole hashes (or if it is the
    next of the trace's `session`). `think_s` is the mean time between arrivals after the first turn,
    the second, …; `think_sigma` the standard deviation of its logarithm. Turns in the last quarter of
    the trace, whose next turn may lie behind its end, are not counted.

    Returns:
        The mapping, with lists as long as there are `FEWEST` turns; None if fewer than `FEWEST` turns follow another.
    """
    names = context_names(trace)
    if names is None:
        return None
    turn, following = _chains(trace, names)
    counted = trace.arrival_s < trace.arrival_s[0] + 0.75 * (trace.arrival_s[-1] - trace.arrival_s[0])
    gap_s = np.where(following >= 0, trace.arrival_s[following] - trace.arrival_s, np.nan)
    returns, think_s = [], []
    for number in range(1, TURNS + 1):
        mine = counted & (turn == number if number < TURNS else turn >= number)
        went_on = mine & (following >= 0)
        if mine.sum() < FEWEST or went_on.sum() < FEWEST:
            break
        returns.append(round(float(went_on.sum() / mine.sum()), 3))
        think_s.append(round(float(np.clip(gap_s[went_on].mean(), 0.1, 3600.0)), 1))
    if not returns:
        return None
    logs = np.log(gap_s[counted & (gap_s > 0)])
    return {"form": "chat", "returns": [min(0.999, one) for one in returns], "think_s": think_s,
            "think_sigma": round(float(np.clip(logs.std(), 0.0, 2.5)), 2)}


def _chains(trace: Trace, names: ContextNames) -> tuple[np.ndarray, np.ndarray]:
    """Returns each request's turn, from 1, and the request that follows it, or -1."""
    turn, following = np.ones(len(trace), np.int64), np.full(len(trace), -1)
    named, times = np.unique(names.values, return_counts=True)
    common = set(named[times > max(40, COMMON_SHARE * len(trace))].tolist())
    for slot, (_, before) in enumerate(walk(trace, names, common)):
        if before:
            turn[slot], following[before[-1]] = turn[before[-1]] + 1, slot
    return turn, following
