"""`ooco-gym calibrate chain`: measure an engine, fit it, simulate it, compare (docs/calibration.md).

The engine serves three loads in real time, and the simulator serves the same requests with what was fitted to designed
batches of the same engine. Whole iterations are fitted in microseconds, as a sum of what the batch holds: an iteration
takes `step` (with `pieces` more where it computes pieces of prompts) `+ dense(tokens) + sequence * sequences + prompt *
prompts + work * sum(q kv) + context * sum(kv) + decode(requests) + decode_context * sum(context)`, over prompts with
`q` new tokens and `kv` of context, and over decoding requests. `dense` and `decode` run straight between knots and fall
nowhere; nothing is negative. The formula becomes a chip with operator tables, which `timing=measured` reads.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import yaml

from experiments.engines import host
from experiments.engines.host import Timed, robust_nnls, summed
from experiments.engines.served import compare, read_measured, serve_again, served, served_plots
from ooco_gym.calibrate.measure import measure as measure_engine
from ooco_gym.errors import UserError
from ooco_gym.files import atomic_write, write_json
from ooco_gym.perf import cost_table, load_model
from ooco_gym.perf.deployment import Deployment
from ooco_gym.perf.engine_clock import EngineClock
from ooco_gym.perf.model import ModelSpec
from ooco_gym.perf.timing.extended import fused_linears
from ooco_gym.report import Section, Table, write_page
from ooco_gym.runtime.beliefs import FITTED_FILE, FITTED_SCHEMA
from ooco_gym.workload import Trace

if TYPE_CHECKING:
    from omegaconf import DictConfig

_SUMS = ("sequences_sampled", "n_prefill", "prefill_work", "prefill_context_sum", "decode_context_sum")
NEEDED = ("tokens", "n_decode", "prefill_tokens", *_SUMS, "time_us", "began_s")


class Curve(NamedTuple):
    """Straight between knots, 0 at the first of them, and as steep beyond the last as before it."""

    knots: np.ndarray
    values: np.ndarray

    def plain(self) -> dict[str, list[float]]:
        """Its knots and values as plain figures."""
        return {"knots": self.knots.tolist(), "values": self.values.tolist()}

    def at(self, sizes: np.ndarray) -> np.ndarray:
        """Values at sizes, float64[n]."""
        slope = (self.values[-1] - self.values[-2]) / (self.knots[-1] - self.knots[-2])
        return np.interp(sizes, self.knots, self.values) + slope * np.maximum(0.0, sizes - self.knots[-1])


class StepModel(NamedTuple):
    """A fitted engine; times in microseconds.

    Attributes:
        step: of any iteration.
        pieces: of one that computes pieces of prompts, besides.
        sequence: for each sequence that gets a token.
        prompt: for each prompt, or piece of one.
        work: for each unit of `sum(q * kv)` over prompts.
        context: for each token of the prompts' contexts.
        decode_context: for each token of the contexts of decoding requests.
        dense: by tokens; that of a single token is in `step`.
        decode: by decoding requests.
    """

    step: float
    pieces: float
    sequence: float
    prompt: float
    work: float
    context: float
    decode_context: float
    dense: Curve
    decode: Curve

    def time_us(self, rows: dict[str, np.ndarray]) -> np.ndarray:
        """Predicted times of iterations, from the columns of `iterations.parquet`."""
        factors = (self.sequence, self.prompt, self.work, self.context, self.decode_context)
        total = self.step + self.pieces * (rows["n_prefill"] > 0)
        total = total + self.dense.at(rows["tokens"]) + self.decode.at(rows["n_decode"])
        return total + sum(factor * rows[name] for factor, name in zip(factors, _SUMS, strict=True))


def read_iterations(path: Path, asynchronous: bool = False) -> dict[str, np.ndarray]:
    """The columns that fits need, with `repeat` and `label`, of an `iterations.parquet`; of an asynchronous engine with
    `group` (`host.groups`), which fits and errors sum over.

    Raises:
        UserError: there is none, or it lacks a column.
    """
    table = read_measured(path)
    for name in NEEDED:
        if name not in table:
            raise UserError(f"'{path}' has no column '{name}'; expected the iterations of `ooco-gym calibrate measure`")
    rows = {name: table[name] for name in (*NEEDED, "repeat", "label") if name in table}
    return {**rows, "group": host.groups(table)} if asynchronous else rows


def fit_iterations(rows: dict[str, np.ndarray]) -> StepModel:
    """Fits the model by robust least squares (`host.robust_nnls`).

    Args:
        rows: columns of `iterations.parquet`, [n] each.

    Raises:
        UserError: fewer iterations than the model has terms.
    """
    knots, requests = _knots(rows["tokens"], 1, 2.0), _knots(rows["n_decode"], 0, 4.0)
    terms = _terms(rows, knots, requests)
    time_us = rows["time_us"].astype(np.float64)
    if len(time_us) < 4 * terms.shape[1]:
        raise UserError(f"{len(time_us)} iterations are too few to fit {terms.shape[1]} terms; raise "
                        "engine.design.passes")
    found = robust_nnls(summed(rows, terms), summed(rows, time_us))
    plain, dense, decode = np.split(found, [2 + len(_SUMS), 1 + len(_SUMS) + len(knots)])
    step, pieces, sequence, prompt, work, context, decode_context = (float(value) for value in plain)
    return StepModel(step, pieces, sequence, prompt, work, context, decode_context, _curve(knots, dense),
                     _curve(requests, decode))


def errors(model: StepModel | Timed, rows: dict[str, np.ndarray]) -> dict[str, float]:
    """The errors of predictions of measured iterations: MAPE, p95 and worst, bias of the sum; in percent."""
    predicted, measured = summed(rows, model.time_us(rows)), summed(rows, rows["time_us"])
    relative = 100.0 * np.abs(predicted / measured - 1.0)
    return {"iterations": float(len(rows["time_us"])), "mape": float(relative.mean()),
            "p95": float(np.quantile(relative, 0.95)), "worst": float(relative.max()),
            "bias": 100.0 * float(predicted.sum() / measured.sum() - 1.0)}


MOST_BIAS, MOST_MAPE = 10.0, 15.0
"""Errors in percent beyond which a fit is doubted."""


def doubts(found: dict[str, float], what: str) -> list[str]:
    """Says that a fit with such errors (`errors`) is not to be relied on; empty where it may be."""
    if abs(found["bias"]) <= MOST_BIAS and found["mape"] <= MOST_MAPE:
        return []
    return [f"{what} are {found['mape']:.0f} % off in the mean and {found['bias']:+.0f} % in all: do not rely on this "
            "fit; look at 'machine' in engine.json for other work, measure again on a machine that is left alone, with "
            "more engine.design.passes"]


def held_out(rows: dict[str, np.ndarray]) -> dict[str, float]:
    """Errors on each pass of the design by a fit to the others (a pass has sizes of its own)."""
    passes = np.unique(rows["repeat"]) if "repeat" in rows else ()
    if len(passes) < 2:
        return {}
    parts = []
    for number in passes:
        fitted = fit_iterations(select(rows, rows["repeat"] != number))
        parts.append(errors(fitted, select(rows, rows["repeat"] == number)))
    found = {}
    for key in parts[0]:
        values = [part[key] for part in parts]
        found[key] = max(values) if key == "worst" else float(np.mean(values))
    return found


def select(rows: dict[str, np.ndarray], which: np.ndarray) -> dict[str, np.ndarray]:
    """The iterations of a mask."""
    return {name: values[which] for name, values in rows.items()}


def summary(model: StepModel) -> dict[str, Any]:
    """The model as plain figures."""
    found: dict[str, Any] = {}
    for name, value in model._asdict().items():
        found[name] = value.plain() if isinstance(value, Curve) else value
    return found


def _knots(sizes: np.ndarray, first: int, factor: float) -> np.ndarray:
    """`first` (0 or 1), 1, `factor`, `factor` squared, … up to the largest size."""
    most = max(first + 1, int(sizes.max()))
    powers = factor ** np.arange(np.ceil(np.log(most) / np.log(factor)))
    return np.unique([first, *powers[powers < most], most]).astype(np.float64)


def _terms(rows: dict[str, np.ndarray], knots: np.ndarray, requests: np.ndarray) -> np.ndarray:
    plain = [np.ones(len(rows["tokens"])), rows["n_prefill"] > 0, *(rows[name] for name in _SUMS)]
    return np.concatenate([np.stack(plain, axis=1).astype(np.float64), _ramps(rows["tokens"], knots),
                           _ramps(rows["n_decode"], requests)], axis=1)


def _ramps(sizes: np.ndarray, knots: np.ndarray) -> np.ndarray:
    """The part of each interval between knots that lies below a size: float64[n, intervals]."""
    return np.clip(sizes.astype(np.float64)[:, None] - knots[:-1], 0.0, np.diff(knots))


def _curve(knots: np.ndarray, slopes: np.ndarray) -> Curve:
    return Curve(knots, np.concatenate([[0.0], np.cumsum(slopes * np.diff(knots))]))


_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_LEAST_US = 1e-6
_OFF = 1e18
"""A rate so high that what it stands for takes no time: the tables hold it already."""


def model_of(engine: dict[str, Any]) -> dict[str, Any]:
    """The measured model as our specification has it, from `engine.json`.

    Raises:
        UserError: the engine did not say what its model is.
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


def write_chip(folder: Path, fitted: StepModel, engine: dict[str, Any], model: dict[str, Any]) -> Path:
    """Writes `chip.yaml`, its `operators.parquet`, and the fit itself for `ooco_gym.runtime`; returns the first's path.

    What only the sum of an iteration tells is spread over its operators: linear layers in proportion to their
    operations. Element-wise operators are not told apart from them.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    spec = load_model(model)
    rows = _linear_rows(fitted, spec, engine) + _attention_rows(fitted, spec, engine)
    with atomic_write(folder / "operators.parquet") as temporary:
        pq.write_table(pa.Table.from_pylist(rows), temporary)
    values = _chip(fitted, spec, engine)
    write_json(folder / FITTED_FILE, {"schema": FITTED_SCHEMA, "engine": engine["engine"], **summary(fitted)})
    with atomic_write(folder / "chip.yaml") as temporary:
        temporary.write_text(yaml.safe_dump(values, sort_keys=False, width=110), encoding="utf-8")
    return folder / "chip.yaml"


def _linear_rows(fitted: StepModel, model: ModelSpec, engine: dict[str, Any]) -> list[dict[str, Any]]:
    layers = fused_linears(model, 1)
    head = (model.hidden, model.vocab)
    if head in [(layer.d_in, layer.d_out) for layer in layers]:
        raise UserError(f"the LM head of {head[0]} x {head[1]} has the shape of another layer, so that tables cannot "
                        "tell them apart; measure a model with another vocabulary")
    operations = np.array([layer.d_in * layer.d_out for layer in layers], dtype=np.float64)
    rows: list[dict[str, Any]] = []
    for layer, share in zip(layers, operations / operations.sum() / model.layers, strict=True):
        rows += [_row(f"gemm:{layer.name}", share * dense, n_tokens=tokens, d_in=layer.d_in, d_out=layer.d_out)
                 for tokens, dense in zip(fitted.dense.knots, fitted.dense.values, strict=True)]
    rows += [_row("gemm:lm_head", fitted.sequence * sequences, n_tokens=sequences, d_in=head[0], d_out=head[1])
             for sequences in (1, engine["max_num_seqs"])]
    return rows


def _attention_rows(fitted: StepModel, model: ModelSpec, engine: dict[str, Any]) -> list[dict[str, Any]]:
    """Attention of one layer: decode by requests and mean context, prefill of one prompt by new and earlier tokens."""
    heads = {"h_q": model.heads, "h_kv": model.kv_heads, "d_h": model.head_dim}
    longest, budget = engine["max_model_len"], engine["max_num_batched_tokens"]
    rows = [_row("attn_decode", (requests_us + fitted.decode_context * batch * context) / model.layers, batch=batch,
                 context_len=context, **heads)
            for batch, requests_us in zip(fitted.decode.knots[1:], fitted.decode.values[1:], strict=True)
            for context in (1, longest)]
    for q in _powers(min(budget, longest)):
        for prefix in [0, *_powers(longest)]:
            time_us = fitted.prompt + fitted.context * (prefix + q) + fitted.work * q * (prefix + q)
            rows.append(_row("attn_prefill", time_us / model.layers, batch=1, q_len=q, prefix=prefix, **heads))
    return rows


def _row(op: str, time_us: float, **sizes: float) -> dict[str, Any]:
    """A row of the table; every row has every size, as Parquet's first row decides on the columns."""
    names = ("n_tokens", "d_in", "d_out", "batch", "context_len", "q_len", "prefix", "h_q", "h_kv", "d_h")
    return {"op": op, **{name: float(sizes[name]) if name in sizes else None for name in names},
            "time_us": max(float(time_us), _LEAST_US)}


def _powers(most: int) -> list[int]:
    """1, 1.4, 2, 2.8, … in whole numbers up to `most`."""
    halves = np.arange(0.0, np.log2(most), 0.5)
    return sorted({*np.rint(2.0 ** halves).astype(int).tolist(), int(most)})


def _chip(fitted: StepModel, model: ModelSpec, engine: dict[str, Any]) -> dict[str, Any]:
    """The chip's YAML: rates that whole iterations give, and what they do not tell, marked so."""
    dense = fitted.dense
    per_token = 2e6 * sum(layer.d_in * layer.d_out for layer in fused_linears(model, 1)) * model.layers
    slope = float((dense.values[-1] - dense.values[0]) / (dense.knots[-1] - dense.knots[0]))
    attention = 4e6 * model.q_width * model.layers
    held = engine["num_blocks"] * engine["block_tokens"] * 2 * model.layers * model.kv_width * model.dtype_bytes
    rate = {"gemm_flops_per_s": per_token / max(slope, _LEAST_US),
            "prefill_attention_flops_per_s": attention / max(fitted.work, _LEAST_US),
            "decode_attention_flops_per_s": attention / max(fitted.decode_context, _LEAST_US)}
    weights = sum(layer.d_in * layer.d_out for layer in fused_linears(model, 1)) * model.layers * model.dtype_bytes
    kv_bytes = 2.0 * model.layers * model.kv_width * model.dtype_bytes
    moved = {"gemm_memory_bytes_per_s": 1e6 * weights / max(fitted.step, _LEAST_US),
             "attention_memory_bytes_per_s": 1e6 * kv_bytes / max(fitted.decode_context, _LEAST_US)}
    peaks = {"peak_flops_per_s": max(rate.values()), "peak_memory_bytes_per_s": max(moved.values())}
    links = dict.fromkeys(("peak_link_bytes_per_s", "allreduce_bytes_per_s"), _OFF)
    measured = f"fitted to whole iterations of {engine['engine']} on {engine.get('cpu') or engine['device']}"
    notes = {**dict.fromkeys(rate, f"{measured}; beyond the tables"),
             **dict.fromkeys(peaks, "the largest fitted rate, not a datasheet's"),
             **dict.fromkeys(links, "not used: one device"),
             "gemm_memory_bytes_per_s": "all weights in the time of an iteration of one token: at least this",
             "attention_memory_bytes_per_s": f"{measured}: keys and values of decoding requests",
             "memory_bytes": "KV blocks of the engine and weights, no more",
             "extended": f"{measured}; element-wise operators are in the tables of linear layers",
             "tables": f"{measured}; linear layers share their sum by operations"}
    overhead = {"prefill_s": 1e-6 * (fitted.step + fitted.pieces), "decode_s": 1e-6 * fitted.step}
    return {"name": "measured_engine", "title": f"{engine['engine']}, {engine.get('cpu') or engine['device']}",
            "memory_bytes": 1.2 * float(held + model.weight_bytes), **peaks, **rate, **moved, **links,
            "extended": {"elementwise": {"memory_bytes_per_s": _OFF}, "overhead": overhead},
            "validity": {"max_tokens": int(engine["max_num_batched_tokens"]), "max_batch": int(engine["max_num_seqs"]),
                         "max_context": int(engine["max_model_len"])},
            "tables": "operators.parquet", "sources": notes}


SCHEMA = "ooco-gym/engine_chain/1"
LIMIT = 15.0
"""Largest error of a median, in percent, with which the chain counts as closed."""


def main(cfg: DictConfig) -> dict[str, Any]:
    """Runs the chain; `cfg.measured` names an earlier measurement to start from.

    Raises:
        UserError: no engine, or a folder without a measurement.
    """
    from rich.console import Console

    out = Path(cfg.out)
    chip = cfg.chip if isinstance(cfg.chip, str) else None  # datasheet figures are replay's
    if chip is None and cfg.timing != "measured":
        raise UserError(f"timing={cfg.timing}: the chain's own fit is of whole iterations, which only timing=measured "
                        "looks up; give a chip with chip=FILE, fitted with 'ooco-gym calibrate'")
    measured = Path(cfg.measured).expanduser().absolute() if cfg.measured else measure(cfg, out / "measured")
    if cfg.engine_clock is not None and chip is None:
        raise UserError(f"engine_clock={cfg.engine_clock}: the chain's own fit is of whole iterations, host and all; "
                        "give a chip fitted to kernels besides, such as chip=h100 timing=extended")
    found = close(measured, out, chip, str(cfg.timing), cfg.engine_clock)
    console = Console()
    comparison(found).show(console, unbroken=8)
    for sentence in found["notes"]:
        console.print(f"note: {sentence}", highlight=False, markup=False, soft_wrap=True)
    if found["loads"]:
        console.print(f"plots: '{out / 'chain.html'}'; the chain's own chip: '{out / 'chip' / 'chip.yaml'}', to be "
                      "used with timing=measured", highlight=False, markup=False)
    if cfg.engine_clock == "fit":
        figures = host.described({key: found["clock"][key] for key in host.CONSTANTS})
        console.print(f"host time beside {chip}, timing={cfg.timing}: {figures}; written: '{out / host.CLOCK_FILE}', "
                      "to be used as cluster.engine_clock=FILE", highlight=False, markup=False, soft_wrap=True)
    return {"schema": SCHEMA, "measured": str(measured), **found}


def measure(cfg: DictConfig, folder: Path) -> Path:
    """First link: the real engine, its iterations and the requests that it serves."""
    from omegaconf import OmegaConf

    plan: Any = OmegaConf.to_container(cfg.engine, resolve=True)
    measure_engine(plan, folder)
    return folder


class Engine(NamedTuple):
    """A measured engine: `engine.json`, the designed iterations, the cluster that stands for it, its chip's folder, the
    fit and its errors."""

    facts: dict[str, Any]
    rows: dict[str, np.ndarray]
    cluster: dict[str, Any]
    chip: Path
    fitted: StepModel
    fit: dict[str, Any]


def fitted_engine(measured: Path, out: Path) -> Engine:
    """Fits a measurement, and writes its chip with `latency.json`, which the scheduler inside vLLM reads.

    Raises:
        UserError: the folder holds no measurement.
    """
    path = measured / "engine.json"
    if not path.is_file():
        raise UserError(f"'{measured}' holds no measurement: expected engine.json, as `ooco-gym calibrate measure` "
                        "writes it")
    facts = json.loads(path.read_text(encoding="utf-8"))
    rows = read_iterations(measured / "iterations.parquet", bool(facts.get("asynchronous")))
    fitted, model = fit_iterations(rows), model_of(facts)
    chip = write_chip(out / "chip", fitted, facts, model)
    cluster = {"name": "measured", "model": model, "block_tokens": facts["block_tokens"],
               "max_batch": facts["max_num_seqs"], "engine_clock": asdict(host.mode_of(facts)),
               "mixed": [{"chip": str(chip), "count": 1, "kv_blocks": facts["num_blocks"]}]}
    return Engine(facts, rows, cluster, chip.parent, fitted, {"all": errors(fitted, rows), "held_out": held_out(rows)})


def with_chip(own: Engine, chip: str, timing: str, clock: Any, out: Path) -> tuple[dict[str, Any], Timed]:
    """The cluster on a chip that was fitted elsewhere, and its times; the clock `fit` is fitted to the designed
    iterations and written to `out`."""
    facts, model = own.facts, own.cluster["model"]
    table = cost_table(Deployment.from_config({"chip": chip, "model": model, "timing": timing,
                                               "block_tokens": facts["block_tokens"],
                                               "known_kv_blocks": facts["num_blocks"]}))
    if clock == "fit":
        mode = "asynchronous" if facts.get("asynchronous") else "synchronous"
        said = (f"{len(own.rows['time_us']):,} iterations of {facts['engine']}, {mode}, with {facts.get('model')} on "
                f"{facts.get('cpu') if facts['device'] == 'cpu' else facts['device']}")
        clock = host.fit_clock(table, own.rows, f"measured_{mode}", f"{said}, beyond timing={timing} of {chip}",
                               host.mode_of(facts))
        found = errors(Timed(table, clock), own.rows)
        said = f"{clock.source}; MAPE {found['mape']:.1f} %, bias {found['bias']:+.1f} %"
        clock = str(host.write_clock(out / host.CLOCK_FILE, replace(clock, source=said)))
    clock = clock or own.cluster["engine_clock"]
    cluster = {**own.cluster, "mixed": [{**own.cluster["mixed"][0], "chip": chip}], "engine_clock": clock}
    return cluster, Timed(table, EngineClock.load(clock))


def close(measured: Path, out: Path, chip: str | None = None, timing: str = "measured",
          clock: Any = None) -> dict[str, Any]:
    """The links after the first: fit, simulate, compare.

    Args:
        measured: folder of a measurement.
        out: where the chip and the page `chain.html` are written.
        chip: name or YAML of a chip to simulate with, fitted elsewhere; None takes the fit's own.
        timing: form with which it is simulated.
        clock: host time beside such a chip (`cluster.engine_clock`), or `fit`.

    Returns:
        The fit with its errors (of iterations, in percent), and for each load how the simulated medians and means
        differ from the real ones.
    """
    own = fitted_engine(measured, out)
    engine, cluster, fit = own.facts, own.cluster, own.fit
    fitted: StepModel | Timed = own.fitted
    if chip is not None:
        cluster, fitted = with_chip(own, chip, timing, clock, out)
        clock, fit = asdict(fitted.clock), {"all": errors(fitted, own.rows), "held_out": {}}
    loads: dict[str, Any] = {}
    sections: list[Section] = []
    for name in engine["serving"]:
        folder = measured / "serve" / name
        requests, steps = read_measured(folder / "requests.parquet"), read_iterations(
            folder / "iterations.parquet", bool(engine.get("asynchronous")))
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
            "chip": chip or str(own.chip / "chip.yaml"), "timing": timing, "fit": summary(own.fitted),
            "clock": clock, "fit_errors": fit["all"],
            "held_out_passes": fit["held_out"], "notes": doubts(fit["all"], "fitted iterations"),
            "loads": loads, "worst_median_error": worst, "closed": worst is not None and worst <= LIMIT,
            "machine": engine.get("machine", [])}


def comparison(found: dict[str, Any]) -> Table:
    """The loads side by side: medians, real and simulated, in milliseconds."""
    rows = []
    for name, load in found["loads"].items():
        cells = []
        for key in ("ttft", "tpot"):
            real, ours, error = (load[f"{key}_median_{part}"] for part in ("ms_real", "ms_simulated", "error"))
            cells += [f"{real:.4g}", f"{ours:.4g}", f"{error:+.1f} %"]
        rows.append((name, *cells, f"{load['iteration_errors']['bias']:+.1f} %"))
    return Table(f"{found['engine']['engine']}: medians in ms, real and simulated; bias of iteration times",
                 ("load", "TTFT", "sim.", "error", "TPOT", "sim.", "error", "bias"), rows)
