"""`python -m tests.reliability.corruption [N=100] [only=run,…] [seed=0] [limit_s=60] [page=docs/reliability.md]`.

Files that commands keep and read back (`kept_files`) are damaged: bits flipped, cut off, emptied, a folder in their
place, a block of zeros, noise, and in JSON and YAML values of other types, values that are too deep or too large. N
cases of each kind of file, each drawn from its seed and number alone and played in a worker process: what is read must
be the same figures as before, as kept or made anew, or one sentence. One line a target; the exit code is 1 where any
case was otherwise. `page=` writes the table of docs/reliability.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from ooco_gym.errors import UserError
from tests.reliability import fuzz
from tests.reliability.kept_files import TARGETS, plain
from tests.reliability.page import write_rows

SAME, REFUSED, BELIEVED, FAILED = "same", "refused", "believed", "failed"
HEAD = ("what is kept", "cases", "same figures, as kept or made anew", "refused in a sentence",
        "believed (text that a person may write)", "failed")


# --- Damages ----------------------------------------------------------------------------------------------------------
def flip(content: bytes, draws: random.Random, bits: int = 1) -> bytes:
    """Some bits changed."""
    data = bytearray(content)
    for _ in range(bits):
        data[draws.randrange(len(data))] ^= 1 << draws.randrange(8)
    return bytes(data)


def zeros(content: bytes, draws: random.Random) -> bytes:
    """A block that was never written, as after a crash."""
    begin = draws.randrange(len(content))
    end = min(len(content), begin + draws.choice((16, 512, 4096)))
    return content[:begin] + bytes(end - begin) + content[end:]


def other_types(content: bytes, draws: random.Random) -> bytes:
    """A value of a JSON or YAML document replaced by one of another kind."""
    document = yaml.safe_load(content.decode())
    places = list(inside(document))
    holder, key = draws.choice(places)
    holder[key] = draws.choice((None, True, -1, 0, 1e308, "x", "", [], {}, [1, "a"], {"a": 1}, [[]], 10**30))
    return json.dumps(document).encode()  # which is YAML, too


def inside(value: Any) -> Any:
    """(Mapping or list, key) of everything in a document."""
    items = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    for key, item in items:
        yield value, key
        yield from inside(item)


def too_deep(content: bytes, draws: random.Random) -> bytes:
    """Brackets beyond any depth that a reader can follow, whole or cut off."""
    depth = draws.choice((500, 30_000))
    return b"[" * depth + b"]" * (depth if draws.random() < 0.5 else 0)


def too_large(content: bytes, draws: random.Random) -> bytes:
    """A number of more digits than Python reads, or beyond any range, in the place of the first one."""
    text = content.decode()
    number = draws.choice(("9" * 5000, "1" + "0" * 40, "1e999", "-0x" + "f" * 99))
    at = next((place for place, letter in enumerate(text) if letter.isdigit()), 0)
    return (text[:at] + number + text[at + 1 :]).encode()


DAMAGES: dict[str, Callable[[bytes, random.Random], bytes | None]] = {
    "flip": flip,
    "flips": lambda content, draws: flip(content, draws, draws.randint(2, 8)),
    "cut": lambda content, draws: content[: draws.randrange(len(content))],
    "empty": lambda content, draws: b"",
    "folder": lambda content, draws: None,
    "zeros": zeros,
    "noise": lambda content, draws: draws.randbytes(len(content)),
    "types": other_types,
    "deep": too_deep,
    "large": too_large,
}
OF_DOCUMENTS = ("types", "deep", "large")
SHARES = {"flip": 8, "types": 4, "flips": 2, "cut": 2}  # any other: 1


def draw(target: str, seed: int, index: int, folder: Path) -> dict[str, Any]:
    """Case number `index`: which of a target's files is damaged, and how."""
    draws = random.Random(f"{seed}/{target}/{index}")
    file = draws.choice(TARGETS[target].files(folder))
    document = file.endswith((".json", ".yaml"))
    known = [name for name in DAMAGES if document or name not in OF_DOCUMENTS]
    damage = draws.choices(known, [SHARES.get(name, 1) for name in known])[0]
    return {"target": target, "file": file, "damage": damage, "seed": f"{seed}/{target}/{index}"}


def damage(path: Path, how: str, seed: str) -> None:
    """Damages a file."""
    content = DAMAGES[how](path.read_bytes(), random.Random(f"{seed}/{how}"))
    path.unlink()
    if content is None:
        path.mkdir()
        (path / "in the way").touch()
    else:
        path.write_bytes(content)


# --- Playing a case ---------------------------------------------------------------------------------------------------
class Bench:
    """A folder with what a target keeps, and a copy of it as it was."""

    def __init__(self, target: str, folder: Path) -> None:
        self.target, self.work, self.whole = TARGETS[target], folder / "work", folder / "whole"

    def make(self) -> None:
        """Makes the files, and the copy; reads them twice: what is read must not change by that."""
        self.work.mkdir(parents=True)
        with surrounded(self.work):
            self.target.make(self.work)
        shutil.copytree(self.work, self.whole)
        first, second = self.read(), self.read()
        assert first == second, f"reading twice gives other figures: {first} {second}"
        self.expected = first

    def restore(self) -> None:
        """Everything as it was made."""
        shutil.rmtree(self.work)
        shutil.copytree(self.whole, self.work)
        forget()

    def read(self) -> Any:
        """What is read from the files as they were made."""
        self.restore()
        with surrounded(self.work):
            return plain(self.target.read(self.work))

    def play(self, case: dict[str, Any]) -> str:
        """What becomes of a damaged file.

        Raises:
            AssertionError: figures of a file of ours have changed, or what is said is no sentence.
            Exception: any other failure.
        """
        self.restore()
        damage(self.work / case["file"], case["damage"], case["seed"])
        try:
            with surrounded(self.work):
                found = plain(self.target.read(self.work))
        except UserError as error:
            return f"{REFUSED}: {sentence(error)}"
        if found == self.expected:
            return SAME
        assert self.target.is_text(case["file"]), f"other figures: {str(found)[:300]} for {str(self.expected)[:300]}"
        return BELIEVED


def sentence(error: UserError) -> str:
    """What is said, which must be one line."""
    said = str(error).strip()
    assert said and "\n" not in said, f"no sentence: {said!r}"
    return said


@contextlib.contextmanager
def surrounded(folder: Path) -> Any:
    """Caches and the user's key in the folder, no warnings."""
    before = dict(os.environ)
    os.environ |= {"OOCO_GYM_CACHE": str(folder), "XDG_STATE_HOME": str(folder / "state")}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        os.environ.clear()
        os.environ |= before


def forget() -> None:
    """Empties what a process remembers of files without looking at them again: a command is a process of its own."""
    for module, names in (("agents.evaluation.players", ("load_learned",)), ("agents.learning.trust", ("_key",))):
        for name in names if module in sys.modules else ():
            getattr(sys.modules[module], name).cache_clear()


def work() -> None:
    """Makes a target's files, then plays a case a line, and writes what became of it."""
    answers, sys.stdout = sys.stdout, sys.stderr
    bench = Bench(sys.argv[2], Path(sys.argv[3]))
    if bench.work.exists():
        shutil.rmtree(bench.work.parent)
    bench.make()
    print(json.dumps(["ready", "", None]), file=answers, flush=True)
    for line in sys.stdin:
        limit_s, case = json.loads(line)
        signal.setitimer(signal.ITIMER_VIRTUAL, limit_s)
        try:
            said = bench.play(case)
            answer = [said.partition(":")[0], said, None]
        except Exception as error:
            answer = [FAILED, fuzz.described(error), case]
        print(json.dumps(answer), file=answers, flush=True)


# --- The command ------------------------------------------------------------------------------------------------------
def run(name: str, n: int, seed: int, limit_s: float, folder: Path) -> tuple[list[str], Counter[str]]:
    """All cases of one target: its row of the table, and how they ended."""
    worker, counts, begun = fuzz.Worker(limit_s), Counter(), time.monotonic()
    worker.words = (sys.executable, "-m", "tests.reliability.corruption", "worker", name, str(folder / name))
    worker._begin()
    whole = folder / name / "whole"
    for index in range(n):
        case = draw(name, seed, index, whole)
        answer = worker.ask(case)
        counts[answer.outcome] += 1
        if answer.outcome == FAILED:
            print(f"{json.dumps(case)}: {answer.said}", flush=True)
    worker.end()
    print(f"{name}: {n} cases in {time.monotonic() - begun:.0f} s, {dict(counts)}", flush=True)
    return [TARGETS[name].said, str(n), *(str(counts[one]) for one in (
        SAME, REFUSED, BELIEVED, FAILED))], counts


def main(words: list[str]) -> int:
    """Runs the command; returns its exit code."""
    if words[:1] == ["worker"]:
        work()
        return 0
    known = {"N": "100", "seed": "0", "only": ",".join(TARGETS), "limit_s": "60", "page": ""}
    given = {key: value for key, _, value in (word.partition("=") for word in words)}
    values = known | given
    only, numbers = values["only"].split(","), [values[key] for key in ("N", "seed", "limit_s")]
    if {*given} - {*known} or {*only} - {*TARGETS} or not all(one.isdigit() for one in numbers):
        print(f"{__doc__}\ntargets: {', '.join(TARGETS)}", file=sys.stderr)
        return 2
    failed = 0
    with tempfile.TemporaryDirectory(prefix="ooco-gym-corruption-") as folder:
        for name in only:
            row, counts = run(name, int(values["N"]), int(values["seed"]), float(values["limit_s"]), Path(folder))
            failed += counts[FAILED]
            if values["page"]:
                write_rows("corruption", HEAD, [row], values["page"])
    print(f"corruption: seed {values['seed']}, {len(only)} kinds of files, {failed} cases failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
