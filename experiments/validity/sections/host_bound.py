"""Engines bound by their host: measured decode steps that do not get faster with more chips."""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.validity.markdown import signed, table
from experiments.validity.profiles import of_device, operators
from experiments.validity.section import Context, Figures, Section
from ooco_gym.perf.deployment import Deployment
from ooco_gym.perf.describe import describe_iteration
from ooco_gym.perf.specs import load_chip, load_model

DEVICES = {"A100 80 GB": ("splitwise_a100-80gb", "a100_80g"),
           "H100, power-capped": ("splitwise_h100-80gb-pcap", "h100")}
MODEL, DEGREES, BATCHES = "llama2-70b", (2, 4, 8), (1, 16, 64)
SPEC = {"name": "llama_2_70b", "layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8, "head_dim": 128,
        "intermediate": 28672, "vocab": 32000}
"""Llama-2-70B, from its config.json."""


def measure(context: Context) -> dict[str, Any]:
    """Decode steps by tensor parallelism, measured and as the roofline has them."""
    rows, model, found = operators(context), load_model(SPEC), []
    for title, (device, chip) in DEVICES.items():
        mine = of_device(rows, device)
        mine = mine.select((mine["op"] == "e2e_decode") & (mine["model"] == MODEL))
        for tp in DEGREES:
            deployment = Deployment(load_chip(chip), model, tp=tp)
            for batch in BATCHES:
                which = (mine["tp"] == tp) & (mine["batch"] == batch)
                if which.any():
                    context_tokens = float(np.median(mine["context_len"][which]))
                    which &= mine["context_len"] == context_tokens
                    ours = describe_iteration(deployment, decode=[context_tokens] * batch).latency_s
                    found.append({"title": title, "tp": tp, "batch": batch, "context": context_tokens,
                                  "measured_ms": 1e3 * float(np.median(mine.seconds[which])), "ours_ms": 1e3 * ours})
    return {"steps": found}


def write(figures: Figures) -> str:
    """Measured against the roofline, by tensor parallelism."""
    rows = []
    for title in dict.fromkeys(item["title"] for item in figures["steps"]):
        for tp in DEGREES:
            mine = {item["batch"]: item for item in figures["steps"] if item["title"] == title and item["tp"] == tp}
            if mine:
                rows.append([title, f"{tp}", *(_cell(mine.get(batch)) for batch in BATCHES)])
    return "\n\n".join([
        "Llama-2-70B decode steps of 2023's engines (splitwise-sim): from 4 to 8 chips nothing changes, because the "
        "engine's processor sets the pace. Fits to kernels do not know that: measured, *ours* by `timing=ooco` with "
        "the shipped chips, and the error.",
        table(["chip", "tp", *(f"batch {batch}: measured / ours, ms" for batch in BATCHES)], rows),
        "An engine like this needs a fit to its own iterations (`ooco-gym calibrate measure`), whose overhead may add "
        "to the kernels or run beside them. (At tp 2 the measured batch of 64 is faster than that of 32 on both chips, "
        "which is a fault of the data.)"])


def _cell(item: Figures | None) -> str:
    if item is None:
        return "–"
    return (f"{item['measured_ms']:.1f} / {item['ours_ms']:.1f} "
            f"({signed(100 * (item['ours_ms'] / item['measured_ms'] - 1), 0)})")


SECTION = Section(530, "Engines bound by their processor", measure, write)
