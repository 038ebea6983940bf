"""`ooco-gym calibrate chain`: measure an engine, fit it, simulate it, compare
(docs/calibration.md).

The engine serves three loads in real time. The simulator serves the same requests with a formula
fitted to designed batches on the same engine (`experiments.engines.iterations`), which becomes a
chip with operator tables (`experiments.engines.fitted_chip`).
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from agents.settings import plain
from experiments.engines import host
from experiments.engines.fitted_chip import model_of, write_chip
from experiments.engines.host import Timed
from experiments.engines.iterations import (
    StepModel,
    doubts,
    errors,
    fit_iterations,
    held_out,
    read_iterations,
    summary,
)
from experiments.engines.served import compare, read_measured, serve_again, served, served_plots
from ooco_gym.calibrate.measure import measure
from ooco_gym.errors import UserError
from ooco_gym.perf import cost_table
from ooco_gym.perf.deployment import Deployment
from ooco_gym.perf.engine_clock import EngineClock
from ooco_gym.report import Section, Table, write_page
from ooco_gym.workload import Trace

if TYPE_CHECKING:
    from omegaconf import DictConfig

SCHEMA = "ooco-gym/engine_chain/1"
LIMIT = 15.0
"""Largest error of a median, in percent, for which the chain counts as closed."""


def main(cfg: DictConfig) -> dict[str, Any]:
    """Runs the chain; `cfg.measured` names an earlier measurement to start from.

    Raises:
        UserError: no engine, or a folder without a measurement.
    """
    from rich.console import Console

    out = Path(cfg.out)
    chip = cfg.chip if isinstance(cfg.chip, str) else None  # datasheet values belong to replay
    if chip is None and cfg.timing != "measured":
        raise UserError(f"timing={cfg.timing}: the chain fits whole iterations, which only timing=measured uses; give "
                        "a chip with chip=FILE, fitted with 'ooco-gym calibrate'")
    measured = Path(cfg.measured).expanduser().absolute() if cfg.measured else out / "measured"
    if cfg.engine_clock is not None and chip is None:
        raise UserError(f"engine_clock={cfg.engine_clock}: the chain fits whole iterations including host time; add a "
                        "chip fitted to kernels, such as chip=h100 timing=extended")
    if not cfg.measured:
        measure(plain(cfg.engine), measured)
    found = close(measured, out, chip, str(cfg.timing), cfg.engine_clock)
    console = Console()
    comparison(found).show(console, unbroken=8)
    for sentence in found["notes"]:
        console.print(f"note: {sentence}", highlight=False, markup=False, soft_wrap=True)
    if found["loads"]:
        console.print(f"plots: '{out / 'chain.html'}'; the chain's own chip: '{out / 'chip' / 'chip.yaml'}', to be "
                      "used with timing=measured", highlight=False, markup=False)
    if cfg.engine_clock == "fit":
        figures = host.described({key: found["clock"][key] for key in host.CONSTANTS})
        console.print(f"host time on top of {chip}, timing={cfg.timing}: {figures}; written: "
                      f"'{out / host.CLOCK_FILE}', to be used as "
                      "cluster.engine_clock=FILE", highlight=False, markup=False, soft_wrap=True)
    return {"schema": SCHEMA, "measured": str(measured), **found}


class Engine(NamedTuple):
    """A measured engine: `engine.json`, the designed iterations, its cluster in the simulator, its
    chip's folder, the fit and its errors."""

    facts: dict[str, Any]
    rows: dict[str, np.ndarray]
    cluster: dict[str, Any]
    chip: Path
    fitted: StepModel
    fit: dict[str, Any]


def fitted_engine(measured: Path, out: Path) -> Engine:
    """Fits a measurement, and writes its chip with `latency.json` for the scheduler inside vLLM.

    Raises:
        UserError: the folder has no measurement.
    """
    path = measured / "engine.json"
    if not path.is_file():
        raise UserError(f"'{measured}' holds no measurement: expected engine.json, as `ooco-gym calibrate measure` "
                        "writes it")
    facts = json.loads(path.read_text(encoding="utf-8"))
    rows = read_iterations(measured / "iterations.parquet", bool(facts.get("asynchronous")))
    fitted, model = fit_iterations(rows), model_of(facts)
    chip = write_chip(out / "chip", fitted, facts, model)
    cluster = {"name": "measured", "model": model, "block_tokens": facts["block_tokens"],
               "max_batch": facts["max_num_seqs"], "engine_clock": asdict(host.mode_of(facts)),
               "mixed": [{"chip": str(chip), "count": 1, "kv_blocks": facts["num_blocks"]}]}
    return Engine(facts, rows, cluster, chip.parent, fitted, {"all": errors(fitted, rows), "held_out": held_out(rows)})


def with_chip(own: Engine, chip: str, timing: str, clock: Any, out: Path) -> tuple[dict[str, Any], Timed]:
    """Returns the cluster on a chip that was fitted elsewhere, and its times.

    The clock `fit` is fitted to the designed iterations and written to `out`.
    """
    facts, model = own.facts, own.cluster["model"]
    table = cost_table(Deployment.from_config({"chip": chip, "model": model, "timing": timing,
                                               "block_tokens": facts["block_tokens"],
                                               "known_kv_blocks": facts["num_blocks"]}))
    if clock == "fit":
        mode = "asynchronous" if facts.get("asynchronous") else "synchronous"
        said = (f"{len(own.rows['time_us']):,} iterations of {facts['engine']}, {mode}, with {facts.get('model')} on "
                f"{facts.get('cpu') if facts['device'] == 'cpu' else facts['device']}")
        clock = host.fit_clock(table, own.rows, f"measured_{mode}", f"{said}, on top of timing={timing} of {chip}",
                               host.mode_of(facts))
        found = errors(Timed(table, clock), own.rows)
        said = f"{clock.source}; MAPE {found['mape']:.1f} %, bias {found['bias']:+.1f} %"
        clock = str(host.write_clock(out / host.CLOCK_FILE, replace(clock, source=said)))
    clock = clock or own.cluster["engine_clock"]
    cluster = {**own.cluster, "mixed": [{**own.cluster["mixed"][0], "chip": chip}], "engine_clock": clock}
    return cluster, Timed(table, EngineClock.load(clock))


def close(measured: Path, out: Path, chip: str | None = None, timing: str = "measured",
          clock: Any = None) -> dict[str, Any]:
    """Fits, simulates and compares, after the measurement.

    Args:
        measured: folder of a measurement.
        out: folder for the chip and the page `chain.html`.
        chip: name or YAML of a chip to simulate, fitted elsewhere; None: the fit's own.
        timing: its timing form.
        clock: its host time (`cluster.engine_clock`), or `fit`.

    Returns:
        The fit with its errors on iterations in percent, and each load's errors of simulated medians and means.
    """
    own = fitted_engine(measured, out)
    engine, cluster, fit = own.facts, own.cluster, own.fit
    fitted: StepModel | Timed = own.fitted
    if chip is not None:
        cluster, fitted = with_chip(own, chip, timing, clock, out)
        clock, fit = asdict(fitted.clock), {"all": errors(fitted, own.rows), "held_out": {}}
    loads: dict[str, Any] = {}
    sections: list[Section] = []
    for name in engine["serving"]:
        folder = measured / "serve" / name
        requests, steps = read_measured(folder / "requests.parquet"), read_iterations(
            folder / "iterations.parquet", bool(engine.get("asynchronous")))
        real = served(requests["arrival_s"], requests["first_token_s"], requests["last_token_s"],
                      requests["output_tokens"])
        trace = Trace(arrival_s=requests["arrival_s"], prompt_tokens=requests["prompt_tokens"].astype(np.int32),
                      output_tokens=requests["output_tokens"].astype(np.int32))
        limits = {"max_num_batched_tokens": engine["max_num_batched_tokens"], "max_num_seqs": engine["max_num_seqs"],
                  "reserved_blocks": 1}
        again = serve_again(trace, cluster, limits, timing, float(requests["last_token_s"].max()))
        loads[name] = {"requests": len(requests["arrival_s"]), **compare(real, again.served),
                       "iterations_real": len(steps["time_us"]), "iterations_simulated": again.iterations,
                       "iteration_errors": errors(fitted, steps)}
        end_s = float(requests["last_token_s"].max())
        sections.append(Section(name, plots=served_plots(real, {timing: again}, {}, end_s)))
    if sections:
        write_page(out / "chain.html", f"{engine['engine']} and its simulation", sections)
    worst = max((abs(load[f"{key}_median_error"]) for load in loads.values() for key in ("ttft", "tpot")), default=None)
    return {"engine": {key: engine.get(key) for key in ("engine", "model", "device", "cpu", "threads")},
            "chip": chip or str(own.chip / "chip.yaml"), "timing": timing, "fit": summary(own.fitted),
            "clock": clock, "fit_errors": fit["all"],
            "held_out_passes": fit["held_out"], "notes": doubts(fit["all"]),
            "loads": loads, "worst_median_error": worst, "closed": worst is not None and worst <= LIMIT,
            "machine": engine.get("machine", [])}


def comparison(found: dict[str, Any]) -> Table:
    """Returns a table of the loads' real and simulated medians, in milliseconds."""
    rows = []
    for name, load in found["loads"].items():
        cells = []
        for key in ("ttft", "tpot"):
            real, ours, error = (load[f"{key}_median_{part}"] for part in ("ms_real", "ms_simulated", "error"))
            cells += [f"{real:.4g}", f"{ours:.4g}", f"{error:+.1f} %"]
        rows.append((name, *cells, f"{load['iteration_errors']['bias']:+.1f} %"))
    return Table(f"{found['engine']['engine']}: medians in ms (real, simulated) and bias of iteration times",
                 ("load", "TTFT", "sim.", "error", "TPOT", "sim.", "error", "bias"), rows)
