"""Which signals worker processes hear. Apart: they are those of every package's pools."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ooco_gym import jobs
from ooco_gym.cli.main import tidy_end
from ooco_gym.errors import Terminated
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


def hear(begun: threading.Event, sender: threading.Thread, done: list[int]) -> None:
    """Lets a thread send its signal in a block in which none is heard."""
    with tidy_end(), jobs._unheard():
        begun.set()
        sender.join()
        done += range(10_000)


def test_a_signal_to_another_thread_waits_until_a_process_has_begun() -> None:
    """Else it would be raised in between, and the process that begins is never ended."""
    for number, raised in ((signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)):
        before, begun, done = signal.signal(signal.SIGINT, signal.default_int_handler), threading.Event(), []

        def send(number: int = number, begun: threading.Event = begun) -> None:
            begun.wait()
            signal.pthread_kill(threading.get_ident(), number)

        sender = threading.Thread(target=send)
        sender.start()
        try:
            with pytest.raises(raised):
                hear(begun, sender, done)
        finally:
            signal.signal(signal.SIGINT, before)
        assert done


def test_ctrl_c_among_imports_says_nothing(tmp_path: Path) -> None:
    """The command line has not begun to listen then."""
    (tmp_path / "gymnasium.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[1])])
    ended = subprocess.run([sys.executable, "-m", "ooco_gym"], env={**os.environ, "PYTHONPATH": path}, text=True,
                           capture_output=True, timeout=60, check=False)
    assert ended.returncode == -signal.SIGINT and not ended.stderr, ended.stderr
