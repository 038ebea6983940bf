"""`python -m tests.reliability.fuzz [N=1000] [seed=0] [begin=0] [processes=CORES] [limit_s=300]`: N random cases.

Each is drawn from its seed and number alone, played by a worker process, and held against every invariant that we
know (`playing`). Where one fails, ends its process or takes more processor time than `limit_s`, it is made smaller and
printed as one line of JSON: a line of `kept.jsonl` replays it among the tests. A line a minute says how far it is. The
last line is `fuzz: N cases …, F failed`; Ctrl-C and SIGTERM end with it, too, and with the number to go on from. The
exit code is 0 where all were played and none failed.

`python -m tests.reliability.fuzz '{"kind": …}'` plays one such line.
"""

from __future__ import annotations

import gc
import json
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
KEPT = Path(__file__).with_name("kept.jsonl")
OK, REFUSED, FAILED = "ok", "refused", "failed"
SHRINK_S = 90.0  # spent on making one failure smaller
MOST_WALL = 100  # times the processor time that a case may take, where other work has the cores
EVERY_S = 60.0  # between two lines of progress
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(frozen=True)
class Answer:
    """What became of a case: its outcome and, of a failure, where and what."""

    outcome: str
    said: str = ""
    case: dict[str, Any] | None = None


# --- The worker -----------------------------------------------------------------------------------------------------
def work() -> None:
    """Reads a case or `[seed, index]` a line, and writes what became of it."""
    answers, sys.stdout = sys.stdout, sys.stderr  # what a library prints is no answer
    from tests.reliability.drawing import draw
    from tests.reliability.playing import play

    gc.freeze()  # else each full collection walks through all that was imported
    print(json.dumps(["ready", "", None]), file=answers, flush=True)
    for line in sys.stdin:
        limit_s, given = json.loads(line)
        signal.setitimer(signal.ITIMER_VIRTUAL, limit_s)  # its signal ends the process, also in compiled code
        case = draw(*given) if isinstance(given, list) else given
        try:
            said = play(case)
            answer = [said.partition(":")[0], said, None]
        except Exception as error:
            answer = [FAILED, described(error), case]
        print(json.dumps(answer), file=answers, flush=True)


def described(error: BaseException) -> str:
    """An exception in one line, with the place that raised it."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(str(error).split()) or place.line
    return f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}: {text}"


class Worker:
    """A process that plays cases; begun anew after one that it did not survive."""

    words: tuple[str, ...] = (sys.executable, "-m", "tests.reliability.fuzz", "worker")

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.process: subprocess.Popen[str] | None = None

    def ask(self, given: Any, limit_s: float = math.inf) -> Answer:
        """Plays a case, or number `[seed, index]`, in `limit_s` of processor time at most, if that is less than ever.
        """
        limit_s = min(limit_s, self.limit_s)
        process = self.process or self._begin()
        assert process.stdin is not None
        process.stdin.write(json.dumps([limit_s, given]) + "\n")
        process.stdin.flush()
        line = self._line(MOST_WALL * limit_s)
        if line:
            return Answer(*json.loads(line))
        self.end()
        hung = process.returncode in (-signal.SIGVTALRM, -signal.SIGKILL)
        said = f"no end within {limit_s:g} s" if hung else f"the process ended with {process.returncode}"
        if isinstance(given, list):
            from tests.reliability.drawing import draw

            given = draw(*given)
        return Answer(FAILED, said, given)

    def _begin(self) -> subprocess.Popen[str]:
        self.process = subprocess.Popen(self.words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env={**os.environ, **ONE_THREAD, "PYTHONPATH": str(ROOT)},
                                        start_new_session=True)  # Ctrl-C is ours alone: it fails no case
        assert self._line(600.0), "the worker does not begin"  # it may have to compile first
        return self.process

    def _line(self, limit_s: float) -> str:
        """The next line of the worker; empty where it has ended, or none came in time."""
        assert self.process is not None and self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], limit_s)
        return self.process.stdout.readline() if ready else ""

    def end(self) -> None:
        """Ends the process, unless it has ended by itself."""
        if self.process is not None:
            with suppress(subprocess.TimeoutExpired):
                self.process.communicate(timeout=0.5)  # closes what it reads: it ends
            self.process.kill()
            self.process.wait()
            self.process = None


# --- Making a failure smaller -----------------------------------------------------------------------------------------
def smaller(case: Any) -> Iterator[Any]:
    """Cases like this one with something left out, the largest parts first; `kind` and required parts stay."""
    if isinstance(case, list):
        size = len(case) // 2
        while size >= 1:
            for start in range(0, len(case), size):
                yield case[:start] + case[start + size:]
            size //= 2
    if isinstance(case, dict):
        for key in case:
            if key not in ("kind", "id", "policy"):
                yield {name: value for name, value in case.items() if name != key}
        for key, value in case.items():
            if isinstance(value, (list, dict)):
                yield from ({**case, key: less} for less in smaller(value))


def shrink(worker: Worker, case: dict[str, Any], said: str, stopped: Callable[[], bool] = bool) -> dict[str, Any]:
    """A smaller case that fails in the same place, as far as `SHRINK_S` goes, or until it is `stopped`."""
    where = said.partition(": ")[0]
    limit_s = math.inf if said.startswith("no end") else SHRINK_S / 3  # a smaller case can be a longer one
    until, better = time.monotonic() + SHRINK_S, True
    while better:
        better = False
        for less in smaller(case):
            if time.monotonic() > until or stopped():
                return case
            answer = worker.ask(less, limit_s)
            if answer.outcome == FAILED and answer.said.partition(": ")[0] == where:
                case, better = less, True
                break
    return case


# --- The command ------------------------------------------------------------------------------------------------------
@dataclass
class Night:
    """Cases of a seed from number `begin` to `end`, shared by workers: the next number goes to the first that asks."""

    seed: int
    begin: int
    end: int
    counts: Counter[str] = field(default_factory=Counter)
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.next, self.started = self.begin, time.monotonic()
        self.shown, self.lock = self.started, threading.Lock()

    def take(self) -> int | None:
        """The next number; None where there is none, or the command was stopped."""
        with self.lock:
            if self.stop.is_set() or self.next >= self.end:
                return None
            self.next += 1
            return self.next - 1

    def work(self, worker: Worker) -> None:
        """Plays cases until there are no more."""
        while (index := self.take()) is not None:
            answer = worker.ask([self.seed, index])
            self.add(answer.outcome)
            if answer.outcome == FAILED and answer.case is not None:
                print(f"seed {self.seed} number {index}: {answer.said}", flush=True)
                case = shrink(worker, answer.case, answer.said, self.stop.is_set)
                print(json.dumps({"why": f"{self.seed}/{index}: {answer.said}", "case": case}), flush=True)
        worker.end()

    def add(self, outcome: str) -> None:
        """Counts a case, and says once in a while how far it is."""
        with self.lock:
            self.counts[outcome] += 1
            now = time.monotonic()
            if now - self.shown > EVERY_S:
                self.shown = now
                print(f"  {self.text(now)}", file=sys.stderr, flush=True)

    def text(self, now: float) -> str:
        """How far it is."""
        counts = self.counts
        return (f"{counts.total():,} of {self.end - self.begin:,} cases of seed {self.seed} from {self.begin:,} in "
                f"{now - self.started:,.0f} s: {counts[OK]:,} hold, {counts[REFUSED]:,} refused in a sentence, "
                f"{counts[FAILED]} failed")


def run(n: int, seed: int, begin: int, processes: int, limit_s: float) -> int:
    """Plays cases `begin` to `begin + n` of a seed; returns the exit code."""
    night = Night(seed, begin, begin + n)
    before = {sent: signal.getsignal(sent) for sent in (signal.SIGINT, signal.SIGTERM)}

    def stop(*_: Any) -> None:
        night.stop.set()
        for sent, handler in before.items():  # a second one does not wait for the cases that are being played
            signal.signal(sent, handler)

    for sent in before:
        signal.signal(sent, stop)
    with ThreadPoolExecutor(processes) as pool:
        list(pool.map(night.work, [Worker(limit_s) for _ in range(processes)]))
    stop()
    print(f"fuzz: {night.text(time.monotonic())}")
    if night.next < night.end:
        print(f"stopped: go on with begin={night.next} N={night.end - night.next}")
    return 0 if night.counts.total() == n and not night.counts[FAILED] else 1


def main(words: list[str]) -> int:
    """Runs the command; returns its exit code."""
    if words == ["worker"]:
        work()
        return 0
    if len(words) == 1 and words[0].startswith("{"):
        from tests.reliability.playing import play

        given = json.loads(words[0])
        print(play(given.get("case", given)))
        return 0
    known = {"N": 1000, "seed": 0, "begin": 0, "processes": len(os.sched_getaffinity(0)), "limit_s": 300}
    given = {key: value for key, _, value in (word.partition("=") for word in words)}
    if {*given} - {*known} or not all(value.isdigit() for value in given.values()):
        print(__doc__, file=sys.stderr)
        return 2
    values = known | {key: int(value) for key, value in given.items()}
    return run(values["N"], values["seed"], values["begin"], values["processes"], values["limit_s"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
