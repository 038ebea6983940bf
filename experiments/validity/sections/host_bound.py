"""Engines bound by their host: measured decode steps that do not get faster with more chips."""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.validity.calibrations import ENGINES, all_calibrated
from experiments.validity.markdown import errors, joined, signed, table
from experiments.validity.profiles import iterations
from experiments.validity.section import Context, Figures, Section
from ooco_gym.calibrate.engine_rows import EngineRows
from ooco_gym.perf.deployment import Deployment
from ooco_gym.perf.describe import describe_iteration
from ooco_gym.perf.specs import load_chip, load_model

MODEL, BATCHES = "llama2-70b", (1, 16)


def measure(context: Context) -> dict[str, Any]:
    """Decode steps by tensor parallelism, measured and as the roofline has them, and fits to whole iterations."""
    parts = iterations(context)
    assert context.data is not None
    steps = [step for case in ENGINES for part in parts if part.device == case.device and part.model == MODEL
             for step in _steps(case.title, case.shipped, part)]
    fits = all_calibrated(context.data, context.workers, ENGINES)
    keys = ("title", "engine_iterations", "engine_overhead")
    return {"model": MODEL, "steps": steps, "fits": [{key: item[key] for key in keys} for item in fits]}


def _steps(title: str, chip: str, part: EngineRows) -> list[dict[str, Any]]:
    """Medians at the context length that was measured most, and the shipped chip's roofline there."""
    deployment, found = Deployment(load_chip(chip), load_model(part.sizes), tp=part.tp), []
    for batch in BATCHES:
        which = part.n_decode == batch
        if which.any():
            mean = part.decode_context / np.maximum(part.n_decode, 1)
            lengths, counts = np.unique(mean[which], return_counts=True)
            context = float(lengths[counts.argmax()])
            ours = describe_iteration(deployment, decode=[context] * batch).latency_s
            measured = float(np.median(part.seconds[which & (mean == context)]))
            found.append({"title": title, "tp": part.tp, "batch": batch, "context": context,
                          "measured_ms": 1e3 * measured, "ours_ms": 1e3 * ours})
    return found


def write(figures: Figures) -> str:
    """Measured against the roofline by tensor parallelism; whole iterations by fits to others of the engine."""
    rows, titles = [], list(dict.fromkeys(item["title"] for item in figures["steps"]))
    for title in titles:
        mine = [item for item in figures["steps"] if item["title"] == title]
        for tp in sorted({item["tp"] for item in mine}):
            cells = {item["batch"]: item for item in mine if item["tp"] == tp}
            rows.append([title, f"{tp}", *(_cell(cells.get(batch)) for batch in BATCHES)])
    fits = [[item["title"], f"`{form}`", f"{one['rows']:,}", one["held_out"],
             *(errors(one.get(part)) for part in ("with_prompts", "decode_only"))]
            for item in figures["fits"] for form, one in item["engine_iterations"].items()]
    return "\n\n".join([
        f"Decode steps of `{figures['model']}` in an engine of 2023 (splitwise-sim; its version is not stated): from 4 "
        "to 8 chips nothing changes, because the engine's processor sets the pace. Kernels do not know that: measured, "
        "*ours* by `timing=ooco` with the shipped chips, and the error.",
        table(["chip", "tp", *(f"batch {batch}: measured / ours, ms" for batch in BATCHES)], rows),
        "Such an engine needs a fit to iterations of its own (`ooco-gym calibrate`), and even that carries over to "
        "models and degrees that it has not seen with these errors only. In `extended` the engine's own time may be "
        f"added to the chip's or run beside it; the better fit has it {_beside(figures['fits'])}.",
        table(["engine on", "form", "iterations", "held out", "with prompts", "decode only"], fits)])


def _beside(fits: list[dict[str, Any]]) -> str:
    """How `extended` has the engine's own time, as it agreed better with the measurements."""
    words = {True: "beside the chip's", False: "added to the chip's"}
    return joined([f"{words[any(key.endswith('floor_s') and value for key, value in item['engine_overhead'].items())]} "
                   f"on {item['title']}" for item in fits])


def _cell(item: Figures | None) -> str:
    if item is None:
        return "–"
    return (f"{item['measured_ms']:.1f} / {item['ours_ms']:.1f} "
            f"({signed(100 * (item['ours_ms'] / item['measured_ms'] - 1), 0)})")


SECTION = Section(530, "Engines bound by their processor", measure, write)
