"""Which signals worker processes hear. Apart: they are those of every package's pools."""

from __future__ import annotations

import os
import signal

import pytest

from ooco_gym.jobs import SPAWN, pool


def blocked() -> bool:
    """Whether this thread hears no Ctrl-C."""
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def heard(queue: object) -> None:
    queue.put(blocked())  # type: ignore[attr-defined]


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="no POSIX")
def test_a_process_that_begins_hears_no_ctrl_c_and_this_one_does() -> None:
    queue = SPAWN.Queue()
    process = SPAWN.Process(target=heard, args=(queue,))
    process.start()
    assert queue.get(timeout=120) and not blocked()
    process.join()


def interrupted(number: int) -> str:
    """What Ctrl-C is in a worker."""
    os.kill(os.getpid(), number)
    return "blocked" if blocked() else "ignored"


@pytest.mark.parametrize("preload", [(), ("ooco_gym.errors",)])
def test_a_worker_ignores_ctrl_c(preload: tuple[str, ...]) -> None:
    with pool(1, preload) as workers:
        assert workers.submit(interrupted, signal.SIGINT).result() == "ignored"
