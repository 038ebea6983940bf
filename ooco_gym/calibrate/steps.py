"""Iterations composed of measured operators, and errors of both forms on unseen ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ooco_gym.calibrate.fitting import Fitted, Free, alike, folds, least_squares, sample, started
from ooco_gym.calibrate.operators import OPERATORS, fit_kernels, parameters
from ooco_gym.calibrate.rows import CACHED_BYTES, EXPERTS, LATENT, Rows
from ooco_gym.calibrate.times import attention_s, canonical, latent_linears_s, latent_shape
from ooco_gym.perf import kernels
from ooco_gym.perf.chip import ChipSpec
from ooco_gym.perf.model import ModelSpec, list_models, load_model
from ooco_gym.perf.timing import LATENT_LINEARS, Phase, expert_kernel
from ooco_gym.perf.timing.extended import elementwise, fused_linears
from ooco_gym.perf.timing.ooco import fp8_gain

MOST_ARCHITECTURES = 6
_NEAR = 0.35
"""Largest distance, in the logarithm of a width, at which a measured shape replaces a model's."""
_FITTED_STEPS = 1500
_LARGE = 6e10
"""Parameters from which a dense model is also composed with 8-bit weights."""
SPREAD = 0.02
"""Weight of the pull of undetermined parameters to their starts."""
_ARRAYS = ("arch", "prefill", "batch", "q", "context", "read", "seconds")


class Dense(NamedTuple):
    """An operator of an iteration that depends on the number of tokens only, run `times` times.

    `kind` is "gemm", "gemm_fp8", "lm_head", "elementwise" or one of `EXPERTS`. `d_out` is the outer
    width of a GEMM or an expert, or the bytes moved per token. `op` names the measured rows ('':
    any of the shape); `top_k` of `experts` experts are chosen.
    """

    kind: str
    times: int
    d_in: float
    d_out: float
    op: str = ""
    experts: float = 0.0
    top_k: float = 0.0


class Architecture(NamedTuple):
    """Operators of one chip in an iteration; a sparse one (`compose`) also has its model and number of chips."""

    name: str
    layers: int
    heads: float
    kv_heads: float
    head_dim: float
    dense: tuple[Dense, ...]
    model: ModelSpec | None = None
    tp: int = 1

    @property
    def gemms(self) -> list[tuple[float, float]]:
        return [(item.d_in, item.d_out) for item in self.dense if item.kind in ("gemm", "gemm_fp8")]

    @property
    def bits(self) -> str:
        """Suffix of operators with 8-bit weights."""
        return "_fp8" if self.model and self.model.weight_dtype_bytes == 1 else ""

    @property
    def latent(self) -> bool:
        """Whether attention was measured with the linear layers around it."""
        return bool(self.model and self.model.kv_lora_rank)

    @property
    def attention(self) -> tuple[str, str]:
        """The measured operators of prefill and decode."""
        return (LATENT[0] + self.bits, LATENT[1] + self.bits) if self.latent else ("attn_prefill", "attn_decode")

    def kernels(self, phases: Iterable[str]) -> set[str]:
        found = {"gemm" if item.kind == "lm_head" else item.kind for item in self.dense}
        found |= {f"latent_{phase}" if self.latent else f"{phase}_attention" for phase in phases}
        return found | ({"gemm" + self.bits} if self.latent else set())


@dataclass(frozen=True)
class Steps:
    """Composed iterations of several architectures, arrays over iterations [n].

    They are the architecture, whether it is a prefill, prompts or requests, new tokens per request,
    context per request (including new tokens), experts read per layer (0: no experts), and the sum
    of the measured operators.
    """

    architectures: tuple[Architecture, ...]
    arch: np.ndarray
    prefill: np.ndarray
    batch: np.ndarray
    q: np.ndarray
    context: np.ndarray
    read: np.ndarray
    seconds: np.ndarray

    def __len__(self) -> int:
        return len(self.seconds)

    @property
    def tokens(self) -> np.ndarray:
        """Tokens of the linear layers, float64[n]."""
        return self.batch * self.q

    def select(self, which: np.ndarray) -> Steps:
        return replace(self, **{name: getattr(self, name)[which] for name in _ARRAYS})


def compose(rows: Rows, own: str | None = None, sparse: bool = False) -> Steps | None:
    """Composes iterations of known models, first of `own` (name or YAML file), from a device's
    clean measured operators.

    Returns None if none can be composed. A model whose shapes were not measured is replaced by one
    of the nearest measured shapes. Element-wise operators and the LM head are included if they were
    measured. `sparse` selects only models with experts, latent attention or 8-bit weights. For
    these neither is included, nor, with experts, are linear layers that fit a cache, because no row
    of them is clean.
    """
    tables, found = _Tables(rows), []
    for architecture in tables.sparse(own) if sparse else tables.architectures(own):
        part = tables.steps(architecture)
        if part.size and (sparse or len(found) < MOST_ARCHITECTURES):
            found.append((architecture, part))
    if not found:
        return None
    prefill, *columns = np.concatenate([part for _, part in found], axis=1)
    arch = np.repeat(np.arange(len(found)), [part.shape[1] for _, part in found])
    return Steps(tuple(architecture for architecture, _ in found), arch, prefill > 0, *columns)


class _Tables:
    """Measured operators of one device, found by shape."""

    def __init__(self, rows: Rows) -> None:
        self._rows, self._kind = rows, rows.kind
        gemm, attention = rows.of_kind("gemm"), rows.select(np.isin(self._kind, ("attn_prefill", "attn_decode")))
        self._shapes = sorted(set(zip(gemm["d_in"].tolist(), gemm["d_out"].tolist(), strict=True)))
        self._heads = set(zip(attention["h_q"], attention["h_kv"], attention["d_h"], strict=True))
        self._curves: dict[tuple, dict[float, tuple[float, float]]] = {}

    def architectures(self, own: str | None) -> list[Architecture]:
        """Returns known models in all splits whose GEMMs and heads were measured, nearest first."""
        found: dict[tuple, tuple[float, Architecture]] = {}
        models = [load_model(own)] if own else []
        shipped = [model for model in map(load_model, list_models()) if not (_sparse(model) or model.window)]
        named = {str(name) for name in self._rows["model"] if name} | {model.name for model in models}
        for model in [*models, *shipped]:
            for tp in _degrees(model):
                candidate = self._architecture(model, tp)
                if candidate is None:
                    continue
                distance, architecture = candidate
                distance = -1.0 if model.name in named else distance
                key = (tuple(architecture.gemms), architecture.heads, architecture.kv_heads)
                if key not in found or distance < found[key][0]:
                    found[key] = (distance, architecture)
        return [architecture for _, architecture in sorted(found.values(), key=lambda item: item[0])]

    def sparse(self, own: str | None) -> list[Architecture]:
        """Returns known sparse models (`compose`) in all splits whose linear layers were measured."""
        models = list(map(load_model, [*([own] if own else []), *list_models()]))
        models += [replace(one, name=f"{one.name} 8 bits", weight_dtype_bytes=1.0) for one in models
                   if one.parameters > _LARGE and not _sparse(one)]
        named, found = {one.name: one for one in models}, []
        for model in named.values():
            if _sparse(model) and not model.window:
                found += [self._sparse_architecture(model, tp) for tp in _degrees(model)]
        alike = {one._replace(name="", model=None): one for one in found[::-1] if one is not None}
        return list(alike.values())[::-1]

    def _sparse_architecture(self, model: ModelSpec, tp: int) -> Architecture | None:
        dense = []
        for item in fused_linears(model, tp):
            weight_bytes = item.weight_bytes or model.dtype_bytes
            if model.kv_lora_rank and item.name in LATENT_LINEARS:
                continue
            if weight_bytes * item.d_in * item.d_out < CACHED_BYTES:
                if model.experts:
                    continue
                return None
            kind = "gemm_fp8" if weight_bytes == 1 else "gemm"
            part = self._rows.select(self._kind == kind)
            away = np.maximum(*(np.abs(np.log(part[name] / getattr(item, name))) for name in ("d_in", "d_out")))
            if away.min(initial=math.inf) > _NEAR:
                return None
            nearest = int(away.argmin())
            dense.append(Dense(kind, item.layers, part["d_in"][nearest], part["d_out"][nearest]))
        if model.experts:
            dense.append(Dense(expert_kernel(model.expert_bytes), model.expert_layers, model.hidden, math.ceil(
                model.expert_intermediate / tp), experts=model.experts, top_k=model.top_k))
        heads = (model.heads / tp, max(model.kv_heads / tp, 1.0), float(model.head_dim))
        return Architecture(model.name + (f" tp{tp}" if tp > 1 else ""), model.layers, *heads, tuple(dense), model, tp)

    def _architecture(self, model: ModelSpec, tp: int) -> tuple[float, Architecture] | None:
        heads = (model.heads / tp, max(model.kv_heads / tp, 1.0), float(model.head_dim))
        if not self._shapes or heads not in self._heads:
            return None
        measured, dense, distance = np.log(np.array(self._shapes)), [], 0.0
        for item in fused_linears(model, tp):
            away = np.abs(measured - np.log((item.d_in, item.d_out))).max(axis=1)
            distance = max(distance, float(away.min()))
            dense.append(Dense("gemm", item.layers, *self._shapes[int(away.argmin())]))
        if distance > _NEAR:
            return None
        head = (float(model.hidden), float(math.ceil(model.vocab / tp)))
        if head in self._shapes:
            dense.append(Dense("lm_head", 1, *head))
        rows = self._rows
        mine = (self._kind == "elementwise") & (rows["d_in"] == model.hidden) & (
            np.isnan(rows["tp"]) | (rows["tp"] == tp))
        names = sorted({str(op) for op in rows["op"][mine]}, reverse=True)
        ops = {canonical(op): op for op in names}
        for item in elementwise(model, tp):
            op = ops.get("norm" if item.name == "norms" else item.name)
            if op:
                dense.append(Dense("elementwise", item.times, model.hidden, item.token_bytes, op))
        name = model.name + (f" tp{tp}" if tp > 1 else "") + ("-like" if distance > 0 else "")
        return distance, Architecture(name, model.layers, *heads, tuple(dense))

    def _measured(self, item: Dense, tokens: float) -> tuple[float, float]:
        """Returns the seconds of one run, and the experts read (0: no experts); NaN if not measured."""
        key = item[:1] + item[2:]
        if key not in self._curves:
            rows = self._rows
            kind = "gemm" if item.kind == "lm_head" else item.kind
            named = rows["op"] == item.op if item.op else (self._kind == kind) & (rows["d_out"] == item.d_out)
            if item.experts:  # all experts on one chip
                named &= (rows["experts"] == item.experts) & (rows["top_k"] == item.top_k) & (
                    rows["routed"] == rows["n_tokens"] * item.top_k)
            which = named & (rows["d_in"] == item.d_in)
            measured = zip(rows.seconds[which].tolist(), np.nan_to_num(rows["read"][which]).tolist(), strict=True)
            self._curves[key] = dict(zip(rows["n_tokens"][which].tolist(), measured, strict=True))
        return self._curves[key].get(tokens, (math.nan, math.nan))

    def steps(self, one: Architecture) -> np.ndarray:
        """Returns an architecture's iterations whose operators were measured at the same number of
        tokens, float64[6, n].

        Rows: whether it is a prefill, batch, new tokens, context, experts read, seconds.
        """
        rows, kept = self._rows, []
        keys = (rows["h_kv"] == one.kv_heads) & (rows["d_h"] == one.head_dim)
        same = (rows["h_q"] == one.heads) & (one.latent | keys)
        for kind in one.attention:
            for index in np.flatnonzero(same & (self._kind == kind)):
                batch, prefill = rows["batch"][index], kind == one.attention[0]
                q = rows["q_len"][index] if prefill else 1.0
                dense = [self._measured(item, batch if item.kind == "lm_head" else batch * q) for item in one.dense]
                seconds = one.layers * rows.seconds[index] + sum(
                    item.times * measured[0] for item, measured in zip(one.dense, dense, strict=True))
                if np.isfinite(seconds):
                    read = max((measured[1] for measured in dense), default=0.0)
                    kept.append((prefill, batch, q, rows["context_len"][index], read, seconds))
        return np.array(kept, dtype=np.float64).T


def _sparse(model: ModelSpec) -> bool:
    return bool(model.experts or model.kv_lora_rank or model.weight_dtype_bytes)


def _degrees(model: ModelSpec) -> list[int]:
    """Returns the numbers of chips over which a model may be split."""
    return [tp for tp in (1, 2, 4, 8) if model.heads % tp == 0
            and (model.kv_heads % tp == 0 or tp % model.kv_heads == 0)]


def roofline_s(found: Mapping[str, float], steps: Steps, gain: float = 1.0) -> np.ndarray:
    """Returns seconds of iterations under `timing=ooco`: overheads cover all but GEMMs, experts and
    attention.

    `gain` is the speed-up of 8-bit multiplication.
    """
    flops, memory = found["gemm_flops_per_s"], found["gemm_memory_bytes_per_s"]
    kv_memory, flat = found["attention_memory_bytes_per_s"], {"exponent": math.inf}
    # A phase without measurements has no rate, and no iterations here.
    prefill_rate = found.get("prefill_attention_flops_per_s", math.inf)
    decode_rate = found.get("decode_attention_flops_per_s", math.inf)
    gemm = kernels.GemmParameters(flops, memory, **flat)
    prefill = kernels.PrefillAttentionParameters(prefill_rate, kv_memory, tile=1.0, causal=0.0, **flat)
    decode = kernels.DecodeAttentionParameters(decode_rate, kv_memory, **flat)
    roofs = {"gemm": gemm, "gemm_fp8": replace(gemm, flops_per_s=gain * flops),
             "prefill_attention": prefill, "latent_prefill": prefill,
             "decode_attention": decode, "latent_decode": decode}
    for kernel, weight_bytes in EXPERTS.items():
        rate = gain * flops if weight_bytes == 1 else flops
        roofs[kernel] = kernels.ExpertParameters(rate, memory, **flat)
    prefill_s = found.get("prefill_layer_overhead_s", 0.0)
    decode_s = found.get("decode_layer_overhead_s", 0.0)
    layers = np.array([architecture.layers for architecture in steps.architectures])[steps.arch]
    return extended_s(roofs, steps) + layers * np.where(steps.prefill, prefill_s, decode_s)


def extended_s(found: Mapping[str, Any], steps: Steps) -> np.ndarray:
    """Returns seconds of iterations under `timing=extended`, from its parameters by kernel."""
    seconds = np.zeros(len(steps))
    for number, one in enumerate(steps.architectures):
        which = steps.arch == number
        if not which.any():
            continue
        part, shape = steps.select(which), (one.heads, one.kv_heads, one.head_dim)
        for item in one.dense:
            tokens = part.batch if item.kind == "lm_head" else part.tokens
            if item.kind in EXPERTS:
                chosen = tokens * item.top_k
                seconds[which] += item.times * kernels.experts_s(
                    found[item.kind], item.d_in, item.d_out, part.read, chosen, chosen, EXPERTS[item.kind])
            elif item.kind == "gemm_fp8":
                seconds[which] += item.times * kernels.gemm_s(found[item.kind], tokens, item.d_in, item.d_out, 2.0, 1.0)
            elif item.kind != "elementwise":
                seconds[which] += item.times * kernels.gemm_s(found["gemm"], tokens, item.d_in, item.d_out)
            elif "elementwise" in found:
                seconds[which] += item.times * kernels.elementwise_s(
                    found["elementwise"], item.d_out * tokens, canonical(item.op))
        phases: tuple[Phase, Phase] = ("prefill", "decode")
        for phase, mask in zip(phases, (which & steps.prefill, which & ~steps.prefill), strict=True):
            if mask.any():
                part = steps.select(mask)
                if one.model and one.latent:
                    shape = latent_shape(one.model, one.tp, phase)
                    seconds[mask] += one.layers * latent_linears_s(
                        found["gemm" + one.bits], one.model, one.tp, part.tokens, 1.0 if one.bits else 2.0)
                kernel = f"latent_{phase}" if one.latent else f"{phase}_attention"
                seconds[mask] += one.layers * attention_s(found[kernel], shape, phase, part.batch, part.q, part.context)
    return seconds


def roofline_free(chip: ChipSpec) -> list[Free]:
    """Returns the roofline's parameters without links (prefill attention includes the masked half)."""
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


def chip_roofline(chip: ChipSpec) -> dict[str, float]:
    """Returns the chip's own parameters of the roofline."""
    return {item.name: getattr(chip, item.name) for item in roofline_free(chip)}


def fit_roofline(steps: Steps, chip: ChipSpec, seed: int = 0, start: Mapping[str, float] | None = None) -> Fitted:
    phases = {"prefill": steps.prefill.any(), "decode": (~steps.prefill).any()}
    free = [item for item in roofline_free(chip) if phases.get(item.name.partition("_")[0], True)]
    free = started(free, start)
    fixed = {item.name: item.start for item in roofline_free(chip)}
    taken = steps.select(sample(len(steps), _FITTED_STEPS, seed))
    pull = np.array([np.log(item.start) for item in free if item.name == "decode_attention_flops_per_s"])

    def predict(found: dict[str, float]) -> np.ndarray:
        # Decode attention is memory-bound at usual head ratios, so an undetermined rate stays at its start.
        weak = np.exp(SPREAD * (np.log(found["decode_attention_flops_per_s"]) - pull)) if len(pull) else pull
        return np.concatenate([roofline_s(fixed | found, taken), weak])

    measured = np.concatenate([taken.seconds, np.ones(len(pull))])
    found, cost = least_squares(free, predict, measured, starts=1 if start is not None else 4, seed=seed)
    return Fitted({item.name: (fixed | found)[item.name] for item in free}, len(taken), cost)


def unseen(steps: Steps, rows: Rows, chip: ChipSpec, seed: int, start: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Predicts seconds of iterations, float64[n] by form, by fits that have not seen their
    architecture.

    With one architecture only, sizes are held out. `ooco` is fitted to other iterations, `extended`
    to operators of other shapes or sizes, if the rows have all of them. Of sparse iterations
    (`compose`) whole models are held out, and `ooco` has the parameters of `start`.

    Args:
        steps: iterations.
        rows: clean rows of all operators but all-reduces.
        chip: whose peaks bound the rates.
        seed: of folds and draws.
        start: `{"ooco": parameters, "extended": {op: parameters}}`, starts of the searches.
    """
    sparse = [architecture.model.name for architecture in steps.architectures if architecture.model]
    if sparse:
        fold, known_to = alike(np.array(sparse, dtype=object))[steps.arch], _of_other_architectures
    elif len(steps.architectures) > 1:
        fold, known_to = steps.arch, _of_other_architectures
    else:
        fold, known_to = folds(alike(steps.batch, steps.q, steps.context), seed), _of_other_sizes
    predicted = {form: np.full(len(steps), np.nan) for form in ("ooco", "extended")}
    for number in range(int(fold.max()) + 1):
        which = fold == number
        hidden, seen = steps.select(which), steps.select(~which)
        roofline = {} if sparse else fit_roofline(seen, chip, seed, start["ooco"]).found
        predicted["ooco"][which] = roofline_s(start["ooco"] | roofline, hidden, fp8_gain(chip, 1))
        phases = ["prefill" if one else "decode" for one in set(hidden.prefill.tolist())]
        needed = set[str]().union(*(steps.architectures[int(one)].kernels(phases) for one in set(hidden.arch)))
        if any(item.kind == "elementwise" for architecture in steps.architectures for item in architecture.dense):
            needed.add("elementwise")
        ops = [op for op, one in OPERATORS.items() if one.kernel in needed]
        known = rows.select(known_to(rows, hidden, seen) & np.isin(rows.kind, ops))
        found = parameters(fit_kernels(known, chip, seed, start["extended"]))
        if needed <= set(found):
            predicted["extended"][which] = extended_s(found, hidden)
    return {form: values for form, values in predicted.items() if np.isfinite(values).all()}


def _of_other_architectures(rows: Rows, hidden: Steps, _: Steps) -> np.ndarray:
    """Returns a mask of the rows without the shapes of the hidden iterations' architectures."""
    kind, known = rows.kind, np.ones(len(rows), dtype=bool)
    for one in (hidden.architectures[number] for number in sorted(set(hidden.arch.tolist()))):
        gemms = set(one.gemms)
        shapes = np.array([shape in gemms for shape in zip(rows["d_in"], rows["d_out"], strict=True)])
        heads = (rows["h_q"] == one.heads) & (one.latent | (rows["h_kv"] == one.kv_heads))
        known &= ~((np.isin(kind, ("gemm", "gemm_fp8")) & shapes) | (np.isin(kind, one.attention) & heads))
        for item in one.dense:
            if item.experts:
                known &= ~((rows["d_in"] == item.d_in) & (rows["experts"] == item.experts)
                           & (rows["top_k"] == item.top_k))
    return known


def _of_other_sizes(rows: Rows, hidden: Steps, seen: Steps) -> np.ndarray:
    """Returns a mask of rows without the hidden iterations' contexts, or tokens that only these have."""
    kind = rows.kind
    q = np.where(kind == "attn_decode", 1.0, rows["q_len"])
    keys = set(zip(hidden.batch, hidden.q, hidden.context, strict=True))
    shapes = [shape not in keys for shape in zip(rows["batch"], q, rows["context_len"], strict=True)]
    tokens = list(set(hidden.tokens.tolist()) - set(seen.tokens.tolist()))
    return np.where(np.isin(kind, ("attn_prefill", "attn_decode")), shapes, ~np.isin(rows["n_tokens"], tokens))
