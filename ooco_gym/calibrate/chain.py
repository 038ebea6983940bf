"""`ooco-gym calibrate chain`: measure an engine, fit it, simulate it, compare
(docs/calibration.md).

The engine serves three loads in real time. The simulator serves the same requests with a formula
fitted to designed batches on the same engine (`iterations`), which becomes a chip with operator tables.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ooco_gym.calibrate.chip import write_chip as write_yaml
from ooco_gym.calibrate.chip import write_tables
from ooco_gym.calibrate.iterations import (
    CLOCK_FILE,
    CONSTANTS,
    EngineFit,
    Timed,
    described,
    doubts,
    errors,
    fit_clock,
    fit_iterations,
    held_out,
    mode_of,
    read_iterations,
    write_clock,
)
from ooco_gym.calibrate.measure import measure
from ooco_gym.calibrate.rows import Rows
from ooco_gym.calibrate.served import compare, serve_again, served, served_plots
from ooco_gym.errors import UserError
from ooco_gym.files import write_json
from ooco_gym.perf import ChipSpec, cost_table, load_model
from ooco_gym.perf.deployment import Deployment
from ooco_gym.perf.engine_clock import EngineClock
from ooco_gym.perf.kernels import ElementwiseParameters, ExtendedParameters, OverheadParameters
from ooco_gym.perf.model import ModelSpec
from ooco_gym.perf.terms import FITTED_FILE, FITTED_SCHEMA, Terms
from ooco_gym.perf.timing.extended import fused_linears
from ooco_gym.report import Section, Table, write_page
from ooco_gym.workload import Trace
from ooco_gym.workload.table_reader import read_table

if TYPE_CHECKING:
    from omegaconf import DictConfig

SCHEMA = "ooco-gym/engine_chain/1"
_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_LEAST_US = 1e-6
_OFF = 1e18
"""A rate so high that its term takes no time, because the tables already include it."""
LIMIT = 15.0
"""Largest error of a median, in percent, for which the chain counts as closed."""


def main(cfg: DictConfig) -> dict[str, Any]:
    """Runs the chain; `cfg.measured` names an earlier measurement to start from.

    Raises:
        UserError: no engine, or a folder without a measurement.
    """
    from omegaconf import OmegaConf

    out = Path(cfg.out)
    chip = cfg.chip if isinstance(cfg.chip, str) else None  # datasheet values belong to replay
    if chip is None and cfg.timing != "measured":
        raise UserError(f"timing={cfg.timing}: the chain fits whole iterations, which only timing=measured uses; give "
                        "a chip with chip=FILE, fitted with 'ooco-gym calibrate'")
    measured = Path(cfg.measured).expanduser().absolute() if cfg.measured else out / "measured"
    if cfg.engine_clock is not None and chip is None:
        raise UserError(f"engine_clock={cfg.engine_clock}: the chain fits whole iterations including host time; add a "
                        "chip fitted to kernels, such as chip=h100 timing=extended")
    if not cfg.measured:
        measure(OmegaConf.to_container(cfg.engine, resolve=True), measured)  # type: ignore[arg-type]
    found = close(measured, out, chip, str(cfg.timing), cfg.engine_clock)
    comparison(found).show(unbroken=8)
    for sentence in found["notes"]:
        print(f"note: {sentence}")
    if found["loads"]:
        print(f"plots: '{out / 'chain.html'}'; the chain's own chip: '{out / 'chip' / 'chip.yaml'}', to be used with "
              "timing=measured")
    if cfg.engine_clock == "fit":
        host_times = described({key: found["clock"][key] for key in CONSTANTS})
        print(f"host time on top of {chip}, timing={cfg.timing}: {host_times}; written: '{out / CLOCK_FILE}', to be "
              "used as cluster.engine_clock=FILE")
    return {"schema": SCHEMA, "measured": str(measured), **found}


class MeasuredEngine(NamedTuple):
    """A measured engine: `engine.json`, the designed iterations, its cluster in the simulator, its
    chip's folder, the fit and its errors."""

    facts: dict[str, Any]
    rows: dict[str, np.ndarray]
    cluster: dict[str, Any]
    chip: Path
    fitted: EngineFit
    fit: dict[str, Any]


def fitted_engine(measured: Path, out: Path) -> MeasuredEngine:
    """Fits a measurement, and writes its chip with `latency.json` for the scheduler inside vLLM.

    Raises:
        UserError: the folder has no measurement.
    """
    path = measured / "engine.json"
    if not path.is_file():
        raise UserError(f"'{measured}' holds no measurement: expected engine.json, as `ooco-gym calibrate measure` "
                        "writes it")
    facts = json.loads(path.read_text(encoding="utf-8"))
    rows = read_iterations(measured / "iterations.parquet", bool(facts.get("asynchronous")))
    fitted, model = fit_iterations(rows), model_of(facts)
    chip = write_chip(out / "chip", fitted.terms, facts, model)
    cluster = {"name": "measured", "model": model, "block_tokens": facts["block_tokens"],
               "max_batch": facts["max_num_seqs"], "engine_clock": asdict(mode_of(facts)),
               "mixed": [{"chip": str(chip), "count": 1, "kv_blocks": facts["num_blocks"]}]}
    return MeasuredEngine(facts, rows, cluster, chip.parent, fitted,
                          {"all": errors(fitted, rows), "held_out": held_out(rows)})


def with_chip(own: MeasuredEngine, chip: str, timing: str, clock: Any, out: Path) -> tuple[dict[str, Any], Timed]:
    """Returns the cluster on a chip that was fitted elsewhere, and its times.

    The clock `fit` is fitted to the designed iterations and written to `out`.
    """
    facts, model = own.facts, own.cluster["model"]
    table = cost_table(Deployment.from_config({"chip": chip, "model": model, "timing": timing,
                                               "block_tokens": facts["block_tokens"],
                                               "known_kv_blocks": facts["num_blocks"]}))
    if clock == "fit":
        mode = "asynchronous" if facts.get("asynchronous") else "synchronous"
        said = (f"{len(own.rows['time_us']):,} iterations of {facts['engine']}, {mode}, with {facts.get('model')} on "
                f"{facts.get('cpu') if facts['device'] == 'cpu' else facts['device']}")
        clock = fit_clock(table, own.rows, f"measured_{mode}", f"{said}, on top of timing={timing} of {chip}",
                               mode_of(facts))
        found = errors(Timed(table, clock), own.rows)
        said = f"{clock.source}; MAPE {found['mape']:.1f} %, bias {found['bias']:+.1f} %"
        clock = str(write_clock(out / CLOCK_FILE, replace(clock, source=said)))
    clock = clock or own.cluster["engine_clock"]
    cluster = {**own.cluster, "mixed": [{**own.cluster["mixed"][0], "chip": chip}], "engine_clock": clock}
    return cluster, Timed(table, EngineClock.load(clock))


def close(measured: Path, out: Path, chip: str | None = None, timing: str = "measured",
          clock: Any = None) -> dict[str, Any]:
    """Fits, simulates and compares, after the measurement.

    Args:
        measured: folder of a measurement.
        out: folder for the chip and the page `chain.html`.
        chip: name or YAML of a chip to simulate, fitted elsewhere; None: the fit's own.
        timing: its timing form.
        clock: its host time (`cluster.engine_clock`), or `fit`.

    Returns:
        The fit with its errors on iterations in percent, and each load's errors of simulated medians and means.
    """
    own = fitted_engine(measured, out)
    engine, cluster, fit = own.facts, own.cluster, own.fit
    fitted: EngineFit | Timed = own.fitted
    if chip is not None:
        cluster, fitted = with_chip(own, chip, timing, clock, out)
        clock, fit = asdict(fitted.clock), {"all": errors(fitted, own.rows), "held_out": {}}
    loads: dict[str, Any] = {}
    sections: list[Section] = []
    for name in engine["serving"]:
        folder = measured / "serve" / name
        requests = {name: column.to_numpy() for name, column in read_table(folder / "requests.parquet").columns.items()}
        steps = read_iterations(folder / "iterations.parquet", bool(engine.get("asynchronous")))
        real = served(requests["arrival_s"], requests["first_token_s"], requests["last_token_s"],
                      requests["output_tokens"])
        trace = Trace(arrival_s=requests["arrival_s"], prompt_tokens=requests["prompt_tokens"].astype(np.int32),
                      output_tokens=requests["output_tokens"].astype(np.int32))
        limits = {"max_num_batched_tokens": engine["max_num_batched_tokens"], "max_num_seqs": engine["max_num_seqs"],
                  "reserved_blocks": 1}
        again = serve_again(trace, cluster, limits, timing, float(requests["last_token_s"].max()))
        loads[name] = {"requests": len(requests["arrival_s"]), **compare(real, again.served),
                       "iterations_real": len(steps["time_us"]), "iterations_simulated": again.iterations,
                       "iteration_errors": errors(fitted, steps)}
        end_s = float(requests["last_token_s"].max())
        sections.append(Section(name, plots=served_plots(real, {timing: again}, {}, end_s)))
    if sections:
        write_page(out / "chain.html", f"{engine['engine']} and its simulation", sections)
    worst = max((abs(load[f"{key}_median_error"]) for load in loads.values() for key in ("ttft", "tpot")), default=None)
    return {"engine": {key: engine.get(key) for key in ("engine", "model", "device", "cpu", "threads")},
            "chip": chip or str(own.chip / "chip.yaml"), "timing": timing, "fit": own.fitted.terms.in_us(),
            "clock": clock, "fit_errors": fit["all"],
            "held_out_passes": fit["held_out"], "notes": doubts(fit["all"]),
            "loads": loads, "worst_median_error": worst, "closed": worst is not None and worst <= LIMIT,
            "machine": engine.get("machine", [])}


def comparison(found: dict[str, Any]) -> Table:
    """Returns a table of the loads' real and simulated medians, in milliseconds."""
    rows = []
    for name, load in found["loads"].items():
        cells = []
        for key in ("ttft", "tpot"):
            real, ours, error = (load[f"{key}_median_{part}"] for part in ("ms_real", "ms_simulated", "error"))
            cells += [f"{real:.4g}", f"{ours:.4g}", f"{error:+.1f} %"]
        rows.append((name, *cells, f"{load['iteration_errors']['bias']:+.1f} %"))
    return Table(f"{found['engine']['engine']}: medians in ms (real, simulated) and bias of iteration times",
                 ("load", "TTFT", "sim.", "error", "TPOT", "sim.", "error", "bias"), rows)


# --- The chip of a fit --------------------------------------------------------------------------------------------
def model_of(engine: dict[str, Any]) -> dict[str, Any]:
    """Returns the measured model in our specification, from `engine.json`.

    Raises:
        UserError: `engine.json` does not describe the model.
    """
    config = engine.get("model_config") or {}
    fields = {"layers": "num_hidden_layers", "hidden": "hidden_size", "heads": "num_attention_heads",
              "kv_heads": "num_key_value_heads", "intermediate": "intermediate_size", "vocab": "vocab_size"}
    for name in fields.values():
        if name not in config:
            raise UserError(f"engine.json: model_config has no '{name}'; the chain simulates dense decoder-only models")
    values = {ours: int(config[theirs]) for ours, theirs in fields.items()}
    head_dim = int(config.get("head_dim") or values["hidden"] // values["heads"])
    return {"name": "measured_model", **values, "head_dim": head_dim,
            "dtype_bytes": _DTYPE_BYTES.get(str(engine.get("dtype")), 2)}


def write_chip(folder: Path, fitted: Terms, engine: dict[str, Any], model: dict[str, Any]) -> Path:
    """Writes `chip.yaml`, its `operators.parquet`, and the fit for the plug-in; returns the path of the first.

    The fit gives only sums over an iteration. The sum of linear layers is divided in proportion to
    their operations, and includes element-wise operators.
    """
    spec = load_model(model)
    rows = _linear_rows(fitted, spec, engine) + _attention_rows(fitted, spec, engine)
    write_json(folder / FITTED_FILE, {"schema": FITTED_SCHEMA, "engine": engine["engine"], **fitted.in_us()})
    write_tables(Rows.join([Rows.of(Path(), 1, 1, **row) for row in rows]), folder / "operators.parquet")
    sizes = {"max_tokens": int(engine["max_num_batched_tokens"]), "max_batch": int(engine["max_num_seqs"]),
             "max_context": int(engine["max_model_len"])}
    write_yaml(_chip(fitted, spec, engine), sizes, "operators.parquet", folder / "chip.yaml")
    return folder / "chip.yaml"


def _row(op: str, seconds: float, **sizes: float) -> dict[str, Any]:
    return {"op": op, "time_us": max(1e6 * float(seconds), _LEAST_US), **sizes}


def _linear_rows(fitted: Terms, model: ModelSpec, engine: dict[str, Any]) -> list[dict[str, Any]]:
    layers = fused_linears(model, 1)
    head = (model.hidden, model.vocab)
    if head in [(layer.d_in, layer.d_out) for layer in layers]:
        raise UserError(f"the LM head of {head[0]} x {head[1]} has the shape of another layer, so tables cannot "
                        "distinguish them; measure a model with another vocabulary")
    operations = np.array([layer.d_in * layer.d_out for layer in layers], dtype=np.float64)
    rows: list[dict[str, Any]] = []
    for layer, share in zip(layers, operations / operations.sum() / model.layers, strict=True):
        rows += [_row(f"gemm:{layer.name}", share * dense, n_tokens=tokens, d_in=layer.d_in, d_out=layer.d_out)
                 for tokens, dense in zip(*fitted.dense, strict=True)]
    return rows + [_row("gemm:lm_head", fitted.sequence * sequences, n_tokens=sequences, d_in=head[0], d_out=head[1])
                   for sequences in (1, engine["max_num_seqs"])]


def _attention_rows(fitted: Terms, model: ModelSpec, engine: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns rows of one layer's attention: decode by requests and context, prefill by new and old tokens."""
    heads = {"h_q": model.heads, "h_kv": model.kv_heads, "d_h": model.head_dim}
    longest, budget = engine["max_model_len"], engine["max_num_batched_tokens"]
    rows = [_row("attn_decode", (requests_s + fitted.decode_context * batch * context) / model.layers, batch=batch,
                 context_len=context, **heads)
            for batch, requests_s in list(zip(*fitted.decode, strict=True))[1:] for context in (1, longest)]
    for q in _powers(min(budget, longest)):
        for prefix in [0, *_powers(longest)]:
            seconds = fitted.prompt + fitted.context * (prefix + q) + fitted.work * q * (prefix + q)
            rows.append(_row("attn_prefill", seconds / model.layers, batch=1, q_len=q, prefix=prefix, **heads))
    return rows


def _powers(most: int) -> list[int]:
    """Returns 1, 1.4, 2, 2.8, … rounded to integers, up to `most`."""
    halves = np.arange(0.0, np.log2(most), 0.5)
    return sorted({*np.rint(2.0 ** halves).astype(int).tolist(), int(most)})


def _chip(fitted: Terms, model: ModelSpec, engine: dict[str, Any]) -> ChipSpec:
    """Returns the chip: rates derived from whole iterations, and placeholders, marked as such."""
    knots, seconds = fitted.dense
    weights = sum(layer.d_in * layer.d_out for layer in fused_linears(model, 1)) * model.layers
    slope, attention = float((seconds[-1] - seconds[0]) / (knots[-1] - knots[0])), 4.0 * model.q_width * model.layers
    kv_bytes = 2.0 * model.layers * model.kv_width * model.dtype_bytes
    step, work, context, slope = (max(one, 1e-6 * _LEAST_US) for one in (
        fitted.step, fitted.work, fitted.decode_context, slope))
    rate = {"gemm_flops_per_s": 2.0 * weights / slope, "prefill_attention_flops_per_s": attention / work,
            "decode_attention_flops_per_s": attention / context}
    moved = {"gemm_memory_bytes_per_s": weights * model.dtype_bytes / step,
             "attention_memory_bytes_per_s": kv_bytes / context}
    peaks = {"peak_flops_per_s": max(rate.values()), "peak_memory_bytes_per_s": max(moved.values())}
    links = dict.fromkeys(("peak_link_bytes_per_s", "allreduce_bytes_per_s"), _OFF)
    where = engine.get("cpu") or engine["device"]
    measured = f"fitted to whole iterations of {engine['engine']} on {where}"
    notes = {**dict.fromkeys(rate, f"{measured}; beyond the tables"),
             **dict.fromkeys(peaks, "the largest fitted rate, not a datasheet's"),
             **dict.fromkeys(links, "not used: one device"),
             "gemm_memory_bytes_per_s": "all weights in the time of an iteration of one token: at least this",
             "attention_memory_bytes_per_s": f"{measured}: keys and values of decoding requests",
             "memory_bytes": "KV blocks of the engine and weights, no more",
             "extended": f"{measured}; element-wise operators are in the tables of linear layers",
             "tables": f"{measured}; linear layers share their sum by operations"}
    held = engine["num_blocks"] * engine["block_tokens"] * kv_bytes
    extended = ExtendedParameters(elementwise=ElementwiseParameters(_OFF), overhead=OverheadParameters(
        fitted.step + fitted.pieces, fitted.step))
    return ChipSpec("measured_engine", 1.2 * (held + model.weight_bytes), **peaks, **rate, **moved, **links,
                    extended=extended, title=f"{engine['engine']}, {where}", sources=notes)
