"""Near and beyond capacity an error of the clock grows: what iterations 5 % slower do to latencies at each load."""

from __future__ import annotations

import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from experiments.validity.markdown import number, signed, table
from experiments.validity.section import Context, Figures, Section
from experiments.validity.svg import Axis, Panel, Series

MODEL, CHIP, WORKLOAD = "qwen2_5_7b", "a100_80g", "azure_conv_2023"
SLOWER, REQUESTS, SEED = 1.05, 4000, 3
LOADS = (0.5, 0.7, 0.85, 0.95, 1.05, 1.2)
ENGINE = {"max_num_batched_tokens": 2048, "max_num_seqs": 256}


def measure(context: Context) -> dict[str, Any]:
    """Serves the same requests at rising rates by the shipped chip, and by one that takes 5 % longer."""
    import yaml

    from ooco_gym.perf.deployment import Deployment
    from ooco_gym.perf.specs import ChipSpec, load_chip, load_model

    chip, requests = load_chip(CHIP), _requests()
    values = {item.name: getattr(chip, item.name) for item in fields(ChipSpec)
              if item.name not in ("extended", "validity", "tables", "sources")}
    slow = {name: _slower(name, value) for name, value in values.items()}
    blocks = Deployment(chip, load_model(MODEL)).kv_blocks
    with tempfile.TemporaryDirectory() as folder:
        work, paths = Path(folder), []
        for name, one in (("chip", values), ("slow", slow)):
            paths.append(work / f"{name}.yaml")
            paths[-1].write_text(yaml.safe_dump(one), encoding="utf-8")
        capacity = _capacity(requests, paths[0], blocks, work)
        loads = {f"{load:g}": [_served(requests, load * capacity, path, blocks, work) for path in paths]
                 for load in LOADS}
    return {"model": MODEL, "chip": CHIP, "workload": WORKLOAD, "requests": REQUESTS, "slower": SLOWER,
            "capacity_per_s": capacity, "loads": loads}


def _slower(name: str, value: Any) -> Any:
    """A chip's field, by which every time is `SLOWER` times longer."""
    if name.endswith("_per_s") and not name.startswith("peak"):
        return value / SLOWER
    return value * SLOWER if name.endswith(("overhead_s", "latency_s")) else value


def _requests() -> dict[str, np.ndarray]:
    """Requests of the workload with Poisson arrivals of one a second."""
    from ooco_gym.workload.spec import load_spec

    draws, lengths = np.random.default_rng(SEED), load_spec(WORKLOAD).lengths
    return {"arrival_s": np.cumsum(draws.exponential(size=REQUESTS)),
            "prompt_tokens": lengths.prompt.at(draws.random(REQUESTS)),
            "output_tokens": np.maximum(lengths.output.at(draws.random(REQUESTS)), 2)}


def _simulate(requests: dict[str, np.ndarray], chip: Path, blocks: int, work: Path) -> Any:
    from experiments.engine_chain.compare import simulate_requests

    cluster = {"name": "one", "model": MODEL, "block_tokens": 16, "max_batch": ENGINE["max_num_seqs"] + 1,
               "mixed": [{"chip": str(chip), "count": 1, "kv_blocks": blocks}]}
    return simulate_requests(requests, cluster, {**ENGINE, "num_blocks": blocks}, "ooco", work)[0]


def _capacity(requests: dict[str, np.ndarray], chip: Path, blocks: int, work: Path) -> float:
    """Requests a second when all are there at once."""
    at_once = {**requests, "arrival_s": requests["arrival_s"] * 1e-6}
    return REQUESTS / float(_simulate(at_once, chip, blocks, work).e2e_s.max())


def _served(requests: dict[str, np.ndarray], rate: float, chip: Path, blocks: int, work: Path) -> dict[str, float]:
    served = _simulate({**requests, "arrival_s": requests["arrival_s"] / rate}, chip, blocks, work)
    return {"ttft_mean_ms": 1e3 * float(served.ttft_s.mean()), "tpot_mean_ms": 1e3 * float(served.tpot_s.mean()),
            "ttft_p99_ms": 1e3 * float(np.percentile(served.ttft_s, 99))}


KEYS = {"ttft_mean_ms": "TTFT mean", "ttft_p99_ms": "TTFT P99", "tpot_mean_ms": "TPOT mean"}


def write(figures: Figures) -> str:
    """Latencies at each load, and what the slower clock makes of them."""
    change = 100 * (figures["slower"] - 1)
    rows = [[f"{100 * float(load):.0f} %", *(cell for key in KEYS for cell in (
        number(pair[0][key], 3), signed(_change(pair, key), 0)))] for load, pair in figures["loads"].items()]
    return "\n\n".join([
        f"One instance of `{figures['model']}` on `{figures['chip']}` under `vllm_fcfs`, {figures['requests']:,} "
        f"Poisson requests of `{figures['workload']}`'s lengths, loads in shares of its capacity "
        f"({figures['capacity_per_s']:.1f} requests/s), and the change when every iteration takes **{change:.0f} % "
        "longer**. Batches grow with the time that a step takes, and queues more than in proportion: an error of the "
        "clock well within the tables above may turn a verdict near capacity. Beyond it TTFT grows with the length of "
        "the run, and means little.",
        table(["load", *(cell for title in KEYS.values() for cell in (f"{title}, ms", "change"))], rows)])


def _change(pair: list[dict[str, float]], key: str) -> float:
    return 100 * (pair[1][key] / pair[0][key] - 1)


def draw(figures: Figures) -> list[Panel]:
    """The change of each latency by load."""
    loads = [100 * float(load) for load in figures["loads"]]
    series = [Series(title, loads, [_change(pair, key) for pair in figures["loads"].values()], colour=place)
              for place, (key, title) in enumerate(KEYS.items())]
    ticks = [(load, f"{load:g}") for load in loads]
    return [Panel(f"Change of latency when iterations take {100 * (figures['slower'] - 1):.0f} % longer",
                  Axis("load (% of capacity)", limits=(45, 125), ticks=ticks), Axis("change (%)"), series)]


def glance(figures: Figures) -> list[tuple[str, str, str]]:
    """The largest change."""
    changes = {load: _change(pair, "ttft_mean_ms") for load, pair in figures["loads"].items()}
    worst = max(changes, key=lambda load: changes[load])
    return [(f"Iterations {100 * (figures['slower'] - 1):.0f} % longer change mean TTFT at half load, and at most",
             f"{signed(next(iter(changes.values())), 0)}, {signed(changes[worst], 0)} (load "
             f"{100 * float(worst):.0f} %)",
             "–")]


SECTION = Section(510, "Near capacity, errors of the clock grow", measure, write, draw, glance)
