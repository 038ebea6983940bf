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
    if cfg.action == "measure":
        from ooco_gym.calibrate.measure import main as measure

        return measure(cfg)
    if cfg.action != "fit":
        raise unknown("action of ooco-gym calibrate", str(cfg.action), ("fit", "measure"))
    from omegaconf import OmegaConf
    from rich.console import Console

    from ooco_gym.calibrate import chip as chips
    from ooco_gym.calibrate import run, show, sources
    from ooco_gym.calibrate.rows import plain
    from ooco_gym.perf.model import model_named
    from ooco_gym.report import console

    values: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    if values.get("data") is None:
        raise UserError("ooco-gym calibrate needs data=FILE or data=FOLDER: measured operators or iterations in one of "
                        f"the layouts {', '.join(sources.list_sources())} (docs/calibration.md)")
    texts = {key: None if values[key] is None else str(values[key])
             for key in ("device", "source", "model", "base", "name", "to")}
    tp = 0 if values["tp"] is None else whole_number("tp", values["tp"], 1)
    seed, out = whole_number("seed", values["seed"]), Path(values["out"])
    data, shared = Path(str(values["data"])).expanduser(), os.environ.get("OOCO_GYM_DATA")
    if not data.exists() and shared and (Path(shared) / data).exists():
        data = Path(shared) / data
    to = Path(texts["to"] or out / "chip.yaml").expanduser().absolute()
    if to.suffix not in (".yaml", ".yml"):
        raise UserError(f"to={values['to']}: a chip is a YAML file; expected an ending .yaml")
    also = [values["also"]] if isinstance(values["also"], str) else list(values["also"] or [])
    model = model_named(texts["model"] or "") or texts["model"]
    with Console(stderr=True).status("fitting"):
        found = sources.read(data, sources.Context(texts["device"] or "", model or "", tp))
        device, rows, notes = run.device_rows(found, texts["device"], also, texts["source"])
        base, said = chips.base_chip(device, texts["base"], values["chip"] or {}, named=bool(texts["device"]))
        result = run.calibrate(found, base, device, rows, model=model, tp=tp or 1, seed=seed)
        result.notes += notes
        valid = chips.validity(result.rows, [one.rows for one in result.engine])
        chip = chips.chip_of(base, plain(texts["name"] or device), run.roofline_of(result)[0], run.extended_of(result),
                             run.sources_of(result, said))
        figures = run.summary_of(result, chip, valid)
        tables = to.with_name("tables.parquet") if len(result.rows) else None
        if tables:
            chips.write_tables(run.measured_of(result, rows), tables)
        chips.write_chip(chip, valid, tables.name if tables else "", to)
        page = out / "calibration.html"
        show.write_page(result.points, figures, page)
    screen = console()
    show.table(figures).show(screen, frame="simple", unbroken=8)
    forms = "ooco, extended or measured" if tables else "ooco or extended"
    for line in [*show.notes(figures),
                 f"written: '{to}', to be used as chip={to} with timing={forms}; plots: '{page}'"]:
        screen.print(line, highlight=False, markup=False, soft_wrap=True)
    return {**figures, "to": to, "tables": tables, "page": page}
