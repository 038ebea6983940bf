"""The study: calibrate, simulate under each timing form, compare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.engine_chain.compare import compare
from experiments.replay.again import Again, measured, simulate_run
from experiments.replay.chip import calibrated, device_of, model_of
from experiments.replay.page import replay_figure
from experiments.replay.recorded import Recorded, read_run
from ooco_gym.errors import UserError

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from rich.table import Table

SCHEMA = "ooco-gym/replay/1"
SHOWN = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "end to end"}


def main(cfg: DictConfig) -> dict[str, Any]:
    """Replays `cfg.run` under each of `cfg.timings`.

    Raises:
        UserError: no run, or one that cannot be read, calibrated or simulated.
    """
    from omegaconf import OmegaConf
    from rich.console import Console

    from experiments.plots import write_page

    if cfg.run is None:
        raise UserError("ooco-gym experiment replay needs run=DIR: a folder with requests.parquet and engine.json "
                        "(docs/measuring.md)")
    run, out = read_run(Path(str(cfg.run)).expanduser().absolute()), Path(cfg.out)
    model = model_of(run, cfg.model)
    datasheet: Any = OmegaConf.to_container(cfg.chip_figures, resolve=True) if cfg.chip_figures else {}
    chip = str(cfg.chip) if cfg.chip else calibrated(run, device_of(run, cfg.device), cfg.base, datasheet,
                                                     out / "calibration")
    timings = [str(name) for name in cfg.timings]
    _check_tables(chip, timings)
    found, simulated = replay(run, chip, model, timings)
    write_page(replay_figure(run, simulated), out / "replay.html")
    Console().print(table(run, found), highlight=False)
    return {"schema": SCHEMA, "run": run.folder.name, "chip": chip, "model": model, "requests": len(
        run.requests["arrival_s"]), "results": found, "page": str(out / "replay.html")}


def _check_tables(chip: str, timings: list[str]) -> None:
    """Without tables `timing=measured` would be another form under its name."""
    from ooco_gym.perf import load_chip

    if "measured" in timings and not load_chip(chip).tables:
        others = ",".join(name for name in timings if name != "measured") or "extended,ooco"
        raise UserError(f"chip '{chip}' has no tables of measured operators, which timing=measured looks up: leave "
                        f"chip= out (it is then calibrated from the kernel times in the run's folder), or "
                        f"timings=[{others}]")


def replay(run: Recorded, chip: str, model: Any, timings: list[str]) -> tuple[dict[str, Any], dict[str, Again]]:
    """Simulates a run under several timing forms.

    Returns:
        By form, means and medians of both in milliseconds with the error in percent, and what was simulated.
    """
    real = measured(run)
    simulated = {timing: simulate_run(run, chip, model, timing) for timing in timings}
    found = {timing: {**compare(real, again.served), "iterations": again.iterations,
                      "preemptions": again.preemptions} for timing, again in simulated.items()}
    return found, simulated


def table(run: Recorded, found: dict[str, Any]) -> Table:
    """Means, recorded and simulated."""
    from rich.table import Table

    shown = Table(title=f"{run.engine.get('engine', 'engine')} on {run.engine.get('gpu', 'its device')}: means of "
                        f"{len(run.requests['arrival_s'])} requests")
    shown.add_column("timing", no_wrap=True)
    for title in SHOWN.values():
        shown.add_column(f"{title} ms", justify="right", no_wrap=True)
        shown.add_column("", justify="right", no_wrap=True)
    first = next(iter(found.values()))
    shown.add_row("recorded", *(cell for key in SHOWN for cell in (f"{first[f'{key}_mean_ms_real']:,.1f}", "")))
    for timing, row in found.items():
        shown.add_row(timing, *(cell for key in SHOWN for cell in (
            f"{row[f'{key}_mean_ms_simulated']:,.1f}", f"{row[f'{key}_mean_error']:+.1f} %")))
    return shown
