"""Runs simulations in worker processes; known results come from the store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

from experiments.common.policies import policy_identity
from experiments.common.store import Store, code_digest, key_of
from ooco_gym.jobs import cores, drop, pool
from ooco_gym.metrics.summary import summarise
from ooco_gym.peak import file_stamps
from ooco_gym.report.terminal import following, progress, remark, remarks
from ooco_gym.scenario import Scenario
from ooco_gym.simulation import simulate

Run = Callable[[Scenario, str], dict[str, Any]]


NO_SAMPLES_S = 1e7  # longer than any run: no samples over time are needed


def simulate_summary(scenario: Scenario, policy: str) -> dict[str, Any]:
    """Simulates one scenario; returns its summary with its CPU time, `cpu_s`, and its remarks."""
    begun = time.process_time()
    with remarks() as said:
        run = simulate(scenario, policy=policy, sample_s=NO_SAMPLES_S)
        summary = summarise(run)
    notes = {"notes": list(run.notes)} if run.notes else {}
    return {**summary, **notes, "cpu_s": time.process_time() - begun, **({"remarks": said} if said else {})}


class Jobs:
    """Summaries of simulations, computed in `workers` processes and kept in a store; a thread-safe
    context manager.

    Worker processes start with the first simulation that the store lacks.

    Args:
        workers: number of processes; None: number of cores.
        store: keeps the results; None: no store.
        run: simulates a scenario with a policy in a worker process; None: `simulate_summary`.
    """

    def __init__(self, workers: int | None = None, store: Store | None = None, run: Run | None = None):
        self.workers = max(1, workers or cores())
        self.store = store or Store(on=False)
        self.asked = 0
        self.simulated = 0
        self.finished = 0
        self._run = run or simulate_summary
        self._pool: ProcessPoolExecutor | None = None
        self._lock = threading.Lock()
        self._open: dict[str, Future[dict[str, Any]]] = {}  # submitted and not finished
        self._seen: set[str] = set()
        self._cpu_s: dict[str, float] = {}
        self._stopped = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._pool is not None and kind is not None and not issubclass(kind, Exception):
            drop(self._pool, ends=True)
        elif self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=kind is not None)

    @property
    def different(self) -> int:
        """The number of different simulations submitted, from the store or not."""
        return len(self._seen)

    @property
    def cpu_s(self) -> float:
        """CPU time in seconds of all submitted simulations, including stored ones."""
        return sum(self._cpu_s.values())

    def submit(self, scenario: Scenario, policy: str, run: Run | None = None) -> Future[dict[str, Any]]:
        """Submits `run` for a policy on a scenario; equal submissions give equal results, from the
        store.

        Raises:
            BrokenProcessPool: a worker process was killed before.
        """
        run = run or self._run
        key = simulation_key(run, scenario, policy)
        answer: Future[dict[str, Any]] = Future()
        with self._lock:
            if self._stopped:
                raise CancelledError
            self._seen.add(key)
            if key in self._open:
                return self._open[key]
            self.asked += 1
            known = self.store.get(key)
            if known is not None:
                self._cpu_s[key] = known.get("cpu_s", 0.0)
                self.finished += 1
                answer.set_result(_told(known))
                return answer
            if self._pool is None:
                self._pool = pool(self.workers, preload=("ooco_gym", "experiments.common.runner"))
            computed = self._pool.submit(run, scenario, policy)
            self.simulated += 1
            self._open[key] = answer  # after submission, because a broken pool raises there
        computed.add_done_callback(lambda done: self._keep(key, done, answer))
        return answer

    def all(self, scenarios: list[Scenario], policy: str) -> list[dict[str, Any]]:
        """Returns summaries of one policy on several scenarios, in their order."""
        asked = [self.submit(scenario, policy) for scenario in scenarios]
        return [one.result() for one in asked]

    def at_once(self, ask: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """Returns `ask`'s results for all items, in threads that wait for simulations; an error ends all."""
        with ThreadPoolExecutor(len(items)) as threads:
            asked = [threads.submit(ask, item) for item in items]
            try:
                for done in as_completed(asked):  # raises the first error, not its consequences
                    done.result()
            except BaseException:  # finished simulations are in the store
                self.stop()
                raise
        return [one.result() for one in asked]

    def stop(self) -> None:
        """Drops simulations that have not begun; waiting and later callers get a `CancelledError`."""
        self._stopped = True
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    @contextmanager
    def progress(self, what: str) -> Iterator[None]:
        """Shows the numbers of submitted and finished simulations while the body runs."""
        def look() -> float:
            bar.text(f"{what}: {self.finished} of {self.asked} simulations requested so far")
            return 0.25

        with progress(what) as bar, following(look, 0.25):
            yield

    def _keep(self, key: str, computed: Future[dict[str, Any]], answer: Future[dict[str, Any]]) -> None:
        """Stores and passes on a result, or an error of storing: callers would wait forever without it."""
        error = CancelledError() if computed.cancelled() else computed.exception()
        try:
            if error is None:
                self.store.put(key, computed.result())
        except Exception as failed:
            error = failed
        with self._lock:
            self.finished += 1
            self._cpu_s[key] = computed.result().get("cpu_s", 0.0) if error is None else 0.0
            del self._open[key]
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(_told(computed.result()))


def _told(answer: dict[str, Any]) -> dict[str, Any]:
    """Returns the result, and repeats its remarks in this process."""
    for what, sentence in (answer.get("remarks") or {}).items():
        remark(sentence, what)
    return {key: value for key, value in answer.items() if key != "remarks"}


def simulation_key(run: Run, scenario: Scenario, policy: str) -> str:
    """Returns a digest of what a result of `run` depends on: scenario, policy, their files and code."""
    function = run.func if isinstance(run, partial) else run
    arguments = repr((run.args, run.keywords)) if isinstance(run, partial) else ""
    described = scenario.describe()
    return key_of({"code": code_digest(), "run": [function.__module__, function.__qualname__, arguments],
                   "scenario": described, "files": file_stamps(described), "policy": policy_identity(policy)})
