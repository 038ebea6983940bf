"""`python -m tests.reliability.surroundings [only=full_disk,…] [commands=simulate,train,…] [page=docs/reliability.md]`.

Commands where something around them is not as usual: a full disk, a home that cannot be written, none, another user,
an ASCII locale, odd paths, two first starts at once, processes begun by fork or spawn. What a command promises there
is in `TRIALS`; the undisturbed bytes are those of `kills`. Root is needed for file systems and other users: without it
these trials are left out, and said to be. One line a trial and command; the exit code is 1 where any failed.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.reliability.begun import COMMANDS, LIMIT_S, Bench, undisturbed
from tests.reliability.page import write_rows

HEAD = ("where", "what is promised", "commands", "starts", "held", "did not")
ANOTHER = 54_321  # a user that no file knows
USUAL = ("simulate", "compare", "train", "import", "sweep")
FULL_KIB = (4, 64, 512)  # sizes of a disk on which results of these commands do not fit, or just so
ODD = "a b é 漢 'q' [x]=1,2 $HOME"


@dataclass(frozen=True)
class Trial:
    """One thing that is not as usual.

    Attributes:
        where: what it is.
        promise: what is promised there.
        play: (bench, undisturbed contents) → what went wrong, one text for each start; empty where it held.
        root: whether it takes the rights of root.
        once: whether one command stands for all.
    """

    where: str
    promise: str
    play: Callable[[Bench, dict[str, str]], list[str]]
    root: bool = False
    once: bool = False


def ended(bench: Bench, **surroundings: Any) -> tuple[int | None, str]:
    """The exit code of one start and what it said; None where it came to no end."""
    process = bench.begin(**surroundings)
    try:
        _, said = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return None, f"no end within {LIMIT_S:g} s"
    return process.returncode, said


def started(bench: Bench, expected: dict[str, str] | None, **surroundings: Any) -> str:
    """One start; what is wrong with its end: a traceback, another exit code than 0, or other contents."""
    code, said = ended(bench, **surroundings)
    if "Traceback" in said or code != 0:
        return said if code is None else f"exit code {code}: {said.strip()[-300:]}"
    return different(bench, expected) if expected is not None else ""


def different(bench: Bench, expected: dict[str, str]) -> str:
    """Where the contents are not the undisturbed ones."""
    found = bench.contents()
    wrong = sorted(key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key))
    return f"differs: {', '.join(wrong[:6])}" if wrong else ""


# --- Disks ------------------------------------------------------------------------------------------------------------
def full_disk(bench: Bench, expected: dict[str, str]) -> list[str]:
    """The results, and another time the caches, are on a disk that is too small; then it has room."""
    found = []
    for size in FULL_KIB:
        bench.empty()
        bench.out.mkdir()
        with mounted(bench.out, f"size={size}k"):
            said = refused(bench)
            subprocess.run(["mount", "-o", "remount,size=1g", str(bench.out)], check=True)
            found.append(said or started(bench, expected, again=True))
    bench.empty()
    (bench.folder / "cache").mkdir()
    with mounted(bench.folder / "cache", "size=4k"):
        found.append(started(bench, expected))
    return found


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    """A file system in memory at a folder, while the body runs."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "ooco-gym-trial", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def refused(bench: Bench) -> str:
    """A start on a full disk ends in one sentence and exit code 2, or well where all fits; what went wrong."""
    code, said = ended(bench)
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    well = code == 0 or (code == 2 and len(errors) == 1)
    if well and "Traceback" not in said:
        return ""
    return said if code is None else f"exit code {code}: {said.strip()[-400:]}"


# --- Users ------------------------------------------------------------------------------------------------------------
def another_user(bench: Bench, expected: dict[str, str], **home: Any) -> list[str]:
    """A user without an entry, who may write to the run folder and nowhere else; not played where this Python lies in
    a folder that other users cannot enter."""
    try:
        subprocess.run([sys.executable, "-c", ""], user=ANOTHER, check=True)
    except PermissionError:
        print(f"another user cannot run {sys.executable}: left out", flush=True)
        return []
    bench.empty()
    os.chmod(bench.folder, 0o755)
    bench.out.mkdir()
    os.chown(bench.out, ANOTHER, ANOTHER)
    nothing: dict[str, Any] = {"OOCO_GYM_CACHE": None, "XDG_STATE_HOME": None, "XDG_CACHE_HOME": None}
    return [started(bench, expected, user=ANOTHER, group=ANOTHER, extra_groups=[], **nothing, **home)]


def no_home(bench: Bench, expected: dict[str, str]) -> list[str]:
    return another_user(bench, expected, HOME=None)


def home_is_root(bench: Bench, expected: dict[str, str]) -> list[str]:
    return another_user(bench, expected, HOME="/")


def read_only_home(bench: Bench, expected: dict[str, str]) -> list[str]:
    home = bench.folder / "home"
    bench.empty()
    home.mkdir()
    with mounted(home, "ro"):
        nothing: dict[str, Any] = {"OOCO_GYM_CACHE": None, "XDG_STATE_HOME": None, "XDG_CACHE_HOME": None}
        return [started(bench, expected, HOME=str(home), **nothing)]


# --- Names and locales ------------------------------------------------------------------------------------------------
def locale_c(bench: Bench, expected: dict[str, str]) -> list[str]:
    found = []
    strict: dict[str, Any] = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}  # ASCII, as Python 3.6 had it
    for more in ({}, strict):
        bench.empty()
        found.append(started(bench, expected, LC_ALL="C", LANG="C", **more))
    return found


def odd_paths(bench: Bench, expected: dict[str, str]) -> list[str]:
    folder = bench.folder / ODD
    folder.mkdir(parents=True, exist_ok=True)
    odd = Bench(bench.name, folder, bench.differs)
    odd.empty()
    return [started(odd, expected)]


# --- Processes --------------------------------------------------------------------------------------------------------
def cold_starts(bench: Bench, expected: dict[str, str]) -> list[str]:
    """Two processes that compile at once, into one empty folder."""
    bench.empty()
    other = Bench(bench.name, bench.folder / "other", bench.differs)
    other.folder.mkdir()
    other.empty()
    kept: dict[str, Any] = {"NUMBA_CACHE_DIR": str(bench.folder / "numba")}
    processes = [one.begin(**kept) for one in (bench, other)]
    said = [one.finish(process) for one, process in zip((bench, other), processes, strict=True)]
    return [text or different(one, expected) for text, one in zip(said, (bench, other), strict=True)]


def played(seed: int) -> list[float]:
    """Rewards of an episode."""
    import gymnasium as gym

    import ooco_gym  # noqa: F401

    env: Any = gym.make("ooco_gym/Control-v0", window_s=20.0, warmup_s=5.0)
    env.reset(seed=seed)
    found, done = [], False
    while not done:
        _, reward, _, done, _ = env.step(env.unwrapped.partner_action())
        found.append(float(reward))
    return found


def fork_and_spawn(bench: Bench, expected: dict[str, str]) -> list[str]:
    """An episode in processes that were begun in each way gives the rewards that it has here, after it was played."""
    here, found = played(3), []
    for method in multiprocessing.get_all_start_methods():
        with multiprocessing.get_context(method).Pool(2) as pool:
            there = pool.map_async(played, [3, 3]).get(timeout=LIMIT_S)
        found += ["" if one == here else f"{method}: other rewards" for one in there]
    return found


TRIALS = {
    "full_disk": Trial("full disk", "one sentence, exit code 2; with room the same command leaves the undisturbed "
                       "bytes (a training by `resume=`); a cache on it costs time alone", full_disk, root=True),
    "read_only_home": Trial("home that cannot be written", "the undisturbed bytes", read_only_home, root=True),
    "no_home": Trial("user without an entry and a home, who may write to `out` alone", "the undisturbed bytes", no_home,
                     root=True),
    "home_is_root": Trial("the same with `HOME=/`, as in containers", "the undisturbed bytes", home_is_root, root=True),
    "locale": Trial("`LC_ALL=C`, and strictly ASCII", "the undisturbed bytes", locale_c),
    "paths": Trial("blanks, quotes, brackets and other scripts in paths", "the undisturbed bytes", odd_paths),
    "cold_starts": Trial("two first starts at once", "both leave the undisturbed bytes", cold_starts, once=True),
    "fork_and_spawn": Trial("environments in processes by fork, spawn and forkserver", "the same rewards",
                            fork_and_spawn, once=True),
}


def run(name: str, commands: list[str], benches: dict[str, tuple[Bench, dict[str, str]]], page: str) -> bool:
    """A trial of each command; whether all held."""
    trial, starts, wrong = TRIALS[name], 0, 0
    if trial.root and os.geteuid() != 0:
        print(f"{name}: left out, it takes the rights of root", flush=True)
        return True
    commands = commands[:1] if trial.once else commands
    for command in commands:
        begun = time.monotonic()
        said = trial.play(*benches[command])
        starts, wrong = starts + len(said), wrong + sum(map(bool, said))
        print(f"{name}, {command}: {len(said) - sum(map(bool, said))} of {len(said)} held in "
              f"{time.monotonic() - begun:.0f} s{''.join(f'; {one}' for one in said if one)}", flush=True)
    if page and starts:
        shown = "–" if name == "fork_and_spawn" else ", ".join(f"`{COMMANDS[one].shown}`" for one in commands)
        write_rows("surroundings", HEAD, [[trial.where, trial.promise, shown, str(starts), str(starts - wrong),
                                           str(wrong)]], page)
    return not wrong


def main(words: list[str]) -> int:
    """Runs the command; returns its exit code."""
    known = {"only": ",".join(TRIALS), "commands": ",".join(USUAL), "page": ""}
    given = {key: value for key, _, value in (word.partition("=") for word in words)}
    values = known | given
    only, commands = values["only"].split(","), values["commands"].split(",")
    if {*given} - {*known} or {*only} - {*TRIALS} or {*commands} - {*COMMANDS}:
        print(f"{__doc__}\ntrials: {', '.join(TRIALS)}\ncommands: {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="ooco-gym-surroundings-") as folder:
        os.chmod(folder, 0o755)
        benches: dict[str, tuple[Bench, dict[str, str]]] = {}
        for command in commands if {*only} - {"fork_and_spawn"} else commands[:1]:
            bench = Bench(command, Path(folder) / command)
            bench.folder.mkdir()
            benches[command] = bench, undisturbed(bench)[0] if {*only} - {"fork_and_spawn"} else {}
        held = [run(name, commands, benches, values["page"]) for name in only]
        return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
