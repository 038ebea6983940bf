"""Both forms on composed iterations: predictions, the roofline's fit, and errors on an unseen architecture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ooco_gym.calibrate.fitting import Free, errors, folds, least_squares, sample
from ooco_gym.calibrate.operators import FEW, OPERATORS, Fitted, canonical, fit
from ooco_gym.calibrate.rows import Rows
from ooco_gym.calibrate.steps import Architecture, Dense, Steps
from ooco_gym.perf.specs import ChipSpec
from ooco_gym.perf.timing import kernels

_DTYPE_BYTES = 2.0
_FITTED_STEPS = 1500
SPREAD = 0.02
"""Weight of what a parameter that the data do not tell is pulled to its start with."""


def roofline_free(chip: ChipSpec) -> list[Free]:
    """The roofline's parameters without links: rates (prefill attention counts the masked half too), overheads."""
    flops, memory = chip.peak_flops_per_s, chip.peak_memory_bytes_per_s
    return [
        Free("gemm_flops_per_s", 0.75 * flops, 0.02 * flops, 1.1 * flops),
        Free("gemm_memory_bytes_per_s", 0.85 * memory, 0.05 * memory, 1.1 * memory),
        Free("prefill_attention_flops_per_s", 1.2 * flops, 0.02 * flops, 2.2 * flops),
        Free("decode_attention_flops_per_s", 0.6 * flops, 0.02 * flops, 1.1 * flops),
        Free("attention_memory_bytes_per_s", 0.75 * memory, 0.05 * memory, 1.1 * memory),
        Free("prefill_layer_overhead_s", 5e-5, 1e-8, 1e-2, off=True),
        Free("decode_layer_overhead_s", 5e-5, 1e-8, 1e-2, off=True),
    ]


def roofline_s(found: Mapping[str, float], steps: Steps) -> np.ndarray:
    """Seconds of iterations as `timing=ooco` has them: overheads stand for all but GEMMs and attention."""
    seconds = np.empty(len(steps))
    for number, architecture in enumerate(steps.architectures):
        index = np.flatnonzero(steps.arch == number)
        part = steps.select(index)
        total = np.zeros(len(part))
        for item in architecture.dense:
            if item.kind != "elementwise":
                tokens = part.batch if item.kind == "lm_head" else part.tokens
                traffic = _DTYPE_BYTES * (tokens * (item.d_in + item.d_out) + item.d_in * item.d_out)
                total += item.times * np.maximum(2.0 * tokens * item.d_in * item.d_out / found["gemm_flops_per_s"],
                                                 traffic / found["gemm_memory_bytes_per_s"])
        seconds[index] = total + architecture.layers * (
            _roofline_attention_s(found, architecture, part) + np.where(
                part.prefill, found.get("prefill_layer_overhead_s", 0.0), found.get("decode_layer_overhead_s", 0.0)))
    return seconds


def extended_s(found: Mapping[str, Any], steps: Steps) -> np.ndarray:
    """Seconds of iterations as `timing=extended` has them, from its parameters by kernel."""
    seconds = np.empty(len(steps))
    for number, architecture in enumerate(steps.architectures):
        index = np.flatnonzero(steps.arch == number)
        part = steps.select(index)
        total = sum((_dense_s(found, item, part) for item in architecture.dense), np.zeros(len(part)))
        seconds[index] = total + architecture.layers * _attention_s(found, architecture, part)
    return seconds


def fit_roofline(steps: Steps, chip: ChipSpec, seed: int = 0, start: Mapping[str, float] | None = None) -> Fitted:
    """Fits the roofline to iterations."""
    free = [item for item in roofline_free(chip) if steps.prefill.any() or not item.name.startswith("prefill")]
    free = [item for item in free if (~steps.prefill).any() or not item.name.startswith("decode")]
    if start is not None:
        free = [item._replace(start=min(max(start[item.name], item.low * 1.1), item.high / 1.1)) for item in free]
    fixed = {item.name: item.start for item in roofline_free(chip)}
    taken = steps.select(sample(len(steps), _FITTED_STEPS, seed))
    pull = np.array([np.log(item.start) for item in free if item.name == "decode_attention_flops_per_s"])

    def predict(found: dict[str, float]) -> np.ndarray:
        seconds = roofline_s(fixed | found, taken)
        # Decode attention is bound by memory at usual head ratios: what the data do not tell stays where it starts.
        weak = np.exp(SPREAD * (np.log(found["decode_attention_flops_per_s"]) - pull)) if len(pull) else pull
        return np.concatenate([seconds, weak])

    measured = np.concatenate([taken.seconds, np.ones(len(pull))])
    found, cost = least_squares(free, predict, measured, starts=1 if start is not None else 4, seed=seed)
    return Fitted({item.name: (fixed | found)[item.name] for item in free}, len(taken), cost)


def fit_kernels(rows: Rows, chip: ChipSpec, seed: int = 0,
                start: Mapping[str, Mapping[str, float]] | None = None) -> dict[str, Fitted]:
    """Fits every kernel of the extended form that has enough rows; by operator."""
    found = {}
    for op, operator in OPERATORS["extended"].items():
        part = rows.of_kind(op)
        if len(part) >= FEW:
            found[op] = fit(operator, part, chip, seed, (start or {}).get(op))
    return found


def parameters(fitted: Mapping[str, Fitted]) -> dict[str, Any]:
    """Parameters by kernel, from fits by operator."""
    operators = OPERATORS["extended"]
    return {operators[op].kernel: operators[op].parameters(item.found) for op, item in fitted.items()}


def complete_for(found: Mapping[str, Any], steps: Steps) -> bool:
    """Whether all kernels that iterations need were fitted."""
    needed = {"gemm"} | ({"prefill_attention"} if steps.prefill.any() else set())
    needed |= {"decode_attention"} if (~steps.prefill).any() else set()
    if any(item.kind == "elementwise" for architecture in steps.architectures for item in architecture.dense):
        needed.add("elementwise")
    return needed <= set(found)


def unseen_architectures(steps: Steps, rows: Rows, chip: ChipSpec, seed: int,
                         start: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Errors on each architecture by fits that have not seen its shapes, both forms.

    Args:
        steps: iterations of at least two architectures.
        rows: clean rows of all operators.
        chip: whose peaks bound the rates.
        seed: of draws.
        start: `{"ooco": parameters, "extended": {op: parameters}}`, where searches begin.

    Returns:
        By form: errors in percent over all architectures, and `by_architecture`.
    """
    predicted = {form: np.full(len(steps), np.nan) for form in ("ooco", "extended")}
    for number, architecture in enumerate(steps.architectures):
        unseen = steps.arch == number
        roofline = fit_roofline(steps.select(~unseen), chip, seed, start["ooco"]).found
        predicted["ooco"][unseen] = roofline_s(start["ooco"] | roofline, steps.select(unseen))
        others = rows.select(~_of_architecture(rows, architecture))
        found = parameters(fit_kernels(others.select(others.kind() != "all_reduce"), chip, seed, start["extended"]))
        if complete_for(found, steps.select(unseen)):
            predicted["extended"][unseen] = extended_s(found, steps.select(unseen))
    return {form: _by_architecture(values, steps) for form, values in predicted.items() if np.isfinite(values).all()}


def unseen_sizes(steps: Steps, rows: Rows, chip: ChipSpec, seed: int, start: Mapping[str, Any]) -> dict[str, Any]:
    """Errors on iterations by fits that have not seen operators of their numbers of tokens or contexts."""
    sizes = np.unique(np.stack([steps.batch, steps.q, steps.context], axis=1), axis=0, return_inverse=True)[1]
    fold = folds(sizes.reshape(-1), seed)
    predicted = {form: np.full(len(steps), np.nan) for form in ("ooco", "extended")}
    attention = np.isin(rows.kind(), ("attn_prefill", "attn_decode"))
    for number in range(int(fold.max()) + 1):
        unseen = fold == number
        hidden = steps.select(unseen)
        predicted["ooco"][unseen] = roofline_s(
            start["ooco"] | fit_roofline(steps.select(~unseen), chip, seed, start["ooco"]).found, hidden)
        keys = set(zip(hidden.batch, hidden.q, hidden.context, strict=True))
        q = np.where(rows.kind() == "attn_decode", 1.0, rows["q_len"])
        seen = np.array([not is_attention or key not in keys for is_attention, *key in zip(
            attention, rows["batch"], q, rows["context_len"], strict=True) for key in [tuple(key)]])
        tokens = set(hidden.tokens.tolist()) - set(steps.select(~unseen).tokens.tolist())
        seen &= attention | ~np.isin(rows["n_tokens"], list(tokens))
        found = parameters(fit_kernels(rows.select(seen & (rows.kind() != "all_reduce")), chip, seed,
                                       start["extended"]))
        if complete_for(found, hidden):
            predicted["extended"][unseen] = extended_s(found, hidden)
    return {form: _by_architecture(values, steps) for form, values in predicted.items() if np.isfinite(values).all()}


def _by_architecture(predicted: np.ndarray, steps: Steps) -> dict[str, Any]:
    found: dict[str, Any] = dict(errors(predicted, steps.seconds))
    for phase, which in (("prefill", steps.prefill), ("decode", ~steps.prefill)):
        if which.any():
            found[phase] = errors(predicted[which], steps.seconds[which])
    found["by_architecture"] = {
        architecture.name: errors(predicted[steps.arch == number], steps.seconds[steps.arch == number])
        for number, architecture in enumerate(steps.architectures)}
    return found


def _of_architecture(rows: Rows, architecture: Architecture) -> np.ndarray:
    """Rows that have the architecture's shapes."""
    kind = rows.kind()
    shapes = np.array([(d_in, d_out) in set(architecture.gemms)
                       for d_in, d_out in zip(rows["d_in"], rows["d_out"], strict=True)])
    heads = (rows["h_q"] == architecture.heads) & (rows["h_kv"] == architecture.kv_heads)
    return ((kind == "gemm") & shapes) | (np.isin(kind, ("attn_prefill", "attn_decode")) & heads)


def _roofline_attention_s(found: Mapping[str, float], architecture: Architecture, part: Steps) -> np.ndarray:
    width, kv_width = (heads * architecture.head_dim for heads in (architecture.heads, architecture.kv_heads))
    # A phase of which nothing was measured has no rate, and no iterations here.
    rate = np.where(part.prefill, found.get("prefill_attention_flops_per_s", np.inf),
                    found.get("decode_attention_flops_per_s", np.inf))
    flops = 4.0 * width * part.batch * part.q * part.context
    moved = 2.0 * _DTYPE_BYTES * part.batch * (width * part.q + kv_width * part.context)
    return np.maximum(flops / rate, moved / found["attention_memory_bytes_per_s"])


def _dense_s(found: Mapping[str, Any], item: Dense, part: Steps) -> np.ndarray:
    if item.kind == "elementwise":
        return item.times * kernels.elementwise_s(
            found["elementwise"], item.d_out * part.tokens, canonical(item.op))
    tokens = part.batch if item.kind == "lm_head" else part.tokens
    return item.times * kernels.gemm_s(found["gemm"], tokens, item.d_in, item.d_out)


def _attention_s(found: Mapping[str, Any], architecture: Architecture, part: Steps) -> np.ndarray:
    shape = (architecture.heads, architecture.kv_heads, architecture.head_dim)
    seconds = np.empty(len(part))
    if part.prefill.any():
        form = kernels.prefill_attention(found["prefill_attention"], *shape)
        one = part.select(part.prefill)
        rows = np.ceil(one.q / form.tile) * form.tile
        seconds[part.prefill] = form.seconds(one.batch * rows * (one.context - form.causal * one.q), one.batch * rows,
                                             one.batch * one.context, one.batch)
    if (~part.prefill).any():
        form, one = kernels.decode_attention(found["decode_attention"], *shape), part.select(~part.prefill)
        total = one.batch * one.context
        seconds[~part.prefill] = form.seconds(total, one.batch, total, one.batch)
    return seconds
