"""Closed sessions: each turn of a conversation arrives a think time after the previous one has finished, and a call of
an agent after all that it waits for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.rounding import steady
from ooco_gym.schema import check_keys, demand, number
from ooco_gym.workload.keyed import check_seed, keyed_uniform, scattered
from ooco_gym.workload.trace import NO_SESSION, Hashes, Trace

ANY = -2  # in `Turns.previous`: a request that any client sends as it is free
OPEN, CLOSED = "open", "closed"
MODES = (OPEN, CLOSED)
LONGEST_S = 1e6


@dataclass(frozen=True)
class Think:
    """Think times in seconds: lognormal, with median `median_s` and log standard deviation `sigma`."""

    median_s: float
    sigma: float = 0.0

    @classmethod
    def parse(cls, value: Any) -> Think:
        """Reads `5.0`, or `{median: 5.0, sigma: 1.2}`.

        Raises:
            UserError: an unknown key or an impossible value.
        """
        what = "workload.think_s"
        if not isinstance(value, Mapping):
            return cls(number(what, value, 0, LONGEST_S, "seconds"))
        check_keys(what, value, ("median", "sigma"))
        return cls(number(f"{what}.median", value.get("median"), 0, LONGEST_S, "seconds"),
                   number(f"{what}.sigma", value.get("sigma", 0.0), 0, 5))

    def draw(self, numbers: np.ndarray, seed: int) -> np.ndarray:
        """Returns the think time of each turn in `numbers` (int64[n]) in seconds, float64[n].

        It depends only on the turn's number and the seed.
        """
        if not self.sigma:
            return np.full(len(numbers), self.median_s)
        from scipy.special import ndtri

        uniform = keyed_uniform(numbers, check_seed(seed), "think")
        return np.minimum(self.median_s * steady(np.exp(self.sigma * ndtri(np.maximum(uniform, 1e-300)))), LONGEST_S)

    def __str__(self) -> str:
        return f"lognormal, median {self.median_s:g} s, sigma {self.sigma:g}" if self.sigma else f"{self.median_s:g} s"


@dataclass(frozen=True)
class Turns:
    """For each request of a trace in closed sessions, the request that it waits for; arrays (n,).

    Attributes:
        previous: int64, the request whose end it waits for; -1: it arrives at the trace's own time;
            `ANY`: it waits for whichever client is free first.
        think_s: float64, seconds from that end to its arrival; 0 if it waits for none.
        planned_s: float64, arrivals in the trace.
        think: source of the think times, in words.
        clients: number of clients that share the online requests; None: each waits for its own.
        edges: int64[2, e], (request, one that waits for its end), each once; of clients none. A request waits for all
            that it has here, of which `previous` is the last in the trace.
    """

    previous: np.ndarray
    think_s: np.ndarray
    planned_s: np.ndarray
    think: str
    clients: int | None = None
    edges: np.ndarray = field(default_factory=lambda: np.zeros((2, 0), np.int64))

    @property
    def waits(self) -> np.ndarray:
        """Whether each request waits for another one, bool[n]."""
        return self.previous != -1


def check_mode(value: Any) -> str:
    """Reads `open` or `closed`; None is `open`."""
    demand(value is None or value in MODES, "workload.sessions", value, "open (a turn arrives at its own time) or "
           "closed (its think time after the turn before it has finished)")
    return value or OPEN


def previous_turns(session: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns each request's predecessor in its session (-1: none) and their number, both int64[n]."""
    order = np.argsort(session, kind="stable")
    ordered = session[order]
    follows = np.zeros(len(session), bool)
    follows[1:] = (ordered[1:] == ordered[:-1]) & (ordered[1:] != NO_SESSION)
    previous, place = np.full(len(session), -1), np.arange(len(session))
    previous[order[follows]] = order[np.flatnonzero(follows) - 1]
    turn = np.zeros(len(session), np.int64)
    turn[order] = place - np.maximum.accumulate(np.where(follows, 0, place))
    return previous, turn


def open_note(trace: Trace, turns: Turns | None) -> tuple[str, ...]:
    """Returns a sentence if a trace has conversations whose turns do not wait for each other."""
    waits = trace.session is not None and (previous_turns(trace.session)[0] >= 0).any()
    if turns is not None or not (waits or (trace.after is not None and trace.after[1].size)):
        return ()
    return ("sessions are open: each turn arrives at the trace's own time, even if the previous turn is unanswered; "
            "with workload.sessions=closed it waits for the answer",)


def at_most(trace: Trace, count: int) -> Turns:
    """Returns the turns of `count` clients that share the online requests: whichever has an answer
    sends the next request.

    The first `count` requests arrive at their own times.
    """
    previous = np.full(len(trace), -1)
    previous[np.flatnonzero(trace.online)[count:]] = ANY
    return Turns(previous, np.zeros(len(trace)), trace.arrival_s, f"none, {count:,} clients", count)


def close_sessions(trace: Trace, think: Think | None, seed: int) -> Turns:
    """Returns the request that each request of a trace waits for.

    A turn's think time is the trace's own (`think_s`), or else drawn from `think`. The trace's
    first turn of a session, and a call whose `after` are not in the trace, arrive at their own time.

    Raises:
        UserError: the trace has no sessions, a turn has no think time, or calls wait for each other in a circle.
    """
    if trace.session is None and trace.after is None:
        raise UserError(f"workload.sessions=closed: trace '{trace.name}' has no sessions (column session, see "
                        "docs/traces.md), so no request waits for another one; leave it out")
    session = np.full(len(trace), NO_SESSION) if trace.session is None else trace.session
    _, turn = previous_turns(session)
    edges = edges_of(len(trace), trace.session, trace.key, trace.after)
    if trace.after is not None and (stuck := in_circles(edges, len(trace))).any():
        raise UserError(f"trace '{trace.name}', request {np.argmax(stuck)} (from 0), waits for itself by 'after' and "
                        "the turns of sessions; expected no circle")
    previous = np.full(len(trace), -1)
    np.maximum.at(previous, edges[1], edges[0])
    think_s = np.full(len(trace), np.nan) if trace.think_s is None else trace.think_s
    waits, drawn = previous >= 0, (previous >= 0) & np.isnan(think_s)
    if drawn.any():
        if think is None:
            raise UserError(f"workload.sessions=closed: trace '{trace.name}' does not say how long {drawn.sum():,} of "
                            f"{waits.sum():,} turns wait after the turn before them, the first at "
                            f"{trace.arrival_s[np.argmax(drawn)]:g} s: give a column think_s (or end_s, when a request "
                            "was answered), or workload.think_s=5.0, or workload.think_s={median: 5.0, sigma: 1.2}")
        think_s = think_s.copy()
        think_s[drawn] = think.draw(_numbers(trace, session, turn)[drawn], seed)
    told = "the trace's" if not drawn.any() else str(think)
    if 0 < drawn.sum() < waits.sum():
        told = f"the trace's; of {drawn.sum():,} of {waits.sum():,} turns {told}"
    return Turns(previous, np.where(waits, think_s, 0.0), trace.arrival_s, told, edges=edges)


def _numbers(trace: Trace, session: np.ndarray, turn: np.ndarray) -> np.ndarray:
    """Returns the number of each turn by which its think time is drawn, int64[n]."""
    numbers = scattered(session, "session") + turn
    return numbers if trace.key is None else np.where(session == NO_SESSION, scattered(trace.key, "call"), numbers)


def edges_of(n: int, session: np.ndarray | None = None, key: np.ndarray | None = None,
             after: Hashes | None = None) -> np.ndarray:
    """Returns (request, one that waits for it), int64[2, e], of n requests with these columns of `Trace`: turns of
    sessions, and what `after` names among them."""
    edges = [np.zeros((2, 0), np.int64)]
    if session is not None:
        previous, _ = previous_turns(session)
        turns = np.flatnonzero(previous >= 0)
        edges.append(np.stack([previous[turns], turns]))
    if after is not None and key is not None and n:
        offsets, keys = after
        order = np.argsort(key, kind="stable")
        place = order[np.minimum(np.searchsorted(key[order], keys), n - 1)]
        there = key[place] == keys
        edges.append(np.stack([place[there], np.repeat(np.arange(n), np.diff(offsets))[there]]))
    sources, targets = np.concatenate(edges, axis=1)
    return np.stack(np.divmod(np.unique(sources * n + targets), max(1, n)))


def in_circles(edges: np.ndarray, n: int) -> np.ndarray:
    """Returns which of n requests wait for themselves, or for such ones, bool[n]."""
    return ~np.isin(np.arange(n), in_order(edges, n))


def in_order(edges: np.ndarray, n: int) -> list[int]:
    """Returns n requests so that each comes after those that it waits for; those in circles are left out."""
    left, (sources, targets) = np.bincount(edges[1], minlength=n), edges
    begin = np.searchsorted(sources, np.arange(n + 1))  # edges are sorted by source
    ordered = np.flatnonzero(left == 0).tolist()
    for slot in ordered:
        for target in targets[begin[slot] : begin[slot + 1]].tolist():
            left[target] -= 1
            if left[target] == 0:
                ordered.append(target)
    return ordered
