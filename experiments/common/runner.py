"""Runs simulations in processes of their own, each answer taken from the cache where it is known."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from experiments.common.policies import is_learned
from experiments.common.store import Cache
from ooco_gym.peak import file_stamps
from ooco_gym.report.terminal import plain_warnings

if TYPE_CHECKING:
    from ooco_gym.scenario import Scenario

NO_SAMPLES_S = 1e7  # an interval that no run is long enough for: samples over time are not needed here


def simulate_summary(scenario: Scenario, policy: str) -> dict[str, Any]:
    """Simulates one scenario and returns its summary with the CPU time it took, `cpu_s`; what a worker process runs."""
    from ooco_gym.metrics.summary import summarise
    from ooco_gym.sim.driver import simulate

    begun = time.process_time()
    if is_learned(policy):
        from agents.settings import limit_torch_threads
        from experiments.common.learned_player import simulate_learned

        limit_torch_threads()
        run = simulate_learned(scenario, policy)
    else:
        run = simulate(scenario, policy=policy, sample_s=NO_SAMPLES_S)
    summary = summarise(run)
    return {**summary, "cpu_s": time.process_time() - begun}


class Jobs:
    """Summaries of simulations, computed in `workers` processes and kept in a cache.

    Used as a context manager; several threads may ask at once. Worker processes start with the first simulation that
    the cache does not hold.
    """

    def __init__(self, workers: int | None = None, cache: Cache | None = None,
                 run: Callable[[Scenario, str], dict[str, Any]] = simulate_summary):
        self.workers = max(1, workers or os.cpu_count() or 1)
        self.cache = cache or Cache(on=False)
        self.asked = 0
        self.simulated = 0
        self.finished = 0
        self._run = run
        self._pool: ProcessPoolExecutor | None = None
        self._lock = threading.Lock()
        self._open: dict[str, Future[dict[str, Any]]] = {}  # asked for and not answered yet
        self._seen: set[str] = set()
        self._cpu_s: dict[str, float] = {}
        self._stopped = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=kind is not None)

    @property
    def different(self) -> int:
        """How many different simulations were asked for, from the cache or not."""
        return len(self._seen)

    @property
    def cpu_s(self) -> float:
        """CPU time of all that was asked for, whenever it was simulated, in seconds."""
        return sum(self._cpu_s.values())

    def submit(self, scenario: Scenario, policy: str) -> Future[dict[str, Any]]:
        """Asks for the summary of a policy on a scenario; the same question gives the same answer, from the cache."""
        described = scenario.describe()
        key = self.cache.key({"scenario": described, "files": file_stamps(described),
                              "policy": policy_identity(policy)})
        answer: Future[dict[str, Any]] = Future()
        with self._lock:
            if self._stopped:
                raise CancelledError
            self._seen.add(key)
            if key in self._open:
                return self._open[key]
            self.asked += 1
            known = self.cache.get(key)
            if known is not None:
                self._cpu_s[key] = known.get("cpu_s", 0.0)
                self.finished += 1
                answer.set_result(known)
                return answer
            self.simulated += 1
            self._open[key] = answer
            computed = self._executor().submit(self._run, scenario, policy)
        computed.add_done_callback(lambda done: self._keep(key, done, answer))
        return answer

    def all(self, scenarios: list[Scenario], policy: str) -> list[dict[str, Any]]:
        """Summaries of one policy on several scenarios, in their order."""
        return [future.result() for future in [self.submit(scenario, policy) for scenario in scenarios]]

    def stop(self) -> None:
        """Drops what has not begun; whoever waits for it, or asks again, gets a `CancelledError`."""
        self._stopped = True
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _executor(self) -> ProcessPoolExecutor:
        if self._pool is None:
            # Processes that begin afresh: a fork would copy the threads' locks in whatever state they are.
            method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
            context = multiprocessing.get_context(method)
            if method == "forkserver":
                context.set_forkserver_preload(["ooco_gym", "experiments.common.runner"])
            self._pool = ProcessPoolExecutor(self.workers, mp_context=context, initializer=begin)
        return self._pool

    def _keep(self, key: str, computed: Future[dict[str, Any]], answer: Future[dict[str, Any]]) -> None:
        error = CancelledError() if computed.cancelled() else computed.exception()
        if error is None:
            self.cache.put(key, computed.result())
        with self._lock:
            self.finished += 1
            self._cpu_s[key] = computed.result().get("cpu_s", 0.0) if error is None else 0.0
            del self._open[key]
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(computed.result())


def begin() -> None:
    """A worker begins: its warnings look as those of the command line."""
    plain_warnings()
    _end_with_the_parent()


def _end_with_the_parent() -> None:
    """Makes a worker end when the process that asked is gone, however it went: an orphan would wait for ever."""

    def watch() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def policy_identity(policy: str) -> dict[str, Any]:
    """What a policy's answers depend on: its name, its parameters' values, and its source where it is not ours."""
    from experiments.common.policies import bundle_of

    bundle = bundle_of(policy)
    identity = {"name": bundle.name, "values": dict(bundle.values), "source": _foreign_source(bundle)}
    if is_learned(policy):
        from experiments.common.learned_player import identity_of

        identity.update(identity_of(policy))
    return identity


def _foreign_source(policy: Any) -> str | None:
    """Digest of the files that a third party's rules are written in; ours are in the digest of the package."""
    files = set()
    for rule in (getattr(policy, name, None) for name in ("route", "interrupt", "gate", "compose", "evict", "pull")):
        function = getattr(rule, "py_func", rule)
        if function is not None and hasattr(function, "__code__"):
            files.add(function.__code__.co_filename)
    digest = hashlib.sha256()
    for file in sorted(files):
        if Path(file).is_file():
            digest.update(Path(file).read_bytes())
    return digest.hexdigest()
