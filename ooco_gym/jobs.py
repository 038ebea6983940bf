"""Work in processes of their own: every pool of worker processes begins and ends here.

Workers begin afresh: a fork would copy the locks of other threads in whatever state they are. Their warnings look as
those of the command line, and they end with the process that asked, however that went.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.context as contexts
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import Any, TypeVar

from ooco_gym import own_code
from ooco_gym.errors import UserError, ended_itself
from ooco_gym.report.terminal import plain_warnings

Item = TypeVar("Item")
Result = TypeVar("Result")


@contextmanager
def _unheard() -> Iterator[None]:
    """Keeps Ctrl-C from processes that begin in this block until `_begin` ignores it there: among their imports it
    would be a traceback each. This process hears one that comes meanwhile, or SIGTERM, at the block's end, to whichever
    of its threads it came: a process that it does not know yet, it could not end."""
    if not hasattr(signal, "pthread_sigmask"):  # no POSIX
        yield
        return
    resource_tracker.ensure_running()  # it sets the mask by itself where it has to begin
    heard: list[int] = []
    handlers = {number: signal.signal(number, lambda number, frame: heard.append(number))
                for number in (signal.SIGINT, signal.SIGTERM)
                if threading.current_thread() is threading.main_thread() and signal.getsignal(number) is not None}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in heard[:1]:
            signal.raise_signal(number)


class _Unheard:
    """A process that begins so."""

    def start(self) -> None:
        with _unheard():
            super().start()  # type: ignore[misc]


class _Spawn(contexts.SpawnContext):
    class Process(_Unheard, contexts.SpawnProcess):
        pass


class _ForkServer(contexts.ForkServerContext):
    class Process(_Unheard, contexts.ForkServerProcess):
        pass


SPAWN = _Spawn()


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_worker() -> bool:
    """Whether this process is a worker of another one."""
    return multiprocessing.parent_process() is not None


def threads() -> int:
    """Threads that this process may have at work: one for each of its cores; fewer where OMP_NUM_THREADS says so, as
    joblib and Ray set it for their workers. A worker for which it is not set shares the cores with the others: one."""
    said = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if said.isdecimal() and int(said) > 0:
        return min(int(said), cores())
    return 1 if is_worker() else cores()


def pool(workers: int, preload: Sequence[str] = (), begin: Callable[..., None] | None = None,
         arguments: tuple[Any, ...] = ()) -> ProcessPoolExecutor:
    """A pool of at most so many worker processes, to be shut down by the caller (`processes` does it by itself). They
    begin with the first work; all import `preload`, where the system can once for all of them, and call `begin` with
    `arguments`."""
    kind: Any = SPAWN
    if preload and "forkserver" in multiprocessing.get_all_start_methods():
        kind = _ForkServer()
        kind.set_forkserver_preload(list(preload))
    return _Pool(workers, mp_context=kind, initializer=_begin,
                 initargs=(begin, arguments, os.environ.get(own_code.NAMED)))


class _Pool(ProcessPoolExecutor):
    """One in which what ends a worker is an error of its work, and does not end whoever waits for it as well."""

    def submit(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Future[Result]:
        return super().submit(_called, fn, *args, **kwargs)


def _called(function: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
    try:
        return function(*args, **kwargs)
    except SystemExit as error:
        raise UserError(ended_itself(error)) from error


@contextmanager
def processes(workers: int, begin: Callable[..., None] | None = None,
              arguments: tuple[Any, ...] = ()) -> Iterator[ProcessPoolExecutor]:
    """A pool for the length of a block; where the block fails, what has not begun is dropped, and where it is
    interrupted, what has begun ends too."""
    executor = pool(workers, (), begin, arguments)
    try:
        yield executor
    except BaseException as error:
        drop(executor, ends=not isinstance(error, Exception))
        raise
    executor.shutdown()


def drop(executor: ProcessPoolExecutor, ends: bool) -> None:
    """Drops what has not begun, and where all `ends`, every worker before: one that begins, which the pool does not
    know yet, would miss what goes with it."""
    for worker in multiprocessing.active_children() if ends else ():
        worker.terminate()
    executor.shutdown(wait=False, cancel_futures=True)


def in_processes(function: Callable[[Item], Result], items: Iterable[Item], workers: int) -> Iterator[Result]:
    """Results of a function (of a module's top level, or a `functools.partial` of one) on each item, in order; computed
    in this process where one worker is enough."""
    items = list(items)
    if min(workers, len(items)) <= 1:
        yield from map(function, items)
        return
    with processes(min(workers, len(items))) as executor:
        # Not by `map`: it cancels what is left by itself, which a pool whose workers have ended takes for a mistake.
        for future in [executor.submit(function, item) for item in items]:
            yield future.result()


def _begin(begin: Callable[..., None] | None, arguments: tuple[Any, ...], named: str | None) -> None:
    plain_warnings()
    own_code.tell(named)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all: the process that asked ends its workers
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # for what catches it, such as a training
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    if begin is not None:
        begin(*arguments)


def _end_with_the_parent() -> None:
    """Ends this worker when the process that asked is gone: an orphan would wait for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
