"""Runs simulations in processes of their own, each answer taken from the store where it is known."""

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


NO_SAMPLES_S = 1e7  # an interval that no run is long enough for: samples over time are not needed here


def simulate_summary(scenario: Scenario, policy: str) -> dict[str, Any]:
    """Simulates one scenario; returns its summary with the CPU time it took, `cpu_s`, and what was remarked."""
    begun = time.process_time()
    with remarks() as said:
        run = simulate(scenario, policy=policy, sample_s=NO_SAMPLES_S)
        summary = summarise(run)
    notes = {"notes": list(run.notes)} if run.notes else {}
    return {**summary, **notes, "cpu_s": time.process_time() - begun, **({"remarks": said} if said else {})}


class Jobs:
    """Summaries of simulations, computed in `workers` processes and kept in a store.

    Used as a context manager; several threads may ask at once. Worker processes start with the first simulation that
    the store does not hold.

    Args:
        workers: processes; None: as many as there are cores.
        store: where answers are kept; None: nowhere.
        run: simulates a scenario with a policy and returns the answer, in a worker process; None: `simulate_summary`.
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
        self._open: dict[str, Future[dict[str, Any]]] = {}  # asked for and not answered yet
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
        """The number of different simulations that were asked for, from the store or not."""
        return len(self._seen)

    @property
    def cpu_s(self) -> float:
        """CPU time of all that was asked for, whenever it was simulated, in seconds."""
        return sum(self._cpu_s.values())

    def submit(self, scenario: Scenario, policy: str, run: Run | None = None) -> Future[dict[str, Any]]:
        """Asks for the answer of `run` for a policy on a scenario; the same question gives the same answer, from the
        store.

        Raises:
            BrokenProcessPool: a worker process was killed before, and so ended all.
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
            self._open[key] = answer  # not before: a pool that broke refuses, and nothing would answer
        computed.add_done_callback(lambda done: self._keep(key, done, answer))
        return answer

    def all(self, scenarios: list[Scenario], policy: str) -> list[dict[str, Any]]:
        """Summaries of one policy on several scenarios, in their order."""
        asked = [self.submit(scenario, policy) for scenario in scenarios]
        return [one.result() for one in asked]

    def at_once(self, ask: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """What `ask` answers to each item, all at once: its threads wait for simulations. One mistake ends all."""
        with ThreadPoolExecutor(len(items)) as threads:
            asked = [threads.submit(ask, item) for item in items]
            try:
                for done in as_completed(asked):  # the one that failed first, not those that it stopped
                    done.result()
            except BaseException:  # what is done is in the store
                self.stop()
                raise
        return [one.result() for one in asked]

    def stop(self) -> None:
        """Drops what has not begun; what waits for it, or asks again, gets a `CancelledError`."""
        self._stopped = True
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    @contextmanager
    def progress(self, what: str) -> Iterator[None]:
        """Shows how many simulations have been asked for and are done, while the body runs."""
        def look() -> float:
            bar.text(f"{what}: {self.finished} of {self.asked} simulations asked for so far")
            return 0.25

        with progress(what) as bar, following(look, 0.25):
            yield

    def _keep(self, key: str, computed: Future[dict[str, Any]], answer: Future[dict[str, Any]]) -> None:
        """Hands an answer on, whatever becomes of keeping it: an error here would leave its callers waiting."""
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
    """The answer, what was remarked where it was made said here."""
    for what, sentence in (answer.get("remarks") or {}).items():
        remark(sentence, what)
    return {key: value for key, value in answer.items() if key != "remarks"}


def simulation_key(run: Run, scenario: Scenario, policy: str) -> str:
    """Digest of all that the answer of `run` depends on: scenario, policy, files that they name, and the code."""
    function = run.func if isinstance(run, partial) else run
    arguments = repr((run.args, run.keywords)) if isinstance(run, partial) else ""
    described = scenario.describe()
    return key_of({"code": code_digest(), "run": [function.__module__, function.__qualname__, arguments],
                   "scenario": described, "files": file_stamps(described), "policy": policy_identity(policy)})
