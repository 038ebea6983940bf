"""Plays simulations in worker processes, and keeps their results on disk by what they depend on."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, Self, TypeVar

from ooco_gym import resources
from ooco_gym.documents import read_json
from ooco_gym.errors import UserError
from ooco_gym.files import as_json, cache_path, write_json
from ooco_gym.jobs import cores, drop, pool
from ooco_gym.metrics.summary import summarise
from ooco_gym.own_code import file_of, module_of_file
from ooco_gym.peak import file_stamps
from ooco_gym.policy.policy import HOOKS
from ooco_gym.policy.registry import policy_named
from ooco_gym.report.terminal import following, progress, remark, remarks, track
from ooco_gym.scenario import Scenario
from ooco_gym.simulation import simulate

PACKAGES = ("ooco_gym", "baselines", "agents", "experiments")
# Groups of conf that make up a scenario.
GROUPS = ("chip", "cluster", "model", "offline", "policy", "protocol", "retention", "slo", "timing", "workload")
ROOT = Path(resources.__file__).parents[1]
Run = Callable[[Scenario, str], dict[str, Any]]
Item = TypeVar("Item")
Result = TypeVar("Result")


NO_SAMPLES_S = 1e7  # longer than any run: no samples over time are needed


def simulate_summary(scenario: Scenario, policy: str) -> dict[str, Any]:
    """Simulates one scenario; returns its summary with its CPU time, `cpu_s`, and its remarks."""
    begun = time.process_time()
    with remarks() as said:
        run = simulate(scenario, policy=policy, sample_s=NO_SAMPLES_S)
        summary = summarise(run)
    notes = {"notes": list(run.notes)} if run.notes else {}
    return {**summary, **notes, "cpu_s": time.process_time() - begun, **({"remarks": said} if said else {})}


def in_processes(function: Callable[[Item], Result], items: Sequence[Item], workers: int, what: str = "",
                 cache: bool = False, depends: Callable[[Item], Any] = lambda item: None) -> Iterator[Result]:
    """Yields `Jobs.each` result of at most `workers` processes, which end with the last one; a bar says `what` they do.
    With `cache`, results (as of JSON) are kept by what `depends` says that each depends on, beside our code; None: not
    kept."""
    with Jobs(min(workers, len(items)), Store(on=cache)) as jobs:
        found = jobs.each(function, items, depends)
        yield from track(found, what, len(items)) if what else found


class Jobs:
    """Summaries of simulations, computed in `workers` processes and kept in a store; a thread-safe context manager.

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
        self._stopped, self._begun = False, time.perf_counter()

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Returns them by a command's options `workers` and `cache`."""
        return cls(options["workers"], Store(on=bool(options["cache"])))

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

    def counts(self) -> dict[str, Any]:
        """Returns what a command's summary says of its simulations."""
        return {"simulations": self.different, "simulated_anew": self.simulated,
                "wall_s": time.perf_counter() - self._begun}

    @property
    def cpu_s(self) -> float:
        """CPU time in seconds of all submitted simulations, including stored ones."""
        return sum(self._cpu_s.values())

    def submit(self, scenario: Scenario, policy: str, run: Run | None = None) -> Future[dict[str, Any]]:
        """Submits `run` for a policy on a scenario; equal submissions give equal results, from the store.

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
            computed = self._started().submit(_portable(run), scenario, policy)
            self.simulated += 1
            self._open[key] = answer  # after submission, because a broken pool raises there
        computed.add_done_callback(lambda done: self._keep(key, done, answer))
        return answer

    def _started(self) -> ProcessPoolExecutor:
        self._pool = self._pool or pool(self.workers, preload=("ooco_gym", "ooco_gym.study.runs"))
        return self._pool

    def each(self, function: Callable[[Item], Result], items: Sequence[Item],
             depends: Callable[[Item], Any] = lambda item: None) -> Iterator[Result]:
        """Yields results of a function (of a module's top level, or a `functools.partial` of one) on each item, in
        order; computed in this process if one worker suffices. `depends` as for `in_processes`."""
        asked = [(item, depends(item)) for item in items]
        keys = [None if on is None else key_of([code_digest(), function.__qualname__, on]) for _, on in asked]
        known: list[Any] = [key and self.store.get(key) for key in keys]
        missing = [item for item, answer in zip(items, known, strict=True) if answer is None]
        if min(self.workers, len(missing)) <= 1:
            computed = (_with_remarks(function, item) for item in missing)
        else:
            computed = map(Future.result, [self._started().submit(_with_remarks, function, item) for item in missing])
        for key, answer in zip(keys, known, strict=True):
            if answer is None:
                answer = next(computed)
                if key is not None:
                    answer = as_json(answer)
                    self.store.put(key, answer)
            yield _told(answer)["answer"]

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


def _with_remarks(function: Callable[[Item], Any], item: Item) -> dict[str, Any]:
    with remarks() as said:
        return {"answer": function(item), "remarks": said}


def _told(answer: dict[str, Any]) -> dict[str, Any]:
    """Returns the result, and repeats its remarks in this process."""
    for what, sentence in (answer.get("remarks") or {}).items():
        remark(sentence, what)
    return {key: value for key, value in answer.items() if key != "remarks"}


def _portable(run: Run) -> Run:
    """Returns a run that worker processes find, also one of a user's file, which they must import first."""
    whole = run if isinstance(run, partial) else partial(run)
    file = file_of(whole.func.__module__)
    return partial(_of_file, file, whole.func.__qualname__, whole.args, whole.keywords) if file else run


def _of_file(path: str, name: str, before: Sequence[Any], options: dict[str, Any], scenario: Scenario,
             policy: str) -> dict[str, Any]:
    return getattr(module_of_file(path, "figure"), name)(*before, scenario, policy, **options)


def simulation_key(run: Run, scenario: Scenario, policy: str) -> str:
    """Returns a digest of what a result of `run` depends on: scenario, policy, their files and code."""
    function = run.func if isinstance(run, partial) else run
    arguments = repr((run.args, run.keywords)) if isinstance(run, partial) else ""
    described, file = scenario.describe(), file_of(function.__module__)
    own = [hashlib.sha256(Path(file).read_bytes()).hexdigest()] if file else []
    return key_of({"code": code_digest(), "run": [function.__module__, function.__qualname__, arguments, *own],
                   "scenario": described, "files": file_stamps(described), "policy": policy_identity(policy)})


def policy_identity(policy: str) -> dict[str, Any]:
    """Returns all that a policy's decisions depend on: name, parameters, weights, foreign rules' digests."""
    known = policy_named(policy)
    rules = [getattr(rule, "py_func", rule) for name in (*HOOKS, "prepare", "profile")
             if (rule := getattr(known, name)) is not None]
    others = {str(getattr(sys.modules.get(str(rule.__module__)), "__file__", "")) for rule in rules
              if str(rule.__module__).partition(".")[0] not in PACKAGES}
    weights = known.weights
    return {"name": known.name, "values": dict(known.values),
            "rules": [hashlib.sha256(Path(one).read_bytes()).hexdigest() for one in sorted(others - {""})],
            "weights": None if weights is None else hashlib.sha256(weights.tobytes()).hexdigest()}


# --- Results --------------------------------------------------------------------------------------------------------
class Store:
    """A folder of small JSON files, each with a digest of its answer; does nothing if off.

    Attributes:
        folder: of the files; None if the store is off or there is no usable cache folder.
    """

    def __init__(self, folder: Path | None = None, on: bool = True):
        self.folder = (folder or cache_path("runs")) if on else None
        self._writable = True

    def get(self, key: str) -> Any:
        """Returns the stored answer; None if it is missing, unreadable or damaged."""
        if self.folder is None:
            return None
        try:
            entry = read_json(self.folder / key[:2] / f"{key}.json")
        except UserError:
            return None
        if not isinstance(entry, dict) or entry.get("digest") != key_of([key, entry.get("answer")]):
            return None
        return entry["answer"]

    def put(self, key: str, answer: Any) -> None:
        """Stores an answer, atomically; warns once if the folder cannot be written."""
        if self.folder is None or not self._writable:
            return
        kept = as_json(answer)
        try:
            write_json(self.folder / key[:2] / f"{key}.json", {"digest": key_of([key, kept]), "answer": kept})
        except (OSError, UserError) as error:
            self._writable = False
            warnings.warn(f"results are not cached: folder '{self.folder}' cannot be written ({error}); set "
                          "OOCO_GYM_CACHE to a writable folder", UserWarning, stacklevel=2)


def key_of(question: Any) -> str:
    """Returns the digest of a question, which includes all that its answer depends on, also the code's digest."""
    return hashlib.sha256(json.dumps(question, sort_keys=True, default=str).encode()).hexdigest()


# --- Code -----------------------------------------------------------------------------------------------------------
@cache
def code_digest() -> str:
    """Returns the digest of our sources, without those of figures, and of the configuration that makes up scenarios."""
    digest, conf = hashlib.sha256(), resources.conf_root()
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if path.parent.name != "papers"]
    for path in sorted(files + [path for group in GROUPS for path in (conf / group).glob("*.yaml")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
