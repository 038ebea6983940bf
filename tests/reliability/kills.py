"""`python -m tests.reliability.kills [N=50] [only=simulate,…] [seed=0] [signals=KILL,TERM]
[page=docs/reliability.md]`: commands that are ended at random, and begun again.

Each command runs twice undisturbed; what differs between these two is time. Then N times: it is begun in an empty
folder with empty caches, is sent one of the signals in turn at a random time (INT as a terminal sends Ctrl-C: to all of
its processes), and is begun again with the same words (a training with `resume=`, as its own sentence says). The first
start must end without a traceback and leave no process; after TERM and INT with their exit codes and no temporary file,
and after INT with one sentence. The second start must end well and leave the undisturbed bytes. Commands whose figures
are times are not begun again. One line a command; the exit code is 1 where any failed. `page=` writes the table of
docs/reliability.md.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.reliability.begun import COMMANDS, ENDED, ENDS_S, Bench, terminal, undisturbed
from tests.reliability.page import write_rows

HEAD = ("command", "signals", "measured", "one start", "sent", "undisturbed bytes", "came after its end", "wrong",
        "files and figures compared", "times left out")
LATE = "late"  # a signal that came when the command was over


def killed(bench: Bench, expected: dict[str, str], after_s: float, by: int) -> str:
    """One kill and a second start; empty where all is as it should be, `late` where the command was faster."""
    bench.empty()
    with terminal() as keys:
        process = bench.begin(stdin=keys)
        try:
            process.communicate(timeout=after_s)
            return LATE
        except subprocess.TimeoutExpired:
            send(process, by)
        said = ended(bench, process, by)
    if said == LATE and bench.command.alike and bench.contents() != expected:
        return "exit code 0 with other contents"
    if said or not bench.command.alike:
        return said
    said = bench.finish(bench.begin(again=True))
    if said:
        return said
    found = bench.contents()
    wrong = sorted(key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key))
    return f"differs: {', '.join(wrong[:6])}" if wrong else ""


def send(process: Any, by: int) -> None:
    """Sends a signal: INT to all processes of the command, as a terminal does; the others to it alone."""
    if by == signal.SIGINT:
        os.killpg(process.pid, by)
    else:
        process.send_signal(by)


def ended(bench: Bench, process: Any, by: int) -> str:
    """What is wrong with the end of a command that was sent a signal; empty where nothing is."""
    try:
        _, said = process.communicate(timeout=ENDS_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        bench.outlived()
        return f"did not end within {ENDS_S:g} s"
    if "Traceback" in said or "Exception ignored" in said:
        return f"said {said.strip()[-9000:]}"
    if process.returncode not in (0, *ENDED[signal.Signals(by)]):
        return f"exit code {process.returncode}: {said.strip()[-300:]}"
    if running := bench.outlived():
        return f"{len(running)} processes ran on for {ENDS_S:g} s"
    if by == signal.SIGKILL:
        return ""
    if left := bench.left():
        return f"left {left}"
    words = said.strip().splitlines()[-1:]
    if process.returncode == 0:  # it was about to end
        return LATE
    if process.returncode > 0 and words != ["interrupted" if by == signal.SIGINT else "terminated"]:
        return f"ended in the words: {' '.join(words)}"
    return ""


def run(name: str, n: int, seed: int, signals: Sequence[signal.Signals], page: str = "") -> bool:
    """All kills of one command; whether every one ended as it should."""
    with tempfile.TemporaryDirectory(prefix="ooco-gym-kills-") as folder:
        bench, draws = Bench(name, Path(folder) / name), random.Random(f"{seed}/{name}")
        counts: Counter[str] = Counter()
        bench.folder.mkdir()
        begun = time.monotonic()
        expected, took_s = undisturbed(bench)
        for index in range(n):
            by, after_s = signals[index % len(signals)], draws.uniform(0.0, took_s)
            said = killed(bench, expected, after_s, by)
            counts[LATE if said == LATE else "wrong" if said else "right"] += 1
            if said and said != LATE:
                print(f"{name} {index}, {by.name} after {after_s:.2f} s: {said}", flush=True)
        resumed = f"; {bench.resumed} resumed" if bench.resumed else ""
        compared = (f"{len(expected)} files and figures; {len(bench.differs)} times left out" if bench.command.alike
                    else "its end alone")
        print(f"{name}: {n} kills within {took_s:.1f} s: {counts['right']} ended as they should, {counts[LATE]} came "
              f"after its end, {counts['wrong']} were wrong ({compared}{resumed}; {time.monotonic() - begun:.0f} s)",
              flush=True)
        if page:
            write_row(bench, signals, n, took_s, counts, len(expected), page)
        return not counts["wrong"]


def write_row(bench: Bench, signals: Sequence[signal.Signals], n: int, took_s: float, counts: Counter[str],
              compared: int, page: str) -> None:
    """A row of the table of kills, or of that of Ctrl-C."""
    shown = ", ".join(one.name.removeprefix("SIG") for one in signals)
    figures = (f"{datetime.now(UTC):%Y-%m-%d}", f"{took_s:.1f} s", n, counts["right"], counts[LATE],
               counts["wrong"], *((compared, len(bench.differs)) if bench.command.alike else ("its end alone", "–")))
    write_rows("ctrl-c" if signals == [signal.SIGINT] else "kills", HEAD,
               [[f"`{bench.command.shown}`", shown, *map(str, figures)]], page)


def main(words: list[str]) -> int:
    """Runs the command; returns its exit code."""
    given = {key: value for key, _, value in (word.partition("=") for word in words)}
    only = given.get("only", ",".join(COMMANDS)).split(",")
    numbers, names = [given.get("N", "50"), given.get("seed", "0")], given.get("signals", "KILL,TERM").split(",")
    if ({*given} - {"N", "only", "seed", "signals", "page"} or {*only} - {*COMMANDS}
            or {*names} - {"KILL", "TERM", "INT"} or not all(one.isdigit() for one in numbers)):
        print(f"{__doc__}\ncommands: {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    signals = [signal.Signals[f"SIG{name}"] for name in names]
    right = [run(name, int(numbers[0]), int(numbers[1]), signals, given.get("page", "")) for name in only]
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
