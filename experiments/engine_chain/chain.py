"""The chain: one function for each of its links."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.engine_chain.chip import model_of, write_chip
from experiments.engine_chain.compare import compare, read_requests, served, simulate_requests
from experiments.engine_chain.figure import Drawn, chain_figure
from experiments.engine_chain.fit import errors, fit_iterations, held_out, read_iterations, summary
from experiments.plots import write_page
from ooco_gym.errors import UserError

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from rich.table import Table

SCHEMA = "ooco-gym/engine_chain/1"
LIMIT = 15.0
"""Largest error of a median, in percent, with which the chain counts as closed."""


def main(cfg: DictConfig) -> dict[str, Any]:
    """Runs the chain; `cfg.measured` names an earlier measurement to start from.

    Raises:
        UserError: no engine, or a folder without a measurement.
    """
    from rich.console import Console

    out = Path(cfg.out)
    if cfg.chip is None and cfg.timing != "measured":
        raise UserError(f"timing={cfg.timing}: the chain's own fit is of whole iterations, which only timing=measured "
                        "looks up; give a chip with chip=FILE, fitted with 'ooco-gym calibrate'")
    measured = Path(cfg.measured).expanduser().absolute() if cfg.measured else measure(cfg, out / "measured")
    found = close(measured, out, cfg.chip, str(cfg.timing))
    console = Console()
    console.print(comparison(found))
    if found["loads"]:
        console.print(f"plots: '{out / 'chain.html'}'; the chain's own chip: '{out / 'chip' / 'chip.yaml'}', to be "
                      "used with timing=measured", highlight=False, markup=False)
    return {"schema": SCHEMA, "measured": str(measured), **found}


def measure(cfg: DictConfig, folder: Path) -> Path:
    """First link: the real engine, its iterations and the requests that it serves."""
    from omegaconf import OmegaConf

    from ooco_gym.calibrate.measure import measure as measure_engine

    plan: Any = OmegaConf.to_container(cfg.engine, resolve=True)
    measure_engine(plan, folder)
    return folder


def close(measured: Path, out: Path, chip: str | None = None, timing: str = "measured") -> dict[str, Any]:
    """The links after the first: fit, simulate, compare.

    Args:
        measured: folder of a measurement.
        out: where the chip and the page `chain.html` are written.
        chip: name or YAML of a chip to simulate with, fitted elsewhere; None takes the fit's own.
        timing: form with which it is simulated.

    Returns:
        The fit with its errors (of iterations, in percent), and for each load how the simulated medians and means
        differ from the real ones.
    """
    engine = _engine(measured)
    rows = read_iterations(measured / "iterations.parquet")
    fitted = fit_iterations(rows)
    model = model_of(engine)
    own = write_chip(out / "chip", fitted, engine, model)
    cluster = {"name": "measured", "model": model, "block_tokens": engine["block_tokens"],
               "max_batch": engine["max_num_seqs"] + 1,
               "mixed": [{"chip": str(chip or own), "count": 1, "kv_blocks": engine["num_blocks"]}]}
    loads: dict[str, Any] = {}
    drawn: dict[str, Drawn] = {}
    for name in engine["serving"]:
        folder = measured / "serve" / name
        requests, steps = read_requests(folder / "requests.parquet"), read_iterations(folder / "iterations.parquet")
        real = served(requests["arrival_s"], requests["first_token_s"], requests["last_token_s"],
                      requests["output_tokens"])
        simulated, iterations = simulate_requests(requests, cluster, engine, timing, out / "chip")
        loads[name] = {"requests": len(requests["arrival_s"]), **compare(real, simulated),
                       "iterations_real": len(steps["time_us"]), "iterations_simulated": iterations,
                       "iteration_errors": errors(fitted, steps) if chip is None else None}
        drawn[name] = Drawn(real, simulated, 1e-3 * steps["time_us"], 1e-3 * fitted.time_us(steps))
    if drawn:
        write_page(chain_figure(drawn, f"{engine['engine']} and its simulation"), out / "chain.html")
    worst = max((abs(load[f"{key}_median_error"]) for load in loads.values() for key in ("ttft", "tpot")), default=None)
    return {"engine": {key: engine.get(key) for key in ("engine", "model", "device", "cpu", "threads")},
            "chip": str(chip or own), "timing": timing, "fit": summary(fitted), "fit_errors": errors(fitted, rows),
            "held_out_passes": held_out(rows),
            "loads": loads, "worst_median_error": worst, "closed": worst is not None and worst <= LIMIT,
            "machine": engine.get("machine", [])}


def comparison(found: dict[str, Any]) -> Table:
    """The loads side by side: medians, real and simulated, in milliseconds."""
    from rich.table import Table

    table = Table(title=f"{found['engine']['engine']}: medians in ms, real and simulated; bias of iteration times")
    for title in ("load", "TTFT", "sim.", "error", "TPOT", "sim.", "error", "bias"):
        table.add_column(title, justify="left" if title == "load" else "right", no_wrap=True)
    for name, load in found["loads"].items():
        cells = []
        for key in ("ttft", "tpot"):
            real, ours, error = (load[f"{key}_median_{part}"] for part in ("ms_real", "ms_simulated", "error"))
            cells += [f"{real:.4g}", f"{ours:.4g}", f"{error:+.1f} %"]
        timed = load["iteration_errors"]            # of the chain's own fit only
        table.add_row(name, *cells, f"{timed['bias']:+.1f} %" if timed else "-")
    return table


def _engine(measured: Path) -> dict[str, Any]:
    path = measured / "engine.json"
    if not path.is_file():
        raise UserError(f"'{measured}' holds no measurement: expected engine.json, as `ooco-gym calibrate measure` "
                        "writes it")
    return json.loads(path.read_text(encoding="utf-8"))
