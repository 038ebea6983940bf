"""Worker processes: every pool of them starts and ends here.

Workers are spawned, as a fork would copy other threads' locks in any state. They format warnings as
the command line does, and end with their parent process, however that ends.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.context as contexts
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import Any, TypeVar

from ooco_gym import own_code
from ooco_gym.errors import UserError, ended_itself
from ooco_gym.report.terminal import plain_warnings

Result = TypeVar("Result")


@contextmanager
def _unheard() -> Iterator[None]:
    """Keeps Ctrl-C from processes started in this block until `_begin` ignores it there, as it
    would print a traceback during their imports. If Ctrl-C or SIGTERM comes meanwhile, this process
    handles it at the block's end, in any thread: it could not end a process that it does not know
    yet."""
    if not hasattr(signal, "pthread_sigmask"):  # not POSIX
        yield
        return
    resource_tracker.ensure_running()  # it sets the mask itself when it starts
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
    """A process that starts under `_unheard`."""

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
    """Number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_worker() -> bool:
    """Whether this process is a worker of another one."""
    return multiprocessing.parent_process() is not None


def threads() -> int:
    """Number of threads that this process may use: its cores, or fewer if OMP_NUM_THREADS is set,
    as joblib and Ray do for their workers. A worker without it shares the cores with others and
    uses one."""
    said = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if said.isdecimal() and int(said) > 0:
        return min(int(said), cores())
    return 1 if is_worker() else cores()


def pool(workers: int, preload: Sequence[str] = (), begin: Callable[..., None] | None = None,
         arguments: tuple[Any, ...] = ()) -> ProcessPoolExecutor:
    """Returns a pool of at most `workers` processes, which the caller shuts down (`processes` does
    so itself). They start with the first work. All import `preload`, once for all of them if the
    system can, and call `begin` with `arguments`."""
    kind: Any = SPAWN
    if preload and "forkserver" in multiprocessing.get_all_start_methods():
        kind = _ForkServer()
        kind.set_forkserver_preload(list(preload))
    return _Pool(workers, mp_context=kind, initializer=_begin,
                 initargs=(begin, arguments, os.environ.get(own_code.NAMED)))


class _Pool(ProcessPoolExecutor):
    """A pool in which code that ends a worker is an error of its work, and does not end the caller."""

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
    """A pool for the length of a block. If the block fails, pending work is dropped; if it is
    interrupted, running work ends too."""
    executor = pool(workers, (), begin, arguments)
    try:
        yield executor
    except BaseException as error:
        drop(executor, ends=not isinstance(error, Exception))
        raise
    executor.shutdown()


def drop(executor: ProcessPoolExecutor, ends: bool) -> None:
    """Drops pending work. With `ends` it first terminates all workers, including starting ones that
    the pool does not know yet."""
    for worker in multiprocessing.active_children() if ends else ():
        worker.terminate()
    executor.shutdown(wait=False, cancel_futures=True)


def _begin(begin: Callable[..., None] | None, arguments: tuple[Any, ...], named: str | None) -> None:
    plain_warnings()
    own_code.tell(named)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent ends its workers
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # for code that catches it, such as a training
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    if begin is not None:
        begin(*arguments)


def _end_with_the_parent() -> None:
    """Ends this worker when its parent process is gone, as an orphan would wait forever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
