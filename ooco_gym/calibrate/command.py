"""`ooco-gym calibrate`: fits a chip to measurements (configuration: `conf/calibrate.yaml`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ooco_gym.calibrate import chip as chips
from ooco_gym.calibrate import sources
from ooco_gym.calibrate import steps as composed
from ooco_gym.calibrate.chip import chip_named
from ooco_gym.calibrate.fitting import Fitted, errors
from ooco_gym.calibrate.operators import (
    FEW,
    LINK,
    OPERATORS,
    fit,
    parameters,
    predict_unseen,
    with_bytes,
    with_linears,
)
from ooco_gym.calibrate.rows import OPERATORS as KINDS
from ooco_gym.calibrate.rows import Excluded, Rows, clean, counted, fastest_kernels, one_engine, plain
from ooco_gym.calibrate.sources import Found
from ooco_gym.calibrate.times import canonical
from ooco_gym.documents import file_digest
from ooco_gym.errors import UserError, unknown
from ooco_gym.perf import kernels
from ooco_gym.perf.chip import ChipSpec
from ooco_gym.perf.model import model_named
from ooco_gym.report import Column, Table
from ooco_gym.schema import whole

if TYPE_CHECKING:
    from omegaconf import DictConfig

GOOD, FAIR = (5.0, 15.0), (10.0, 30.0)
"""Largest median and 90th percentile of the errors, in percent, of a good and of a fair fit."""
ITERATIONS, SPARSE = "iterations", "iterations, sparse"
COUNTED = ("Relative errors |predicted / measured − 1| in percent, on held-out data. Good: a median of at most "
           f"{GOOD[0]:g} % and a P90 of at most {GOOD[1]:g} %; fair: {FAIR[0]:g} and {FAIR[1]:g} %; poor beyond.")


def main(cfg: DictConfig) -> dict[str, Any]:
    """Fits a chip; returns the whole summary (`summary_of`) and the files written.

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
    tp = 0 if values["tp"] is None else whole("tp", values["tp"], 1)
    seed = whole("seed", values["seed"], 0)
    data, shared = Path(str(values["data"])).expanduser(), os.environ.get("OOCO_GYM_DATA")
    if not data.exists() and shared and (Path(shared) / data).exists():
        data = Path(shared) / data
    to = Path(texts["to"] or Path(values["out"]) / "chip.yaml").expanduser().absolute()
    if to.suffix not in (".yaml", ".yml"):
        raise UserError(f"to={values['to']}: a chip is a YAML file; expected an ending .yaml")
    model = model_named(texts["model"] or "") or texts["model"]
    with Console(stderr=True).status("fitting"):
        found = sources.read(data, sources.Context(texts["device"] or "", model or "", tp))
        device, rows, remarks = device_rows(found, texts["device"])
        base, said = chips.base_chip(device, texts["base"], values["chip"] or {}, named=bool(texts["device"]))
        result = calibrate(found, base, device, rows, model=model, seed=seed)
        result.notes += remarks
        valid = chips.validity(result.rows)
        chip = chips.chip_of(base, plain(texts["name"] or device), roofline_of(result)[0], extended_of(result),
                             sources_of(result, said))
        summary = summary_of(result, chip, valid)
        tables = to.with_name("tables.parquet")
        chips.write_tables(Rows.join([result.rows, result.sampler]), tables)
        chips.write_chip(chip, valid, tables.name, to)
    table(summary).show(unbroken=8)
    for line in [*notes(summary), f"written: '{to}', to be used as chip={to} with timing=ooco, extended or measured"]:
        print(line)
    return {**summary, "to": to, "tables": tables}


def table(summary: Mapping[str, Any]) -> Table:
    """Returns the table of errors, with verdicts, of `summary_of`."""
    columns = [Column("what", "operation"), Column("form", "form"),
               Column("held out", "held_out"), Column("rows", "rows", ","),
               *(Column(name, key, ".1f") for name, key in (
                   ("median", "median"), ("P90", "p90"), ("MAPE", "mape"), ("worst", "worst"))),
               Column("verdict", "verdict")]
    return Table.of(columns, summary["errors"], f"Errors of {summary['device']}", COUNTED)


def notes(summary: Mapping[str, Any]) -> list[str]:
    """Returns notes on a fit: poor fits and remedies, excluded rows, operators not fitted, rows not read."""
    lines = []
    for one in summary["errors"]:
        if one["verdict"] == "poor":
            better = "extended or measured" if one["form"] == "ooco" else "measured, which looks up measurements"
            also = "measure the engine's own iterations (ooco-gym calibrate chain)" if (
                one["operation"] == ITERATIONS) else "measure more sizes"
            lines.append(f"poor: {one['operation']} in timing={one['form']} is {one['median']:.0f} % off in the median "
                         f"and {one['p90']:.0f} % at the 90th percentile (median bias {one['median_bias']:+.0f} %): "
                         f"take timing={better}, or {also}")
    for one in summary["excluded"]:
        example = f" (such as {one['first'][0]})" if one["first"] else ""
        lines.append(f"left out: {one['rows']:,} rows of {one['op']}: {one['reason']}{example}")
    lines += [f"not fitted: {text}" for text in summary["not_fitted"]]
    lines += [f"not read: {count:,} rows ({reason})" for reason, count in summary["skipped_by_readers"].items()]
    return lines + [f"note: {text}" for text in summary["notes"]]


# --- One calibration, without output ----------------------------------------------------------------------------------
@dataclass
class Calibration:
    """Result of a calibration.

    Attributes:
        device: name of the device.
        base: chip whose datasheet bounds the fit.
        found: the readers' results.
        rows: fitted operators.
        sampler: measured sampling, which counts as the engine's overhead.
        excluded: excluded rows, by operator and reason.
        notes: what a user should know about the data.
        operators: fits of `extended`, by operator, and its `overhead`.
        link: fit of `ooco` to all-reduces.
        roofline: fit of `ooco` to composed iterations.
        architectures: number of composed iterations by architecture.
        errors: one row per fit: `operation`, `form`, `held_out` (unseen data, in words), errors in
            percent (`fitting.errors`) and `verdict`.
        not_fitted: what the data do not determine, in words.
    """

    device: str
    base: ChipSpec
    found: Found
    rows: Rows
    sampler: Rows
    excluded: list[Excluded]
    notes: list[str]
    operators: dict[str, Fitted] = field(default_factory=dict)
    link: Fitted | None = None
    roofline: Fitted | None = None
    architectures: dict[str, int] = field(default_factory=dict)
    errors: list[dict[str, Any]] = field(default_factory=list)
    not_fitted: list[str] = field(default_factory=list)

    def judge(self, operation: str, form: str, held_out: str, predicted: np.ndarray, seconds: np.ndarray) -> None:
        """Adds a row of errors."""
        found = errors(predicted, seconds)
        verdict = next((name for name, (middle, most) in (("good", GOOD), ("fair", FAIR))
                        if found["median"] <= middle and found["p90"] <= most), "poor")
        self.errors.append({"operation": operation, "form": form, "held_out": held_out, **found, "verdict": verdict})

    def said(self, operation: str, form: str) -> str:
        """Returns the errors of a fit in words; '' if it has none."""
        return next((f", MAPE {error['mape']:.1f} %, P95 {error['p95']:.1f} %, worst {error['worst']:.0f} % "
                     f"({error['held_out']})" for error in self.errors
                     if (error["operation"], error["form"]) == (operation, form)), "")


def device_rows(found: Found, device: str | None) -> tuple[str, Rows, list[str]]:
    """Returns the device's name, its operators, and notes.

    Raises:
        UserError: the data have several devices and none was chosen, or lack the chosen one.
    """
    rows, notes = Rows.join(found.rows), []
    names = counted(rows["device"])
    known = [name for name in names if name]
    if device is None and len(known) != 1:
        raise UserError("the data do not say which device was measured; name it with device=NAME" if not known else
                        f"the data are of {len(known)} devices; choose one with device=NAME: {', '.join(known)}")
    chosen = called = device or known[0]
    if known and chosen not in known:
        alone = known if len(known) == 1 and not chip_named(known[0]) else []  # for example a folder's name
        same = [name for name in known if chip_named(name) == chip_named(chosen)] or alone
        if (not chip_named(chosen) or not same) and "" not in names:
            raise unknown("device of the data", chosen, known)
        if same:
            called = max(same, key=lambda name: len(set(rows.select(rows["device"] == name).kind) & set(KINDS)))
            notes.append(f"device '{chosen}' is '{called}' in the data")
    if left := [name for name in known if name != called]:
        notes.append(f"left out, of other devices: {', '.join(left)}")
    return chosen, rows.select(np.isin(rows["device"], [called, ""])).with_columns(device=chosen), notes


def calibrate(found: Found, chip: ChipSpec, device: str, rows: Rows, *, model: str | None = None,
              seed: int = 0) -> Calibration:
    """Fits both forms to the measurements and tests them on unseen data.

    Args:
        found: the readers' results.
        chip: whose datasheet bounds the fits.
        device: name of the device.
        rows: its measured operators.
        model: name or YAML file of a model for which iterations are composed, besides the known
            ones.
        seed: of folds and draws.

    Raises:
        UserError: nothing is left to fit.
    """
    sampler = rows.select((rows["time_us"] > 0) & (rows["n_tokens"] > 0)
                          & np.array([canonical(str(op)) == "sampler" for op in rows["op"]], dtype=bool))
    rows, others = one_engine(rows)
    kept, excluded = clean(rows, chip)
    excluded += others
    kept, unknown_bytes = with_bytes(fastest_kernels(kept))
    if unknown_bytes:
        excluded.append(Excluded("elementwise", "element-wise operator of unknown size", unknown_bytes, []))
    result = Calibration(device, chip, found, kept, sampler, excluded, list(found.notes))
    _fit_operators(result, seed)
    _fit_iterations(result, model, seed)
    _judge_sparse(result, model, seed)
    if not result.operators:
        reasons = [*result.not_fitted, *(f"{item.rows} rows of {item.op}: {item.reason}" for item in excluded)]
        raise UserError(f"nothing to fit for device '{device}': {'; '.join(reasons)}")
    return result


def _fit_operators(result: Calibration, seed: int) -> None:
    for kind, operator in OPERATORS.items():
        part = with_linears(result.rows.of_kind(kind), result.base, result.operators)
        if len(part) < FEW:
            result.not_fitted.append(f"{kind}: {len(part)} rows, at least {FEW} are needed" if len(part)
                                     else f"{kind}: not measured")
            continue
        fitted = result.operators[kind] = fit(operator, part, result.base, seed)
        predicted, held_out = predict_unseen(operator, part, result.base, seed, fitted.found)
        result.judge(kind, "extended", held_out, predicted, part.seconds)
        if kind == "all_reduce":
            result.link = fit(LINK, part, result.base, seed)
    part = result.sampler
    if len(part) >= FEW:
        from scipy.optimize import nnls

        design = np.stack([np.ones(len(part)), part["n_tokens"]], axis=1)
        constant, share = (float(value) for value in nnls(design / part.seconds[:, None], np.ones(len(part)))[0])
        found = {"prefill_s": constant, "decode_s": constant, "sequence_s": share}
        result.operators["overhead"] = Fitted(found, len(part), 0.0)
        result.judge("sampler", "extended", "nothing held out", design @ [constant, share], part.seconds)


def _fit_iterations(result: Calibration, model: str | None, seed: int) -> None:
    """Fits the roofline to iterations composed of operators, and tests both forms on them."""
    steps = composed.compose(result.rows, model)
    if steps is None or len(steps) < 4 * FEW:
        result.not_fitted.append("ooco: no whole iteration can be composed of the operators (of another model: "
                                 f"model=FILE.yaml), so the chip keeps the roofline of '{result.base.name}'; take "
                                 "timing=extended")
        return
    result.roofline = composed.fit_roofline(steps, result.base, seed)
    result.architectures = {one.name: int((steps.arch == index).sum()) for index, one in enumerate(steps.architectures)}
    start = {"ooco": result.roofline.found, "extended": {op: item.found for op, item in result.operators.items()}}
    operators = result.rows.select(result.rows.kind != "all_reduce")
    held_out = "unseen architecture" if len(result.architectures) > 1 else "unseen sizes, of one architecture"
    for form, predicted in composed.unseen(steps, operators, result.base, seed, start).items():
        result.judge(ITERATIONS, form, held_out, predicted, steps.seconds)


def _judge_sparse(result: Calibration, model: str | None, seed: int) -> None:
    """Tests both forms on iterations of models with experts, latent attention or 8-bit weights."""
    steps = composed.compose(result.rows, model, sparse=True)
    if steps is not None:
        start = {"ooco": composed.chip_roofline(result.base) | (result.roofline.found if result.roofline else {}),
                 "extended": {op: item.found for op, item in result.operators.items()}}
        for form, predicted in composed.unseen(steps, result.rows, result.base, seed, start).items():
            result.judge(SPARSE, form, "unseen model", predicted, steps.seconds)


def roofline_of(result: Calibration) -> tuple[dict[str, float], dict[str, str]]:
    """Returns the roofline's parameters, and the source of each, in words."""
    found, said = {}, {}
    if result.link:
        found = {f"allreduce_{key}": value for key, value in result.link.found.items()}
        said = dict.fromkeys(found, f"fitted to {result.link.rows} measured all-reduces")
    if result.roofline:
        none = dict.fromkeys(("prefill_overhead_s", "decode_overhead_s"), 0.0)
        said |= dict.fromkeys(none, "none; counted once a layer or once an iteration, not both")
        said |= dict.fromkeys(result.roofline.found, f"fitted to {result.roofline.rows} iterations composed of "
                                                     f"measured operators{result.said(ITERATIONS, 'ooco')}")
        found |= none | result.roofline.found
    if "prefill_attention_flops_per_s" in said:
        said["prefill_attention_flops_per_s"] += "; counts the masked half too, as timing=ooco does (causal_factor 1)"
    return found, said


def sources_of(result: Calibration, datasheet: str) -> dict[str, str]:
    """Returns a sentence on the source of each part of the chip's YAML: files, the number of rows
    fitted, and the fit's errors."""
    files = [f"{path.name} (SHA-256 {file_digest(path)[:16]})" for path in result.found.files]
    more = f" and {len(files) - 8} more" if len(files) > 8 else ""
    origins = ", ".join(name or "unnamed" for name in counted(result.rows["source"]))
    said = {"data": f"device '{result.device}' of {'; '.join(files[:8])}{more}; measured by {origins}",
            "datasheet": datasheet, **roofline_of(result)[1]}
    for op, fitted in result.operators.items():
        kernel = OPERATORS[op].kernel if op in OPERATORS else op
        said[f"extended.{kernel}"] = f"fitted to {fitted.rows} rows{result.said(op, 'extended')}"
    said["validity"] = "the sizes that were measured; beyond them the forms extrapolate"
    for form in ("ooco", "extended"):
        words = result.said(ITERATIONS, form)
        if words:
            said[f"error.{form}"] = f"on iterations composed of measured operators{words}"
    return said


def extended_of(result: Calibration) -> kernels.ExtendedParameters:
    """Returns the extended form's parameters of all measured kernels."""
    fits = dict(result.operators)
    overhead = fits.pop("overhead", None)
    built: dict[str, Any] = parameters(fits)
    if overhead is not None:
        built["overhead"] = kernels.OverheadParameters(**overhead.found)
    if "mixed_attention" in built and "skew" not in built:
        built["skew"] = kernels.SkewParameters.from_chain(built["mixed_attention"])
    return kernels.ExtendedParameters(**built)


def summary_of(result: Calibration, chip: ChipSpec, valid: Mapping[str, Any]) -> dict[str, Any]:
    """Returns all results, for `summary.json`; errors in percent."""
    return {
        "schema": "ooco-gym/calibrate/4",
        "device": result.device,
        "base": result.base.name,
        "files": {path.name: layout for path, layout in result.found.files.items()},
        "sha256": {path.name: file_digest(path) for path in result.found.files},
        "rows": {kind: len(result.rows.of_kind(kind)) for kind in KINDS},
        "excluded": [item._asdict() for item in result.excluded],
        "skipped_by_readers": result.found.skipped,
        "errors": result.errors,
        "iterations": result.architectures,
        "parameters": {"ooco": roofline_of(result)[0], "extended": extended_of(result).to_mapping()},
        "validity": dict(valid),
        "not_fitted": result.not_fitted,
        "notes": result.notes,
        "chip": chip.name,
    }
