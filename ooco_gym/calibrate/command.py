"""`ooco-gym calibrate`: fits a chip to measurements (configuration: `conf/calibrate.yaml`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ooco_gym.calibrate import chip as chips
from ooco_gym.calibrate import run, sources
from ooco_gym.calibrate.rows import Rows, plain
from ooco_gym.calibrate.run import FAIR, GOOD, ITERATIONS
from ooco_gym.errors import UserError, whole_number
from ooco_gym.perf.model import model_named
from ooco_gym.report import Column, Table, console

if TYPE_CHECKING:
    from omegaconf import DictConfig

COUNTED = ("Relative errors |predicted / measured − 1| in percent, on held-out data. Good: a median of at most "
           f"{GOOD[0]:g} % and a P90 of at most {GOOD[1]:g} %; fair: {FAIR[0]:g} and {FAIR[1]:g} %; poor beyond.")


def main(cfg: DictConfig) -> dict[str, Any]:
    """Fits a chip; returns the whole summary (`run.summary_of`) and the files written.

    Raises:
        UserError: data that cannot be read, chosen or fitted.
    """
    from omegaconf import OmegaConf
    from rich.console import Console

    values: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    if values.get("data") is None:
        raise UserError("ooco-gym calibrate needs data=FILE or data=FOLDER: measured operators in one of "
                        f"the layouts {', '.join(sources.list_sources())} (docs/calibration.md)")
    texts = {key: None if values[key] is None else str(values[key])
             for key in ("device", "model", "base", "name", "to")}
    tp = 0 if values["tp"] is None else whole_number("tp", values["tp"], 1)
    seed = whole_number("seed", values["seed"])
    data, shared = Path(str(values["data"])).expanduser(), os.environ.get("OOCO_GYM_DATA")
    if not data.exists() and shared and (Path(shared) / data).exists():
        data = Path(shared) / data
    to = Path(texts["to"] or Path(values["out"]) / "chip.yaml").expanduser().absolute()
    if to.suffix not in (".yaml", ".yml"):
        raise UserError(f"to={values['to']}: a chip is a YAML file; expected an ending .yaml")
    model = model_named(texts["model"] or "") or texts["model"]
    with Console(stderr=True).status("fitting"):
        found = sources.read(data, sources.Context(texts["device"] or "", model or "", tp))
        device, rows, remarks = run.device_rows(found, texts["device"])
        base, said = chips.base_chip(device, texts["base"], values["chip"] or {}, named=bool(texts["device"]))
        result = run.calibrate(found, base, device, rows, model=model, seed=seed)
        result.notes += remarks
        valid = chips.validity(result.rows)
        chip = chips.chip_of(base, plain(texts["name"] or device), run.roofline_of(result)[0], run.extended_of(result),
                             run.sources_of(result, said))
        figures = run.summary_of(result, chip, valid)
        tables = to.with_name("tables.parquet")
        chips.write_tables(Rows.join([result.rows, result.sampler]), tables)
        chips.write_chip(chip, valid, tables.name, to)
    screen = console()
    table(figures).show(screen, unbroken=8)
    for line in [*notes(figures), f"written: '{to}', to be used as chip={to} with timing=ooco, extended or measured"]:
        screen.print(line, highlight=False, markup=False, soft_wrap=True)
    return {**figures, "to": to, "tables": tables}


def table(figures: Mapping[str, Any]) -> Table:
    """Returns the table of errors, with verdicts, of `run.summary_of`."""
    columns = [Column("what", "operation"), Column("form", "form"),
               Column("held out", "held_out"), Column("rows", "rows", ","),
               *(Column(name, key, ".1f") for name, key in (
                   ("median", "median"), ("P90", "p90"), ("MAPE", "mape"), ("worst", "worst"))),
               Column("verdict", "verdict")]
    return Table.of(columns, figures["errors"], f"Errors of {figures['device']}", COUNTED)


def notes(figures: Mapping[str, Any]) -> list[str]:
    """Returns notes on a fit: poor fits and remedies, excluded rows, operators not fitted, rows not read."""
    lines = []
    for one in figures["errors"]:
        if one["verdict"] == "poor":
            better = "extended or measured" if one["form"] == "ooco" else "measured, which looks up measurements"
            also = "measure the engine's own iterations (ooco-gym calibrate chain)" if (
                one["operation"] == ITERATIONS) else "measure more sizes"
            lines.append(f"poor: {one['operation']} in timing={one['form']} is {one['median']:.0f} % off in the median "
                         f"and {one['p90']:.0f} % at the 90th percentile (median bias {one['median_bias']:+.0f} %): "
                         f"take timing={better}, or {also}")
    for one in figures["excluded"]:
        example = f" (such as {one['first'][0]})" if one["first"] else ""
        lines.append(f"left out: {one['rows']:,} rows of {one['op']}: {one['reason']}{example}")
    lines += [f"not fitted: {text}" for text in figures["not_fitted"]]
    lines += [f"not read: {count:,} rows ({reason})" for reason, count in figures["skipped_by_readers"].items()]
    return lines + [f"note: {text}" for text in figures["notes"]]
