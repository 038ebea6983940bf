"""`ooco-gym calibrate`: from measurements to a chip, and to measurements (configuration: `conf/calibrate.yaml`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ooco_gym.errors import UserError, unknown

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from ooco_gym.calibrate.run import Calibration
    from ooco_gym.calibrate.sources import Found


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
    from ooco_gym.calibrate.show import write_page
    from ooco_gym.perf.specs import model_named
    from ooco_gym.report import console

    if values.get("data") is None:
        raise UserError("ooco-gym calibrate needs data=FILE or data=FOLDER: measured operators or iterations in one of "
                        f"the layouts {', '.join(sources.list_sources())} (docs/calibration.md)")
    out = Path(values["out"])
    with Console(stderr=True).status("reading") as status:
        tp = 0 if values["tp"] is None else _whole("tp", values["tp"])
        model = model_named(str(values["model"] or "")) or _text(values["model"])
        context = sources.Context(str(values["device"] or ""), model or "", tp)
        found = sources.read(_where(str(values["data"])), context)
        device, rows, notes = run.device_rows(found, _text(values["device"]), _names(values["also"]),
                                              _text(values["source"]))
        base, said = chips.base_chip(device, _text(values["base"]), values["chip"] or {},
                                     named=bool(values["device"]))
        result = run.calibrate(found, base, device, rows, model=model, tp=context.tp or 1,
                               seed=_whole("seed", values["seed"], 0), tell=lambda text: status.update(
                                   f"fitting {text}"))
        result.notes += notes
        valid = chips.validity(result.rows, [one.rows for one in result.engine])
        name = plain(str(values["name"] or device))
        chip = chips.chip_of(base, name, run.roofline_of(result), run.extended_of(result),
                             sources_of(result, found, said))
        figures = run.summary_of(result, found, chip, valid)
        to = Path(values["to"] or out / "chip.yaml").expanduser().absolute()
        if to.suffix not in (".yaml", ".yml"):
            raise UserError(f"to={values['to']}: a chip is a YAML file; expected an ending .yaml")
        tables = to.with_name("tables.parquet") if len(result.rows) else None
        if tables:
            chips.write_tables(run.measured_of(result, rows), tables)
        chips.write_chip(chip, valid, tables.name if tables else "", to)
        write_page(result, out / "calibration.html")
    screen = console()
    for table in show.tables(figures):
        table.show(screen, frame="simple", unbroken=7 if len(table.head) == 7 else 1)
    for line in show.notes(figures):
        screen.print(line, highlight=False, markup=False, soft_wrap=True)
    forms = "ooco, extended or measured" if tables else "ooco or extended"
    screen.print(f"written: '{to}', to be used as chip={to} with timing={forms}; plots: "
                  f"'{out / 'calibration.html'}'", highlight=False, markup=False, soft_wrap=True)
    return {**figures, "to": to, "tables": tables, "page": out / "calibration.html"}


def sources_of(result: Calibration, found: Found, datasheet: str) -> dict[str, str]:
    """Where each part of the chip comes from, with rows and errors, by field."""
    from ooco_gym.calibrate.operators import OPERATORS
    from ooco_gym.calibrate.run import digests, roofline_of

    files = "; ".join(f"{name} (SHA-256 {digest[:16]})" for name, digest in list(digests(found).items())[:8])
    more = f" and {len(found.files) - 8} more" if len(found.files) > 8 else ""
    said = {"data": f"device '{result.device}' of {files}{more}; {_origins(result)}", "datasheet": datasheet}
    fits, errors = result.fits["ooco"], result.architecture or result.whole_steps
    for name in roofline_of(result):
        if name.startswith("allreduce"):
            rows = fits["all_reduce"].rows
            said[name] = f"fitted to {rows} measured all-reduces{_error(result, 'all_reduce', 'ooco')}"
        elif "engine" in fits and name in fits["engine"].found:
            said[name] = (f"fitted to {fits['engine'].rows} iterations of an engine, "
                          f"{_percent(result.iterations['ooco'])} on unseen {result.iterations['ooco']['held_out']}")
        elif "steps" in fits and name in fits["steps"].found:
            judged = "unseen architectures" if result.architecture else "unseen sizes"
            error = f", {_percent(errors['ooco'])} on {judged}" if "ooco" in errors else ""
            said[name] = f"fitted to {fits['steps'].rows} iterations composed of measured operators{error}"
        elif "launches" in fits and (name.startswith("gemm") or name.endswith("layer_overhead_s")):
            said[name] = (f"fitted to {fits['launches'].rows} measured GEMMs and a launch; four of them are a "
                          "layer's overhead (attention's is left out)")
        elif name.endswith("overhead_s"):
            said[name] = "none; counted once a layer or once an iteration, not both"
        else:
            op = "gemm" if name.startswith("gemm") else "attn_prefill" if name.startswith("prefill") else "attn_decode"
            said[name] = f"fitted to {fits[op].rows} measured {op}{_error(result, op, 'ooco')}"
    if "prefill_attention_flops_per_s" in said:
        said["prefill_attention_flops_per_s"] += "; counts the masked half too, as timing=ooco does (causal_factor 1)"
    for op, fitted in result.fits["extended"].items():
        others = sorted({str(name) for name in result.rows.of_kind(op)["device"]} - {result.device, ""})
        where = f", measured on {', '.join(others)}" if others else ""
        kernel = OPERATORS["extended"][op].kernel if op in OPERATORS["extended"] else op
        said[f"extended.{kernel}"] = f"fitted to {fitted.rows} rows{where}{_error(result, op, 'extended')}"
    said["validity"] = "the sizes that were measured; beyond them the forms extrapolate"
    for form, item in errors.items():
        said[f"error.{form}"] = f"{_percent(item)} on whole iterations ({result.steps.origin if result.steps else ''})"
    return said


def _origins(result: Calibration) -> str:
    from ooco_gym.calibrate.rows import counted

    return "measured by " + ", ".join(name or "unnamed" for name in counted(result.rows["source"])) if len(
        result.rows) else "iterations of an engine"


def _error(result: Calibration, op: str, form: str) -> str:
    item = result.shapes.get(op, {}).get(form)
    return f", {_percent(item)} ({result.held_out[op]})" if item else ""


def _percent(item: Mapping[str, Any]) -> str:
    return f"MAPE {item['mape']:.1f} %, P95 {item['p95']:.1f} %, worst {item['worst']:.0f} %"


def _where(data: str) -> Path:
    """The file or folder as given, or below `OOCO_GYM_DATA` where it is not here."""
    path, shared = Path(data).expanduser(), os.environ.get("OOCO_GYM_DATA")
    if not path.exists() and shared and (Path(shared) / path).exists():
        return Path(shared) / path
    return path


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _names(value: Any) -> list[str]:
    return [str(value)] if isinstance(value, str) else [str(item) for item in value or []]


def _whole(key: str, value: Any, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != int(value) or value < least:
        raise UserError(f"{key}={value}: expected a whole number of at least {least}")
    return int(value)
