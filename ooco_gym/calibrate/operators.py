"""Fits of single operators: free parameters, and their times (`ooco_gym.perf.kernels`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ooco_gym.calibrate.fitting import Fitted, Free, folds, least_squares, sample, started
from ooco_gym.calibrate.rows import EXPERTS, LATENT, Rows
from ooco_gym.calibrate.times import (
    DTYPE_BYTES,
    allreduce_s,
    canonical,
    decode_s,
    elementwise_kinds,
    elementwise_s,
    experts_s,
    gemm_fp8_s,
    gemm_s,
    latent_linears_s,
    latent_model,
    latent_s,
    mixed_s,
    prefill_s,
    skew_s,
)
from ooco_gym.perf import kernels
from ooco_gym.perf.chip import ChipSpec
from ooco_gym.perf.timing.extended import complete

FITTED_ROWS = 2000
"""Most rows of a fit, drawn at random: more change parameters little."""
_MENU_ROWS = 600
_UNITS = (24, 48, 72, 84, 108, 132, 160, 192)
_TILES = (16, 32, 64, 128)
_SWITCH = (1 << 18, 1 << 26)
FEW = 8
"""Fewest rows for which an operator is fitted."""
FOLDS, FEW_ROWS = 5, 100
"""Number of folds of held-out shapes; with at most `FEW_ROWS` rows each shape is its own fold."""
_SHARED, _BATCH = ("h_q", "h_kv", "d_h"), ("batch", "context_len")
SHAPES = {"gemm": ("d_in", "d_out"), "attn_prefill": _SHARED, "attn_decode": _SHARED, "attn_mixed": _SHARED,
          "attn_skew": _SHARED, "all_reduce": ("bytes",), "elementwise": ("op", "d_in", "tp"),
          "gemm_fp8": ("d_in", "d_out"), **dict.fromkeys(EXPERTS, ("d_in", "experts", "top_k")),
          **dict.fromkeys(LATENT, ("h_q",))}
SIZES = {"gemm": ("n_tokens",), "attn_prefill": ("batch", "q_len", "prefix"), "attn_decode": _BATCH,
         "attn_mixed": (*_BATCH, "q_len"), "attn_skew": (*_BATCH, "longest"), "all_reduce": ("bytes", "n_gpus"),
         "elementwise": ("n_tokens",), "gemm_fp8": ("n_tokens",), **dict.fromkeys(EXPERTS, ("n_tokens", "read")),
         "latent_prefill": ("batch", "q_len", "prefix"), "latent_decode": _BATCH}
_LAUNCH = Free("launch_s", 6e-6, 1e-8, 1e-2, off=True)
_NORM = Free("exponent", 1.0, 0.01, 20.0, above=1.0)
_SPILLED = 32e6
"""Bytes of an element-wise operator that exceed the cache of some chips."""
_HIDDEN = {"norm": 4.0, "final_norm": 4.0, "embedding": 2.0, "residual": 3.0}
"""Number of times that the hidden state is read or written."""
_HEADS = ("rotary", "qk_norm")
"""Operators that rewrite queries and keys in place."""


class Operator(NamedTuple):
    """The fit of one operator.

    Attributes:
        op, kernel: its names in `rows.OPERATORS` and `kernels.KERNELS`.
        free: parameters to be found, given rows and chip.
        seconds: maps parameters and rows to seconds, float64[n].
        menu: discrete choices, each a set of fixed parameters.
    """

    op: str
    kernel: str
    free: Callable[[Rows, ChipSpec], list[Free]]
    seconds: Callable[[Any, Rows], np.ndarray]
    menu: Callable[[Rows, ChipSpec], list[dict[str, float]]] = lambda *_: [{}]

    def parameters(self, found: Mapping[str, float]) -> Any:
        """Returns the parameters in the kernels' form."""
        return kernels.KERNELS[self.kernel](**found, **(_common(found) if self.kernel == "elementwise" else {}))


def fit(operator: Operator, rows: Rows, chip: ChipSpec, seed: int = 0,
        start: Mapping[str, float] | None = None) -> Fitted:
    """Fits an operator to clean rows within the chip's peaks, from `start` or several starts."""
    menu, free = operator.menu(rows, chip), started(operator.free(rows, chip), start)
    choice = menu[0]
    if len(menu) > 1:
        some = rows.select(_few_shapes(rows, SHAPES[operator.op], seed))
        choice = min(menu, key=lambda item: _search(operator, free, item, some, 1, seed)[1])
    taken = rows.select(sample(len(rows), FITTED_ROWS, seed))
    found, cost = _search(operator, free, choice, taken, 1 if start is not None else 3, seed)
    return Fitted(choice | found, len(taken), cost)


def fit_kernels(rows: Rows, chip: ChipSpec, seed: int = 0,
                start: Mapping[str, Mapping[str, float]] | None = None) -> dict[str, Fitted]:
    """Fits every operator that has enough rows; returns fits by operator."""
    found: dict[str, Fitted] = {}
    for op, operator in OPERATORS.items():
        part = rows.of_kind(op)
        if len(part) >= FEW:
            found[op] = fit(operator, with_linears(part, chip, found), chip, seed, (start or {}).get(op))
    return found


def with_linears(rows: Rows, chip: ChipSpec, fitted: Mapping[str, Fitted]) -> Rows:
    """Returns the rows of one operator; for latent attention with the time of the surrounding
    linear layers (`alone_us`).

    Missing times come from the fitted linear layers, or else from the chip's.
    """
    op = str(rows["op"][0]) if len(rows) else ""
    if not op.startswith(LATENT):
        return rows
    kernel, weight_bytes = ("gemm_fp8", 1.0) if op.endswith("_fp8") else ("gemm", 2.0)
    gemm = parameters({kernel: fitted[kernel]})[kernel] if kernel in fitted else getattr(complete(chip), kernel)
    seconds, shape = np.empty(len(rows)), rows.distinct("model", "h_q")
    for number in np.unique(shape):
        which = shape == number
        model, tp = latent_model(rows.select(which))
        seconds[which] = latent_linears_s(gemm, model, tp, rows["n_tokens"][which], weight_bytes)
    return rows.with_columns(alone_us=np.where(rows["alone_us"] > 0, rows["alone_us"], 1e6 * seconds))


def parameters(fitted: Mapping[str, Fitted]) -> dict[str, Any]:
    """Returns parameters by kernel, from fits by operator."""
    return {OPERATORS[op].kernel: OPERATORS[op].parameters(item.found) for op, item in fitted.items()}


def predict_unseen(operator: Operator, rows: Rows, chip: ChipSpec, seed: int = 0,
                   start: Mapping[str, float] | None = None) -> tuple[np.ndarray, str]:
    """Predicts each row by a fit without its shape; returns seconds, float64[n], and the held-out part in words."""
    columns, said = SHAPES[operator.op], "shapes"
    if _one_shape(operator.op, rows):
        columns, said = SIZES[operator.op], "sizes (only one shape was measured)"
    number = folds(rows.distinct(*columns), seed, len(rows) if len(rows) <= FEW_ROWS else FOLDS)
    if operator.op == "elementwise" and said == "shapes":
        number = _folds_by_kind(rows)
    predicted = np.empty(len(rows))
    for fold in range(int(number.max()) + 1):
        unseen = number == fold
        known = rows.select(~unseen)
        found = fit(operator, known if len(known) >= FEW else rows, chip, seed, start).found
        predicted[unseen] = operator.seconds(operator.parameters(found), rows.select(unseen))
    parts = int(number.max()) + 1
    return predicted, f"each of {parts} {said}" if parts > FOLDS else f"{parts} folds of {said}"


def _one_shape(op: str, rows: Rows) -> bool:
    """Returns whether only one shape was measured; for element-wise operators, of some kind."""
    shape = rows.distinct(*SHAPES[op])
    groups = elementwise_kinds(rows) if op == "elementwise" else np.full(len(rows), "")
    return any(len(np.unique(shape[groups == name])) < 2 for name in set(groups))


def _folds_by_kind(rows: Rows) -> np.ndarray:
    """Returns folds of shapes, int64[n], within each kind, so that every fit sees each kind."""
    shape, kinds, number = rows.distinct(*SHAPES["elementwise"]), elementwise_kinds(rows), np.zeros(len(rows), np.int64)
    for kind in set(kinds):
        mine = kinds == kind
        number[mine] = np.unique(shape[mine], return_inverse=True)[1] % FOLDS
    return number


def _search(operator: Operator, free: Sequence[Free], fixed: Mapping[str, float], rows: Rows, starts: int,
            seed: int) -> tuple[dict[str, float], float]:
    searched = [item for item in free if item.name not in fixed]

    def predict(found: dict[str, float]) -> np.ndarray:
        return operator.seconds(operator.parameters({**fixed, **found}), rows)

    return least_squares(searched, predict, rows.seconds, starts=starts, seed=seed)


def _few_shapes(rows: Rows, columns: Sequence[str], seed: int, most: int = 12) -> np.ndarray:
    """Returns indices of rows of a few shapes only, because attention is evaluated shape by shape."""
    shape = rows.distinct(*columns)
    names = np.unique(shape)
    chosen = names[sample(len(names), most, seed)] if columns[0].startswith("h_") else names
    inside = np.flatnonzero(np.isin(shape, chosen))
    return inside[sample(len(inside), _MENU_ROWS, seed)]


def _rates(chip: ChipSpec, most_flops: float = 1.2, most_memory: float = 1.2) -> list[Free]:
    flops, memory = chip.peak_flops_per_s, chip.peak_memory_bytes_per_s
    return [Free("flops_per_s", 0.8 * flops, 0.01 * flops, most_flops * flops),
            Free("memory_bytes_per_s", 0.8 * memory, 0.01 * memory, most_memory * memory)]


def _gemm_free(rows: Rows, chip: ChipSpec) -> list[Free]:
    free = [*_rates(chip, 1.5), _LAUNCH, _NORM, Free("depth", 100.0, 0.5, 3000.0, off=True),
            Free("waste", 0.2, 0.01, 1.5, off=True),
            Free("padding", 0.5, 0.01, 1.0, off=True),  # above 1, more rows in a tile would take less time
            Free("edge", 8.0, 0.1, 60.0, off=True)]
    tall = Free("tall", 0.03, 1e-3, 1.0, off=True)
    return [*free, tall] if (rows["n_tokens"] > 2 * kernels.TALL_ROWS).any() else free


def _gemm_fp8_free(rows: Rows, chip: ChipSpec) -> list[Free]:
    return [*_gemm_free(rows, _fp8(chip)), Free("cast", 2.0, 0.01, 50.0, off=True)]


def _fp8(chip: ChipSpec) -> ChipSpec:
    return replace(chip, peak_flops_per_s=max(chip.peak_fp8_flops_per_s, chip.peak_flops_per_s))


def _experts_free(rows: Rows, chip: ChipSpec) -> list[Free]:
    eight = len(rows) and str(rows["op"][0]).endswith("_fp8")
    flops, memory = _rates(_fp8(chip) if eight else chip, 1.5)
    return [flops, memory, _LAUNCH._replace(start=3e-5), _NORM, Free("block_rows", 8.0, 0.1, 300.0, off=True),
            Free("block_most", 64.0, 1.0, 300.0),
            Free("gathers", 2.0, 0.01, 50.0, off=True), Free("inner", 2.0, 0.01, 50.0, off=True),
            Free("depth", 100.0, 0.5, 3000.0, off=True)]


def _prefill_free(rows: Rows, chip: ChipSpec) -> list[Free]:
    block = chip.peak_flops_per_s / 100
    free = [*_rates(chip, 3.0, 3.0), _LAUNCH, _NORM, Free("row_tokens", 150.0, 1.0, 3000.0, off=True),
            Free("critical_flops_per_s", block, block / 100, block * 100), Free("reread", 1.0, 0.01, 8.0, off=True)]
    if len(np.unique(rows["d_h"])) > 1:
        free.append(Free("softmax_width", 30.0, 0.5, 500.0, off=True))
    if len(np.unique(rows["h_kv"])) > 1:
        free.append(Free("store_s", 1e-11, 1e-14, 1e-7, off=True))
    return free


def _decode_free(rows: Rows, chip: ChipSpec) -> list[Free]:
    free = [*_rates(chip, 3.0), _LAUNCH, _NORM, Free("request_head_s", 3e-8, 1e-11, 1e-4, off=True),
            Free("critical_s_per_token", 1e-10, 1e-13, 1e-6, off=True)]
    lone = rows["h_q"] == rows["h_kv"]
    if lone.any() and not lone.all():
        free += [Free("lone_launch_s", 6e-6, 1e-8, 1e-2), Free("lone_critical_s_per_token", 1e-9, 1e-13, 1e-6)]
    return free


def _mixed_free(rows: Rows, chip: ChipSpec) -> list[Free]:
    tile = 4.0 * 64 * 128 / chip.peak_flops_per_s  # scores and values of one head's tile
    return [Free("head_s", 2e-8, 1e-11, 1e-5, off=True), Free("head_s_per_token", tile, 0.01 * tile, 100 * tile),
            _rates(chip, most_memory=3.0)[1], Free("cache_bytes", 1e8, 1e5, 1e10),
            Free("head_s_per_chunk_token", 3e-11, 1e-14, 1e-8, off=True),
            Free("critical_s_per_token", 2e-8, 1e-11, 1e-5, off=True), Free("exponent", 1.5, 0.01, 20.0, above=1.0),
            _LAUNCH]


def _skew_free(rows: Rows, chip: ChipSpec) -> list[Free]:
    free = [Free("decode_s_per_token", 5e-8, 1e-12, 1e-5, off=True),
            Free("mixed_s_per_token", 5e-8, 1e-12, 1e-5, off=True)]
    mixed = rows["q_len"] > 1
    return [item for item, measured in zip(free, (~mixed, mixed), strict=True) if measured.any()]


def _skew_choices(rows: Rows, chip: ChipSpec) -> list[dict[str, float]]:
    """Returns choices of the requests times key/value heads from which contexts are not split."""
    decode = rows.select(~(rows["q_len"] > 1))
    return _choices("decode_rows", np.unique(decode["batch"] * decode["h_kv"]).tolist()) if len(decode) else [{}]


def _allreduce_free(rows: Rows, chip: ChipSpec) -> list[Free]:
    link = chip.peak_link_bytes_per_s
    free = [Free("bytes_per_s", 0.6 * link, 1e-3 * link, 3.0 * link), Free("latency_s", 6e-6, 1e-8, 1e-2),
            Free("ramp_bytes", 1e5, 1.0, 1e9, off=True)]
    if len(np.unique(rows["n_gpus"])) > 1:
        free += [Free("rank_latency_s", 2e-7, 1e-9, 1e-3, off=True),
                 Free("direct_bytes_per_s", 0.6 * link, 1e-2 * link, 3.0 * link),
                 Free("ring_latency_s", 5e-6, 1e-9, 1e-2, off=True)]
    return free


def _allreduce_switched(rows: Rows, chip: ChipSpec) -> list[Free]:
    link = chip.peak_link_bytes_per_s
    return [*_allreduce_free(rows, chip), Free("switched_bytes_per_s", 0.6 * link, 1e-3 * link, 3.0 * link),
            Free("switched_latency_s", 2e-5, 1e-8, 1e-2)]


def _elementwise_free(rows: Rows, chip: ChipSpec) -> list[Free]:
    """Returns launch and rate for each kind with enough rows, or common ones (`_common` covers
    kinds without).

    Rates may exceed the memory's, because small data are cached. If rows exceed any cache, their
    cost is added.
    """
    rate, common = _rates(chip, most_memory=20.0)[1], _LAUNCH._replace(start=3e-6)
    free, kind = [rate, common, _NORM], elementwise_kinds(rows)
    kinds = [name for name in sorted(set(kernels.ELEMENTWISE.values())) if (kind == name).sum() >= FEW]
    for name in kinds:
        free += [rate._replace(name=f"{name}_bytes_per_s", start=2.0 * rate.start, high=2.0 * rate.high),
                 common._replace(name=f"{name}_launch_s", off=False)]
    if np.isin(kind, kinds).all():
        free = free[2:]
    if (rows["bytes"] > _SPILLED).any():
        free += [Free("cache_bytes", 5e7, 1e6, 1e9), Free("spilled_bytes_per_s", rate.start, 0.05 * rate.start,
                                                          100.0 * rate.start)]
    return free


def _choices(name: str, options: Sequence[float], **fixed: float) -> list[dict[str, float]]:
    return [{name: float(option), **fixed} for option in options]


def _decode_choices(rows: Rows, chip: ChipSpec) -> list[dict[str, float]]:
    """Fixes the compute rate if there is one head configuration: then decode is assumed to be memory-bound."""
    one = len(np.unique(rows.distinct("h_q", "h_kv"))) == 1
    return [{"flops_per_s": chip.peak_flops_per_s}] if one else [{}]


def _switches(rows: Rows, _: ChipSpec) -> list[dict[str, float]]:
    """Returns the choices of no switch of kernels, or one at a measured payload."""
    payloads = np.unique(rows["bytes"])
    inside = payloads[(payloads >= _SWITCH[0]) & (payloads <= _SWITCH[1])]
    none = {"switch_bytes": 0.0, "switched_bytes_per_s": 0.0, "switched_latency_s": 0.0}
    return [none, *_choices("switch_bytes", inside[sample(len(inside), 12, 0)].tolist())]


_OPERATORS = (
    Operator("gemm", "gemm", _gemm_free, gemm_s, lambda *_: _choices("units", _UNITS)),
    Operator("attn_prefill", "prefill_attention", _prefill_free, prefill_s,
             lambda *_: [*_choices("tile", _TILES, packed=0.0), *_choices("tile", _TILES, packed=1.0)]),
    Operator("attn_decode", "decode_attention", _decode_free, decode_s, _decode_choices),
    Operator("attn_mixed", "mixed_attention", _mixed_free, mixed_s),
    Operator("attn_skew", "skew", _skew_free, skew_s, _skew_choices),
    Operator("all_reduce", "allreduce", _allreduce_switched, allreduce_s, _switches),
    Operator("elementwise", "elementwise", _elementwise_free, elementwise_s),
    Operator("gemm_fp8", "gemm_fp8", _gemm_fp8_free, gemm_fp8_s, lambda *_: _choices("units", _UNITS)),
    *(Operator(op, op, _experts_free, experts_s(weight)) for op, weight in EXPERTS.items()),
    Operator("latent_prefill", "latent_prefill", _prefill_free, latent_s("prefill"),
             lambda *_: _choices("tile", _TILES, packed=0.0)),
    Operator("latent_decode", "latent_decode", _decode_free, latent_s("decode")))
OPERATORS = {one.op: one for one in _OPERATORS}
LINK = Operator("all_reduce", "allreduce", lambda rows, chip: [
    item for item in _allreduce_free(rows, chip) if item.name in ("bytes_per_s", "latency_s")], allreduce_s)
"""The all-reduce of `timing=ooco`."""


def _common(found: Mapping[str, float]) -> dict[str, float]:
    """Returns launch and rate of kinds that were not measured, the medians of measured kinds."""
    ends = {"memory_bytes_per_s": "_bytes_per_s", "launch_s": "_launch_s"}
    kinds = set(kernels.ELEMENTWISE.values())
    common = {}
    for name, end in ends.items():
        if name not in found:
            common[name] = float(np.median([found[kind + end] for kind in kinds if kind + end in found]))
    return common


def with_bytes(rows: Rows) -> tuple[Rows, int]:
    """Fills in missing `bytes` of element-wise rows; drops rows of unknown size, and counts them."""
    kind = rows.kind
    names = np.array([canonical(str(op)) if which == "elementwise" else ""
                      for op, which in zip(rows["op"], kind, strict=True)], dtype=object)
    tp, tokens = np.nan_to_num(rows["tp"], nan=1.0), rows["n_tokens"]
    head_dim = np.where(np.isnan(rows["d_h"]), rows["d_in"] / rows["h_q"], rows["d_h"])
    widths = np.select(
        [names == name for name in (*_HIDDEN, "activation", *_HEADS)],
        [*(times * rows["d_in"] for times in _HIDDEN.values()), 3.0 * _inner(rows, kind),
         *[2.0 * (rows["h_q"] + rows["h_kv"]) / tp * head_dim] * len(_HEADS)], np.nan)
    wanted = (kind == "elementwise") & ~(rows["bytes"] > 0)
    moved = np.where(wanted, DTYPE_BYTES * widths * tokens, rows["bytes"])
    unknown = (kind == "elementwise") & ~(moved > 0)
    return rows.with_columns(bytes=moved).select(~unknown), int((unknown & (names != "sampler")).sum())


def _inner(rows: Rows, kind: np.ndarray) -> np.ndarray:
    """Returns the MLP's width on one chip: the row's own `d_out`, else that of the model's down projection."""
    width = rows["d_out"].copy()
    same = rows.distinct("model", "tp")
    down = (kind == "gemm") & np.array(["down" in str(op) for op in rows["op"]], dtype=bool)
    for number in np.unique(same[down]):
        inner = rows["d_in"][down & (same == number)][0]
        width = np.where((same == number) & np.isnan(width), inner, width)
    return width
