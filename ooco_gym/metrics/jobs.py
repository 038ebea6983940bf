"""Jobs of several requests, such as an agent's calls or a group of roll-outs: each is done with its last request."""

from __future__ import annotations

from typing import Any

import numpy as np

from ooco_gym.metrics.quality import end_ps_of, mean, quantile
from ooco_gym.run import RunRecord
from ooco_gym.sim.state import ABORTED, FINISHED, NEVER, PS_PER_S
from ooco_gym.workload.sessions import in_order
from ooco_gym.workload.trace import NO_SESSION


def job_metrics(run: RunRecord) -> dict[str, Any]:
    """Returns metrics of the jobs whose first request arrived in the window, under `jobs`; empty if no request has one.

    A job's completion time is from that arrival to the end of its last request; its slow-down is this over the least
    that it takes on an idle cluster, thinking included. Metrics that are lower bounds, since jobs were not done when
    the run ended, are in `censored`. Jobs of which a request has left are in `left` alone.
    """
    if run.job is None:
        return {}
    requests, mine = run.requests, np.flatnonzero(run.job != NO_SESSION)
    _, place = np.unique(run.job[mine], return_inverse=True)
    count = int(place.max(initial=-1)) + 1
    begin, end = np.full(count, NEVER), np.zeros(count, np.int64)
    done, counts = np.ones(count, bool), np.zeros(count, bool)
    np.minimum.at(begin, place, requests["arrival_ps"][mine])
    np.maximum.at(end, place, requests["finish_ps"][mine])
    np.logical_and.at(done, place, requests["status"][mine] == FINISHED)
    first = requests["arrival_ps"][mine] == begin[place]
    np.logical_or.at(counts, place, first & (requests["counted"][mine] == 1))
    gone = np.zeros(count, bool)
    np.logical_or.at(gone, place, requests["status"][mine] == ABORTED)
    left = {"left": int((counts & gone).sum())} if run.leaves else {}
    arrived, counts = int(counts.sum()), counts & ~gone
    took_s = np.where(done, end - begin, np.maximum(end_ps_of(run) - begin, 0))[counts] / PS_PER_S
    exact, found, censored = done[counts], {}, list[str]()
    values = {"completion": ("_s", took_s)}
    if run.least_ps is not None:
        least_s = np.maximum(_least_ps(run, mine, place, count)[counts] / PS_PER_S, 1 / PS_PER_S)
        values["slowdown"] = ("", took_s / least_s)
    for name, (unit, of) in values.items():
        for label, (value, bound) in (("mean", mean(of, exact)), ("p50", quantile(of, exact, 0.5)),
                                      ("p99", quantile(of, exact, 0.99))):
            found[f"{name}_{label}{unit}"] = value
            censored += [f"{name}_{label}{unit}"] * bound
    return {"jobs": {"arrived": arrived, "done": int(exact.sum()), **left, **found, "censored": censored}}


def _least_ps(run: RunRecord, mine: np.ndarray, place: np.ndarray, count: int) -> np.ndarray:
    """Returns the least time of each job on an idle cluster, int64[jobs] in ps: its longest chain of requests and
    think times; requests that wait for none begin when they arrived after the job."""
    assert run.least_ps is not None
    own = np.minimum(run.least_ps[0] + run.least_ps[1], NEVER)
    arrival, begin = run.requests["arrival_ps"], np.full(count, NEVER)
    np.minimum.at(begin, place, arrival[mine])
    start = np.zeros(len(own), np.int64)
    start[mine] = arrival[mine] - begin[place]
    if run.turns is not None:
        think = np.rint(run.turns.think_s * PS_PER_S).astype(np.int64)
        start[run.turns.waits] = 0
        sources, targets = run.turns.edges
        first = np.searchsorted(sources, np.arange(len(own) + 1))
        for slot in in_order(run.turns.edges, len(own)):
            after = targets[first[slot] : first[slot + 1]]
            start[after] = np.maximum(start[after], start[slot] + own[slot] + think[after])
    least = np.zeros(count, np.int64)
    np.maximum.at(least, place, (start + own)[mine])
    return least
