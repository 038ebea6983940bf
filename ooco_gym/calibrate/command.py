"""`ooco-gym calibrate`: from measurements to a chip, and to measurements (configuration: `conf/calibrate.yaml`)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ooco_gym.errors import UserError, unknown, whole_number

if TYPE_CHECKING:
    from omegaconf import DictConfig



def main(cfg: DictConfig) -> dict[str, Any] | None:
    """Runs `fit` or `measure`.

    Args:
        cfg: keys as in `conf/calibrate.yaml`.

    Returns:
        For `fit` everything that was found (`run.summary_of`), with the files written.

    Raises:
        UserError: an unknown action, or data that cannot be read, chosen or fitted.
    """
    action = str(cfg.action)
    if action == "measure":
        from ooco_gym.calibrate.measure import main as measure

        return measure(cfg)
    if action != "fit":
        raise unknown("action of ooco-gym calibrate", action, ("fit", "measure"))
    from omegaconf import OmegaConf

    values: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    return _fit(values)


def _fit(values: dict[str, Any]) -> dict[str, Any]:
    from rich.console import Console

    from ooco_gym.calibrate import chip as chips
    from ooco_gym.calibrate import run, show, sources
    from ooco_gym.calibrate.rows import plain
    from ooco_gym.perf.model import model_named
    from ooco_gym.report import console

    if values.get("data") is None:
        raise UserError("ooco-gym calibrate needs data=FILE or data=FOLDER: measured operators or iterations in one of "
                        f"the layouts {', '.join(sources.list_sources())} (docs/calibration.md)")
    out = Path(values["out"])
    with Console(stderr=True).status("reading") as status:
        tp = 0 if values["tp"] is None else whole_number("tp", values["tp"], 1)
        model = model_named(str(values["model"] or "")) or _text(values["model"])
        context = sources.Context(str(values["device"] or ""), model or "", tp)
        found = sources.read(_where(str(values["data"])), context)
        also = [values["also"]] if isinstance(values["also"], str) else list(values["also"] or [])
        device, rows, notes = run.device_rows(found, _text(values["device"]), also, _text(values["source"]))
        base, said = chips.base_chip(device, _text(values["base"]), values["chip"] or {},
                                     named=bool(values["device"]))
        result = run.calibrate(found, base, device, rows, model=model, tp=context.tp or 1,
                               seed=whole_number("seed", values["seed"]), tell=lambda text: status.update(
                                   f"fitting {text}"))
        result.notes += notes
        valid = chips.validity(result.rows, [one.rows for one in result.engine])
        name = plain(str(values["name"] or device))
        chip = chips.chip_of(base, name, run.roofline_of(result)[0], run.extended_of(result),
                             run.sources_of(result, found, said))
        figures = run.summary_of(result, found, chip, valid)
        to = Path(values["to"] or out / "chip.yaml").expanduser().absolute()
        if to.suffix not in (".yaml", ".yml"):
            raise UserError(f"to={values['to']}: a chip is a YAML file; expected an ending .yaml")
        tables = to.with_name("tables.parquet") if len(result.rows) else None
        if tables:
            chips.write_tables(run.measured_of(result, rows), tables)
        chips.write_chip(chip, valid, tables.name if tables else "", to)
        show.write_page(result, figures, out / "calibration.html")
    screen = console()
    for table in show.tables(figures):
        table.show(screen, frame="simple", unbroken=8 if len(table.head) == 8 else 1)
    for line in show.notes(figures):
        screen.print(line, highlight=False, markup=False, soft_wrap=True)
    forms = "ooco, extended or measured" if tables else "ooco or extended"
    screen.print(f"written: '{to}', to be used as chip={to} with timing={forms}; plots: "
                  f"'{out / 'calibration.html'}'", highlight=False, markup=False, soft_wrap=True)
    return {**figures, "to": to, "tables": tables, "page": out / "calibration.html"}


def _where(data: str) -> Path:
    """The file or folder as given, or below `OOCO_GYM_DATA` where it is not here."""
    path, shared = Path(data).expanduser(), os.environ.get("OOCO_GYM_DATA")
    if not path.exists() and shared and (Path(shared) / path).exists():
        return Path(shared) / path
    return path


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
