"""Sections on whole engines: measured and replayed ones, and where the model of an engine breaks."""

from __future__ import annotations

import json
import tempfile
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.common.recorded import Recorded
from experiments.validity.causes import PROMPTS, prompted, recorded
from experiments.validity.section import (
    ENGINES,
    Context,
    Figures,
    Missing,
    Section,
    all_calibrated,
    errors,
    iterations,
    percent,
    signed,
    table,
)
from ooco_gym.calibrate.engine_fits import EngineRows
from ooco_gym.perf.deployment import Deployment
from ooco_gym.perf.describe import describe_iteration
from ooco_gym.perf.specs import load_chip, load_model
from ooco_gym.report import joined, number
from ooco_gym.report.svg import Axis, Panel, Series
from ooco_gym.sim.state import HASH_TOKENS

CHAIN_KEYS = ("ttft", "tpot")
TITLES = {"ttft": "TTFT", "tpot": "TPOT"}
_ENGINE = ("engine", "model", "device", "cpu", "threads")
_LOAD = ("requests", "iterations_real", "iterations_simulated")


def measure_engine(context: Context) -> dict[str, Any]:
    """Takes the figures of runs of `ooco-gym experiment engine_chain`: the last one whole, of others the worst median.

    Raises:
        Missing: no run was given, or a folder holds none.
    """
    paths = [folder / "summary.json" for folder in context.folders("chain")]
    runs = [_read(path) for path in paths]
    context.rest_on("engine_chain/summary.json", paths[-1:])
    last, earlier = runs[-1], runs[:-1]
    loads = {name: {key: load.get(key) for key in (*_LOAD, *(f"{key}_{part}" for key in CHAIN_KEYS for part in (
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


def write_engine(figures: Figures) -> str:
    """The medians at each load."""
    rows = []
    for name, load in figures["loads"].items():
        cells = []
        for key in CHAIN_KEYS:
            cells += [f"{load[f'{key}_median_ms_real']:.2f} / {load[f'{key}_median_ms_simulated']:.2f}",
                      signed(load[f"{key}_median_error"]), signed(load[f"{key}_mean_error"])]
        rows.append([name, f"{load['requests']:,}", *cells])
    engine = figures["engine"]
    machine = f"{engine['cpu']}, {engine['threads']} thread" + ("" if engine["threads"] == 1 else "s")
    header = ["load", "requests"]
    for key in CHAIN_KEYS:
        header += [f"{TITLES[key]} median, ms, real / simulated", "error", "error of the mean"]
    said = (f"{engine['engine']} serving a small model of random weights ({machine}), measured by `ooco-gym calibrate "
            "measure`, fitted to designed batches, and simulated on the very requests that it served in real time "
            "(`ooco-gym experiment engine_chain`; [measuring an engine](measuring.md)).")
    if figures["held_out"] and "mape" in figures["held_out"]:
        said += f" Iterations of passes that the fit had not seen: MAPE {percent(figures['held_out']['mape'])}."
    if figures["earlier"]:
        said += (f" {len(figures['earlier'])} earlier measurements on the same, busy machine, simulated by the same "
                 f"code, have worst medians of {joined([percent(value) for value in figures['earlier']])}.")
    return "\n\n".join([said, table(header, rows)])


def glance_engine(figures: Figures) -> list[tuple[str, str, str]]:
    """Acceptance of the chain."""
    loads = figures["loads"]
    worst = {key: max(abs(load[f"{key}_median_error"]) for load in loads.values()) for key in CHAIN_KEYS}
    found = f"{worst['ttft']:.1f} %, {worst['tpot']:.1f} %"
    if figures["earlier"]:
        found += f" (earlier runs: up to {max(figures['earlier']):.1f} %)"
    return [(f"{figures['engine']['engine']} against its simulation, worst median of {len(loads)} loads: TTFT, TPOT",
             found, "≤ 15 %")]


FORMS = ("ooco", "extended", "measured")
REPLAY_KEYS = ("ttft", "tpot", "e2e")
PARTS_OF_RUN = 5


def measure_replayed(context: Context) -> dict[str, Any]:
    """Calibrates the chip from kernel times alone, and replays the run: as its folder tells it, with its prompts known,
    and without its block count."""
    from experiments.studies.replay import replay

    with recorded(context) as (run, model, chip):
        found, _, late = _replayed(run, chip, model, list(FORMS))
        blocks = Deployment(load_chip(chip), load_model(model)).kv_blocks
        unknown = replace(run, engine={**run.engine, "num_gpu_blocks": blocks})
        guessed, _ = replay(unknown, chip, model, ["measured"])
        known = prompted(context, run)
        told = None
        if known:
            forms, ratio, lateness = _replayed(known, chip, model, list(FORMS))
            told = {"forms": forms, "sharing_ratio": ratio, "late_s": lateness}
    return {"engine": run.engine.get("engine"), "gpu": run.engine.get("gpu"), "model": model,
            "requests": len(run.requests["arrival_s"]), "prompt_tokens": int(run.requests["prompt_tokens"].sum()),
            "blocks": run.engine["num_gpu_blocks"], "blocks_guessed": blocks, "forms": found, "late_s": late,
            "guessed": guessed["measured"], "prompted": told}


def _replayed(run: Recorded, chip: str, model: str,
              forms: list[str]) -> tuple[dict[str, Any], float | None, list[float]]:
    """Figures by form, the prompts' sharing ratio, and by how many seconds `measured` has TTFT too long in the mean, by
    `PARTS_OF_RUN` parts of the requests in the order of their arrival."""
    from experiments.studies.replay import measured, replay, trace_of
    from ooco_gym.workload.sharing import sharing_ratio

    found, simulated = replay(run, chip, model, forms)
    late = simulated["measured"].served.ttft_s - measured(run).ttft_s
    return found, sharing_ratio(trace_of(run)), [float(part.mean()) for part in np.array_split(late, PARTS_OF_RUN)]


def write_replayed(figures: Figures) -> str:
    """Means, real and simulated, by form."""
    real = next(iter(figures["forms"].values()))
    rows = [["measured", *(cell for key in REPLAY_KEYS for cell in (f"{real[f'{key}_mean_ms_real']:,.1f}", ""))]]
    rows += [[f"`{form}`", *_cells(item)] for form, item in figures["forms"].items()]
    told = figures.get("prompted")
    if told:
        rows += [[f"`{form}`, prompts known", *_cells(item)] for form, item in told["forms"].items()]
    rows.append([f"`measured`, {figures['blocks_guessed']:,} blocks", *_cells(figures["guessed"])])
    header = ["timing", *(cell for key in ("TTFT", "TPOT", "end to end") for cell in (f"{key}, ms", "error"))]
    return "\n\n".join([
        f"{figures['requests']} recorded requests through {figures['engine']} on one {figures['gpu']} "
        f"(`{figures['model']}`), overloaded and its KV memory full for most of the run: means, the chip calibrated "
        f"from kernel times alone (`ooco-gym experiment replay`). The engine's {figures['blocks']:,} KV blocks are "
        f"taken from its log; the last row has the {figures['blocks_guessed']:,} that `kv_fraction` 0.9 gives.",
        table(header, rows), *([_of_prompts(figures, told)] if told else [])])


def _of_prompts(figures: Figures, told: Figures) -> str:
    """What the prompts' shared beginnings are worth, and where."""
    item = told["forms"]["measured"]
    return (
        f"*Prompts known*: the engine kept prefixes, and {percent(100 * told['sharing_ratio'])} of the "
        f"{figures['prompt_tokens']:,} prompt tokens lie in blocks (of {HASH_TOKENS} tokens) that an earlier prompt "
        "has. The run's folder does not tell which; the public requests that it served do (github "
        f"casys-kaist/LLMServingSim, `workloads/{PROMPTS}`, given by `prompts=FILE`). {item['cached_tokens']:,} of "
        "these tokens are still in memory when their requests are first admitted, and need neither time nor further "
        "blocks. Without them the simulated queue falls behind: the mean TTFT of each fifth of the requests in order "
        f"of arrival is {_seconds(figures['late_s'])} s from the recorded one, with them {_seconds(told['late_s'])} s.")


def _seconds(late: list[float]) -> str:
    return ", ".join(f"{value:+.1f}".replace("-", "−") for value in late)


def _cells(item: Figures) -> list[str]:
    return [cell for key in REPLAY_KEYS for cell in (f"{item[f'{key}_mean_ms_simulated']:,.1f}",
                                              signed(item[f"{key}_mean_error"]))]


def glance_replayed(figures: Figures) -> list[tuple[str, str, str]]:
    """The three means under measured kernel times."""
    def said(forms: Figures) -> str:
        return ", ".join(signed(forms["measured"][f"{key}_mean_error"]) for key in REPLAY_KEYS)

    told = figures.get("prompted")
    found = said(figures["forms"]) + (f"; prompts known {said(told['forms'])}" if told else "")
    return [(f"{figures['engine']} on {figures['gpu']}, recorded run replayed (`measured`): TTFT, TPOT, end to end",
             found, "LLMServingSim: +0.6, +0.2, +0.5 %")]


OVERLOAD_MODEL, CHIP, WORKLOAD = "qwen2_5_7b", "a100_80g", "azure_conv_2023"
SLOWER, REQUESTS, SEED = 1.05, 4000, 3
LOADS = (0.5, 0.7, 0.85, 0.95, 1.05, 1.2)
LIMITS = {"max_num_batched_tokens": 2048, "max_num_seqs": 256}


def measure_overload(context: Context) -> dict[str, Any]:
    """Serves the same requests at rising rates by the shipped chip, and by one that takes 5 % longer."""
    import yaml

    from ooco_gym.perf.deployment import Deployment
    from ooco_gym.perf.specs import ChipSpec, load_chip, load_model

    chip, requests = load_chip(CHIP), _requests()
    values = {item.name: getattr(chip, item.name) for item in fields(ChipSpec)
              if item.name not in ("extended", "validity", "tables", "sources")}
    slow = {name: _slower(name, value) for name, value in values.items()}
    blocks = Deployment(chip, load_model(OVERLOAD_MODEL)).kv_blocks
    with tempfile.TemporaryDirectory() as folder:
        work, paths = Path(folder), []
        for name, one in (("chip", values), ("slow", slow)):
            paths.append(work / f"{name}.yaml")
            paths[-1].write_text(yaml.safe_dump(one), encoding="utf-8")
        capacity = _capacity(requests, paths[0], blocks, work)
        loads = {f"{load:g}": [_served(requests, load * capacity, path, blocks, work) for path in paths]
                 for load in LOADS}
    return {"model": OVERLOAD_MODEL, "chip": CHIP, "workload": WORKLOAD, "requests": REQUESTS, "slower": SLOWER,
            "capacity_per_s": capacity, "loads": loads}


def _slower(name: str, value: Any) -> Any:
    """A chip's field, by which every time is `SLOWER` times longer."""
    if name.endswith("_per_s") and not name.startswith("peak"):
        return value / SLOWER
    return value * SLOWER if name.endswith(("overhead_s", "latency_s")) else value


def _requests() -> dict[str, np.ndarray]:
    """Requests of the workload with Poisson arrivals of one a second."""
    from ooco_gym.workload.generate import load_spec

    draws, lengths = np.random.default_rng(SEED), load_spec(WORKLOAD).lengths
    return {"arrival_s": np.cumsum(draws.exponential(size=REQUESTS)),
            "prompt_tokens": lengths.prompt.at(draws.random(REQUESTS)),
            "output_tokens": np.maximum(lengths.output.at(draws.random(REQUESTS)), 2)}


def _simulate(requests: dict[str, np.ndarray], chip: Path, blocks: int, work: Path) -> Any:
    from experiments.common.served import simulate_requests

    cluster = {"name": "one", "model": OVERLOAD_MODEL, "block_tokens": 16, "max_batch": LIMITS["max_num_seqs"] + 1,
               "mixed": [{"chip": str(chip), "count": 1, "kv_blocks": blocks}]}
    return simulate_requests(requests, cluster, {**LIMITS, "num_blocks": blocks}, "ooco", work)[0]


def _capacity(requests: dict[str, np.ndarray], chip: Path, blocks: int, work: Path) -> float:
    """Requests a second when all are there at once."""
    at_once = {**requests, "arrival_s": requests["arrival_s"] * 1e-6}
    return REQUESTS / float(_simulate(at_once, chip, blocks, work).e2e_s.max())


def _served(requests: dict[str, np.ndarray], rate: float, chip: Path, blocks: int, work: Path) -> dict[str, float]:
    served = _simulate({**requests, "arrival_s": requests["arrival_s"] / rate}, chip, blocks, work)
    return {"ttft_mean_ms": 1e3 * float(served.ttft_s.mean()), "tpot_mean_ms": 1e3 * float(served.tpot_s.mean()),
            "ttft_p99_ms": 1e3 * float(np.percentile(served.ttft_s, 99))}


OVERLOAD_KEYS = {"ttft_mean_ms": "TTFT mean", "ttft_p99_ms": "TTFT P99", "tpot_mean_ms": "TPOT mean"}


def write_overload(figures: Figures) -> str:
    """Latencies at each load, and what the slower clock makes of them."""
    change = 100 * (figures["slower"] - 1)
    rows = [[f"{100 * float(load):.0f} %", *(cell for key in OVERLOAD_KEYS for cell in (
        number(pair[0][key], 3), signed(_change(pair, key), 0)))] for load, pair in figures["loads"].items()]
    return "\n\n".join([
        f"One instance of `{figures['model']}` on `{figures['chip']}` under `vllm_fcfs`, {figures['requests']:,} "
        f"Poisson requests of `{figures['workload']}`'s lengths, loads in shares of its capacity "
        f"({figures['capacity_per_s']:.1f} requests/s), and the change when every iteration takes **{change:.0f} % "
        "longer**. Batches grow with the time that a step takes, and queues more than in proportion: an error of the "
        "clock well within the tables above may turn a verdict near capacity. Beyond it TTFT grows with the length of "
        "the run, and means little.",
        table(["load", *(cell for title in OVERLOAD_KEYS.values() for cell in (f"{title}, ms", "change"))], rows)])


def _change(pair: list[dict[str, float]], key: str) -> float:
    return 100 * (pair[1][key] / pair[0][key] - 1)


def draw_overload(figures: Figures) -> list[Panel]:
    """The change of each latency by load."""
    loads = [100 * float(load) for load in figures["loads"]]
    series = [Series(title, loads, [_change(pair, key) for pair in figures["loads"].values()], colour=index)
              for index, (key, title) in enumerate(OVERLOAD_KEYS.items())]
    ticks = [(load, f"{load:g}") for load in loads]
    return [Panel(f"Change of latency when iterations take {100 * (figures['slower'] - 1):.0f} % longer",
                  Axis("load (% of capacity)", limits=(45, 125), ticks=ticks), Axis("change (%)"), series)]


def glance_overload(figures: Figures) -> list[tuple[str, str, str]]:
    """The largest change."""
    changes = {load: _change(pair, "ttft_mean_ms") for load, pair in figures["loads"].items()}
    worst = max(changes, key=lambda load: changes[load])
    return [(f"Iterations {100 * (figures['slower'] - 1):.0f} % longer change mean TTFT at half load, and at most",
             f"{signed(next(iter(changes.values())), 0)}, {signed(changes[worst], 0)} (load "
             f"{100 * float(worst):.0f} %)",
             "–")]


HOST_MODEL, BATCHES = "llama2-70b", (1, 16)


def measure_host_bound(context: Context) -> dict[str, Any]:
    """Decode steps by tensor parallelism, measured and as the roofline has them, and fits to whole iterations."""
    parts = iterations(context)
    assert context.data is not None
    steps = [step for case in ENGINES for part in parts if part.device == case.device and part.model == HOST_MODEL
             for step in _steps(case.title, case.shipped, part)]
    fits = all_calibrated(context.data, context.workers, ENGINES)
    keys = ("title", "engine_iterations", "engine_overhead")
    return {"model": HOST_MODEL, "steps": steps, "fits": [{key: item[key] for key in keys} for item in fits]}


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


def write_host_bound(figures: Figures) -> str:
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


SECTIONS = {
    "engine": Section(310, "vLLM on a CPU: measure, fit, simulate, compare",
                      measure_engine, write_engine, None, glance_engine),
    "replayed": Section(320, "vLLM on an RTX 4090: a recorded run, replayed",
                        measure_replayed, write_replayed, None, glance_replayed),
    "overload": Section(510, "Near capacity, errors of the clock grow",
                        measure_overload, write_overload, draw_overload, glance_overload),
    "host_bound": Section(530, "Engines bound by their processor", measure_host_bound, write_host_bound),
}
