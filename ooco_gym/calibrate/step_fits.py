"""Both forms on composed iterations: predictions, the roofline's fit, and errors on an unseen architecture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ooco_gym.calibrate.fitting import Free, errors, folds, least_squares, sample
from ooco_gym.calibrate.operators import FEW, OPERATORS, Fitted, canonical, fit
from ooco_gym.calibrate.rows import Rows
from ooco_gym.calibrate.steps import Architecture, Dense, Steps
from ooco_gym.perf import kernels
from ooco_gym.perf.chip import ChipSpec

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
    def seconds(architecture: Architecture, part: Steps) -> np.ndarray:
        total = np.zeros(len(part))
        for item in architecture.dense:
            if item.kind != "elementwise":
                tokens = part.batch if item.kind == "lm_head" else part.tokens
                traffic = _DTYPE_BYTES * (tokens * (item.d_in + item.d_out) + item.d_in * item.d_out)
                total += item.times * np.maximum(2.0 * tokens * item.d_in * item.d_out / found["gemm_flops_per_s"],
                                                 traffic / found["gemm_memory_bytes_per_s"])
        overhead = np.where(part.prefill, found.get("prefill_layer_overhead_s", 0.0),
                            found.get("decode_layer_overhead_s", 0.0))
        return total + architecture.layers * (_roofline_attention_s(found, architecture, part) + overhead)

    return _by_architecture(steps, seconds)


def extended_s(found: Mapping[str, Any], steps: Steps) -> np.ndarray:
    """Seconds of iterations as `timing=extended` has them, from its parameters by kernel."""
    return _by_architecture(steps, lambda architecture, part: sum(
        (_dense_s(found, item, part) for item in architecture.dense), np.zeros(len(part)))
        + architecture.layers * _attention_s(found, architecture, part))


def _by_architecture(steps: Steps, find: Callable[[Architecture, Steps], np.ndarray]) -> np.ndarray:
    seconds = np.empty(len(steps))
    for number, architecture in enumerate(steps.architectures):
        which = steps.arch == number
        seconds[which] = find(architecture, steps.select(which))
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
                         start: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Seconds of each architecture's iterations by fits that have not seen its shapes, by form, float64[n].

    Args:
        steps: iterations of at least two architectures.
        rows: clean rows of all operators but all-reduces.
        chip: whose peaks bound the rates.
        seed: of draws.
        start: `{"ooco": parameters, "extended": {op: parameters}}`, where searches begin.
    """
    return _unseen(steps, [(steps.arch == number, rows.select(~_of_architecture(rows, architecture)))
                           for number, architecture in enumerate(steps.architectures)], chip, seed, start)


def unseen_sizes(steps: Steps, rows: Rows, chip: ChipSpec, seed: int,
                 start: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The same by fits that have not seen operators of the iterations' numbers of tokens or contexts."""
    sizes = np.unique(np.stack([steps.batch, steps.q, steps.context], axis=1), axis=0, return_inverse=True)[1]
    fold = folds(sizes.reshape(-1), seed)
    attention = np.isin(rows.kind(), ("attn_prefill", "attn_decode"))
    q = np.where(rows.kind() == "attn_decode", 1.0, rows["q_len"])
    shapes = list(zip(rows["batch"], q, rows["context_len"], strict=True))
    parts = []
    for number in range(int(fold.max()) + 1):
        hidden, seen = steps.select(fold == number), steps.select(fold != number)
        keys = set(zip(hidden.batch, hidden.q, hidden.context, strict=True))
        tokens = list(set(hidden.tokens.tolist()) - set(seen.tokens.tolist()))
        known = np.where(attention, [shape not in keys for shape in shapes], ~np.isin(rows["n_tokens"], tokens))
        parts.append((fold == number, rows.select(known)))
    return _unseen(steps, parts, chip, seed, start)


def _unseen(steps: Steps, parts: Sequence[tuple[np.ndarray, Rows]], chip: ChipSpec, seed: int,
            start: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Predicts the iterations of each mask by a fit to the other ones (`ooco`) and to the rows beside the mask."""
    predicted = {form: np.full(len(steps), np.nan) for form in ("ooco", "extended")}
    for which, known in parts:
        hidden = steps.select(which)
        roofline = fit_roofline(steps.select(~which), chip, seed, start["ooco"]).found
        predicted["ooco"][which] = roofline_s(start["ooco"] | roofline, hidden)
        found = parameters(fit_kernels(known, chip, seed, start["extended"]))
        if complete_for(found, hidden):
            predicted["extended"][which] = extended_s(found, hidden)
    return {form: values for form, values in predicted.items() if np.isfinite(values).all()}


def errors_by_part(predicted: np.ndarray, steps: Steps) -> dict[str, Any]:
    """Errors on all iterations, by phase, and `by_architecture`."""
    def of(which: np.ndarray) -> dict[str, Any]:
        return errors(predicted[which], steps.seconds[which])

    phases = {phase: of(which) for phase, which in (("prefill", steps.prefill), ("decode", ~steps.prefill))
              if which.any()}
    return {**errors(predicted, steps.seconds), **phases, "by_architecture": {
        architecture.name: of(steps.arch == number) for number, architecture in enumerate(steps.architectures)}}


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
        seconds[part.prefill] = form.seconds(*(one.batch * each for each in form.of_prompts(one.q, one.context)))
    if (~part.prefill).any():
        form, one = kernels.decode_attention(found["decode_attention"], *shape), part.select(~part.prefill)
        total = one.batch * one.context
        seconds[~part.prefill] = form.seconds(total, one.batch, total, one.batch)
    return seconds
