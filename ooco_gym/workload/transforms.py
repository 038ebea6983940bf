"""Traces scaled to another rate, and kept distinct in a mix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.schema import number
from ooco_gym.workload.keyed import check_seed, keyed_generator, scattered
from ooco_gym.workload.trace import NO_SESSION, Trace, merge


def with_own_numbers(traces: Sequence[Trace]) -> list[Trace]:
    """Returns the traces with sessions, jobs, keys, clients and prefix hashes renumbered, so that two traces share
    none."""
    told, clients = [], 0
    linked = sum(item.session is not None or item.job is not None or item.key is not None for item in traces) > 1
    for i, trace in enumerate(traces):
        hashes = trace.prefix_hashes
        if hashes is not None and sum(item.prefix_hashes is not None for item in traces) > 1:
            hashes = hashes[0], scattered(hashes[1], f"mix/{i}")
        client = trace.client
        if client is not None:
            client = np.where(client < 0, client, client + clients)
            clients = max(clients, int(client.max(initial=-1)) + 1)
        mine = replace(trace, prefix_hashes=hashes, client=client)
        told.append(_renumbered(mine, f"mix/{i}") if linked else mine)
    return told


def _renumbered(trace: Trace, salt: str) -> Trace:
    """Returns the trace with other numbers of sessions and jobs, and keys, also in `after`."""
    changed: dict[str, Any] = {}
    for name, values in (("session", trace.session), ("job", trace.job)):
        if values is not None:
            changed[name] = np.where(values == NO_SESSION, NO_SESSION, scattered(values, salt))
    if trace.key is not None:
        changed["key"] = scattered(trace.key, salt)
    if trace.after is not None:
        changed["after"] = trace.after[0], scattered(trace.after[1], salt)
    return replace(trace, **changed)


def scale(trace: Trace, factor: float, seed: int, first_row: int = 0, by_session: bool = False) -> Trace:
    """Returns the trace at `factor` times its rate, on the same time axis (OOCO 5.1.3).

    Below 1, requests are dropped at random, each with probability `1 - factor`. Above 1, requests
    are copied with lengths, SLOs, session and prefix hashes; a copy arrives at a random point
    between its original and the next request. With the same seed, a smaller factor's requests are a
    subset of a larger one's.

    Args:
        trace: to scale.
        factor: >= 0, at most 10,000.
        seed: any integer.
        first_row: position of the trace's first request in a longer trace, so that a part is scaled
            as it would be there.
        by_session: whether whole sessions, or jobs, are dropped and copied, by their first request here;
            copies get new numbers.

    Raises:
        UserError: the factor is out of range.
    """
    factor = number("scale factor", factor, 0, 1e4)
    seed = check_seed(seed)
    if factor == 1.0:
        return trace
    n = len(trace)
    lead = np.arange(n)
    for group in (trace.session, trace.job) if by_session else ():
        if group is not None:
            _, first, inverse = np.unique(group, return_index=True, return_inverse=True)
            lead = np.where(group == NO_SESSION, lead, first[inverse])
    gap_s = np.diff(trace.arrival_s, append=trace.arrival_s[-1:]) if n else np.zeros(0)
    grouped = by_session and (trace.session is not None or trace.job is not None)
    rows, times, copies = [], [], []
    copy = 0
    while copy < factor:
        keep, between = _draws(seed, copy, first_row, n)
        chosen = np.flatnonzero(keep[lead] < factor - copy)
        rows.append(chosen)
        times.append(trace.arrival_s[chosen] + ((gap_s * between)[lead[chosen]] if copy else 0.0))
        if grouped:
            order = np.argsort(times[-1], kind="stable")
            mine = trace.take(chosen[order], times[-1][order])
            copies.append(_renumbered(mine, f"copy/{copy}") if copy else mine)
        copy += 1
    if copies:
        return replace(merge(*copies), name=trace.name, notes=trace.notes, block_tokens=trace.block_tokens)
    index = np.concatenate([np.zeros(0, np.int64), *rows])
    arrival_s = np.concatenate([np.zeros(0), *times])
    order = np.argsort(arrival_s, kind="stable")
    return trace.take(index[order], arrival_s[order])


def stretched(trace: Trace, time_scale: float) -> Trace:
    """Returns the trace with arrivals and think times multiplied; UserError if all requests arrive at once."""
    factor = number("time_scale", time_scale, 0, 1e6, above=True)
    if trace.arrival_s[0] == trace.arrival_s[-1] and trace.think_s is None:
        raise UserError(f"time_scale has no effect: all requests of trace '{trace.name}' arrive at once; leave it out")
    return replace(trace, arrival_s=trace.arrival_s * factor,
                   think_s=None if trace.think_s is None else trace.think_s * factor)


def _draws(seed: int, copy: int, first_row: int, n: int) -> np.ndarray:
    """Returns two uniform numbers for each of n requests from `first_row` on, float64[2, n]."""
    generator = keyed_generator(seed, "scale", copy)
    generator.bit_generator.advance(first_row // 2)     # type: ignore[attr-defined]  # four numbers per step
    return generator.random((n + first_row % 2, 2))[first_row % 2:].T
