"""Simulates many policies on the same windows as fast as possible, for searches over whole episodes.

A window's requests, cost tables and initial state are built once. Each policy gets a copy of that
state with its own parameters and weights, and a compiled call simulates it to the end without the
GIL, so as many windows run in threads as there are cores. All policies get the same requests
(common random numbers), which is checked by a digest of the requests after each simulation.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numba import types

from ooco_gym.compile import address_of, jit
from ooco_gym.errors import UserError
from ooco_gym.jobs import cores
from ooco_gym.policy import Policy
from ooco_gym.policy.decisions import rules_of
from ooco_gym.scenario import ResolvedScenario
from ooco_gym.sim import state as s
from ooco_gym.sim.config import Machine
from ooco_gym.sim.loop import RUN_SIGNATURE, run, run_at
from ooco_gym.sim.policy_context import policy_context
from ooco_gym.simulation import Simulation, prepared, profiled, with_rules

# Offline service (reference GPU-s/s), online requests, two costs (1/s), online requests undecided after the drain.
OUTCOME = np.dtype([("service", float), ("violated", np.int64), ("arrived", np.int64), ("output_tokens", float),
                    ("wasted_tokens", float), ("undecided", np.int64)])
TEMPLATES = 4  # initial states kept per window, for combinations of settings that change a state's arrays
# Settings that are only numbers in State.config: policies that differ in these share an initial
# state.
PLAIN_SETTINGS = ("max_num_batched_tokens", "prefill_tokens", "layer_resume", "kv_priority", "preempt")
_GIVEN = ("prompt_tokens", "output_tokens", "online", "ttft_slo_ps", "tpot_slo_ps")


REFUSED = (0.0, 1, 1, 0.0, 0.0, 0)  # outcome of a policy that cannot run a window


class Candidate(NamedTuple):
    """A policy to simulate, weights that replace its own, and what makes, for each window, Python that composes the
    iterations of mixed instances in its place (of the state and its address); None: its own."""

    policy: Policy
    weights: np.ndarray | None = None
    composer: Callable[[], Callable[[s.State, int], None]] | None = None


class Stopped(Exception):
    """The simulation was stopped early."""


@jit(types.int64(types.int64, types.int64, s.RULES_TYPE, types.int64), nogil=True)
def _to_the_end(run_address, handle, rules, until_ps):
    return run_at(run_address)(handle, rules, until_ps, s.ASK)


class PlayedWindow:
    """One window, built at its first simulation.

    Args:
        scenario: the resolved scenario.
        tables: initial states by deployments, shared between windows for their cost tables.
    """

    def __init__(self, scenario: ResolvedScenario, tables: dict[Any, s.State]) -> None:
        self.scenario, self._tables, self._lock = scenario, tables, Lock()
        self._templates: dict[Any, Simulation] = {}
        self._digest: int | None = None

    @property
    def digest(self) -> int | None:
        """Digest of the requests' arrivals, lengths and SLOs; None before the window is built."""
        return self._digest

    def play(self, candidate: Candidate) -> tuple[float, int, int, float, float, int]:
        """Simulates the window to its end; returns a row of `OUTCOME`.

        Raises:
            UserError: the policy cannot run it.
        """
        policy = with_rules(candidate.policy, self.scenario.cluster)
        with self._lock:
            template = self._template(policy)
            mine = self._prepared(policy, template)
        if candidate.policy.kept_by is not None and not template.state.blocks.size:
            raise UserError(next(note for note in template.notes if note.startswith("retention=")))
        state = s.copy_state(template.state)
        if candidate.weights is not None:
            state = state._replace(weights=np.ascontiguousarray(candidate.weights, np.float64))
        state.params[:] = mine.vector()
        for name, value in mine.settings().items():
            if name in PLAIN_SETTINGS:
                setattr(state.config, name, value)
        handle = s.handle_of(state)
        rules = rules_of(mine, ("compose",) if candidate.composer else ())
        why = _to_the_end(address_of(run, RUN_SIGNATURE), handle.address, rules, template.end_ps)
        if candidate.composer:
            compose = candidate.composer()
            while why == s.ASKED:
                compose(state, handle.address)
                why = run(handle.address, rules, template.end_ps, 0)
        if why not in (s.HORIZON, s.DONE):
            raise RuntimeError(f"the window stopped at {state.clock.now_ps} ps before its end ({why})")
        if digest_of(state) != self._digest:
            raise RuntimeError("the requests of a window changed during the run: policies would not be compared on the "
                               "same arrivals")
        totals, window_s = state.totals, self.scenario.duration_s
        return (totals.service_ps / s.PS_PER_S / window_s, int(totals.violations), int(totals.online_arrived),
                totals.offline_output_tokens / window_s, totals.wasted_tokens / window_s, int(state.gauges.open_online))

    def _template(self, policy: Policy) -> Simulation:
        """The initial state for policies that differ only in numbers, built once."""
        settings = {name: value for name, value in policy.settings().items() if name not in PLAIN_SETTINGS}
        key = (policy.name, policy.values.get("weights"), policy.class_blind, tuple(sorted(settings.items())),
               policy.retention, policy.searched.name,
               *policy.engine_options.values(), None if policy.order is None else tuple(policy.vector()))
        if key not in self._templates:
            simulation = Simulation(self.scenario, policy)
            alike = self._tables.setdefault(self.scenario.deployments, simulation.state)
            simulation.state = s.share_tables(simulation.state, alike)
            digest = digest_of(simulation.state)
            assert self._digest in (None, digest), "one window, two sequences of requests"
            self._digest = digest
            while len(self._templates) >= TEMPLATES:
                del self._templates[next(iter(self._templates))]
            self._templates[key] = simulation
        return self._templates[key]

    def _prepared(self, policy: Policy, template: Simulation) -> Policy:
        policy = profiled(policy, self.scenario)
        if policy.prepare is None:
            return policy
        machines = [Machine(*deployment) for deployment in self.scenario.deployments]
        return prepared(policy, policy_context(machines, template.state.requests, template.sim_config))


def digest_of(state: s.State) -> int:
    """Digest of the requests' inputs: arrivals (except turns that wait for another request), lengths, classes, SLOs."""
    by_clock = state.think_ps < 0 if state.think_ps.size else slice(None)
    digest = zlib.crc32(state.requests["arrival_ps"][by_clock].tobytes())
    for name in _GIVEN:
        digest = zlib.crc32(state.requests[name].tobytes(), digest)
    return digest


class Population:
    """Windows on which many policies are simulated.

    Attributes:
        windows: windows in the order of the scenarios.
        simulated_s: simulated seconds of windows so far.

    Examples:
        >>> population = Population([Scenario(duration_s=60.0, rate_scale=0.1, seed=seed).resolve() for seed in (1, 2)])
        >>> population.play([Candidate(get_policy(name)) for name in ("ooco", "base_pd")])["service"].shape
        (2, 2)
    """

    def __init__(self, scenarios: Iterable[ResolvedScenario], threads: int | None = None) -> None:
        """Keeps the scenarios, a window each; nothing is built yet. `threads`: parallel windows; None: one per core."""
        tables: dict[Any, s.State] = {}
        self.windows = [PlayedWindow(scenario, tables) for scenario in scenarios]
        self.threads, self.simulated_s = threads or cores(), 0.0

    def play(self, candidates: Sequence[Candidate], windows: Sequence[int] | None = None,
             played: Callable[[], None] = lambda: None, stop: Callable[[], bool] = lambda: False,
             refuse: bool = False) -> np.ndarray:
        """Simulates windows with each candidate: OUTCOME[candidates, windows], independent of
        `threads`.

        Args:
            candidates: policies, each with its parameters and weights.
            windows: indices of the windows to simulate; None: all.
            played: called after each window.
            stop: called before each window; True ends all.
            refuse: whether a candidate that cannot run, for example for lack of memory, scores no
                service and only violations, instead of raising.

        Raises:
            UserError: a policy cannot run a window.
            Stopped: `stop` returned True.
        """
        places = range(len(self.windows)) if windows is None else windows
        found = np.zeros((len(candidates), len(places)), OUTCOME)
        # All policies run one window before the next, so that its requests stay in the cache.
        jobs = [(row, column) for column in range(len(places)) for row in range(len(candidates))]

        def one(job: tuple[int, int]) -> None:
            if stop():
                raise Stopped
            row, column = job
            try:
                found[row, column] = self.windows[places[column]].play(candidates[row])
            except UserError:
                if not refuse:
                    raise
                found[row, column] = REFUSED
            played()

        if self.threads == 1:
            for job in jobs:
                one(job)
        else:
            self._side_by_side(one, jobs)
        self.simulated_s += sum(self.windows[place].scenario.duration_s for place in places) * len(candidates)
        return found

    def _side_by_side(self, one: Callable[[tuple[int, int]], None], jobs: Sequence[tuple[int, int]]) -> None:
        executor = ThreadPoolExecutor(self.threads)
        try:
            for future in [executor.submit(one, job) for job in jobs]:
                future.result()
        finally:  # after an error or Ctrl-C, pending work is dropped; running work ends soon
            executor.shutdown(wait=True, cancel_futures=True)
