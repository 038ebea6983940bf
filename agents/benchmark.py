"""`ooco-gym benchmark`: what standard algorithms learn from nothing in each environment (docs/training.md).

Each run is a command of its own, `ooco-gym train env=… agent=… seed=…`, in a process of its own and a folder of its
own; then `ooco-gym evaluate` plays all runs of an environment, random actions, the base policy and the best heuristic
on the same held-out windows. What has ended is kept, so the same command goes on where it was stopped; a run whose
command is another one than before is made anew.
"""

from __future__ import annotations

import csv
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, filterfalse
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agents.evaluation.heuristics import BASE, RANDOM
from agents.evaluation.scoring import interval_of
from agents.policies.runs import SUMMARY_FILE
from agents.settings import Episodes
from ooco_gym.documents import read_mapping
from ooco_gym.errors import UserError, unknown
from ooco_gym.files import write_json
from ooco_gym.metrics.crossed import iqm
from ooco_gym.report import Table, with_interval
from ooco_gym.resources import load_yaml, names
from ooco_gym.schema import Count, Seconds, check_all, plain

EVALUATED, PROGRESS = "evaluation.json", "progress.csv"


class BenchmarkRun(NamedTuple):
    """A command, the folder of its results, the file that it leaves at its end, and how long it may take."""

    words: list[str]
    out: Path
    ends_with: str
    expected_s: float

    @property
    def command(self) -> str:
        """What one types for it."""
        return f"ooco-gym {' '.join(self.words)}"

    @property
    def log(self) -> Path:
        """What it printed, after its command."""
        return self.out.parent / f"{self.out.name}.log"

    @property
    def done(self) -> bool:
        """Whether this command, and no other one, has ended well."""
        return (self.out / self.ends_with).is_file() and self.log.is_file() and self.log.read_text(
            "utf-8").startswith(f"{self.command}\n")


def main(cfg: Any) -> dict[str, Any]:
    """Trains and evaluates, and writes benchmarks.json after every environment.

    Raises:
        UserError: an unknown environment or agent, a number that is out of range, or a run that failed.
    """
    config, started = plain(cfg), time.monotonic()
    check_all(config, seeds=Count, episodes=Episodes, workers=Count, total_timesteps=Count, run_s=Seconds)
    chosen, out = _chosen(config), Path(config["out"])
    training = {name: list(trainings(config, name, out / name)) for name in chosen}
    evaluating = {name: evaluation(config, name, out / name) for name in chosen}
    new = {name: list(filterfalse(attrgetter("done"), jobs)) for name, jobs in training.items()}
    left = [*chain(*new.values()), *(job for name, job in evaluating.items() if new[name] or not job.done)]
    hours = sum(job.expected_s for job in left) / config["workers"] / 3600.0
    print(f"{len(left)} of {sum(map(len, training.values())) + len(evaluating)} runs are left: about {hours:.1f} hours "
          f"with workers={config['workers']}", flush=True)
    found, failed = dict[str, Any](), list[str]()
    settings = {key: config[key] for key in ("seeds", "total_timesteps", "episodes", "agents", "further")}
    with ThreadPoolExecutor(config["workers"]) as pool:
        for name in chosen:
            failed += filter(None, pool.map(_run, new[name]))
            if not all(job.done for job in training[name]):
                continue
            if new[name] or not evaluating[name].done:
                failed += filter(None, [_run(evaluating[name])])
            if evaluating[name].done:
                found[name] = summarised(out / name, agents_of(config, name))
            write_json(out / "benchmarks.json", {"settings": settings, "environments": found})
    table(found).show()
    if failed:
        raise UserError(f"{len(failed)} runs failed, and benchmarks.json lacks them; the same command runs them again: "
                        f"{failed[0]}")
    return {"command": "benchmark", "environments": found, "wall_s": time.monotonic() - started}


def _chosen(config: Mapping[str, Any]) -> list[str]:
    """The environments that are asked for, in the order of `first`, then of their names."""
    known = list(dict.fromkeys([*config["first"], *names("env")]))
    asked = known if config["envs"] is None else config["envs"]
    asked = [asked] if isinstance(asked, str) else list(asked)
    agents = chain(*(agents_of(config, name) for name in asked))
    for kind, those, all_of_them in (("environment", asked, known), ("agent", agents, names("agent"))):
        for name in set(those) - set(all_of_them):
            raise unknown(kind, name, all_of_them)
    return asked


def agents_of(config: Mapping[str, Any], name: str) -> list[str]:
    """The agents that learn in an environment: those of all, and its own."""
    return [*config["agents"], *((config["further"] or {}).get(name) or ())]


def trainings(config: Mapping[str, Any], name: str, out: Path) -> Iterator[BenchmarkRun]:
    """The training runs of an environment: of each agent and seed."""
    of_all, known = plain(config["own"]).get(name) or {}, names("agent")
    for agent in agents_of(config, name):
        own = {key: value for key, value in of_all.items() if key not in known} | (of_all.get(agent) or {})
        decisions = round(own.pop("times", 1.0) * config["total_timesteps"])
        for seed in range(1, config["seeds"] + 1):
            folder = out / agent / f"seed_{seed}"
            words = {"env": name, "agent": agent, "seed": seed, "total_timesteps": decisions,
                     "overwrite": "true", **_flat(config["train"]),
                     **_flat({"agent": config["own_of_agents"].get(agent) or {}}), **_flat(own), "out": folder}
            settings = [f"{key}={'null' if value is None else value}" for key, value in words.items()]
            yield BenchmarkRun(["train", *settings], folder, SUMMARY_FILE, float(config["run_s"]))


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by the keys of a command line."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def evaluation(config: Mapping[str, Any], name: str, out: Path) -> BenchmarkRun:
    """The evaluation of an environment's runs beside random play and rules."""
    best = plain(config["heuristics"]).get(name, BASE)
    rules = list(dict.fromkeys([RANDOM, BASE, best]))
    policies = [*(str(out / agent) for agent in agents_of(config, name)), *(f'"{rule}"' for rule in rules)]
    words = ["evaluate", f"env={name}", f"policies=[{','.join(policies)}]", f"episodes={config['episodes']}",
             "workers=1", f"out={out / 'evaluation'}"]
    return BenchmarkRun(words, out / "evaluation", EVALUATED, float(config["run_s"]))


def _run(job: BenchmarkRun) -> str | None:
    """Runs a command; returns it if it fails."""
    job.out.parent.mkdir(parents=True, exist_ok=True)
    (job.out / job.ends_with).unlink(missing_ok=True)
    with open(job.log, "w", encoding="utf-8") as log:
        log.write(f"{job.command}\n")
        log.flush()
        done = subprocess.run([sys.executable, "-m", "ooco_gym", *job.words], stdout=log, stderr=log, check=False)
    return None if done.returncode == 0 and job.done else f"{job.command} ({job.log} has what it printed)"


def summarised(out: Path, agents: Sequence[str]) -> dict[str, Any]:
    """Returns each policy's interquartile mean of rewards a second over runs and windows, above random play's on the
    same windows, with its 95 % interval (of random play itself: as it is), its violation rate, and of agents the
    curves: decisions and the rewards a second of each seed as it learned."""
    played, window_s = read_mapping(out / "evaluation" / EVALUATED)["records"]["none"], load_yaml(
        "env", out.name)["window_s"]
    chance = np.array([record["reward"] for record in played[RANDOM]]) / window_s
    policies: dict[str, Any] = {}
    for policy, records in played.items():
        runs = len({record.get("run") for record in records})
        rewards = np.array([record["reward"] for record in records]).reshape(runs, -1) / window_s
        rewards -= 0.0 if policy == RANDOM else chance
        late = float(np.mean([record["summary"]["violation_rate"] for record in records]))
        policies[policy] = {**dict(zip(("iqm", "low", "high"), interval_of(rewards, iqm), strict=True)),
                            "violation_rate": late, "runs": runs}
    for agent in agents:
        runs = sorted((out / agent).glob("seed_*/"))
        summaries = [read_mapping(path / SUMMARY_FILE) for path in runs]
        policies[agent]["curves"] = [_curve(path) for path in runs if (path / PROGRESS).is_file()]
        policies[agent]["timesteps"] = [summary["timesteps"] for summary in summaries]
        policies[agent]["wall_s"] = [round(summary["wall_s"]) for summary in summaries]
    return policies


def _curve(run: Path) -> list[list[float]]:
    """Decisions, and the reward a second of sampled actions since the update before, of a run's progress.csv."""
    with open(run / PROGRESS, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    curve = []
    for row in rows:
        terms = [value for key, value in row.items() if key.startswith("reward/") and key.endswith("_per_s")]
        if row.get("time/total_timesteps") and all(terms):  # not of a validation, nor of ended episodes alone
            curve.append([int(row["time/total_timesteps"]), round(sum(map(float, terms)), 4)])
    return curve


def table(found: Mapping[str, Any]) -> Table:
    rows = [[name, policy, with_interval(one["iqm"], one["low"], one["high"], ".4g"), f"{one['violation_rate']:.1%}"]
            for name, policies in found.items() for policy, one in policies.items()]
    return Table("Interquartile mean of rewards a second above random play's, on held-out windows", (
        "environment", "policy", "reward a second (95 %)", "violations"), rows)
