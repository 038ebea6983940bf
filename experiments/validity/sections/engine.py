"""A real engine on this kind of machine, measured, fitted, simulated: the last run of the chain."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from experiments.validity.markdown import joined, percent, signed, table
from experiments.validity.section import Context, Figures, Missing, Section

KEYS = ("ttft", "tpot")
TITLES = {"ttft": "TTFT", "tpot": "TPOT"}
_ENGINE = ("engine", "model", "device", "cpu", "threads")
_LOAD = ("requests", "iterations_real", "iterations_simulated")


def measure(context: Context) -> dict[str, Any]:
    """Takes the figures of runs of `ooco-gym experiment engine_chain`: the last one whole, of others the worst median.

    Raises:
        Missing: no run was given, or a folder holds none.
    """
    paths = [folder / "summary.json" for folder in context.folders("chain")]
    runs = [_read(path) for path in paths]
    context.rest_on("engine_chain/summary.json", paths[-1:])
    last, earlier = runs[-1], runs[:-1]
    loads = {name: {key: load.get(key) for key in (*_LOAD, *(f"{key}_{part}" for key in KEYS for part in (
        "median_ms_real", "median_ms_simulated", "median_error", "mean_error")))} for name, load in
        last["loads"].items()}
    return {"engine": {key: last["engine"].get(key) for key in _ENGINE}, "loads": loads,
            "held_out": last.get("held_out_passes"), "worst": last.get("worst_median_error"),
            "earlier": [run.get("worst_median_error") for run in earlier]}


def _read(path: Path) -> dict[str, Any]:
    """The summary of a run."""
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if not str(found.get("schema", "")).startswith("ooco-gym/engine_chain/"):
        raise Missing("`chain=` holds no run of `ooco-gym experiment engine_chain`")
    return found


def write(figures: Figures) -> str:
    """The medians at each load."""
    rows = []
    for name, load in figures["loads"].items():
        cells = []
        for key in KEYS:
            cells += [f"{load[f'{key}_median_ms_real']:.2f} / {load[f'{key}_median_ms_simulated']:.2f}",
                      signed(load[f"{key}_median_error"]), signed(load[f"{key}_mean_error"])]
        rows.append([name, f"{load['requests']:,}", *cells])
    engine = figures["engine"]
    machine = f"{engine['cpu']}, {engine['threads']} thread" + ("" if engine["threads"] == 1 else "s")
    header = ["load", "requests"]
    for key in KEYS:
        header += [f"{TITLES[key]} median, ms, real / simulated", "error", "error of the mean"]
    said = (f"{engine['engine']} serving a small model of random weights ({machine}), measured by `ooco-gym calibrate "
            "measure`, fitted to designed batches, and simulated on the very requests that it served in real time "
            "(`ooco-gym experiment engine_chain`; [measuring.md](measuring.md)).")
    if figures["held_out"] and "mape" in figures["held_out"]:
        said += f" Iterations of passes that the fit had not seen: MAPE {percent(figures['held_out']['mape'])}."
    if figures["earlier"]:
        said += (f" {len(figures['earlier'])} earlier measurements on the same, busy machine, simulated by the same "
                 f"code, have worst medians of {joined([percent(value) for value in figures['earlier']])}.")
    return "\n\n".join([said, table(header, rows)])


def glance(figures: Figures) -> list[tuple[str, str, str]]:
    """Acceptance of the chain."""
    loads = figures["loads"]
    worst = {key: max(abs(load[f"{key}_median_error"]) for load in loads.values()) for key in KEYS}
    found = f"{worst['ttft']:.1f} %, {worst['tpot']:.1f} %"
    if figures["earlier"]:
        found += f" (earlier runs: up to {max(figures['earlier']):.1f} %)"
    return [(f"{figures['engine']['engine']} against its simulation, worst median of {len(loads)} loads: TTFT, TPOT",
             found, "≤ 15 %")]


SECTION = Section(310, "vLLM on a CPU: measure, fit, simulate, compare", measure, write, None, glance)
