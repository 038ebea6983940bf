"""Entry of the command line: command, flags, and the end of the process."""

from __future__ import annotations

import argparse
import gc
import io
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from typing import Any, NoReturn

from ooco_gym.cli.commands import EXAMPLE, Command, commands, find, names
from ooco_gym.errors import Terminated, UserError, ended_itself
from ooco_gym.files import FULL, full_disk
from ooco_gym.own_code import named_in
from ooco_gym.report.terminal import notes

MISTAKE, INTERRUPTED, TERMINATED = 2, 130, 143
USAGE = "ooco-gym COMMAND [key=value …] [-m] [--cfg job] [--help]"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; usage: {USAGE}")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line (default: this process's); returns the exit code.

    It is 0, 1 after a bug, 2 after a mistake, 130 after Ctrl-C, 143 after SIGTERM.
    """
    gc.set_threshold(10_000)  # collecting imported objects would take a tenth of a start
    with _quiet_pipes():
        return _main(list(sys.argv[1:] if argv is None else argv))


def _main(words: list[str]) -> int:
    try:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.default_int_handler)  # restores the handler from before the imports
        with notes(), tidy_end():
            return _dispatch(words)
    except UserError as error:
        sys.stdout.flush()
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return MISTAKE
    except SystemExit as error:
        print(f"error: {ended_itself(error)}", file=sys.stderr)
        return MISTAKE
    except OSError as error:
        if error.errno not in FULL:
            raise
        print(f"error: {full_disk(error)}", file=sys.stderr)
        return MISTAKE
    except Terminated:
        print("terminated", file=sys.stderr)
        return TERMINATED
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return INTERRUPTED


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        _print_commands()
        return 0
    if words[0] == "--version":
        print(f"ooco-gym {metadata.version('ooco-gym')}")
        return 0
    name, *rest = words
    try:
        os.getcwd()
    except OSError:
        raise UserError("the working directory has been deleted; change to one that exists (cd)") from None
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--cfg", "-c", choices=("job",))
    options = parser.parse_intermixed_args(rest)
    command = find(name)
    if options.help:
        _print_help(command)
        return 0
    with named_in(rest):
        return _run(command, options)


def _run(command: Command, options: argparse.Namespace) -> int:
    from ooco_gym.cli import config, run  # Hydra is slow to import

    multirun = options.multirun or "hydra.mode=MULTIRUN" in options.overrides
    request = config.read(command, options.overrides, multirun)
    if options.cfg:
        run.show(command, request)
        return 0
    return run.run(command, request, multirun)


# --- Help ----------------------------------------------------------------------------------------------------------
def _print_commands() -> None:
    print(f"usage: {USAGE}\n")
    for name in commands():
        try:
            said = find(name).description
        except UserError as error:
            said = f"({error})"
        print(f"{name:12}{said}")
    print("\nooco-gym COMMAND --help lists the keys of a command; out=DIR says where its results go, code=FILE.py\n"
          "which Python a file that is read back may name (SECURITY.md).")


def _print_help(command: Command) -> None:
    """Prints a command's examples, its documented keys, and the choices of its groups."""
    words = "".join(f"[{key.upper()}] " for key in command.positional)
    lines = command.config.read_text(encoding="utf-8").splitlines()[1:]
    print(f"usage: ooco-gym {command.name} {words}[key=value …] [-m] [--cfg job]\n\n{command.description}.\n")
    if command.examples:
        print("Examples:\n\n" + "\n".join(f"  {line}" for line in command.examples) + "\n")
    print(f"Keys and their defaults ({command.config.name}):\n")
    print("\n".join(f"  {line}".rstrip() for line in lines if not line.startswith(EXAMPLE)))
    if command.groups:
        print("\nChoices, each also the path of a YAML file; GROUP.key=value changes one of its keys:\n")
    for group in command.groups:
        print(f"  {group}: {', '.join(names(command.roots, group))}")
    if mine := command.presets():
        print("\nPresets, many keys at once, any of which may be given besides:\n")
        print("\n".join(f"  +preset={name}: {said}" for name, said in mine.items()))
    print(f"\nA sweep: ooco-gym {command.name} -m key=a,b [hydra/launcher=joblib|ray|submitit_local]")


# --- Closed pipes and signals ---------------------------------------------------------------------------------------
class _Outlet:
    """A text stream that drops output once its reader is gone (`ooco-gym perf | head`)."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            self._stream.write(text)
            self._stream.flush()
        except BrokenPipeError:  # drops buffered and later output
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())
        return len(text)


@contextmanager
def _quiet_pipes() -> Iterator[None]:
    """Tolerates a reader of stdout or stderr that closes the pipe early."""
    before = sys.stdout, sys.stderr
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as for stderr: unprintable characters are no failure
    sys.stdout, sys.stderr = (stream and _Outlet(stream) for stream in before)  # pyright: ignore
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


@contextmanager
def tidy_end() -> Iterator[None]:
    """Raises `Terminated` on SIGTERM within the body, so that temporary files are removed.

    After SIGTERM and Ctrl-C worker processes end at once; Python would wait for them. Outside of
    the main thread nothing is changed, because only it handles signals.
    """
    def end_workers() -> None:
        for worker in multiprocessing.active_children():
            worker.terminate()

    def terminate(number: int, frame: Any) -> None:
        signal.signal(number, signal.SIG_IGN)  # a second one would interrupt the cleanup
        end_workers()
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except KeyboardInterrupt:
        end_workers()
        raise
    finally:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)
