"""Many policies through the same windows, as fast as they can be played: what a search over whole episodes does.

A window's requests, cost tables and first state are built once; each policy gets a copy of that state with its own
parameters and weights, and a compiled call plays it to the end without Python's lock, so that as many windows are
under way as there are cores, in threads. All policies meet the same requests (common random numbers): a digest of the
requests as they were played is held against that of the window.
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
from ooco_gym.policy.decisions import addresses
from ooco_gym.scenario import ResolvedScenario
from ooco_gym.sim import state as s
from ooco_gym.sim.config import Machine
from ooco_gym.sim.loop import RUN_SIGNATURE, run, run_at
from ooco_gym.sim.policy_context import policy_context
from ooco_gym.simulation import Simulation, prepared, profiled

# Outcome of a policy in a window: offline service (reference GPU-s/s), online requests, and two costs (1/s).
OUTCOME = np.dtype([("service", float), ("violated", np.int64), ("arrived", np.int64), ("output_tokens", float),
                    ("wasted_tokens", float)])
TEMPLATES = 4  # first states that are kept of a window: for so many combinations of what changes a state's arrays
# Settings that are numbers in State.config and nothing else: policies that differ in these share a first state.
PLAIN_SETTINGS = ("max_num_batched_tokens", "prefill_tokens", "layer_resume", "kv_priority", "preempt")
_GIVEN = ("prompt_tokens", "output_tokens", "online", "ttft_slo_ps", "tpot_slo_ps")


REFUSED = (0.0, 1, 1, 0.0, 0.0)  # what comes of a policy that cannot play a window


class Candidate(NamedTuple):
    """A policy to be played, and the weights that it computes with in place of its own; None: its own."""

    policy: Policy
    weights: np.ndarray | None = None


class Stopped(Exception):
    """Playing was asked to stop before all was played."""


@jit(types.int64(types.int64, types.int64, s.RULES_TYPE, types.int64), nogil=True)
def _to_the_end(run_address, handle, rules, until_ps):
    return run_at(run_address)(handle, rules, until_ps, s.ASK)


class Window:
    """One window, built when it is first played.

    Args:
        scenario: what is played, resolved.
        tables: first states by what their cost tables depend on, shared between windows.
    """

    def __init__(self, scenario: ResolvedScenario, tables: dict[Any, s.State]) -> None:
        self.scenario, self._tables, self._lock = scenario, tables, Lock()
        self._templates: dict[Any, Simulation] = {}
        self._digest: int | None = None

    @property
    def digest(self) -> int | None:
        """Digest of the requests' arrivals, lengths and SLOs; None before the window is built."""
        return self._digest

    def play(self, candidate: Candidate) -> tuple[float, int, int, float, float]:
        """Plays the window to its end; a row of `OUTCOME`.

        Raises:
            UserError: the policy cannot play it.
        """
        with self._lock:
            template = self._template(candidate.policy)
            mine = self._prepared(candidate.policy, template)
        state = s.copy_state(template.state)
        if candidate.weights is not None:
            state = state._replace(weights=np.ascontiguousarray(candidate.weights, np.float64))
        state.params[:] = mine.vector()
        for name, value in mine.settings().items():
            if name in PLAIN_SETTINGS:
                setattr(state.config, name, value)
        handle = s.handle_of(state)
        why = _to_the_end(address_of(run, RUN_SIGNATURE), handle.address, addresses(mine.hooks()), template.end_ps)
        if why not in (s.HORIZON, s.DONE):
            raise RuntimeError(f"the window stopped at {state.clock.now_ps} ps before its end ({why})")
        if digest_of(state) != self._digest:
            raise RuntimeError("the requests of a window changed while it was played: policies would not be compared "
                               "on the same arrivals")
        totals, window_s = state.totals, self.scenario.duration_s
        return (totals.service_ps / s.PS_PER_S / window_s, int(totals.violations), int(totals.online_arrived),
                totals.offline_output_tokens / window_s, totals.wasted_tokens / window_s)

    def _template(self, policy: Policy) -> Simulation:
        """The first state of a policy that differs from this one in numbers alone; built where there is none yet."""
        settings = {name: value for name, value in policy.settings().items() if name not in PLAIN_SETTINGS}
        key = (policy.name, policy.values.get("weights"), policy.class_blind, tuple(sorted(settings.items())),
               None if policy.order is None else tuple(policy.vector()))
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
        machines = [Machine(*one) for one in self.scenario.deployments]
        return prepared(policy, policy_context(machines, template.state.requests, template.sim_config))


def digest_of(state: s.State) -> int:
    """Digest of what is given of requests: arrivals (but of those that wait for another one), lengths, classes,
    promises."""
    by_clock = state.think_ps < 0 if state.think_ps.size else slice(None)
    digest = zlib.crc32(state.requests["arrival_ps"][by_clock].tobytes())
    for name in _GIVEN:
        digest = zlib.crc32(state.requests[name].tobytes(), digest)
    return digest


class Population:
    """Windows that many policies play.

    Attributes:
        windows: in the order of the scenarios.
        simulated_s: seconds of windows played so far.

    Examples:
        >>> population = Population([Scenario(duration_s=60.0, rate_scale=0.1, seed=seed).resolve() for seed in (1, 2)])
        >>> population.play([Candidate(get_policy(name)) for name in ("ooco", "base_pd")])["service"].shape
        (2, 2)
    """

    def __init__(self, scenarios: Iterable[ResolvedScenario], threads: int | None = None) -> None:
        """Keeps the scenarios, a window each; nothing is built yet. `threads`: windows under way at a time; None: one a
        core."""
        tables: dict[Any, s.State] = {}
        self.windows = [Window(scenario, tables) for scenario in scenarios]
        self.threads, self.simulated_s = threads or cores(), 0.0

    def play(self, candidates: Sequence[Candidate], windows: Sequence[int] | None = None,
             played: Callable[[], None] = lambda: None, stop: Callable[[], bool] = lambda: False,
             refuse: bool = False) -> np.ndarray:
        """Plays windows with each of some candidates: OUTCOME[candidates, windows], the same whatever the number of
        threads.

        Args:
            candidates: policies, each with its parameters and weights.
            windows: places of those to play; None: all.
            played: called after each window.
            stop: asked before each window; True ends all.
            refuse: whether a candidate that cannot play, such as one whose settings the cluster has no room for, has
                no service there and only violations, rather than ending all.

        Raises:
            UserError: a policy that cannot play a window.
            Stopped: `stop` said so.
        """
        places = range(len(self.windows)) if windows is None else windows
        found = np.zeros((len(candidates), len(places)), OUTCOME)
        # One window after the other by all policies: its requests stay in the processor's memory.
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
        finally:  # after an error, or Ctrl-C, what has not begun is dropped; what has ends within a moment
            executor.shutdown(wait=True, cancel_futures=True)
