"""Commands of the command line in small sizes, each begun in a folder of its own: what is killed, and tried elsewhere.

Every command of `ooco-gym` is here (`tests/reliability/test_kills.py`): a new one comes with its words.
"""

from __future__ import annotations

import hashlib
import json
import os
import pty
import random
import shutil
import signal
import subprocess
import sys
import time
import uuid
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
NETWORK = ROOT / "tests" / "data" / "gate_network"
LIMIT_S = 900.0  # of one start
ENDS_S = 60.0  # within which a signal ends a command, and what it has started
MARK = "OOCO_GYM_BEGUN"  # set for a command, and so for all processes that it starts
ENDED = {signal.SIGKILL: (-signal.SIGKILL,), signal.SIGTERM: (143, -signal.SIGTERM),
         signal.SIGINT: (130, -signal.SIGINT)}
"""Exit codes after a signal; a shell calls both 130, or 143. The second ones are of the first moments, when Python and
the command line are being loaded."""


@dataclass(frozen=True)
class Command:
    """Words of a command.

    Attributes:
        words: what is given; `{out}` and `{first}` are folders, and `out={out}` is added where `{out}` is in none.
        shown: how tables call it.
        first: words of a command whose results it begins from, in `{first}`; made once.
        alike: whether a second start leaves the undisturbed files; otherwise only how it ends is looked at.
    """

    words: tuple[str, ...]
    shown: str
    first: tuple[str, ...] = ()
    alike: bool = True


LOAD = ("workload=azure_conv", "rate_scale=0.05", "duration_s=120", "warmup_s=30", "offline.rate=1")
SHORT = ("env.window_s=20", "env.warmup_s=5")
TRAINED = (*SHORT, "window_s=20", "agent.n_envs=4", "agent.n_steps=16", "agent.batch_size=32",
           "agent.imitate.rule=null", "agent.scale_decisions=256", "validation.windows=1",
           "validation.every_steps=1024", "checkpoint_every_s=0.2")
SEARCHED = ("trials=4", "windows=2", "window_s=20", "warmup_s=5", "validation.windows=2", *SHORT)
COMMANDS = {
    "simulate": Command(("simulate", *LOAD), "simulate"),
    "compare": Command(("compare", "policies=[ooco,base_pd]", "seeds=2", "workers=1", *LOAD[:3], LOAD[-1]), "compare"),
    "capacity": Command(("capacity", "policies=[base_pd]", "baselines=[base_pd]", "seeds=1", "workers=1",
                         "search.first=1", "search.last=3", "tuning.policies={}", *LOAD[:3]), "capacity"),
    "train": Command(("train", *TRAINED, "total_timesteps=2048"), "train"),
    "resume": Command(("train", "resume={out}", "total_timesteps=2048"), "train resume=",
                      ("train", *TRAINED, "total_timesteps=512")),
    "tune": Command(("tune", *SEARCHED), "tune"),
    "dataset": Command(("dataset", "env=gating", "policy=shortest", "episodes=4", "window_s=20", "warmup_s=5"),
                       "dataset", alike=False),
    "suite": Command(("suite", "run", "policy=slack", "tasks=pools_calm", "windows=2"), "suite", alike=False),
    "evaluate": Command(("evaluate", "env=gating", "policies=[ooco,always]", "episodes=6", "workers=1", *SHORT),
                        "evaluate"),
    "import": Command(("data", "import", "trace.csv"), "data import"),
    "fit": Command(("workload", "fit", "trace.csv"), "workload fit"),
    "sweep": Command(("simulate", "-m", "seed=1,2", *LOAD), "simulate -m"),
    "measure": Command(("calibrate", "measure", "engine=engine.yaml"), "calibrate measure"),
    "workers": Command(("compare", "policies=[ooco,base_pd]", "seeds=2", "workers=2", *LOAD[:3], LOAD[-1]),
                       "compare workers=2"),
    "headroom": Command(("headroom", "env=gating", "episodes=5", "window_s=10", "warmup_s=5", "every=10",
                         "workers=2"), "headroom"),
    "export": Command(("export", "policy=learned_router", "checks=50"), "export"),
    "explain": Command(("explain", f"policy={NETWORK}", "fit_windows=2", "episodes=2", "decisions=200", "repeats=1",
                        "window_s=20", "warmup_s=5"), "explain"),
    "perf": Command(("perf",), "perf"),
    "compile": Command(("compile",), "compile", alike=False),
    "report": Command(("report", "runs=[{first}]"), "report", ("simulate", *LOAD)),
    "dashboard": Command(("dashboard", "runs={first}"), "dashboard", ("train", *TRAINED, "total_timesteps=512")),
    "doctor": Command(("doctor",), "doctor", alike=False),
    "bench": Command(("bench", "only=[pure,day,warm_start]", "repeats=1"), "bench", alike=False),
    "demo": Command(("demo", "duration_s=600", "windows=2", "agent.generations=2", "agent.windows=2",
                     "agent.validation.windows=2", "env.window_s=60", "env.warmup_s=10"), "demo", alike=False),
    "zoo": Command(("zoo", "generations=1", "windows=2"), "zoo", alike=False),
    "figure": Command(("figure", "bros/fig14", "quick=true", "workers=1"), "figure bros/fig14", alike=False),
}


@dataclass
class Bench:
    """A folder in which one command is begun again and again."""

    name: str
    folder: Path
    differs: set[str] = field(default_factory=set)  # what no two undisturbed runs have alike: times
    usual: set[str] = field(default_factory=set)  # among temporary files after an undisturbed end: PyTorch's caches
    resumed: int = 0  # second starts of a training that had a state to go on from
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def command(self) -> Command:
        """What is begun."""
        return COMMANDS[self.name]

    @property
    def out(self) -> Path:
        """Where results go."""
        return self.folder / "out"

    @property
    def made(self) -> Path:
        """Where the results of the first command are kept, beside the folder that is emptied."""
        return self.folder.with_name(self.folder.name + "-first")

    def empty(self) -> None:
        """Begins afresh: no results, no caches but that of compiled code."""
        for path in self.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        (self.folder / "tmp").mkdir()
        random_rows = random.Random(5)
        rows = sorted(random_rows.uniform(0.0, 600.0) for _ in range(20_000))
        lines = [f"{at:.3f},{random_rows.randint(1, 4000)},{random_rows.randint(1, 500)}\n" for at in rows]
        (self.folder / "trace.csv").write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(lines))
        if "engine=engine.yaml" in self.command.words:  # the one that stands in for a real one among the tests
            from tests.calibrate.test_measure import plan

            (self.folder / "engine.yaml").write_text(yaml.safe_dump(plan()))
        if self.command.first:
            self._begin_from_first()

    def _begin_from_first(self) -> None:
        goal = self.out if "resume={out}" in self.command.words else self.folder / "first"
        if not self.made.is_dir():
            said = self.finish(self._start([*self.command.first, f"out={goal}"]))
            assert not said, f"{self.name}, what it begins from: {said}"
            shutil.copytree(goal, self.made)
        else:
            shutil.copytree(self.made, goal)

    def begin(self, again: bool = False, **surroundings: Any) -> Any:
        """Starts the command; `surroundings` are variables of its environment, and arguments of `Popen`."""
        places = {"out": str(self.out), "first": str(self.folder / "first")}
        given = self.command.words
        words = [word.replace("{out}", places["out"]).replace("{first}", places["first"]) for word in given]
        if not any("{out}" in word for word in given):
            words.append(f"out={self.out}")
        if again and self.name == "train" and (self.out / "checkpoints" / "latest.state").is_file():
            words = ["train", f"resume={self.out}"]
            self.resumed += 1
        elif again and self.name == "train":
            words.append("overwrite=true")
        return self._start(words, **surroundings)

    def _start(self, words: list[str], **surroundings: Any) -> Any:
        own = {"PYTHONPATH": str(ROOT), "OOCO_GYM_CACHE": str(self.folder / "cache"), "PYTHONWARNINGS": "ignore",
               "XDG_STATE_HOME": str(self.made.with_name("state")), "TMPDIR": str(self.folder / "tmp"), MARK: self.mark}
        own |= {key: surroundings.pop(key) for key in list(surroundings) if key.isupper()}
        environment = {key: value for key, value in {**os.environ, **own}.items() if value is not None}
        arguments = {"stdin": subprocess.DEVNULL, **surroundings}
        return subprocess.Popen([sys.executable, "-m", "ooco_gym.cli", *words], cwd=self.folder, text=True,
                                env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                start_new_session=True, **arguments)

    def finish(self, process: Any) -> str:
        """Waits for an undisturbed end; what was said where it did not end well."""
        _, said = process.communicate(timeout=LIMIT_S)
        return "" if process.returncode == 0 else f"exit code {process.returncode}: {said.strip()[-300:]}"

    def left(self) -> str:
        """What lies about after a command has tidied up: temporary files."""
        found = [path for path in self.folder.rglob("*") if path.name.startswith(".") and ".tmp" in path.name]
        found += [path for path in (self.folder / "tmp").iterdir() if path.name not in self.usual]
        return ", ".join(sorted(str(path.relative_to(self.folder)) for path in found))

    def processes(self) -> list[int]:
        """Processes that a command of this bench has started and that still run (Linux; elsewhere none is seen)."""
        word, found = f"{MARK}={self.mark}".encode(), []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):  # it has just ended, or is another user's
                if word in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
        return found

    def outlived(self) -> list[int]:
        """Processes that still run when a command has been over for a while; they are ended."""
        until = time.monotonic() + ENDS_S
        while (found := self.processes()) and time.monotonic() < until:
            time.sleep(0.05)
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while {*found} & {*self.processes()}:  # a killed process takes a moment to go
            time.sleep(0.01)
        return found

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
        # A run that goes on where a tidy end has left a summary lists that summary, too.
        return {key: value for key, value in found.items()
                if key not in self.differs and not key.startswith("summary.json:.files.")}


@contextmanager
def terminal() -> Iterator[int]:
    """The end of a terminal that a command reads from, while no key is pressed."""
    keys, screen = pty.openpty()
    try:
        yield screen
    finally:
        os.close(keys)
        os.close(screen)


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
        bench.usual |= {path.name for path in (bench.folder / "tmp").iterdir()}
    first, second = found
    bench.differs = {key for key in first.keys() | second.keys() if first.get(key) != second.get(key)}
    # A training that is resumed says so, and counts episodes that it ended and where its time went anew.
    bench.differs |= {key for key in first if key.startswith("summary.json:.resumed")
                      or (key == "summary.json:.decisions" and bench.command.words[0] == "train")  # of this call
                      or key.endswith(".kept")}  # a sweep says which points an earlier start has finished
    # The load of the machine while it measured; what was noted of windows that an earlier start has played.
    bench.differs |= {key for key in first if ".machine." in key or key.startswith("summary.json:.remarks.")}
    bench.differs |= {key for key in first if key == "config.yaml:.overwrite"}  # of one with nothing to resume from
    # How many simulations a start found kept; a digest of the file, all of which is compared one by one.
    bench.differs |= {key for key in first if key.endswith((".simulated_anew", ":.content_sha256"))}
    return bench.contents(), took_s
