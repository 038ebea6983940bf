"""Submits best-effort requests in batches, each when the last one is done, as BROS does (arXiv
2504.09590)."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from ooco_gym.metrics.summary import summarise
from ooco_gym.scenario import Scenario
from ooco_gym.sim import state as s
from ooco_gym.simulation import Run, Simulation

POLL_S = 0.2  # polling interval for the end of a batch


class BatchedWork:
    """The requests of a simulation that has not begun, with the offline ones to be submitted batch
    by batch.

    Offline requests are moved behind the trace's online ones and never arrive by themselves;
    `submit_if_due` moves the next ones to the slots where the event loop looks for arrivals. Online
    requests after the window never arrive.

    Args:
        state: the episode.
        batch: offline requests in a batch.
        window_s: the measured window: requests that arrive in it count, and none arrive after it.
    """

    def __init__(self, state: s.State, batch: int, window_s: tuple[float, float]) -> None:
        self.state, self.batch = state, batch
        self.start_ps, self.end_ps = (round(edge * s.PS_PER_S) for edge in window_s)
        requests = state.requests
        online, late = requests["online"] == 1, requests["arrival_ps"] >= self.end_ps
        self.next_slot, self.left = int((online & ~late).sum()), int((~online).sum())  # and offline requests left
        self._reorder(np.concatenate([np.flatnonzero(online & ~late), np.flatnonzero(~online),
                                      np.flatnonzero(online & late)]))
        requests["arrival_ps"][self.next_slot :] = s.NEVER
        self.running = slice(0, 0)

    def _reorder(self, order: np.ndarray) -> None:
        """Moves row order[i] of the requests to slot i, and updates the slots in `deadlines`."""
        slots = np.empty(len(order), np.int64)
        slots[order] = np.arange(len(order))
        self.state.requests[:] = self.state.requests[order]
        self.state.deadlines[:] = slots[self.state.deadlines]

    def submit_if_due(self) -> None:
        """Lets the next batch arrive now if the last one is done."""
        state, now, count = self.state, int(self.state.clock.now_ps), min(self.batch, self.left)
        if count == 0 or now >= self.end_ps or (state.requests["status"][self.running] < s.FINISHED).any():
            return
        at, total = int(state.clock.next_arrival), state.requests.size
        mine = np.arange(self.next_slot, self.next_slot + count)
        others = np.concatenate([np.arange(at, self.next_slot), np.arange(self.next_slot + count, total)])
        self._reorder(np.concatenate([np.arange(at), mine, others]))
        self.running = slice(at, at + count)
        rows = state.requests[self.running]
        rows["arrival_ps"] = now
        rows["counted"] = now >= self.start_ps
        self.next_slot, self.left = self.next_slot + count, self.left - count


def simulate_batches(scenario: Scenario, policy: str, batch: int) -> Run:
    """Simulates a scenario whose offline part is `{mode: jobs, jobs: …}`, with the jobs in batches.

    Args:
        scenario: with more offline requests than can be served.
        policy: a name, or `name:param=value,…`.
        batch: offline requests that are submitted together.
    """
    begun = time.perf_counter()
    simulation = Simulation(scenario, policy, whole=True)
    work = BatchedWork(simulation.state, batch, simulation.window_s)
    until_s = 0.0
    while not simulation.finished:
        work.submit_if_due()
        until_s += POLL_S
        simulation.advance(until_s)
    state, chosen = simulation.state, simulation.policy
    return Run(simulation.scenario, chosen.name, dict(chosen.values), state.requests, state.instances, state.itl,
               simulation.window_s, state.totals.as_dict(), {}, simulation.now_s, time.perf_counter() - begun,
               simulation.notes)


def batched(scenario: Scenario, policy: str, *, batch: int) -> dict[str, Any]:
    """Summarises a run of `simulate_batches`, with its iterations and total processor time, for a
    figure's points."""
    begun = time.process_time()
    run = simulate_batches(scenario, policy, batch)
    return {**summarise(run), "iterations": int(run.instances["steps_begun"].sum()),
            "cpu_s": time.process_time() - begun}
