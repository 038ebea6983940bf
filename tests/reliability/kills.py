"""`python -m tests.reliability.kills [N=50] [only=simulate,…] [seed=0] [signals=KILL,TERM] [page=docs/reliability.md]`:
commands that are ended at random, and begun again.

Each command runs twice undisturbed; what differs between these two is time. Then N times: it is begun in an empty
folder with empty caches, is sent one of the signals in turn at a random time (INT as a terminal sends Ctrl-C: to all of
its processes), and is begun again with the same words (a training with `resume=`, as its own sentence says). The first
start must end without a traceback, the second one must end well and leave the undisturbed bytes. One line a command;
the exit code is 1 where any differed. `page=` writes the table of docs/reliability.md.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.reliability.page import write_rows

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 900.0  # of one start
ENDS_S = 60.0  # within which a signal ends a command
LOAD = ("workload=azure_conv", "rate_scale=0.05", "duration_s=300", "warmup_s=30", "offline.rate=1")
TRAINED = ("env.window_s=20", "env.warmup_s=5", "window_s=20", "agent.n_envs=4", "agent.n_steps=16",
           "agent.batch_size=32", "validation.windows=1", "validation.every_steps=256")
COMMANDS = {
    "simulate": ("simulate", *LOAD),
    "compare": ("compare", "policies=[ooco,base_pd]", "seeds=2", "workers=1", *LOAD[:3], LOAD[-1]),
    "capacity": ("capacity", "policies=[base_pd]", "baselines=[base_pd]", "seeds=1", "workers=1", "search.first=1",
                 "search.last=3", "tuning.policies={}", *LOAD[:3]),
    "train": ("train", *TRAINED, "total_timesteps=512", "checkpoint_every_s=0.2"),
    "tune": ("tune", "trials=4", "windows=2", "window_s=20", "warmup_s=5", "validation.windows=1",
             "env.window_s=20", "env.warmup_s=5"),
    "evaluate": ("evaluate", "env=gating", "policies=[ooco,always]", "episodes=6", "workers=1",
                 "env.window_s=20", "env.warmup_s=5"),
    "import": ("data", "import", "trace.csv"),
    "fit": ("workload", "fit", "trace.csv"),
    "sweep": ("simulate", "-m", "seed=1,2", *LOAD),
    "measure": ("calibrate", "measure", "engine=engine.yaml"),
}
SHOWN = {"import": "data import", "fit": "workload fit", "sweep": "simulate -m", "measure": "calibrate measure"}
HEAD = ("command", "signals", "one start", "sent", "undisturbed bytes", "came after its end", "wrong",
        "files and figures compared", "times left out")


@dataclass
class Bench:
    """A folder in which one command is begun again and again."""

    name: str
    folder: Path
    differs: set[str] = field(default_factory=set)  # what no two undisturbed runs have alike: times
    resumed: int = 0  # second starts of a training that had a state to go on from

    @property
    def out(self) -> Path:
        """Where results go."""
        return self.folder / "out"

    def empty(self) -> None:
        """Begins afresh: no results, no caches but that of compiled code."""
        for path in self.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        random_rows = random.Random(5)
        rows = sorted(random_rows.uniform(0.0, 600.0) for _ in range(20_000))
        lines = [f"{at:.3f},{random_rows.randint(1, 4000)},{random_rows.randint(1, 500)}\n" for at in rows]
        (self.folder / "trace.csv").write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(lines))
        if self.name == "measure":  # of the engine that stands in for a real one among the tests
            from tests.calibrate.test_measure import plan

            (self.folder / "engine.yaml").write_text(yaml.safe_dump(plan()))

    def begin(self, again: bool = False, **surroundings: Any) -> subprocess.Popen[str]:
        """Starts the command; `surroundings` are variables of its environment, and arguments of `Popen`."""
        words = [*COMMANDS[self.name], f"out={self.out}"]
        if again and self.name == "train" and (self.out / "checkpoints" / "latest.state").is_file():
            words = ["train", f"resume={self.out}"]
            self.resumed += 1
        elif again and self.name == "train":
            words.append("overwrite=true")
        own = {"PYTHONPATH": str(ROOT), "OOCO_GYM_CACHE": str(self.folder / "cache"), "PYTHONWARNINGS": "ignore",
               "XDG_STATE_HOME": str(self.folder / "state")}
        own |= {key: surroundings.pop(key) for key in list(surroundings) if key.isupper()}
        environment = {key: value for key, value in {**os.environ, **own}.items() if value is not None}
        return subprocess.Popen([sys.executable, "-m", "ooco_gym.cli", *words], cwd=self.folder, text=True,
                                env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                start_new_session=True, **surroundings)

    def finish(self, process: subprocess.Popen[str]) -> str:
        """Waits for an undisturbed end; what was said where it did not end well."""
        _, said = process.communicate(timeout=LIMIT_S)
        return "" if process.returncode == 0 else f"exit code {process.returncode}: {said.strip()[-300:]}"

    def contents(self) -> dict[str, str]:
        """Digest of each file, each value of a JSON or YAML file; hidden files are no results."""
        found: dict[str, str] = {}
        for path in sorted(self.out.rglob("*")):
            name = str(path.relative_to(self.out))
            if not path.is_file() or any(part.startswith(".") for part in Path(name).parts):
                continue
            content = path.read_bytes()
            if path.suffix == ".zip":  # whose entries have times
                with zipfile.ZipFile(path) as archive:
                    found |= {f"{name}:{one}": hashlib.sha256(archive.read(one)).hexdigest()
                              for one in archive.namelist()}
            elif path.suffix in (".json", ".yaml"):  # the folder may have another name, and YAML breaks lines by length
                document = (json.loads if path.suffix == ".json" else yaml.safe_load)(content)
                found |= {f"{name}:{key}": str(value).replace(str(self.folder), "FOLDER")
                          for key, value in leaves(document)}
            else:
                found[name] = hashlib.sha256(content).hexdigest()
        return {key: value for key, value in found.items() if key not in self.differs}


def leaves(value: Any, key: str = "") -> Any:
    """(Dotted key, value) of everything in nested JSON."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not isinstance(value, (dict, list)):
        yield key, value
    for name, item in items:
        yield from leaves(item, f"{key}.{name}")


def undisturbed(bench: Bench) -> tuple[dict[str, str], float]:
    """What the command leaves, and how long it takes, seconds."""
    found, took_s = [], LIMIT_S
    for _ in range(2):  # the first may have to compile
        bench.empty()
        begun = time.monotonic()
        said = bench.finish(bench.begin())
        assert not said, f"{bench.name} undisturbed: {said}"
        took_s = min(took_s, time.monotonic() - begun)
        found.append(bench.contents())
    first, second = found
    bench.differs = {key for key in first.keys() | second.keys() if first.get(key) != second.get(key)}
    # A training that is resumed says so, and counts episodes that it ended and where its time went anew.
    bench.differs |= {key for key in first if key.startswith(("summary.json:.resumed", "summary.json:.files."))
                      or key.endswith(".kept")}  # a sweep says which points an earlier start has finished
    # The load of the machine while it measured; what was noted of windows that an earlier start has played.
    bench.differs |= {key for key in first if ".machine." in key or key.startswith("summary.json:.remarks.")}
    bench.differs |= {key for key in first if key == "config.yaml:.overwrite"}  # of one with nothing to resume from
    # How many simulations a start found kept; a digest of the file, all of which is compared one by one.
    bench.differs |= {key for key in first if key.endswith((".simulated_anew", ":.content_sha256"))}
    return bench.contents(), took_s


def killed(bench: Bench, expected: dict[str, str], after_s: float, by: int) -> str:
    """One kill and a second start; empty where all is as it should be, `late` where the command was faster."""
    bench.empty()
    process = bench.begin()
    try:
        process.communicate(timeout=after_s)
        return "late"
    except subprocess.TimeoutExpired:
        if by == signal.SIGINT:
            os.killpg(process.pid, by)
        else:
            process.send_signal(by)
    try:
        _, said = process.communicate(timeout=ENDS_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return f"did not end within {ENDS_S:g} s"
    if "Traceback" in said:
        return f"said {said.strip()[-300:]}"
    said = bench.finish(bench.begin(again=True))
    if said:
        return said
    found = bench.contents()
    wrong = sorted(key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key))
    return f"differs: {', '.join(wrong[:6])}" if wrong else ""


def run(name: str, n: int, seed: int, signals: Sequence[signal.Signals], page: str = "") -> bool:
    """All kills of one command; whether every one ended as it should."""
    with tempfile.TemporaryDirectory(prefix="ooco-gym-kills-") as folder:
        bench, draws, counts = Bench(name, Path(folder)), random.Random(f"{seed}/{name}"), Counter()
        expected, took_s = undisturbed(bench)
        for index in range(n):
            by, after_s = signals[index % len(signals)], draws.uniform(0.0, took_s)
            said = killed(bench, expected, after_s, by)
            counts["late" if said == "late" else "wrong" if said else "right"] += 1
            if said and said != "late":
                print(f"{name} {index}, {by.name} after {after_s:.2f} s: {said}", flush=True)
        resumed = f"; {bench.resumed} resumed" if bench.resumed else ""
        print(f"{name}: {n} kills within {took_s:.1f} s: {counts['right']} ended with the undisturbed bytes, "
              f"{counts['late']} came after its end, {counts['wrong']} were wrong ({len(expected)} files and figures; "
              f"{len(bench.differs)} times left out{resumed})", flush=True)
        if page:
            shown = ", ".join(one.name.removeprefix("SIG") for one in signals)
            figures = (f"{took_s:.1f} s", n, counts["right"], counts["late"], counts["wrong"], len(expected),
                       len(bench.differs))
            write_rows("ctrl-c" if signals == [signal.SIGINT] else "kills", HEAD,
                       [[f"`{SHOWN.get(name, name)}`", shown, *map(str, figures)]], page)
        return not counts["wrong"]


def main(words: list[str]) -> int:
    """Runs the command; returns its exit code."""
    given = {key: value for key, _, value in (word.partition("=") for word in words)}
    only = given.get("only", ",".join(COMMANDS)).split(",")
    numbers, names = [given.get("N", "50"), given.get("seed", "0")], given.get("signals", "KILL,TERM").split(",")
    known = {"N", "only", "seed", "signals", "page"}
    if ({*given} - known or {*only} - {*COMMANDS} or {*names} - {"KILL", "TERM", "INT"}
            or not all(one.isdigit() for one in numbers)):
        print(f"{__doc__}\ncommands: {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    signals = [signal.Signals[f"SIG{name}"] for name in names]
    right = [run(name, int(numbers[0]), int(numbers[1]), signals, given.get("page", "")) for name in only]
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
