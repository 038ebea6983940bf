"""A process of its own for what somebody else wrote: no files to write, few to read, no network, limits.

`Child` forks, so that it begins within milliseconds. It has no output but a pipe; its limits are `setrlimit`'s, an
audit hook's, and where the kernel has them Landlock's and a seccomp filter's (SECURITY.md says what each guarantees).
The parent ends it when its time is over, and takes numbers as JSON: nothing of the child's is run.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import resource
import select
import signal
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ooco_gym.errors import UserError

MEMORY = 4 << 30  # bytes beyond those that the process has at its begin
MOST_SAID = 1 << 22  # bytes of an answer
# Landlock's and seccomp's numbers: the first are the same on all architectures.
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
NO_NEW_PRIVILEGES, SECCOMP, FILTER = 38, 22, 2
READ = 0b1101  # execute, read a file, list a folder
# By architecture: audit's number, clone, clone3, and calls that a rule has no business with: sockets, exec and fork,
# ptrace, kill, mount, namespaces, other processes' memory, shared memory and queues, BPF, io_uring, keys, userfaultfd.
CALLS: dict[str, tuple[int, int, int, tuple[int, ...]]] = {
    "x86_64": (0xC000003E, 56, 435, (
        29, 30, 31, 41, 42, 43, 44, 46, 49, 50, 53, 57, 58, 59, 62, 64, 65, 66, 68, 69, 70, 71, 101, 129, 155, 161, 165,
        166, 200, 220, 234, 240, 246, 248, 249, 250, 272, 288, 297, 298, 308, 310,
        311, 321, 322, 323, 424, 425, 426, 427, 434, 438)),
    "aarch64": (0xC00000B7, 220, 435, (
        39, 40, 41, 51, 97, 104, 117, 129, 130, 131, 138, 180, *range(186, 204), 206, 211, 217, 218, 219, 221,
        240, 241, 242, 268, 270, 271, 280, 281, 282, 294, 424, 425, 426, 427, 434, 438))}
CLONE_THREAD = 0x10000
REFUSED = ("socket.", "subprocess.", "shutil.", "signal.", "fcntl.", "ftplib.", "http.", "winreg.", "pty.",
           "os.system", "os.exec", "os.fork", "os.spawn", "os.posix_spawn", "os.kill", "os.putenv", "os.unsetenv",
           "os.chmod", "os.chown", "os.link", "os.symlink", "os.mkdir", "os.remove", "os.rename", "os.rmdir",
           "os.truncate", "os.utime", "sys.addaudithook", "sys.settrace", "sys.setprofile",
           "gc.get_objects", "gc.get_referrers", "gc.get_referents", "tempfile.", "webbrowser.", "mmap.")


class Limits(NamedTuple):
    """What a child may use: wall and processor time in seconds, and bytes of memory beyond its begin."""

    wall_s: float
    cpu_s: float
    memory: int = MEMORY


class Lock:
    """What the child locks itself with, once it has all that it needs."""

    def __init__(self, limits: Limits) -> None:
        self._limits, self.names = limits, ["process", "limits", "audit hook"]

    def close(self, writes: Path | None = None) -> list[str]:
        """Locks for good; a second call locks further. `writes`: the only folder that may still be written.

        Returns:
            The names of what holds.
        """
        for name, how in (("landlock", lambda: _landlock(writes)), ("seccomp", _seccomp)):
            if how() and name not in self.names:
                self.names.append(name)
        if writes is None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
            sys.addaudithook(_refuse)
        return self.names


def _refuse(event: str, arguments: Any) -> None:
    """The audit hook of the closed child."""
    writes = event == "open" and (not isinstance(arguments[0], str | bytes) or (arguments[2] or 0) & (
        os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND))
    if writes or event.startswith(REFUSED):
        raise PermissionError(f"a rule may not do this: {event}")


def _readable() -> list[str]:
    """Folders that Python, its libraries and this package are read from, and what they ask of the system."""
    ours = Path(__file__).resolve().parents[2]
    found = {sys.prefix, sys.base_prefix, *(one for one in sys.path if one), "/usr", "/lib", "/lib64",
             "/etc/ld.so.cache", "/proc/self", "/sys/devices/system/cpu", "/dev/null", "/dev/urandom"}
    found -= {os.getcwd()}
    return [*found, *(str(ours / one) for one in ("ooco_gym", "agents", "baselines", "conf", "experiments"))]


def _landlock(writes: Path | None) -> bool:
    """Lets the process read `_readable` and write `writes` alone; whether the kernel has Landlock."""
    if platform.system() != "Linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(CREATE_RULESET, None, 0, 1)
    if version < 1:
        return False
    rights = (1 << {1: 13, 2: 14}.get(version, 15 if version < 5 else 16)) - 1
    words = (rights, 3, 3)[: 1 if version < 4 else 2 if version < 6 else 3]  # files, TCP, other processes
    attributes = struct.pack(f"{len(words)}Q", *words)
    ruleset = libc.syscall(CREATE_RULESET, attributes, len(attributes), 0)
    for path, allowed in [*((one, READ) for one in _readable()), *([(str(writes), rights)] if writes else [])]:
        try:
            opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        allowed &= rights if os.path.isdir(path) else 0b101  # of a file: execute and read
        libc.syscall(ADD_RULE, ruleset, 1, struct.pack("=Qi", allowed, opened), 0)
        os.close(opened)
    libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    held = libc.syscall(RESTRICT_SELF, ruleset, 0) == 0
    os.close(ruleset)
    return held


def _seccomp() -> bool:
    """Refuses the system calls of `CALLS`, and processes (threads may begin); whether the kernel does."""
    known = CALLS.get(platform.machine())
    if platform.system() != "Linux" or known is None:
        return False
    machine, clone, clone3, calls = known
    refuse, missing, allow = 0x00050001, 0x00050026, 0x7FFF0000  # EPERM, ENOSYS, and on
    load, equal, least, test, give = 0x20, 0x15, 0x35, 0x45, 0x06
    lines = [(load, 0, 0, 4), (equal, 1, 0, machine), (give, 0, 0, 0x80000000), (load, 0, 0, 0),
             (least, 0, 1, 0x40000000), (give, 0, 0, refuse), (equal, 0, 1, clone3), (give, 0, 0, missing)]
    for call in calls:
        lines += [(equal, 0, 1, call), (give, 0, 0, refuse)]
    lines += [(equal, 0, 3, clone), (load, 0, 0, 16), (test, 1, 0, CLONE_THREAD), (give, 0, 0, refuse),
              (give, 0, 0, allow)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in lines))
    program = struct.pack("@HP", len(lines), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    return libc.prctl(SECCOMP, FILTER, program, 0, 0) == 0


class Child:
    """A confined process and its pipe: lines of JSON both ways.

    Args:
        work: function of (receive, send, lock) that runs in the child; its return value is sent last.
        limits: of the child.
    """

    def __init__(self, work: Callable[..., Any], limits: Limits) -> None:
        self._rest, self._status, self.limits = b"", 0, limits
        self.give(limits.wall_s)
        ask_out, ask_in = os.pipe()
        tell_out, tell_in = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _live(work, limits, ask_out, tell_in)
        os.close(ask_out)
        os.close(tell_in)
        self._in, self._out = ask_in, tell_out

    def give(self, seconds: float) -> None:
        """Gives the child this time from now on."""
        self._until, self._wall_s = time.monotonic() + seconds, seconds

    def send(self, value: Any) -> None:
        with suppress(BrokenPipeError):  # `receive` says why
            _write(self._in, value)

    def receive(self) -> Any:
        """The child's next word.

        Raises:
            UserError: it ended, or its time did.
        """
        while b"\n" not in self._rest:
            left = self._until - time.monotonic()
            ready = left > 0 and select.select([self._out], [], [], left)[0]
            if not ready:
                self.end()
                raise UserError(f"the rule did not end within {self._wall_s:g} s")
            data = os.read(self._out, 1 << 16)
            if not data or len(self._rest) > MOST_SAID:
                raise UserError(_why(self.end(), self.limits))
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        try:
            return json.loads(line)
        except ValueError:
            self.end()
            raise UserError("the rule's process said what is no JSON") from None

    def end(self) -> int:
        """Ends the child; returns how it ended, as `os.waitpid` says."""
        if self.pid:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            self._status, self.pid = os.waitpid(self.pid, 0)[1], 0
            os.close(self._in)
            os.close(self._out)
        return self._status


def _why(status: int, limits: Limits) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number in (signal.SIGXCPU, signal.SIGKILL):
            return f"the rule took more than {limits.cpu_s:g} s of processor time, or more memory than there is"
        return f"the rule's process was ended by {signal.Signals(number).name}: it reads or writes what is not there"
    return "the rule ended its process before it had an answer"


def _live(work: Callable[..., Any], limits: Limits, ask: int, tell: int) -> None:
    """The life of the child; does not return."""
    code = 1
    try:
        os.setsid()
        quiet = os.open(os.devnull, os.O_RDWR)
        for one in range(3):
            os.dup2(quiet, one)
        for one in (signal.SIGINT, signal.SIGTERM, signal.SIGXCPU, signal.SIGALRM):
            signal.signal(one, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        used, cpu = _size(), time.process_time() + limits.cpu_s
        for what, least in ((resource.RLIMIT_CPU, int(cpu) + 1), (resource.RLIMIT_AS, used + limits.memory),
                            (resource.RLIMIT_CORE, 0), (resource.RLIMIT_NOFILE, 128)):
            resource.setrlimit(what, (least, least))
        lines = os.fdopen(ask, "rb")

        try:
            said = {"done": work(lambda: json.loads(lines.readline()), lambda value: _write(tell, value), Lock(limits))}
        except UserError as error:
            said = {"foul": str(error)}
        except MemoryError:
            said = {"foul": f"the rule needs more than {limits.memory >> 30} GiB of memory"}
        except BaseException as error:
            said = {"foul": f"the rule fails: {type(error).__name__}: {' '.join(str(error).split())[:300]}"}
        _write(tell, said)
        code = 0
    finally:
        os._exit(code)


def _write(pipe: int, value: Any) -> None:
    data = json.dumps(value, allow_nan=False).encode() + b"\n"
    while data:
        data = data[os.write(pipe, data):]


def _size() -> int:
    """Bytes of address space of this process."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 1 << 33
