"""One calibration from data to chip: everything that `ooco-gym calibrate` finds, without a word printed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

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
from ooco_gym.calibrate.show import judged
from ooco_gym.calibrate.sources import Found
from ooco_gym.calibrate.steps import Steps, compose
from ooco_gym.errors import UserError, unknown
from ooco_gym.perf import kernels
from ooco_gym.perf.chip import ChipSpec
from ooco_gym.perf.model import load_model

Tell = Callable[[str], None]
_SIZE: dict[str, tuple[str, Callable[[Rows], np.ndarray]]] = {
    "gemm": ("tokens", lambda rows: rows["n_tokens"]),
    "attn_prefill": ("new tokens of a prompt", lambda rows: rows["q_len"]),
    "all_reduce": ("bytes", lambda rows: rows["bytes"]),
    "elementwise": ("bytes", lambda rows: rows["bytes"])}
_ATTENTION = ("tokens of context in the batch", lambda rows: rows["batch"] * rows["context_len"])


class Points(NamedTuple):
    """What is plotted of an operator or of iterations: sizes, measured seconds, seconds by form, float64[n] each."""

    by: str
    size: np.ndarray
    seconds: np.ndarray
    predicted: dict[str, np.ndarray]


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
        points: what fits predicted that had not seen it, by operator (`iterations`, `engine`).
        shapes: errors of operators of unseen shapes, by operator and form.
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
    points: dict[str, Points] = field(default_factory=dict)
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
        rows, known = rows.with_columns(device=chosen), [chosen]
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
    _fit_steps(result, model, seed, tell)
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
        by, size = _SIZE.get(kind, _ATTENTION)
        points = result.points[kind] = Points(by, size(part), part.seconds, {})
        for form, operator in ((form, OPERATORS[form][kind]) for form in FORMS if kind in OPERATORS[form]):
            tell(f"{kind}, {form}")
            fitted = result.fits[form][kind] = fit(operator, part, result.base, seed)
            points.predicted[form], result.held_out[kind] = predict_unseen(operator, part, result.base, seed,
                                                                           fitted.found)
            kinds = {"by_kind": _by_kind(part, points.predicted[form])} if kind == "elementwise" else {}
            result.shapes.setdefault(kind, {})[form] = {**errors(points.predicted[form], part.seconds), **kinds}


def _by_kind(rows: Rows, predicted: np.ndarray) -> dict[str, Any]:
    """Errors of each kind of element-wise operators."""
    kinds = elementwise_kinds(rows)
    return {str(kind) or "other": errors(predicted[kinds == kind], rows.seconds[kinds == kind])
            for kind in sorted(set(kinds))}


def _fit_steps(result: Calibration, model: str | None, seed: int, tell: Tell) -> None:
    """The roofline's parameters, and both forms on iterations composed of operators."""
    if not len(result.rows):
        return
    steps = compose(result.rows, model)
    if steps is None or len(steps) < 4 * FEW:
        result.not_fitted.append("iterations: the measured operators make up no whole layer of a known model (of "
                                 "another: model=FILE.yaml), so the roofline is fitted operator by operator")
        _fit_launches(result, seed)
        return
    tell("iterations, ooco")
    roofline = step_fits.fit_roofline(steps, result.base, seed)
    result.steps, result.fits["ooco"]["steps"] = steps, roofline
    start = {"ooco": roofline.found, "extended": {op: item.found for op, item in result.fits["extended"].items()}}
    operators = result.rows.select(result.rows.kind() != "all_reduce")
    if len(steps.architectures) > 1:
        tell("iterations of unseen architectures")
        predicted = step_fits.unseen_architectures(steps, operators, result.base, seed, start)
        result.architecture = {form: step_fits.errors_by_part(one, steps) for form, one in predicted.items()}
    else:
        tell("iterations of unseen sizes")
        names = ", ".join(item.name for item in steps.architectures)
        result.not_fitted.append(f"held-out architecture: only one was measured ({names}); iterations of unseen sizes "
                                 "are judged instead")
        predicted = step_fits.unseen_sizes(steps, operators, result.base, seed, start)
        result.whole_steps = {form: step_fits.errors_by_part(one, steps) for form, one in predicted.items()}
    result.points["iterations"] = Points("tokens of the iteration", steps.tokens, steps.seconds, predicted)


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
    tokens = np.concatenate([one.rows.tokens for one in served])
    points = result.points["engine"] = Points("tokens of the iteration", tokens, engine_fits.measured(served), {})
    for form in FORMS:
        tell(f"whole iterations, {form}")
        chip = replace(result.base, extended=extended_of(result)) if form == "extended" else result.base
        if chip.extended is not None and not chip.extended.to_mapping():
            chip = replace(chip, extended=None)
        fitted = engine_fits.fit(form, chip, served, seed)
        result.fits[form]["engine"] = fitted
        points.predicted[form], result.iterations[form] = engine_fits.unseen(form, chip, served, seed, fitted.found)


def roofline_of(result: Calibration) -> tuple[dict[str, float], dict[str, str]]:
    """The roofline's parameters, of iterations where there are any, else operator by operator; and of each where it
    comes from, in words."""
    fits, found, said = result.fits["ooco"], {}, {}

    def take(values: Mapping[str, float], words: str) -> None:
        found.update(values)
        said.update(dict.fromkeys(values, words))

    for op, names in (("gemm", ("gemm_flops_per_s", "gemm_memory_bytes_per_s")),
                      ("attn_decode", ("decode_attention_flops_per_s", "attention_memory_bytes_per_s")),
                      ("attn_prefill", ("prefill_attention_flops_per_s",))):
        if op in fits:
            rates = (fits[op].found["flops_per_s"], fits[op].found["memory_bytes_per_s"])
            take(dict(zip(names, rates, strict=False)), f"fitted to {fits[op].rows} measured {op}"
                                                        f"{error_of(result, op, 'ooco')}")
    if "launches" in fits:
        one = fits["launches"].found
        take(dict.fromkeys(("prefill_overhead_s", "decode_overhead_s"), 0.0), _NO_OVERHEAD)
        take({"gemm_flops_per_s": one["flops_per_s"], "gemm_memory_bytes_per_s": one["memory_bytes_per_s"],
              "prefill_layer_overhead_s": 4 * one["launch_s"], "decode_layer_overhead_s": 4 * one["launch_s"]},
             f"fitted to {fits['launches'].rows} measured GEMMs and a launch; four of them are a layer's overhead "
             "(attention's is left out)")
    if "all_reduce" in fits:
        one = fits["all_reduce"]
        take({f"allreduce_{key}": one.found[key] for key in ("bytes_per_s", "latency_s")},
             f"fitted to {one.rows} measured all-reduces{error_of(result, 'all_reduce', 'ooco')}")
    if "steps" in fits:
        judged = "unseen architectures" if result.architecture else "unseen sizes"
        error = (result.architecture or result.whole_steps).get("ooco")
        take(dict.fromkeys(("prefill_overhead_s", "decode_overhead_s"), 0.0), _NO_OVERHEAD)
        take(fits["steps"].found, f"fitted to {fits['steps'].rows} iterations composed of measured operators"
             + (f", {percents(error)} on {judged}" if error else ""))
    if "engine" in fits:
        error = result.iterations["ooco"]
        take(dict.fromkeys(("prefill_layer_overhead_s", "decode_layer_overhead_s"), 0.0), _NO_OVERHEAD)
        take(fits["engine"].found, f"fitted to {fits['engine'].rows} iterations of an engine, {percents(error)} on "
                                   f"unseen {error['held_out']}")
    if "prefill_attention_flops_per_s" in said:
        said["prefill_attention_flops_per_s"] += "; counts the masked half too, as timing=ooco does (causal_factor 1)"
    return found, said


_NO_OVERHEAD = "none; counted once a layer or once an iteration, not both"


def sources_of(result: Calibration, found: Found, datasheet: str) -> dict[str, str]:
    """Where each part of the chip comes from, with rows and errors, by field."""
    files = "; ".join(f"{name} (SHA-256 {digest[:16]})" for name, digest in list(digests(found).items())[:8])
    more = f" and {len(found.files) - 8} more" if len(found.files) > 8 else ""
    origins = ", ".join(name or "unnamed" for name in counted(result.rows["source"]))
    measured = f"measured by {origins}" if origins else "iterations of an engine"
    said = {"data": f"device '{result.device}' of {files}{more}; {measured}", "datasheet": datasheet,
            **roofline_of(result)[1]}
    for op, fitted in result.fits["extended"].items():
        others = sorted({str(name) for name in result.rows.of_kind(op)["device"]} - {result.device, ""})
        where = f", measured on {', '.join(others)}" if others else ""
        kernel = OPERATORS["extended"][op].kernel if op in OPERATORS["extended"] else op
        said[f"extended.{kernel}"] = f"fitted to {fitted.rows} rows{where}{error_of(result, op, 'extended')}"
    said["validity"] = "the sizes that were measured; beyond them the forms extrapolate"
    return said | {f"error.{form}": f"{percents(item)} on whole iterations (composed of measured operators)"
                   for form, item in (result.architecture or result.whole_steps).items()}


def error_of(result: Calibration, op: str, form: str) -> str:
    """The errors of a form on an operator's unseen shapes, in words; '' where there are none."""
    item = result.shapes.get(op, {}).get(form)
    return f", {percents(item)} ({result.held_out[op]})" if item else ""


def percents(item: Mapping[str, Any]) -> str:
    """Errors in words."""
    return f"MAPE {item['mape']:.1f} %, P95 {item['p95']:.1f} %, worst {item['worst']:.0f} %"


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
        "verdicts": [one for one in judged(errors_of) if one["verdict"]],
        "iterations": {"composed": len(result.steps) if result.steps else 0,
                       "engine": sum(len(one.rows) for one in result.engine),
                       "architectures": [item.name for item in result.steps.architectures] if result.steps else [],
                       "engine_noise": _noise(result)},
        "parameters": {"ooco": roofline_of(result)[0], "extended": extended_of(result).to_mapping()},
        "validity": dict(valid),
        "not_fitted": result.not_fitted,
        "notes": result.notes,
        "chip": chip.name,
    }
