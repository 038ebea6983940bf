"""`ooco-gym bench`: how fast the simulator and the environments are on this machine, beside the targets.

Each measurement runs in a fresh process of its own (so that one leaves nothing behind for the next, and the peak of
memory is its own), several times; the median is reported.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ooco_gym.commands.bench_export import measure_export
from ooco_gym.commands.bench_measures import (
    CROWD,
    CROWDS,
    SIDE_BY_SIDE,
    VECTOR_STEPS,
    measure_day,
    measure_decisions,
    measure_decode,
    measure_envs,
    measure_fleet,
    measure_mixed,
    measure_pure,
    measure_start,
)
from ooco_gym.errors import UserError, unknown
from ooco_gym.policy import policy_of
from ooco_gym.report import Table, as_text, track

if TYPE_CHECKING:
    from omegaconf import DictConfig

SCHEMA = "ooco-gym/bench/1"
DECISION_US = 100.0


@dataclass(frozen=True)
class Figure:
    """One figure of the bench: its target (at least it where `more` is better, else at most), and what it means."""

    name: str
    target: float | None
    more: bool
    unit: str
    note: str


FIGURES = (
    Figure("decode_iterations_per_s", 1e6, True, "1/s", "decode steps of a strict instance at about 200 requests in "
           "the batch, finishing and being replaced (base P/D, "
           "prompts of 480, outputs of 1,000 tokens on average); processor time of the loop alone"),
    Figure("simulated_tokens_per_s", 2e8, True, "1/s", "output tokens decoded in the same run"),
    Figure("pure_decode_iterations_per_s", None, True, "1/s", "200 requests that nothing disturbs: closed form alone"),
    Figure("single_step_iterations_per_s", None, True, "1/s", "the first run, one step at a time (bulk off)"),
    Figure("mixed_iterations_per_s", 3e5, True, "1/s", "iterations of a mixed instance whose 64 seats are always taken "
           "(vllm_fcfs, the same lengths), no prefix cache; processor time of the loop alone"),
    Figure("mixed_cached_iterations_per_s", 1e5, True, "1/s", "the same with the prefix cache on, 50 prompts each with "
           "their first 512 tokens in common"),
    Figure("slowest_decision_mean_us", DECISION_US, False, "us", "the costliest decision point of all policies with "
           "1,000 requests waiting, in the mean; processor time of the rule alone"),
    Figure("slowest_decision_worst_us", None, False, "us", "the longest of all these decisions"),
    Figure("day_wall_s", 5.0, False, "s", "24 hours of OOC on pair_7b under OOCO at one offline request a second, "
           "generation of the load included"),
    Figure("fleet_wall_s", 90.0, False, "s", "64 instances (fleet_64), 32 times the pair's online and offline load "
           "under OOCO, generation included"),
    Figure("fleet_peak_gb", 2.0, False, "GB", "most memory resident in that process"),
    Figure("fleet_requests", None, True, "", "requests of that run"),
    Figure("env_steps_per_s", 60_000.0, True, "1/s", "steps of Gating-v0 from Python through gym.make with its default "
           "wrappers, three holds and a start in turn, resets left out; processor time"),
    Figure("vector_decisions_per_s", 500_000.0, True, "1/s", "the same of 64 episodes of Gating-v0 side by side, in "
           f"all, through gym.make_vec, over the first {VECTOR_STEPS:,} steps of each; one thread, processor time"),
    Figure("vector_ratio", None, True, "", "vector_decisions_per_s over env_steps_per_s"),
    Figure("vector_all_cores_per_s", None, True, "1/s", "the same 64 episodes stepped by vector_threads threads; time "
           "by the clock, in which whatever else the machine does shows"),
    Figure("vector_all_cores_ratio", 3.0, True, "", "vector_all_cores_per_s over env_steps_per_s"),
    Figure("vector_threads", None, True, "", "threads of that run: one for each core that this process may use"),
    Figure("numpy_us", None, False, "us", "a decision of an exported policy among 64 candidates in numpy, as an "
           "engine asks for it: a deep set of the zoo's size; processor time"),
    Figure("c_us", 20.0, False, "us", "the same in C, compiled for this processor: -O3 -march=native"),
    Figure("onnx_us", 60.0, False, "us", "the same in onnxruntime"),
    Figure("features_us", 150.0, False, "us", "what a policy sees of an engine with 64 requests running and 64 "
           "answers, from plain descriptions of them; processor time"),
    Figure("warm_start_s", 2.0, False, "s", "a new process from its start to the first simulated event"),
    Figure("cold_compile_s", 60.0, False, "s", "the same with nothing compiled before"),
)


MEASUREMENTS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "decode": measure_decode, "pure": measure_pure, "day": measure_day,
    "fleet": measure_fleet, "mixed": measure_mixed, "decisions": measure_decisions, "envs": measure_envs,
    "export": measure_export,
    "warm_start": measure_start, "cold_compile": measure_start,
}
ONCE = ("cold_compile",)
WITHOUT_SIMULATOR = ("export",)
STARTS = {"warm_start": "warm_start_s", "cold_compile": "cold_compile_s"}


def _child(name: str, options: dict[str, Any], environment: dict[str, str]) -> dict[str, Any]:
    """Runs a measurement in a new process; returns its figures and how long the process lived."""
    import time

    code = ("import json, sys\nfrom ooco_gym.commands.bench import MEASUREMENTS\n"
            "print(json.dumps(MEASUREMENTS[sys.argv[1]](json.loads(sys.argv[2]))))")
    begun = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code, name, json.dumps(options)], capture_output=True, text=True,
                          env={**os.environ, **environment}, check=False)
    wall_s = time.perf_counter() - begun
    if done.returncode != 0:
        raise RuntimeError(f"the measurement '{name}' failed:\n{done.stderr}")
    figures = json.loads(done.stdout.strip().splitlines()[-1])
    if name in STARTS:
        figures[STARTS[name]] = wall_s
    return figures


def _measure(name: str, options: dict[str, Any], repeats: int) -> dict[str, list[float]]:
    """All repeats of a measurement: a list of values for each figure."""
    values: dict[str, list[float]] = {}
    for _ in range(1 if name in ONCE else repeats):
        with tempfile.TemporaryDirectory() as folder:
            environment = {"NUMBA_CACHE_DIR": folder} if name == "cold_compile" else {}
            for key, value in _child(name, options, environment).items():
                values.setdefault(key, []).append(value)
    return values


def main(cfg: DictConfig) -> dict[str, Any]:
    """Runs the command; returns the figures (medians), all their values and a description of the machine.

    Raises:
        UserError: an unknown measurement, or a count that is not positive.
    """
    for key in ("repeats", "fleet_requests", "env_steps"):
        if not isinstance(cfg[key], int) or cfg[key] < 1:
            raise UserError(f"{key}={cfg[key]} must be a whole number of at least 1")
    only = [cfg.suite] if cfg.suite is not None else cfg.only
    names = list(only) if only is not None else list(MEASUREMENTS)
    for name in names:
        if name not in MEASUREMENTS:
            raise unknown("measurement", name, MEASUREMENTS)
    if "decisions" in names:
        for name in cfg.decisions:
            policy_of(name)
    options = {"fleet_requests": cfg.fleet_requests, "env_steps": cfg.env_steps, "decisions": list(cfg.decisions)}
    values: dict[str, list[float]] = {}
    if set(names) - set(WITHOUT_SIMULATOR):
        _measure("warm_start", options, 1)  # so that what is compiled already is on disk
    for name in track(names, "measuring", total=len(names)):
        values |= _measure(name, options, cfg.repeats)
    figures = {figure.name: None for figure in FIGURES} | {key: statistics.median(v) for key, v in values.items()}
    figures |= slowest(figures)
    figures_table(figures).show(unbroken=3)
    if figures["slowest_decision_mean_us"] is not None:
        policies = [str(name).partition(":")[0] for name in options["decisions"]]
        decisions_table(figures, policies).show()
    if figures["env_steps_per_s"] is not None:
        environments_table(figures).show(unbroken=3)
    for figure in FIGURES:
        print(f"{figure.name}: {figure.note}.")
    return {"schema": SCHEMA, **figures, "values": values, "machine": machine(),
            "targets": {figure.name: figure.target for figure in FIGURES if figure.target is not None},
            "notes": {figure.name: figure.note for figure in FIGURES}}


def figures_table(figures: dict[str, Any]) -> Table:
    """The figures beside their targets; marked where one is missed."""
    rows, missed = [], []
    for index, figure in enumerate(FIGURES):
        value, target = figures.get(figure.name), figure.target
        shown = "-" if value is None else _amount(value, figure.unit)
        rows.append((figure.name, shown,
                     "-" if target is None else f"{'≥' if figure.more else '<'} {_amount(target, figure.unit)}"))
        if value is not None and target is not None and (value < target) == figure.more:
            missed.append(index)
    return Table("medians on this machine", ("figure", "measured", "target"), rows, marked=missed)


def decisions_table(figures: dict[str, Any], names: list[str]) -> Table:
    """What a decision of each policy takes, by how many requests wait; marked where it is over the target."""
    rows, late = [], []
    for index, name in enumerate(names):
        means = [figures.get(f"decision_us/{name}/{waiting}/mean") for waiting in CROWDS]
        worst = figures.get(f"decision_us/{name}/{CROWD}/worst")
        rows.append((name, *(as_text(value, ".3g") for value in (*means, worst))))
        if (means[CROWDS.index(CROWD)] or 0.0) > DECISION_US:
            late.append(index)
    head = ("policy", *(f"mean, {waiting:,}" for waiting in CROWDS), f"worst, {CROWD:,}")
    return Table("microseconds a decision, by waiting requests", head, rows, marked=late)


def environments_table(figures: dict[str, Any]) -> Table:
    """Decisions a second of each environment."""
    names = dict.fromkeys(key.split("/", 1)[1].rsplit("/", 1)[0] for key in figures if key.startswith("env/"))
    rows = [(name, *(as_text(figures.get(f"env/{name}/{kind}"), ",.0f") for kind in ("single", "vector", "all_cores")))
            for name in names]
    threads = int(figures["vector_threads"])
    return Table(f"decisions a second: one episode, and {SIDE_BY_SIDE} side by side, on one core (processor time); "
                 f"{SIDE_BY_SIDE} on {threads} {'thread' if threads == 1 else 'threads'} (by the clock)",
                 ("environment", "single", "vector", "all cores"), rows)


def slowest(figures: dict[str, Any]) -> dict[str, Any]:
    """The costliest of all policies with 1,000 waiting; nothing where no decision was measured."""
    found = {}
    for kind in ("mean", "worst"):
        values = [value for key, value in figures.items()
                  if key.startswith("decision_us/") and key.endswith(f"/{CROWD}/{kind}")]
        if values:
            found[f"slowest_decision_{kind}_us"] = max(values)
    return found


def _amount(value: float, unit: str) -> str:
    return f"{value:,.0f} {unit}".strip() if value >= 1000 else f"{value:.3g} {unit}".strip()


def machine() -> dict[str, Any]:
    """What was measured on: processor, cores, versions, load."""
    import numba
    import numpy

    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    except OSError:
        pass
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {"cpu": model, "cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version(),
            "numpy": numpy.__version__, "numba": numba.__version__, "load_1min": load}
