"""One calibration from data to chip: everything that `ooco-gym calibrate` finds, without a word printed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ooco_gym.calibrate import engine_fits, step_fits
from ooco_gym.calibrate.chip import chip_named
from ooco_gym.calibrate.fitting import errors
from ooco_gym.calibrate.operators import (
    FEW,
    FORMS,
    LAUNCH,
    OPERATORS,
    Fitted,
    canonical,
    elementwise_kinds,
    fit,
    predict_unseen,
    with_bytes,
)
from ooco_gym.calibrate.rows import OPERATORS as KINDS
from ooco_gym.calibrate.rows import Excluded, Rows, clean, complete, counted, fastest_kernels
from ooco_gym.calibrate.sources import Found
from ooco_gym.calibrate.steps import Steps, compose, from_files
from ooco_gym.calibrate.verdict import judged
from ooco_gym.errors import UserError, unknown
from ooco_gym.perf.specs import ChipSpec, load_model
from ooco_gym.perf.timing import kernels

Tell = Callable[[str], None]


@dataclass
class Calibration:
    """What was found.

    Attributes:
        device: name in the data.
        base: chip whose datasheet bounds the fit.
        rows: operators that were fitted.
        excluded: rows left out, by operator and reason.
        kernels: by operator with several kernels, how often each was the fastest.
        steps: iterations composed of measured operators.
        engine: whole iterations, by model and tensor-parallel degree.
        fits: by form and operator (for iterations: `steps`, `engine`).
        unseen: seconds predicted by fits that had not seen the shape, by form and operator.
        shapes: errors of these, by operator and form.
        held_out: what was held out, by operator.
        architecture: errors on unseen architectures, by form.
        whole_steps: errors on composed iterations of unseen sizes, where only one architecture was measured.
        iterations: errors on an engine's iterations of unseen sizes or models, by form.
        not_fitted: what the data do not tell, in words.
        notes: of the readers.
    """

    device: str
    base: ChipSpec
    rows: Rows
    excluded: list[Excluded] = field(default_factory=list)
    kernels: dict[str, Any] = field(default_factory=dict)
    steps: Steps | None = None
    engine: list[engine_fits.Served] = field(default_factory=list)
    fits: dict[str, dict[str, Fitted]] = field(default_factory=lambda: {form: {} for form in FORMS})
    unseen: dict[str, dict[str, np.ndarray]] = field(default_factory=lambda: {form: {} for form in FORMS})
    shapes: dict[str, dict[str, Any]] = field(default_factory=dict)
    held_out: dict[str, str] = field(default_factory=dict)
    architecture: dict[str, Any] = field(default_factory=dict)
    whole_steps: dict[str, Any] = field(default_factory=dict)
    iterations: dict[str, Any] = field(default_factory=dict)
    not_fitted: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def device_rows(found: Found, device: str | None, also: list[str], source: str | None) -> tuple[str, Rows, list[str]]:
    """The operators of one device, and from others those that it does not have.

    Returns:
        The device's name, its rows, and notes.

    Raises:
        UserError: the data have several devices and none was chosen, or not the one that was.
    """
    rows = Rows.join(found.rows)
    names = counted([*rows["device"], *(part.device for part in found.engine)])
    known = [name for name in names if name]
    if device is None and len(known) > 1:
        raise UserError(f"the data are of {len(known)} devices; choose one with device=NAME: {', '.join(known)}")
    chosen = device if device is not None else known[0] if known else ""
    if not chosen:
        raise UserError("the data do not say which device was measured; name it with device=NAME")
    notes = []
    if not found.engine and len(known) == 1 and chip_named(chosen) and not chip_named(known[0]):
        notes.append(f"the measurements of '{known[0]}', which is no known chip, count as those of '{chosen}'")
        rows, known = rows.named(chosen), [chosen]
    if known and chosen not in known and "" not in names:
        meant = _same_chip(chosen, rows, known)
        if not meant:
            raise unknown("device of the data", chosen, known)
        others = f"; also of that chip: {', '.join(meant[1:])} (device=NAME, also=[NAME])" if meant[1:] else ""
        notes.append(f"device '{chosen}' is '{meant[0]}' in the data{others}")
        chosen = meant[0]
    for name in also:
        if name not in known:
            raise unknown("device of the data (also)", name, known)
    mine = rows.select(np.isin(rows["device"], [chosen, ""]))
    if source:
        mine = mine.select(np.array([source in str(text) for text in mine["source"]], dtype=bool))
        if not len(mine):
            raise UserError(f"source={source}: no measurement of device '{chosen}' comes from it; sources: "
                            f"{', '.join(counted(rows.select(rows['device'] == chosen)['source']))}")
    parts = [mine]
    for name in also:
        other = with_bytes(complete(rows.select(rows["device"] == name)))[0]
        missing = [kind for kind in KINDS if kind in set(other.kind()) and not any(
            kind in set(part.kind()) for part in parts)]
        if missing:
            parts.append(other.select(np.isin(other.kind(), missing)))
            notes.append(f"{', '.join(missing)}: measured on '{name}', since '{chosen}' has none")
    return chosen, Rows.join(parts), notes + _others(rows, [chosen, "", *also])


def _others(rows: Rows, taken: list[str]) -> list[str]:
    """What was measured on devices that are not fitted."""
    left = rows.select(~np.isin(rows["device"], taken))
    counts = [f"{name} ({', '.join(f'{op} {count:,}' for op, count in counted(part.kind()).items())})"
              for name in counted(left["device"]) for part in [left.select(left["device"] == name)]]
    return [f"left out, of other devices (also=[NAME] takes what '{taken[0]}' lacks): {'; '.join(counts[:4])}"
            + (f" and {len(counts) - 4} more" if len(counts) > 4 else "")] if counts else []


def _same_chip(device: str, rows: Rows, known: list[str]) -> list[str]:
    """Devices of the data that are the chip of this name, those with most kinds of operators first."""
    chip = chip_named(device)
    same = [name for name in known if chip and chip_named(name) == chip]
    return sorted(same, key=lambda name: -len(set(rows.select(rows["device"] == name).kind()) & set(KINDS)))


def calibrate(found: Found, chip: ChipSpec, device: str, rows: Rows, *, model: str | None = None, tp: int = 1,
              seed: int = 0, tell: Tell = lambda _: None) -> Calibration:
    """Fits both forms to what was measured, and judges them on what the fits have not seen.

    Args:
        found: what the readers found.
        chip: whose datasheet bounds the fits.
        device: name in the data.
        rows: operators of the device.
        model: name or YAML file: of an engine's iterations where the file does not say, and a model of one's own that
            iterations are composed of.
        tp: of an engine's iterations, where the file does not say.
        seed: of folds and draws.
        tell: is told what is being done.

    Raises:
        UserError: nothing is left to fit.
    """
    kept, excluded = clean(rows, chip)
    kept, chosen = fastest_kernels(kept)
    kept, unknown_bytes = with_bytes(kept)
    result = Calibration(device, chip, kept, excluded, chosen, notes=list(found.notes))
    if unknown_bytes:
        reason = "element-wise operator of unknown size"
        result.excluded.append(Excluded("elementwise", reason, unknown_bytes, False, []))
    _fit_operators(result, seed, tell)
    _fit_steps(result, found, rows, model, seed, tell)
    _fit_sampler(result, rows)
    _fit_engine(result, [part for part in found.engine if part.device in (device, "")], model, tp, seed, tell)
    if not any(result.fits.values()):
        reasons = "; ".join(f"{item.rows} rows of {item.op}: {item.reason}" for item in result.excluded[:4])
        few = ", ".join(f"{len(kept.of_kind(kind))} of {kind}" for kind in KINDS if len(kept.of_kind(kind)))
        if few:
            few = f"too few measurements ({few}; an operator takes at least {FEW})"
            reasons = f"{few}; {reasons}" if reasons else few
        raise UserError(f"nothing to fit for device '{device}': {reasons or 'no measured operator or iteration'}")
    return result


def _fit_operators(result: Calibration, seed: int, tell: Tell) -> None:
    if not len(result.rows):
        result.not_fitted.append("operators: none was measured")
        return
    for kind in KINDS:
        part = result.rows.of_kind(kind)
        if kind == "elementwise":
            part = part.select(part["bytes"] > 0)
        if len(part) < FEW:
            result.not_fitted.append(f"{kind}: {len(part)} rows, at least {FEW} are needed" if len(part)
                                     else f"{kind}: not measured")
            continue
        for form in FORMS:
            operator = OPERATORS[form].get(kind)
            if operator is None:
                continue
            tell(f"{kind}, {form}")
            fitted = fit(operator, part, result.base, seed)
            predicted, said = predict_unseen(operator, part, result.base, seed, fitted.found)
            result.fits[form][kind] = fitted
            result.unseen[form][kind] = predicted
            result.shapes.setdefault(kind, {})[form] = errors(predicted, part.seconds)
            result.held_out[kind] = said
            if kind == "elementwise":
                result.shapes[kind][form]["by_kind"] = _by_kind(part, predicted)


def _by_kind(rows: Rows, predicted: np.ndarray) -> dict[str, Any]:
    """Errors of each kind of element-wise operators."""
    kinds = elementwise_kinds(rows)
    return {str(kind) or "other": errors(predicted[kinds == kind], rows.seconds[kinds == kind])
            for kind in sorted(set(kinds))}


def _fit_steps(result: Calibration, found: Found, rows: Rows, model: str | None, seed: int, tell: Tell) -> None:
    """The roofline's eight parameters, and both forms on iterations composed of operators."""
    steps = None
    if not len(result.rows):
        return
    if found.composed:
        mine = [item for item in found.composed if result.device in item["file"]]
        steps, notes = from_files(mine or found.composed, rows)
        result.notes += notes if mine or steps else []
    if steps is None:
        steps = compose(result.rows, own=model)
    if steps is None or len(steps) < 4 * FEW:
        result.not_fitted.append("iterations: the measured operators make up no whole layer of a known model (of "
                                 "another: model=FILE.yaml), so the roofline is fitted operator by operator")
        _fit_launches(result, seed)
        return
    tell("iterations, ooco")
    roofline = step_fits.fit_roofline(steps, result.base, seed)
    result.steps, result.fits["ooco"]["steps"] = steps, roofline
    start = {"ooco": roofline.found, "extended": {op: item.found for op, item in result.fits["extended"].items()}}
    judged = result.rows.select(result.rows.kind() != "all_reduce")
    if len(steps.architectures) > 1:
        tell("iterations of unseen architectures")
        result.architecture = step_fits.unseen_architectures(steps, judged, result.base, seed, start)
    else:
        tell("iterations of unseen sizes")
        names = ", ".join(item.name for item in steps.architectures)
        result.not_fitted.append(f"held-out architecture: only one was measured ({names}); iterations of unseen sizes "
                                 "are judged instead")
        result.whole_steps = step_fits.unseen_sizes(steps, judged, result.base, seed, start)


def _fit_launches(result: Calibration, seed: int) -> None:
    """Without iterations: rates of GEMMs beside a launch, which four times is a layer's overhead."""
    part = result.rows.of_kind("gemm")
    if len(part) >= FEW:
        launched = OPERATORS["ooco"]["gemm"]._replace(
            free=lambda rows, chip: [*OPERATORS["ooco"]["gemm"].free(rows, chip), LAUNCH])
        result.fits["ooco"]["launches"] = fit(launched, part, result.base, seed)


def _fit_sampler(result: Calibration, rows: Rows) -> None:
    """The sampler, a constant and a share for each sequence, as the engine's overhead."""
    names = np.array([canonical(str(op)) for op in rows["op"]], dtype=object)
    part = rows.select((names == "sampler") & (rows["time_us"] > 0) & (rows["n_tokens"] > 0))
    if len(part) < FEW:
        return
    design = np.stack([np.ones(len(part)), part["n_tokens"]], axis=1) / part.seconds[:, None]
    from scipy.optimize import nnls

    constant, share = nnls(design, np.ones(len(part)))[0]
    found = {"prefill_s": float(constant), "decode_s": float(constant), "sequence_s": float(share)}
    result.fits["extended"]["overhead"] = Fitted(found, len(part), 0.0)
    predicted = constant + share * part["n_tokens"]
    result.shapes["sampler"] = {"extended": errors(predicted, part.seconds)}
    result.held_out["sampler"] = "nothing held out"


def _fit_engine(result: Calibration, parts: list[engine_fits.EngineRows], model: str | None, tp: int, seed: int,
                tell: Tell) -> None:
    served, grouped = [], {}
    for part in parts:
        grouped.setdefault((part.model, str(sorted(part.sizes.items())), part.tp), []).append(part)
    for members in grouped.values():
        rows, dropped = engine_fits.clean(engine_fits.join(members))
        result.excluded += [Excluded("iterations", reason, count, True, []) for reason, count in dropped.items()]
        name = model or rows.sizes or rows.model
        if not name:
            raise UserError(f"'{rows.file}' does not say which model the engine served; give it as model=NAME or a "
                            "YAML file")
        if len(rows) < 4 * FEW:
            result.not_fitted.append(f"iterations of {rows.model}: {len(rows)} rows, at least {4 * FEW} are needed")
            continue
        served.append(engine_fits.Served(rows, load_model(name), rows.tp or tp))
    result.engine = served
    if not served:
        return
    for form in FORMS:
        tell(f"whole iterations, {form}")
        chip = replace(result.base, extended=extended_of(result)) if form == "extended" else result.base
        if chip.extended is not None and not chip.extended.to_mapping():
            chip = replace(chip, extended=None)
        fitted = engine_fits.fit(form, chip, served, seed)
        result.fits[form]["engine"] = fitted
        result.iterations[form] = engine_fits.unseen(form, chip, served, seed, fitted.found)


def roofline_of(result: Calibration) -> dict[str, float]:
    """The roofline's parameters: of iterations where there are any, else operator by operator."""
    fits = result.fits["ooco"]
    names = {"gemm": ("gemm_flops_per_s", "gemm_memory_bytes_per_s"),
             "attn_decode": ("decode_attention_flops_per_s", "attention_memory_bytes_per_s"),
             "attn_prefill": ("prefill_attention_flops_per_s", "")}
    found: dict[str, float] = {}
    for op, (flops, memory) in names.items():
        if op in fits:
            found |= {flops: fits[op].found["flops_per_s"]}
            found |= {memory: fits[op].found["memory_bytes_per_s"]} if memory else {}
    if "launches" in fits:
        one = fits["launches"].found
        found |= {"gemm_flops_per_s": one["flops_per_s"], "gemm_memory_bytes_per_s": one["memory_bytes_per_s"],
                  "prefill_overhead_s": 0.0, "decode_overhead_s": 0.0,
                  "prefill_layer_overhead_s": 4 * one["launch_s"], "decode_layer_overhead_s": 4 * one["launch_s"]}
    if "all_reduce" in fits:
        found |= {"allreduce_bytes_per_s": fits["all_reduce"].found["bytes_per_s"],
                  "allreduce_latency_s": fits["all_reduce"].found["latency_s"]}
    if "steps" in fits:
        found |= {"prefill_overhead_s": 0.0, "decode_overhead_s": 0.0, **fits["steps"].found}
    if "engine" in fits:
        found |= {"prefill_layer_overhead_s": 0.0, "decode_layer_overhead_s": 0.0, **fits["engine"].found}
    return found


def extended_of(result: Calibration) -> kernels.ExtendedParameters:
    """The extended form's parameters of all kernels that were measured."""
    fits = dict(result.fits["extended"])
    engine, overhead = fits.pop("engine", None), fits.pop("overhead", None)
    built: dict[str, Any] = step_fits.parameters(fits)
    if overhead is not None:
        built["overhead"] = kernels.OverheadParameters(**overhead.found)
    if "mixed_attention" in built and "skew" not in built:
        built["skew"] = kernels.SkewParameters.from_chain(built["mixed_attention"])
    extended = kernels.ExtendedParameters(**built)
    if engine is None:
        return extended
    chip = engine_fits.with_found("extended", replace(result.base, extended=extended), engine.found)
    return chip.extended or extended


def engine_s(result: Calibration, form: str) -> np.ndarray:
    """What the final fit of a form says of an engine's iterations, float64[n]."""
    extended = extended_of(result)
    found = result.fits[form]["engine"].found
    chip = engine_fits.with_found(form, result.base, found) if form == "ooco" else replace(
        result.base, extended=extended)
    return engine_fits.predict(form, chip, result.engine)


def _noise(result: Calibration) -> float | None:
    found = [(len(one.rows), value) for one in result.engine if (value := engine_fits.noise(one.rows)) is not None]
    return sum(rows * value for rows, value in found) / sum(rows for rows, _ in found) if found else None


def measured_of(result: Calibration, rows: Rows) -> Rows:
    """The rows for `timing=measured`: all that were fitted, and the sampler's."""
    sampler = np.array([canonical(str(op)) == "sampler" for op in rows["op"]], dtype=bool) & (rows["time_us"] > 0)
    return Rows.join([result.rows, complete(rows.select(sampler))])


def digests(found: Found) -> dict[str, str]:
    """SHA-256 of each file read, by name."""
    named: dict[str, str] = {}
    for path in found.files:
        with Path(path).open("rb") as file:
            named[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return named


def summary_of(result: Calibration, found: Found, chip: ChipSpec, valid: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that was found, for `summary.json`; errors in percent."""
    errors_of = {"held_out_shapes": result.shapes, "held_out_architecture": result.architecture,
                 "whole_steps": result.whole_steps, "held_out_iterations": result.iterations}
    return {
        "device": result.device,
        "base": result.base.name,
        "files": {path.name: layout for path, layout in found.files.items()},
        "sha256": digests(found),
        "rows": {kind: len(result.rows.of_kind(kind)) for kind in KINDS},
        "excluded": [item._asdict() for item in result.excluded],
        "skipped_by_readers": found.skipped,
        "kernels": result.kernels,
        **errors_of,
        "held_out": result.held_out,
        "verdicts": [one._asdict() for one in judged(errors_of)],
        "iterations": {"composed": len(result.steps) if result.steps else 0,
                       "engine": sum(len(one.rows) for one in result.engine),
                       "architectures": [item.name for item in result.steps.architectures] if result.steps else [],
                       "origin": result.steps.origin if result.steps else "",
                       "engine_noise": _noise(result)},
        "parameters": {"ooco": roofline_of(result), "extended": extended_of(result).to_mapping()},
        "validity": dict(valid),
        "not_fitted": result.not_fitted,
        "notes": result.notes,
        "chip": chip.name,
    }
