"""`python -m tests.golden [check|record] [only=GROUP,…] [every=N] [cpus=all] [force] [why=…]`.

`check` (the default) makes all digests anew and compares; its last line is `golden: N digests, D differ`, and the exit
code is 0 where none differs. `every=N` takes each N-th case alone; `cpus=all` compares under other processors too, as
far as one machine can play them (`tests/golden/cpus.py`). `record` writes what is missing; with `force`, which needs
`why=…`, also what differs.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from typing import Any

from tests.golden import cpus, digests, doors, policies, runs, studies, trajectories

GROUPS: dict[str, Any] = {"doors": doors, "runs": runs, "trajectories": trajectories, "policies": policies,
                          "studies": studies}
SHOWN = 40  # differences of a group that are printed


def check(groups: list[str], every: int = 1) -> int:
    """Compares digests of some groups, of every n-th case; prints each that differs, and how many do."""
    total = wrong = 0
    for group in groups:
        begun = time.perf_counter()
        expected, got = digests.read(group)["digests"], GROUPS[group].group(every)
        if every > 1:
            expected = {case: parts for case, parts in expected.items() if case in got}
        lines = digests.differences(expected, got)
        for line in lines[:SHOWN]:
            print(f"{group}: {line}")
        if len(lines) > SHOWN:
            print(f"{group}: … and {len(lines) - SHOWN:,} more")
        total, wrong = total + digests.count(expected), wrong + len(lines)
        print(f"{group}: {digests.count(expected):,} digests of {len(expected):,} cases, {len(lines):,} differ "
              f"({time.perf_counter() - begun:.0f} s)", flush=True)
    print(f"golden: {total} digests, {wrong} differ")
    return 1 if wrong else 0


def record(groups: list[str], force: bool, why: str) -> int:
    """Writes the digests of some groups. What differs from digests that are there is refused without `force`."""
    for group in groups:
        kept, got = digests.read(group), GROUPS[group].group()
        lines = digests.differences(kept["digests"], got)
        changed = [line for line in lines if "expected nothing" not in line]
        if changed and not force:
            print(*changed[:SHOWN], sep="\n")
            print(f"{group}: {len(changed):,} digests differ or are gone; nothing is written. Where that is meant: "
                  "record force why='…'", file=sys.stderr)
            return 1
        if lines:
            note = {"commit": commit(), "why": why or ("cases added" if kept["recorded"] else "first recorded"),
                    "digests": f"{len(lines)} of {digests.count(got)}"}
            digests.write(group, got, [*kept["recorded"], note])
        print(f"{group}: {digests.count(got):,} digests of {len(got):,} cases, {len(lines):,} written", flush=True)
    return 0


def check_cpus(words: list[str]) -> int:
    """Compares under each setting of `cpus`; the last line sums up."""
    total = wrong = 0
    with tempfile.TemporaryDirectory() as cache:
        for name, environment in cpus.settings().items():
            done = cpus.check(environment, words, cache)
            *lines, last = done.stdout.strip().splitlines() or [""]
            if done.returncode not in (0, 1) or not last.startswith("golden: "):
                print(done.stderr, file=sys.stderr)
                return done.returncode or 1
            print(*(f"  {line}" for line in lines), f"{name}: {last.removeprefix('golden: ')}", sep="\n", flush=True)
            total, wrong = (before + int(word) for before, word in zip((total, wrong), last.split()[1::2], strict=True))
    print(f"golden: {total} digests, {wrong} differ")
    return 1 if wrong else 0


def commit() -> str:
    words = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(words, cwd=digests.ROOT, capture_output=True, text=True, check=True).stdout.strip()


def main(words: list[str]) -> int:
    """Runs the command; returns its exit code."""
    only = [word.removeprefix("only=").split(",") for word in words if word.startswith("only=")]
    why = next((word.removeprefix("why=") for word in words if word.startswith("why=")), "")
    plain = [word for word in words if "=" not in word]
    every = next((int(word.removeprefix("every=")) for word in words if word.startswith("every=")), 1)
    if "cpus=all" in words and "record" not in plain:
        return check_cpus([word for word in words if word != "cpus=all"])
    groups = [group for group in GROUPS if not only or any(group in names for names in only)]
    unknown = {*plain} - {"check", "record", "force"} or {name for names in only for name in names} - {*GROUPS}
    if unknown or ("force" in plain and not why):
        reason = f"unknown: {', '.join(sorted(unknown))}" if unknown else "force needs why='…'"
        print(f"{reason}\n{__doc__}groups: {', '.join(GROUPS)}", file=sys.stderr)
        return 2
    return record(groups, "force" in plain, why) if "record" in plain else check(groups, every)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
