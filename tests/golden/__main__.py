"""`python -m tests.golden [check|record] [only=GROUP,…] [force] [why=…]`.

`check` (the default) makes all digests anew and compares; its last line is `golden: N digests, D differ`, and the exit
code is 0 where none differs. `record` writes what is missing; with `force`, which needs `why=…`, also what differs.
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

from tests.golden import digests, pages, policies, runs, trajectories

GROUPS: dict[str, Any] = {"runs": runs, "trajectories": trajectories, "policies": policies, "pages": pages}
SHOWN = 40  # differences of a group that are printed


def check(groups: list[str]) -> int:
    """Compares all digests of some groups; prints each that differs, and how many do."""
    total = wrong = 0
    for group in groups:
        begun = time.perf_counter()
        expected, got = digests.read(group)["digests"], GROUPS[group].group()
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


def commit() -> str:
    """The commit that is checked out."""
    words = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(words, cwd=digests.ROOT, capture_output=True, text=True, check=True).stdout.strip()


def main(words: list[str]) -> int:
    """Runs the command; returns its exit code."""
    only = [word.removeprefix("only=").split(",") for word in words if word.startswith("only=")]
    why = next((word.removeprefix("why=") for word in words if word.startswith("why=")), "")
    plain = [word for word in words if "=" not in word]
    groups = [group for group in GROUPS if not only or any(group in names for names in only)]
    unknown = {*plain} - {"check", "record", "force"} or {name for names in only for name in names} - {*GROUPS}
    if unknown or ("force" in plain and not why):
        reason = f"unknown: {', '.join(sorted(unknown))}" if unknown else "force needs why='…'"
        print(f"{reason}\n{__doc__}groups: {', '.join(GROUPS)}", file=sys.stderr)
        return 2
    return record(groups, "force" in plain, why) if "record" in plain else check(groups)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
