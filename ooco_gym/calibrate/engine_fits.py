"""Both forms fitted to whole iterations of an engine, through the very code that the simulator is timed by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np

from ooco_gym.calibrate.fitting import Fitted, Free, alike, errors, folds, least_squares, sample, started
from ooco_gym.calibrate.operators import FEW
from ooco_gym.calibrate.steps import roofline_free
from ooco_gym.perf import kernels
from ooco_gym.perf.chip import ChipSpec
from ooco_gym.perf.model import ModelSpec
from ooco_gym.perf.timing import Shard, timing_form

_FITTED = 1200


@dataclass(frozen=True)
class EngineRows:
    """Measured iterations of one engine, arrays over iterations [n] and over prompts (or parts of one) [m].

    Attributes:
        file, device, model: of the file; '' where it does not say.
        n_decode: requests that decode, float64[n].
        decode_context: tokens of context of these, summed.
        sequences: sequences that get a token, decoding or at the end of their prefill.
        seconds: time taken.
        prompt_of: iteration of each prompt, int64[m].
        q: its new tokens, float64[m].
        kv: its context, the new tokens among it, float64[m].
        sizes: the model's fields (`ModelSpec`), where the measurement says them.
        tp: its tensor-parallel degree, likewise; 0 where nothing is said.
    """

    file: str
    device: str
    model: str
    n_decode: np.ndarray
    decode_context: np.ndarray
    sequences: np.ndarray
    seconds: np.ndarray
    prompt_of: np.ndarray
    q: np.ndarray
    kv: np.ndarray
    sizes: Mapping[str, Any] = field(default_factory=dict)
    tp: int = 0

    def __len__(self) -> int:
        return len(self.seconds)

    @property
    def prompts(self) -> np.ndarray:
        """Prompts of each iteration, float64[n]."""
        return self.over_prompts(np.ones(len(self.q)))

    @property
    def prefill_tokens(self) -> np.ndarray:
        """New prompt tokens of each iteration, float64[n]."""
        return self.over_prompts(self.q)

    @property
    def tokens(self) -> np.ndarray:
        """Tokens that the linear layers see, float64[n]."""
        return self.prefill_tokens + self.n_decode

    def over_prompts(self, values: np.ndarray) -> np.ndarray:
        """Sums of a figure of each prompt, by iteration, float64[n]."""
        return np.bincount(self.prompt_of, weights=values, minlength=len(self))

    def select(self, which: np.ndarray) -> EngineRows:
        """The iterations of a mask."""
        index = np.flatnonzero(which) if which.dtype == bool else which
        new = np.full(len(self), -1)
        new[index] = np.arange(len(index))
        inside = new[self.prompt_of] >= 0
        taken = {item.name: getattr(self, item.name) for item in fields(self)}
        taken = {name: value[inside] if name in ("prompt_of", "q", "kv") else value[index]
                 for name, value in taken.items() if isinstance(value, np.ndarray)}
        taken["prompt_of"] = new[self.prompt_of][inside]
        return replace(self, **taken)


def join(parts: Sequence[EngineRows]) -> EngineRows:
    """All iterations of several files of one engine."""
    first = parts[0]
    shifts = np.cumsum([0, *(len(part) for part in parts[:-1])])
    taken = {item.name: np.concatenate([getattr(part, item.name) for part in parts])
             for item in fields(EngineRows) if isinstance(getattr(first, item.name), np.ndarray)}
    taken["prompt_of"] = np.concatenate([part.prompt_of + shift for part, shift in zip(parts, shifts, strict=True)])
    return replace(first, **taken)


def clean(rows: EngineRows) -> tuple[EngineRows, dict[str, int]]:
    """Leaves out iterations without a positive time or without tokens; how many of each."""
    timed = np.isfinite(rows.seconds) & (rows.seconds > 0)
    idle = timed & (rows.tokens <= 0)
    found = {"time is not positive": int((~timed).sum()), "no token in the iteration": int(idle.sum())}
    return rows.select(timed & ~idle), {reason: count for reason, count in found.items() if count}


def seconds(form: str, chip: ChipSpec, model: ModelSpec, tp: int, rows: EngineRows) -> np.ndarray:
    """What a timing form says of iterations, float64[n].

    An iteration with prompts in it has prefill's overhead, also where requests decode beside them.
    """
    timing, shard = timing_form(form).on(chip), Shard(chip, model, tp)
    total = sum((cost.seconds for cost in timing.dense(shard, rows.tokens)), np.zeros(len(rows)))
    total += sum((cost.seconds for cost in timing.head(shard, rows.sequences)), np.zeros(len(rows)))
    prompts, decodes = rows.prompts, rows.n_decode
    prefill: Any = timing.attention(shard, "prefill")
    decode: Any = timing.attention(shard, "decode")
    sums = (rows.over_prompts(part) for part in prefill.of_prompts(rows.q, rows.kv))
    total += np.where(prompts > 0, prefill.seconds(*sums), 0.0)
    context = rows.decode_context
    total += np.where(decodes > 0, decode.seconds(context, decodes, context, decodes), 0.0)
    for phase, which in (("prefill", prompts > 0), ("decode", prompts == 0)):
        total[which] += timing.overhead_s(shard, phase)  # type: ignore[arg-type]
        total[which] = np.maximum(total[which], timing.floor_s(shard, phase))  # type: ignore[arg-type]
    return total


class Served(NamedTuple):
    """Iterations of an engine that served one model at one tensor-parallel degree."""

    rows: EngineRows
    model: ModelSpec
    tp: int


def predict(form: str, chip: ChipSpec, served: Sequence[Served]) -> np.ndarray:
    """What a timing form says of all iterations, one engine after the other, float64[n]."""
    return np.concatenate([seconds(form, chip, one.model, one.tp, one.rows) for one in served])


def measured(served: Sequence[Served]) -> np.ndarray:
    """Measured seconds in the same order."""
    return np.concatenate([one.rows.seconds for one in served])


def fit(form: str, chip: ChipSpec, served: Sequence[Served], seed: int = 0,
        start: Mapping[str, float] | None = None) -> Fitted:
    """Fits a form to iterations.

    Rates are searched only where no operators gave them (`chip.extended`); what the engine does besides its kernels is
    added to them, or runs beside them, whichever agrees better.
    """
    most = max(_FITTED // len(served), 50)
    taken = [one._replace(rows=one.rows.select(sample(len(one.rows), most, seed))) for one in served]
    times, best = measured(taken), None
    for overlap in (False, True) if form == "extended" else (False,):
        free = _free(form, chip, overlap, taken)
        if start is not None and set(start) != {item.name for item in free}:
            continue
        found, cost = least_squares(
            started(free, start), lambda found: predict(form, with_found(form, chip, found), taken), times,
            starts=1 if start is not None else 3, seed=seed)
        if best is None or cost < best.cost:
            best = Fitted(found, len(times), cost)
    # A fit to a part of the data may lack parameters that the whole has: then it searches from the beginning.
    return best if best is not None else fit(form, chip, served, seed)


def unseen(form: str, chip: ChipSpec, served: Sequence[Served], seed: int,
           start: Mapping[str, float]) -> dict[str, Any]:
    """Errors in percent, and `held_out` in words, of iterations by fits that have not seen their model and degree, or
    with one only, their sizes."""
    rows = [one.rows for one in served]
    owner = np.repeat(np.arange(len(served)), [len(part) for part in rows])
    fold, said = owner, "models and tensor-parallel degrees"
    if len(served) == 1:
        one = rows[0]
        fold, said = folds(alike(one.n_decode, one.prompts, np.round(np.log2(1 + one.prefill_tokens)),
                                 np.round(np.log2(1 + one.decode_context))), seed), "sizes of batches"

    def part(which: np.ndarray) -> list[Served]:
        """The engines with the chosen iterations only, those without any left out."""
        chosen = [one._replace(rows=one.rows.select(which[owner == number])) for number, one in enumerate(served)]
        return [one for one in chosen if len(one.rows)]

    predicted = np.empty(len(fold))
    for number in range(int(fold.max()) + 1):
        hidden = fold == number
        known = part(~hidden if (~hidden).sum() >= FEW else np.ones_like(hidden))
        found = fit(form, chip, known, seed, start).found
        predicted[hidden] = predict(form, with_found(form, chip, found), part(hidden))
    return {**errors(predicted, measured(served)), "held_out": said}


def noise(rows: EngineRows) -> float | None:
    """How far iterations of the same batch lie from their median, mean in percent: no form can be nearer on average.
    None where no batch was run three times."""
    group = alike(rows.n_decode, rows.tokens, rows.prompts, np.round(10 * np.log2(1 + rows.decode_context)),
                   np.round(10 * np.log2(1 + rows.over_prompts(rows.kv))))
    deviations = [np.abs(rows.seconds[index] / np.median(rows.seconds[index]) - 1.0)
                  for index in np.split(np.argsort(group, kind="stable"), np.cumsum(np.bincount(group))[:-1])
                  if len(index) >= 3]
    return 100.0 * float(np.concatenate(deviations).mean()) if deviations else None


def with_found(form: str, chip: ChipSpec, found: Mapping[str, float]) -> ChipSpec:
    """The chip with parameters found by `fit`."""
    if form == "ooco":
        return replace(chip, **dict(found))
    parts: dict[str, dict[str, float]] = {}
    for name, value in found.items():
        kernel, _, field = name.partition(".")
        parts.setdefault(kernel, {})[field] = value
    extended = chip.extended or kernels.ExtendedParameters()
    built = {kernel: kernels.KERNELS[kernel](**values) for kernel, values in parts.items()}
    return replace(chip, extended=replace(extended, **built))


def _free(form: str, chip: ChipSpec, overlap: bool, served: Sequence[Served]) -> list[Free]:
    prompts, decodes, pure = np.any([(
        (one.rows.prompts > 0).any(), (one.rows.n_decode > 0).any(), (one.rows.prompts == 0).any())
        for one in served], axis=0)
    if form == "ooco":
        free = [*(item for item in roofline_free(chip) if "overhead" not in item.name),
                Free("prefill_overhead_s", 1e-3, 1e-7, 10.0, off=True),
                Free("decode_overhead_s", 1e-3, 1e-7, 10.0, off=True)]
        return [item for item in free if (prompts or "prefill" not in item.name)
                and (decodes or not item.name.startswith("decode"))]
    word = "floor_s" if overlap else "s"
    free = [Free("overhead.sequence_s", 1e-5, 1e-9, 1.0, off=True)]
    free += [Free(f"overhead.prefill_{word}", 1e-3, 1e-7, 10.0, off=True)] if prompts else []
    free += [Free(f"overhead.decode_{word}", 1e-3, 1e-7, 10.0, off=True)] if pure else []
    known = chip.extended or kernels.ExtendedParameters()
    if known.gemm is None:
        free += _rates("gemm", chip, 1.1) + [Free("gemm.exponent", 1.0, 0.01, 20.0, above=1.0)]
    if prompts and known.prefill_attention is None:
        free += _rates("prefill_attention", chip, 2.0)
    if decodes and known.decode_attention is None:
        free += _rates("decode_attention", chip, 2.0) + [
            Free("decode_attention.request_head_s", 3e-8, 1e-11, 1e-3, off=True)]
    return free


def _rates(kernel: str, chip: ChipSpec, most: float) -> list[Free]:
    flops, memory = chip.peak_flops_per_s, chip.peak_memory_bytes_per_s
    return [Free(f"{kernel}.flops_per_s", 0.5 * flops, 1e-4 * flops, most * flops),
            Free(f"{kernel}.memory_bytes_per_s", 0.5 * memory, 1e-3 * memory, most * memory)]
