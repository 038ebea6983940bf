"""`ooco-gym calibrate replay run=DIR`: replays a real engine's run in the simulator, request by
request.

The requests are simulated on a chip, shipped or calibrated, under each timing form, and compared
with the record (docs/validity.md).
"""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ooco_gym.calibrate.chip import known_model
from ooco_gym.calibrate.iterations import mode_of, write_clock
from ooco_gym.calibrate.requests import Foreseen, Load, fit_requests
from ooco_gym.calibrate.rows import plain
from ooco_gym.calibrate.served import (
    HASHES,
    TOKEN_IDS,
    Again,
    Recorded,
    Served,
    compare,
    read_run,
    serve_again,
    served,
    served_plots,
)
from ooco_gym.errors import UserError
from ooco_gym.perf import list_chips, load_chip
from ooco_gym.perf.measurements import measurements
from ooco_gym.perf.model import model_named
from ooco_gym.perf.timing import timing_form
from ooco_gym.report import Section, Table, write_page
from ooco_gym.report.terminal import remarks
from ooco_gym.schema import whole
from ooco_gym.sim.engine_versions import ENGINE_VERSIONS, engine_version_of
from ooco_gym.workload import Trace
from ooco_gym.workload.sharing import sharing_ratio

if TYPE_CHECKING:
    from omegaconf import DictConfig


def model_of(run: Recorded, given: str | None) -> str:
    """Returns the given model, else the one that `engine.json` names.

    Raises:
        UserError: neither names a model of ours.
    """
    return (model_named(given) or given) if given else known_model(run.engine.get("model", ""), run.folder)


def chip_of(run: Recorded, given: Any) -> str:
    """Returns the given chip, else the one that `engine.json` names in `gpu`.

    Raises:
        UserError: the chip is unknown.
    """
    if isinstance(given, str):
        return given
    text = plain(run.engine.get("gpu") or run.engine.get("device") or "").replace("_", "")
    found = [name for name in list_chips() if name.replace("_", "") in text]
    if not found:
        raise UserError(f"'{run.folder / 'engine.json'}' names no known chip ('gpu'); give chip=NAME or "
                        "chip=FILE.yaml, which 'ooco-gym calibrate data=FOLDER' makes of the card's kernel times")
    return max(found, key=len)


def degree_of(run: Recorded) -> int:
    """Returns the number of chips over which the engine split the model."""
    return int(run.engine.get("tensor_parallel", 1))


def measured(run: Recorded) -> Served:
    """Returns the request times of the recorded run."""
    rows = run.requests
    return served(rows["arrival_s"], rows["first_token_s"], rows["last_token_s"], rows["output_tokens"])


def simulate_run(run: Recorded, chip: str, model: Any, timing: Any, clock: Any = None) -> Again:
    """Simulates the recorded requests on a chip (name or YAML file), with a model (or a mapping) and a timing form.

    `clock` is host time besides the chip's (`cluster.engine_clock`); None: none, scheduled as in
    `engine.json`.
    """
    engine = run.engine
    policy = {"max_num_batched_tokens": engine["max_num_batched_tokens"], "max_num_seqs": engine["max_num_seqs"],
              **({"engine_version": version} if (version := release_of(engine)[0]) else {})}
    # A preempted request also finds its own remaining blocks.
    policy["prefix_caching"] = "on" if engine.get("prefix_caching") else "off"
    cluster = {"name": run.folder.name, "model": model, "block_tokens": engine["block_tokens"],
               "max_batch": engine["max_num_seqs"], "engine_clock": clock or asdict(mode_of(engine)),
               "mixed": [{"chip": chip, "tp": degree_of(run), "kv_blocks": engine["num_gpu_blocks"]}]}
    return serve_again(trace_of(run), cluster, policy, timing, float(run.requests["last_token_s"].max()))


def trace_of(run: Recorded) -> Trace:
    """Returns the recorded requests, all online, with shared prefixes if known."""
    rows = run.requests
    return Trace(arrival_s=rows["arrival_s"], prompt_tokens=rows["prompt_tokens"].astype(np.int32),
                 output_tokens=rows["output_tokens"].astype(np.int32), prefix_hashes=run.prompts)


def release_of(engine: dict[str, Any]) -> tuple[str, list[str]]:
    """Returns the version of vLLM whose schedule is followed, if `engine.json` names a release such
    as "vLLM 0.19.0" ('' if not), and a note if that is not its own.

    A release older than all known ones is simulated as the oldest of these.
    """
    named = re.search(r"vllm\D*(\d+(?:\.\d+)+)", str(engine.get("engine", "")), re.IGNORECASE)
    if not named:
        return "", []
    try:
        return engine_version_of(named[1]), []
    except UserError:
        return ENGINE_VERSIONS[-1], [f"engine.json names '{engine['engine']}', whose schedule is not simulated: the "
                                     f"schedule of vLLM {ENGINE_VERSIONS[-1]} is used (docs/oracle.md)"]


SCHEMA = "ooco-gym/replay/1"
SHOWN = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "end to end"}
KINDS = {"mean": "means", "p99": "99th percentiles"}
"""Averages that are printed; `summary.json` also has medians."""


def main(cfg: DictConfig) -> dict[str, Any]:
    """Replays `cfg.run` under each timing form.

    Raises:
        UserError: no run, or one that cannot be read or simulated.
    """
    if cfg.run is None:
        raise UserError("ooco-gym calibrate replay needs run=DIR: a folder with requests.parquet and engine.json "
                        "(docs/calibration.md)")
    prompts = None if cfg.prompts is None else Path(str(cfg.prompts)).expanduser()
    run, out = read_run(Path(str(cfg.run)).expanduser().absolute(), prompts), Path(cfg.out)
    if cfg.tp is not None:
        run = replace(run, engine={**run.engine, "tensor_parallel": whole("tp", cfg.tp, 1)})
    model, chip = model_of(run, cfg.model), chip_of(run, cfg.chip)
    timings = forms_of(chip, cfg.timings)
    with remarks() as remarked:
        fits = fit_host([run, *_others(cfg)], chip, model, timings, out) if cfg.engine_clock == "fit" else {}
        found, simulated = replay(run, chip, model, timings, fits or cfg.engine_clock)
    plots = served_plots(measured(run), simulated, run.curves, float(run.requests["last_token_s"].max()))
    write_page(out / "replay.html", f"{run.folder.name}: recorded and simulated", [Section("", plots=plots)])
    for kind in KINDS:
        table(run, found, kind).show(unbroken=9)
    said = [*release_of(run.engine)[1], *_unknown_prompts(run), *_allreduce(run, chip)]
    said += [f"timing={timing}: {sentence}" for timing, fit in fits.items() for sentence in fit.notes]
    if run.failed:
        said.append(f"left out: {run.failed} requests without a token or without times")
    for timing, fit in fits.items():
        print(f"host time on top of {chip}, timing={timing}: {fit}; averages are {100 * fit.left:.1f} % off; written: "
              f"'{_clock_file(out, timing)}', to be used as cluster.engine_clock=FILE")
    for sentence in said:
        print(f"note: {sentence}")
    return {"schema": SCHEMA, "run": run.folder.name, "chip": chip, "model": model, "tp": degree_of(run),
            "requests": len(run.requests["arrival_s"]), "sharing_ratio": sharing_ratio(trace_of(run)),
            "results": found, "notes": [*said, *remarked.values()],
            "host": {timing: fit.summary() for timing, fit in fits.items()},
            "page": str(out / "replay.html")}


def _others(cfg: DictConfig) -> list[Recorded]:
    """Reads further runs of the same engine."""
    folders = [cfg.also] if isinstance(cfg.also, str) else cfg.also or ()
    return [read_run(Path(str(folder)).expanduser().absolute()) for folder in folders]


def fit_host(runs: list[Recorded], chip: str, model: Any, timings: list[str], out: Path) -> dict[str, Foreseen]:
    """Fits host times by timing form to the requests' own times; writes them to `out` as engine clocks."""
    fits, like = {}, mode_of(runs[0].engine)
    for timing in timings:
        def load(run: Recorded, timing: str = timing) -> Load:
            return Load(lambda clock: simulate_run(run, chip, model, timing, asdict(clock)).served, measured(run),
                        run.requests["prompt_tokens"])

        fits[timing] = fit = fit_requests([load(run) for run in runs], like)
        said = (f"TTFT and TPOT of {sum(len(run.requests['arrival_s']) for run in runs):,} requests that "
                f"{runs[0].engine.get('engine', 'an engine')} served ({', '.join(run.folder.name for run in runs)}), "
                f"beyond timing={timing} of {chip}: {fit}")
        write_clock(_clock_file(out, timing), replace(fit.clock(like), name=f"served_{timing}", source=said,
                                                      frontend_s=fit.host_times["frontend_s"]))
    return fits


def _clock_file(out: Path, timing: str) -> Path:
    return out / f"clock_{timing}.yaml"


def _unknown_prompts(run: Recorded) -> list[str]:
    """Returns a note if the engine had prefix caching, but the prompts' shared prefixes are unknown."""
    if run.prompts is not None or not run.engine.get("prefix_caching"):
        return []
    return ["the engine cached prefixes (prefix_caching in engine.json), but the data do not say which prompts share a "
            f"prefix: the replay finds no shared blocks, so waiting times may be too long; give column {HASHES} or "
            f"{TOKEN_IDS[0]} of requests.parquet, or prompts=FILE (docs/calibration.md)"]


def _allreduce(run: Recorded, chip: str) -> list[str]:
    """Returns a note on the assumed all-reduce if the model was split and none was measured."""
    spec, chips = load_chip(chip), degree_of(run)
    table = measurements(spec)
    if chips == 1 or not spec.allreduce_bytes_per_s or (table and table.all_reduce(chips)):
        return []
    return [f"the model was split over {chips} chips and no all-reduce over {chips} was measured: "
            f"{1e-9 * spec.allreduce_bytes_per_s:.0f} GB/s and {1e6 * spec.allreduce_latency_s:.0f} µs of chip "
            f"'{spec.name}' stand in, which may be far too fast; calibrate with allreduce.csv (n_gpus, bytes, time_us)"]


def forms_of(chip: str, asked: Any) -> list[str]:
    """Returns the timing forms to simulate: the given ones, else all that the chip has.

    Raises:
        UserError: an unknown form, or `measured` for a chip without tables.
    """
    forms = [str(name) for name in asked or (*(["measured"] if load_chip(chip).tables else []), "extended", "ooco")]
    for name in forms:
        timing_form(name)
    if "measured" in forms and not load_chip(chip).tables:
        others = ",".join(name for name in forms if name != "measured") or "extended,ooco"
        raise UserError(f"chip '{chip}' has no tables of measured operators, which timing=measured looks up: give one "
                        f"that 'ooco-gym calibrate data=FOLDER' made, or timings=[{others}]")
    return forms


def replay(run: Recorded, chip: str, model: Any, timings: list[str],
           host: Any = None) -> tuple[dict[str, Any], dict[str, Again]]:
    """Simulates a run under several timing forms.

    `host` is host time besides the chip's (`cluster.engine_clock`), or the result of `fit_host`.

    Returns:
        By form, means, medians and 99th percentiles of both in milliseconds with the error in
        percent, and the simulations.
    """
    real = measured(run)
    simulated = {}
    for timing in timings:
        fit = host.get(timing) if isinstance(host, dict) else None
        clock = host if fit is None else asdict(fit.clock(mode_of(run.engine)))
        again = simulate_run(run, chip, model, timing, clock)
        simulated[timing] = again if fit is None else again._replace(served=fit.seen(again.served))
    found = {timing: {**compare(real, again.served), "iterations": again.iterations,
                      "preemptions": again.preemptions, "cached_tokens": again.cached_tokens}
             for timing, again in simulated.items()}
    return found, simulated


def table(run: Recorded, found: dict[str, Any], kind: str = "mean") -> Table:
    """Returns a table of one average of each of `SHOWN`, recorded and simulated."""
    first = next(iter(found.values()))
    recorded: list[str] = []
    for key in SHOWN:
        recorded += [f"{first[f'{key}_{kind}_ms_real']:,.1f}", ""]
    rows = [("recorded", *recorded)]
    for timing, row in found.items():
        cells: list[str] = []
        for key in SHOWN:
            cells += [f"{row[f'{key}_{kind}_ms_simulated']:,.1f}", f"{row[f'{key}_{kind}_error']:+.1f} %"]
        rows.append((timing, *cells))
    split = f", tp {degree_of(run)}" if degree_of(run) > 1 else ""
    return Table(f"{run.engine.get('engine', 'engine')} on {run.engine.get('gpu', 'its device')}{split}: {KINDS[kind]} "
                 f"of {len(run.requests['arrival_s'])} requests",
                 ("timing", *(head for title in SHOWN.values() for head in (f"{title} ms", ""))), rows)
