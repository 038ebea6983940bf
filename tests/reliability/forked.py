"""A command in a fork of this process, which has imported what it needs: a kill costs its work, not its loading.

Apart: it stands in for `subprocess.Popen` where commands are begun by the hundred.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing.util
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

IMPORTED = "imported.json"  # in the folder for temporary files: modules that a command has imported


class Forked:
    """What is used of `subprocess.Popen`: a command in a session of its own, whose errors are read at its end.

    Args:
        words: of the command line.
        cwd: the folder that it runs in.
        env: its environment.
        stdin: a descriptor.
        told: whether it writes down at its end which modules it has imported.
    """

    def __init__(self, words: Sequence[str], cwd: Path, env: Mapping[str, str], stdin: int, told: bool = False) -> None:
        self.returncode: int | None = None
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed where it is read)
        self.pid = os.fork()
        if not self.pid:
            try:
                self._become(words, cwd, env, stdin, told)
            finally:  # whatever happens, this process never goes on as the one that it was
                os._exit(99)

    def _become(self, words: Sequence[str], cwd: Path, env: Mapping[str, str], stdin: int, told: bool) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.setsid()
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(env)
        tempfile.tempdir = None
        for source, goal in ((stdin, 0), (os.open(os.devnull, os.O_WRONLY), 1), (self._said.fileno(), 2)):
            os.dup2(source, goal)
        sys.argv = ["ooco-gym", *words]
        from ooco_gym.cli import main

        signal.signal(signal.SIGINT, signal.default_int_handler)
        code = main(list(words))
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # as `main` does where the words are those of the process
        threading._shutdown()  # type: ignore[attr-defined]  # as Python ends, but for what this process has to tidy up
        multiprocessing.util._exit_function()  # type: ignore[attr-defined]
        if told:
            Path(tempfile.gettempdir(), IMPORTED).write_text(json.dumps(sorted(sys.modules)))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Waits for the end; returns nothing, and what was said.

        Raises:
            subprocess.TimeoutExpired: it runs on.
        """
        until = time.monotonic() + timeout
        while self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > until:
                raise subprocess.TimeoutExpired("ooco-gym", timeout)
            else:
                time.sleep(0.005)
        self._said.seek(0)
        with self._said:
            return "", self._said.read()

    def send_signal(self, number: int) -> None:
        """Sends a signal."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)


def import_what(folder: Path) -> None:
    """Imports here what a command has imported, as it told in a folder."""
    for name in json.loads((folder / IMPORTED).read_text()):
        with suppress(Exception):  # made by a command, or only there in its own process
            importlib.import_module(name)
    (folder / IMPORTED).unlink()


def begin(words: Sequence[str], **arguments: Any) -> Forked:
    """Begins a command in a fork."""
    stdin = arguments.pop("stdin")
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        return Forked(words, stdin=nothing if stdin == subprocess.DEVNULL else stdin, **arguments)
    finally:
        os.close(nothing)
