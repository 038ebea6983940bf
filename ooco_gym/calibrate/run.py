"""One calibration from data to chip: everything that `ooco-gym calibrate` finds, without a word printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ooco_gym.calibrate import engine_fits
from ooco_gym.calibrate import steps as composed
from ooco_gym.calibrate.chip import chip_named
from ooco_gym.calibrate.fitting import Fitted, errors
from ooco_gym.calibrate.operators import FEW, LINK, OPERATORS, canonical, fit, parameters, predict_unseen, with_bytes
from ooco_gym.calibrate.rows import OPERATORS as KINDS
from ooco_gym.calibrate.rows import Excluded, Rows, clean, complete, counted, fastest_kernels
from ooco_gym.calibrate.sources import Found
from ooco_gym.documents import file_digest
from ooco_gym.errors import UserError, unknown
from ooco_gym.perf import kernels
from ooco_gym.perf.chip import ChipSpec
from ooco_gym.perf.model import load_model

GOOD, FAIR = (5.0, 15.0), (10.0, 30.0)
"""Greatest median and 90th percentile of the errors, in percent, of a fit that is good, and of one that is fair."""
UNSEEN = {"held_out_architecture": "iterations, unseen architecture", "whole_steps": "iterations, unseen sizes",
          "held_out_iterations": "engine's iterations, unseen"}
"""What fits of whole iterations had not seen, in words."""
_NO_OVERHEAD = "none; counted once a layer or once an iteration, not both"


@dataclass
class Calibration:
    """What was found.

    Attributes:
        device: name in the data.
        base: chip whose datasheet bounds the fit.
        found: what the readers found.
        rows: operators that were fitted.
        excluded: rows left out, by operator and reason.
        notes: of the readers.
        composed: iterations composed of measured operators, by architecture.
        engine: whole iterations, by model and tensor-parallel degree.
        fits: of `ooco` the link (`all_reduce`) and iterations (`steps`, `engine`); of `extended` operators besides.
        shapes: errors of operators of unseen shapes, by operator and form.
        held_out: what was held out, by operator.
        unseen: errors on iterations, by what the fits had not seen (`UNSEEN`) and form.
        not_fitted: what the data do not tell, in words.
    """

    device: str
    base: ChipSpec
    found: Found
    rows: Rows
    excluded: list[Excluded]
    notes: list[str]
    composed: dict[str, int] = field(default_factory=dict)
    engine: list[engine_fits.Served] = field(default_factory=list)
    fits: dict[str, dict[str, Fitted]] = field(default_factory=lambda: {"ooco": {}, "extended": {}})
    shapes: dict[str, dict[str, Any]] = field(default_factory=dict)
    held_out: dict[str, str] = field(default_factory=dict)
    unseen: dict[str, dict[str, Any]] = field(default_factory=lambda: {key: {} for key in UNSEEN})
    not_fitted: list[str] = field(default_factory=list)


def device_rows(found: Found, device: str | None, also: list[str]) -> tuple[str, Rows, list[str]]:
    """The device's name, its operators, from others (`also`) those that it does not have, and notes.

    Raises:
        UserError: the data have several devices and none was chosen, or not the one that was.
    """
    rows, notes = Rows.join(found.rows), []
    names = counted([*rows["device"], *(part.device for part in found.engine)])
    known = [name for name in names if name]
    if device is None and len(known) != 1:
        raise UserError("the data do not say which device was measured; name it with device=NAME" if not known else
                        f"the data are of {len(known)} devices; choose one with device=NAME: {', '.join(known)}")
    chosen = device or known[0]
    if not found.engine and len(known) == 1 and chip_named(chosen) and not chip_named(known[0]):
        notes.append(f"the measurements of '{known[0]}', which is no known chip, count as those of '{chosen}'")
        rows, known = rows.with_columns(device=chosen), [chosen]
    parts = {name: rows.select(rows["device"] == name) for name in known}
    if known and chosen not in known and "" not in names:
        same = [name for name in known if chip_named(chosen) and chip_named(name) == chip_named(chosen)]
        if not same:
            raise unknown("device of the data", chosen, known)
        same.sort(key=lambda name: -len(set(parts[name].kind) & set(KINDS)))
        notes.append(f"device '{chosen}' is '{same[0]}' in the data")
        chosen = same[0]
    mine = rows.select(np.isin(rows["device"], [chosen, ""]))
    for name in also:
        if name not in known:
            raise unknown("device of the data (also)", name, known)
        other = with_bytes(complete(parts[name]))[0]
        missing = [kind for kind in KINDS if kind in set(other.kind) - set(mine.kind)]
        if missing:
            mine = Rows.join([mine, other.select(np.isin(other.kind, missing))])
            notes.append(f"{', '.join(missing)}: measured on '{name}', since '{chosen}' has none")
    left = [name for name, part in parts.items() if len(part) and name not in (chosen, *also)]
    if left:
        notes.append(f"left out, of other devices (also=[NAME] takes what '{chosen}' lacks): {', '.join(left)}")
    return chosen, mine, notes


def calibrate(found: Found, chip: ChipSpec, device: str, rows: Rows, *, model: str | None = None, tp: int = 1,
              seed: int = 0) -> Calibration:
    """Fits both forms to what was measured, and judges them on what the fits have not seen.

    Args:
        found: what the readers found.
        chip: whose datasheet bounds the fits.
        device, rows: name in the data, and its operators.
        model, tp: of an engine's iterations where the file does not say; `model`, a name or YAML file, may be one of
            one's own that iterations are composed of.
        seed: of folds and draws.

    Raises:
        UserError: nothing is left to fit.
    """
    kept, excluded = clean(rows, chip)
    kept, unknown_bytes = with_bytes(fastest_kernels(kept))
    if unknown_bytes:
        excluded.append(Excluded("elementwise", "element-wise operator of unknown size", unknown_bytes, []))
    result = Calibration(device, chip, found, kept, excluded, list(found.notes))
    if len(kept):
        _fit_operators(result, seed)
        _fit_steps(result, model, seed)
    else:
        result.not_fitted.append("operators: none was measured")
    _fit_sampler(result, rows)
    _fit_engine(result, model, tp, seed)
    if not any(result.fits.values()):
        reasons = [*result.not_fitted, *(f"{item.rows} rows of {item.op}: {item.reason}" for item in result.excluded)]
        raise UserError(f"nothing to fit for device '{device}': {'; '.join(reasons)}")
    if not result.fits["ooco"].keys() & {"steps", "engine"}:
        result.not_fitted.append("ooco: no whole iteration was measured or can be composed of the operators (of "
                                 f"another model: model=FILE.yaml), so the chip keeps the roofline of '{chip.name}'; "
                                 "take timing=extended")
    return result


def _fit_operators(result: Calibration, seed: int) -> None:
    for kind, operator in OPERATORS.items():
        part = result.rows.of_kind(kind)
        if len(part) < FEW:
            result.not_fitted.append(f"{kind}: {len(part)} rows, at least {FEW} are needed" if len(part)
                                     else f"{kind}: not measured")
            continue
        fitted = result.fits["extended"][kind] = fit(operator, part, result.base, seed)
        predicted, result.held_out[kind] = predict_unseen(operator, part, result.base, seed, fitted.found)
        result.shapes[kind] = {"extended": errors(predicted, part.seconds)}
        if kind == "all_reduce":
            result.fits["ooco"][kind] = fit(LINK, part, result.base, seed)


def _fit_steps(result: Calibration, model: str | None, seed: int) -> None:
    """The roofline's parameters, and both forms on iterations composed of operators."""
    steps = composed.compose(result.rows, model)
    if steps is None or len(steps) < 4 * FEW:
        return
    roofline = result.fits["ooco"]["steps"] = composed.fit_roofline(steps, result.base, seed)
    start = {"ooco": roofline.found, "extended": {op: item.found for op, item in result.fits["extended"].items()}}
    operators = result.rows.select(result.rows.kind != "all_reduce")
    found = {form: errors(one, steps.seconds)
             for form, one in composed.unseen(steps, operators, result.base, seed, start).items()}
    result.composed = {one.name: int((steps.arch == index).sum()) for index, one in enumerate(steps.architectures)}
    result.unseen["held_out_architecture" if len(result.composed) > 1 else "whole_steps"] = found
    if len(result.composed) == 1:
        result.not_fitted.append(f"held-out architecture: only one was measured ({steps.architectures[0].name}); "
                                 "iterations of unseen sizes are judged instead")


def _fit_sampler(result: Calibration, rows: Rows) -> None:
    """The sampler, a constant and a share for each sequence, as the engine's overhead."""
    part = _sampler(rows).select(_sampler(rows)["n_tokens"] > 0)
    if len(part) < FEW:
        return
    from scipy.optimize import nnls

    design = np.stack([np.ones(len(part)), part["n_tokens"]], axis=1)
    constant, share = (float(value) for value in nnls(design / part.seconds[:, None], np.ones(len(part)))[0])
    found = {"prefill_s": constant, "decode_s": constant, "sequence_s": share}
    result.fits["extended"]["overhead"] = Fitted(found, len(part), 0.0)
    result.shapes["sampler"] = {"extended": errors(design @ [constant, share], part.seconds)}
    result.held_out["sampler"] = "nothing held out"


def _sampler(rows: Rows) -> Rows:
    names = np.array([canonical(str(op)) == "sampler" for op in rows["op"]], dtype=bool)
    return rows.select(names & (rows["time_us"] > 0))


def _fit_engine(result: Calibration, model: str | None, tp: int, seed: int) -> None:
    grouped: dict[tuple, list[engine_fits.EngineRows]] = {}
    for part in result.found.engine:
        if part.device in (result.device, ""):
            grouped.setdefault((part.model, str(sorted(part.sizes.items())), part.tp), []).append(part)
    served = result.engine
    for members in grouped.values():
        rows, dropped = engine_fits.clean(engine_fits.join(members))
        result.excluded += [Excluded("iterations", reason, count, []) for reason, count in dropped.items()]
        name = model or rows.sizes or rows.model
        if not name:
            raise UserError(f"'{rows.file}' does not say which model the engine served; give it as model=NAME or a "
                            "YAML file")
        if len(rows) < 4 * FEW:
            result.not_fitted.append(f"iterations of {rows.model}: {len(rows)} rows, at least {4 * FEW} are needed")
        else:
            served.append(engine_fits.Served(rows, load_model(name), rows.tp or tp))
    for form in ("ooco", "extended") if served else ():
        extended = extended_of(result) if form == "extended" else result.base.extended
        chip = replace(result.base, extended=extended if extended and extended.to_mapping() else None)
        fitted = result.fits[form]["engine"] = engine_fits.fit(form, chip, served, seed)
        result.unseen["held_out_iterations"][form] = engine_fits.unseen(form, chip, served, seed, fitted.found)


def roofline_of(result: Calibration) -> tuple[dict[str, float], dict[str, str]]:
    """The roofline's parameters, and of each where it comes from, in words."""
    fits, unseen = result.fits["ooco"], result.unseen
    parts: list[tuple[Mapping[str, float], str]] = []
    if "all_reduce" in fits:
        parts.append(({f"allreduce_{key}": value for key, value in fits["all_reduce"].found.items()},
                      f"fitted to {fits['all_reduce'].rows} measured all-reduces"))
    if "steps" in fits:
        judged_on, error = next(((UNSEEN[key], unseen[key]["ooco"]) for key in ("held_out_architecture", "whole_steps")
                                 if "ooco" in unseen[key]), ("", None))
        parts += [(dict.fromkeys(("prefill_overhead_s", "decode_overhead_s"), 0.0), _NO_OVERHEAD),
                  (fits["steps"].found, f"fitted to {fits['steps'].rows} iterations composed of measured operators"
                   + (f", {percents(error)} on {judged_on}" if error else ""))]
    if "engine" in fits:
        error = unseen["held_out_iterations"]["ooco"]
        parts += [(dict.fromkeys(("prefill_layer_overhead_s", "decode_layer_overhead_s"), 0.0), _NO_OVERHEAD),
                  (fits["engine"].found, f"fitted to {fits['engine'].rows} iterations of an engine, {percents(error)} "
                                         f"on unseen {error['held_out']}")]
    said = {name: words for values, words in parts for name in values}
    if "prefill_attention_flops_per_s" in said:
        said["prefill_attention_flops_per_s"] += "; counts the masked half too, as timing=ooco does (causal_factor 1)"
    return {name: value for values, _ in parts for name, value in values.items()}, said


def sources_of(result: Calibration, datasheet: str) -> dict[str, str]:
    """Where each part of the chip comes from, with rows and errors, by field."""
    files = [f"{path.name} (SHA-256 {file_digest(path)[:16]})" for path in result.found.files]
    more = f" and {len(files) - 8} more" if len(files) > 8 else ""
    origins = ", ".join(name or "unnamed" for name in counted(result.rows["source"]))
    measured = f"measured by {origins}" if origins else "iterations of an engine"
    said = {"data": f"device '{result.device}' of {'; '.join(files[:8])}{more}; {measured}", "datasheet": datasheet,
            **roofline_of(result)[1]}
    for op, fitted in result.fits["extended"].items():
        others = sorted({str(name) for name in result.rows.of_kind(op)["device"]} - {result.device, ""})
        where = f", measured on {', '.join(others)}" if others else ""
        error = f", {percents(result.shapes[op]['extended'])} ({result.held_out[op]})" if op in result.shapes else ""
        kernel = OPERATORS[op].kernel if op in OPERATORS else op
        said[f"extended.{kernel}"] = f"fitted to {fitted.rows} rows{where}{error}"
    said["validity"] = "the sizes that were measured; beyond them the forms extrapolate"
    return said | {f"error.{form}": f"{percents(item)} on whole iterations (composed of measured operators)"
                   for key in ("held_out_architecture", "whole_steps") for form, item in result.unseen[key].items()}


def percents(item: Mapping[str, Any]) -> str:
    """Errors in words."""
    return f"MAPE {item['mape']:.1f} %, P95 {item['p95']:.1f} %, worst {item['worst']:.0f} %"


def extended_of(result: Calibration) -> kernels.ExtendedParameters:
    """The extended form's parameters of all kernels that were measured."""
    fits = dict(result.fits["extended"])
    engine, overhead = fits.pop("engine", None), fits.pop("overhead", None)
    built: dict[str, Any] = parameters(fits)
    if overhead is not None:
        built["overhead"] = kernels.OverheadParameters(**overhead.found)
    if "mixed_attention" in built and "skew" not in built:
        built["skew"] = kernels.SkewParameters.from_chain(built["mixed_attention"])
    extended = kernels.ExtendedParameters(**built)
    if engine is None:
        return extended
    chip = engine_fits.with_found("extended", replace(result.base, extended=extended), engine.found)
    return chip.extended or extended


def measured_of(result: Calibration, rows: Rows) -> Rows:
    """The rows for `timing=measured`: all that were fitted, and the sampler's."""
    return Rows.join([result.rows, complete(_sampler(rows))])


def summary_of(result: Calibration, chip: ChipSpec, valid: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that was found, for `summary.json`; errors in percent."""
    errors_of = {"held_out_shapes": result.shapes, **result.unseen}
    noise = [(len(one.rows), value) for one in result.engine if (value := engine_fits.noise(one.rows)) is not None]
    return {
        "schema": "ooco-gym/calibrate/3",
        "device": result.device,
        "base": result.base.name,
        "files": {path.name: layout for path, layout in result.found.files.items()},
        "sha256": {path.name: file_digest(path) for path in result.found.files},
        "rows": {kind: len(result.rows.of_kind(kind)) for kind in KINDS},
        "excluded": [item._asdict() for item in result.excluded],
        "skipped_by_readers": result.found.skipped,
        **errors_of,
        "held_out": result.held_out,
        "verdicts": judged(errors_of),
        "iterations": {"composed": sum(result.composed.values()), "engine": sum(len(one.rows) for one in result.engine),
                       "architectures": list(result.composed),
                       "engine_noise": float(np.average([value for _, value in noise], weights=[
                           count for count, _ in noise])) if noise else None},
        "parameters": {"ooco": roofline_of(result)[0], "extended": extended_of(result).to_mapping()},
        "validity": dict(valid),
        "not_fitted": result.not_fitted,
        "notes": result.notes,
        "chip": chip.name,
    }


def judged(figures: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every fit of a calibration with its errors and a verdict, and where that is poor, advice.

    Args:
        figures: `held_out_shapes`, `held_out_architecture`, `whole_steps`, `held_out_iterations` of its summary.
    """
    verdicts = []
    for operation, forms in [*figures["held_out_shapes"].items(), *((UNSEEN[key], figures[key]) for key in UNSEEN)]:
        for form, found in forms.items():
            verdict = next((name for name, (middle, most) in (("good", GOOD), ("fair", FAIR))
                            if found["median"] <= middle and found["p90"] <= most), "poor")
            advice = "measure more sizes, or take timing=measured, which looks up what was measured"
            if operation.startswith("iterations"):
                better = "extended or measured" if form == "ooco" else "measured"
                advice = f"take timing={better}, or measure the engine's own iterations (ooco-gym calibrate measure)"
            elif operation.startswith("engine"):
                advice = "measure more passes on a machine with nothing else to do"
            verdicts.append({"operation": operation, "form": form, "verdict": verdict, "bias": found["median_bias"],
                             "advice": advice if verdict == "poor" else "",
                             **{key: found[key] for key in ("median", "p90", "mape", "p95", "worst", "rows")}})
    return verdicts
