"""Runs as BROS's are (7.1): a trace that ends, and best-effort requests in batches, each when the last one is done."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from ooco_gym.sim import state as s
from ooco_gym.sim.driver import SUMS, Run, Simulation

if TYPE_CHECKING:
    from ooco_gym.scenario import Scenario

POLL_S = 0.2  # how soon a batch that is done is noticed
JOBS_PER_S = 12.0  # more than any system here gets done


class BatchedWork:
    """The requests of a simulation that has not begun, the offline ones to be submitted batch by batch.

    They are moved behind all online ones of the trace, to arrive never; `submit` moves the next ones to the place where
    the event loop looks for arrivals. Online requests after the window never arrive. Nothing but the deadlines knows of
    rows that have not arrived.

    Args:
        state: the episode.
        batch: offline requests in a batch.
        window_s: the measured window: who arrives in it counts, and nobody arrives after it.
    """

    def __init__(self, state: s.State, batch: int, window_s: tuple[float, float]) -> None:
        self.state, self.batch = state, batch
        self.start_ps, self.end_ps = (round(edge * s.PS_PER_S) for edge in window_s)
        requests = state.requests
        online, late = requests["online"] == 1, requests["arrival_ps"] >= self.end_ps
        self.place, self.left = int((online & ~late).sum()), int((~online).sum())  # of the next ones, and how many
        self._reorder(np.concatenate([np.flatnonzero(online & ~late), np.flatnonzero(~online),
                                      np.flatnonzero(online & late)]))
        requests["arrival_ps"][self.place :] = s.NEVER
        self.running = slice(0, 0)
        # The loop ends once every SLO is kept or missed; here latencies count to the last token.
        state.counters[s.OPEN_ONLINE] += 1

    def _reorder(self, order: np.ndarray) -> None:
        """Moves row order[i] of the requests to place i, with the slots that deadlines name."""
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        self.state.requests[:] = self.state.requests[order]
        self.state.deadlines[:] = place[self.state.deadlines]

    def submit_if_due(self) -> None:
        """Lets the next batch arrive now if the last one is done."""
        done = self.state.requests["status"][self.running] >= s.FINISHED
        if self.left and done.all() and self.state.counters[s.NOW] < self.end_ps:
            self._submit(min(self.batch, self.left))

    def _submit(self, count: int) -> None:
        state, now = self.state, int(self.state.counters[s.NOW])
        at, total = int(state.counters[s.NEXT_ARRIVAL]), state.requests.size
        mine = np.arange(self.place, self.place + count)
        others = np.concatenate([np.arange(at, self.place), np.arange(self.place + count, total)])
        self._reorder(np.concatenate([np.arange(at), mine, others]))
        self.running = slice(at, at + count)
        rows = state.requests[self.running]
        rows["arrival_ps"] = now
        rows["counted"] = now >= self.start_ps
        self.place, self.left = self.place + count, self.left - count

    def over(self) -> bool:
        """Whether the window is over and all online requests that count have finished."""
        requests = self.state.requests
        counted = (requests["online"] == 1) & (requests["counted"] == 1)
        return bool(self.state.counters[s.NOW] >= self.end_ps
                    and (requests["status"][counted] >= s.FINISHED).all())


def simulate_batches(scenario: Scenario, policy: str, batch: int) -> Run:
    """Plays a scenario whose offline part is `{mode: jobs, jobs: …}`, the jobs in batches.

    Args:
        scenario: with more offline requests than will be served (`jobs_for`).
        policy: a name, or `name:param=value,…`.
        batch: offline requests that are submitted as soon as the last ones are done.
    """
    begun = time.perf_counter()
    simulation = Simulation(scenario, policy)
    work = BatchedWork(simulation.state, batch, simulation.window_s)
    until_s, end_s = 0.0, simulation.end_ps / s.PS_PER_S
    while until_s < end_s and not work.over():
        work.submit_if_due()
        until_s += POLL_S
        simulation.advance(until_s)
    state = simulation.state
    state.counters[s.OPEN_ONLINE] -= 1
    return Run(scenario, simulation.policy.name, dict(simulation.policy.values), state.requests, state.instances,
               state.itl, simulation.window_s, {name: int(state.counters[slot]) for name, slot in SUMS.items()},
               {}, np.zeros(0, s.LOG), simulation.now_s, time.perf_counter() - begun, simulation.notes)


def jobs_for(simulated_s: float, batch: int) -> int:
    """More offline requests than a run of so many seconds gets done."""
    return math.ceil(JOBS_PER_S * simulated_s / batch) * batch


def batch_summary(scenario: Scenario, policy: str, *, batch: int) -> dict[str, Any]:
    """Summary of such a run; this is what a worker process runs."""
    from ooco_gym.metrics.summary import summarise

    run = simulate_batches(scenario, policy, batch)
    spec = run.instances[0]
    return {**summarise(run), "iterations": int(spec["steps_begun"]), "swapped_tokens": int(spec["swapped_tokens"])}
