"""Micro-benchmarks for Echo's estimator (arXiv 2504.03651, 5.2): batches drawn at random, priced by the cost tables.

The paper does not print its benchmarks. Ours: prompts alone at lengths in equal steps of their logarithm; decode
batches whose size and mean context are log-uniform, whose contexts spread log-normally, and which fit the memory; and
such batches beside one chunk of a prompt. Coefficients by least squares, none negative; the error is measured on
batches drawn apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooco_gym.perf import CostTable, mixed_latency_ps, prefill_alone_ps
from ooco_gym.policy.bundle import Param

COEFFICIENTS = (  # what the micro-benchmarks find, but for the overlap of mixed batches
    Param("square_ps", "a of T_p, ps a token squared", 0.0),
    Param("token_ps", "b of T_p, ps a token", 0.0),
    Param("least_ps", "c of T_p, ps", 0.0),
    Param("longest_ps", "g of T_d, ps a token of the longest context", 0.0),
    Param("mean_ps", "d of T_d, ps a token of the mean context", 0.0),
    Param("base_ps", "decode_form=counted: ps a step", 0.0),
    Param("request_ps", "decode_form=counted: ps a request", 0.0),
    Param("context_ps", "decode_form=counted: ps a token of all contexts", 0.0),
)
SAMPLES = 400  # batches of a kind, and as many to measure the error on
LONGEST_TOKENS = 32_768
PREFILL_FORMS, DECODE_FORMS = ("max", "additive"), ("pooled", "floored", "counted")
DECODE_COLUMNS = {"pooled": ("longest_ps", "mean_ps"), "floored": ("longest_ps", "mean_ps"),
                  "counted": ("base_ps", "request_ps", "longest_ps", "context_ps")}
_kept: dict[tuple[Any, ...], tuple[CostTable, Estimate]] = {}


@dataclass(frozen=True)
class Estimate:
    """Coefficients in ps by the names of Echo's parameters, and the mean absolute error of each kind of batch."""

    coefficients: dict[str, float]
    mape: dict[str, float]  # prefill, decode, mixed; shares
    bias: dict[str, float]  # mean of predicted over true, less one


@dataclass(frozen=True)
class Batches:
    """Batches of one kind of benchmark: contexts of the decodes, (tokens done, new tokens) of the chunk, true ps."""

    contexts: tuple[np.ndarray, ...]
    chunks: np.ndarray  # int64[n, 2]
    true_ps: np.ndarray  # float64[n]


def fit(table: CostTable, largest_batch: int, prefill_form: str = "max", decode_form: str = "pooled") -> Estimate:
    """Fits the estimator to an instance.

    Args:
        table: what the instance's iterations take.
        largest_batch: requests in the largest decode batch benchmarked.
        prefill_form: `max` or `additive`, how the minimum time enters T_p.
        decode_form: `pooled`, `floored` or `counted`.
    """
    key = (id(table), largest_batch, prefill_form, decode_form)
    if key not in _kept:
        _kept[key] = table, _fit(table, largest_batch, prefill_form, decode_form)
    return _kept[key][1]


def _fit(table: CostTable, largest_batch: int, prefill_form: str, decode_form: str) -> Estimate:
    lengths = prompt_lengths(table)
    found = fit_prefill(lengths, prefill_alone_ps(table, lengths), prefill_form)
    train, test = (draw_batches(table, largest_batch, part) for part in (0, 1))
    found |= fit_decode(train["decode"], decode_form)
    mixed = train["mixed"]
    prefill_ps, decode_ps = predict_prefill(found, mixed, prefill_form), predict_decode(found, mixed, decode_form)
    longer, both = np.maximum(prefill_ps, decode_ps), prefill_ps + decode_ps
    hidden = both - longer
    found["overlap"] = float(np.clip((hidden * (both - mixed.true_ps)).sum() / (hidden**2).sum(), 0.0, 1.0))
    ratios = {kind: predict(found, batches, prefill_form, decode_form) / batches.true_ps - 1
              for kind, batches in test.items()}
    return Estimate(found, {kind: float(np.abs(ratio).mean()) for kind, ratio in ratios.items()},
                    {kind: float(ratio.mean()) for kind, ratio in ratios.items()})


def prompt_lengths(table: CostTable) -> np.ndarray:
    """Lengths of the prompts that are benchmarked alone: int64[n], four to a doubling, as far as memory goes."""
    longest = min(LONGEST_TOKENS, table.kv_blocks * 16)
    return np.unique(np.rint(2.0 ** np.arange(4.0, np.log2(longest) + 1e-9, 0.25)).astype(np.int64))


def fit_prefill(lengths: np.ndarray, true_ps: np.ndarray, form: str) -> dict[str, float]:
    """Least squares of T_p.

    Args:
        lengths: int64[n] ascending, tokens.
        true_ps: float64[n].
        form: `max`: every number of short prompts is tried as those that take the least time; `additive`.
    """
    from scipy.optimize import nnls

    tokens = lengths.astype(np.float64)
    columns = np.stack([tokens**2, tokens], axis=1)
    if form == "additive":
        a, b, c = nnls(np.column_stack([columns, np.ones(len(tokens))]) / true_ps[:, None], np.ones(len(tokens)))[0]
        return {"square_ps": float(a), "token_ps": float(b), "least_ps": float(c)}
    best, least = {}, np.inf
    for short in range(len(tokens) - 2):
        a, b = nnls(columns[short:] / true_ps[short:, None], np.ones(len(tokens) - short))[0]
        c = float(true_ps[:short].mean()) if short else 0.0
        error = (((np.maximum(columns @ (a, b), c) - true_ps) / true_ps) ** 2).sum()
        if error < least:
            best, least = {"square_ps": float(a), "token_ps": float(b), "least_ps": c}, error
    return best


def fit_decode(batches: Batches, form: str) -> dict[str, float]:
    """Least squares of T_d; `floored` has the minimum time of the prefill besides."""
    from scipy.optimize import nnls

    found = dict.fromkeys(("longest_ps", "mean_ps", "base_ps", "request_ps", "context_ps"), 0.0)
    names = DECODE_COLUMNS[form]
    columns = np.stack([decode_features(batches)[name] for name in names], axis=1)
    return found | dict(zip(names, map(float, nnls(columns, batches.true_ps)[0]), strict=True))


def decode_features(batches: Batches) -> dict[str, np.ndarray]:
    """What T_d may be made of, by the coefficient's name: float64[n] each; zeros where nothing decodes."""
    count = np.array([len(one) for one in batches.contexts], np.float64)
    total = np.array([one.sum() for one in batches.contexts], np.float64)
    some = count > 0
    return {"longest_ps": np.array([one.max(initial=0) for one in batches.contexts], np.float64),
            "mean_ps": total / np.maximum(count, 1.0), "base_ps": some.astype(np.float64), "request_ps": count,
            "context_ps": total}


def predict_prefill(found: dict[str, float], batches: Batches, form: str) -> np.ndarray:
    """T_p of each batch's chunk, float64[n] ps; 0 where there is none."""
    done, new = batches.chunks.astype(np.float64).T
    whole = found["square_ps"] * ((done + new) ** 2 - done**2) + found["token_ps"] * new
    time_ps = whole + found["least_ps"] if form == "additive" else np.maximum(whole, found["least_ps"])
    return np.where(new > 0, time_ps, 0.0)


def predict_decode(found: dict[str, float], batches: Batches, form: str) -> np.ndarray:
    """T_d of each batch's decodes, float64[n] ps."""
    features = decode_features(batches)
    time_ps = np.sum([found[name] * value for name, value in features.items()], axis=0)
    floor = found["least_ps"] if form == "floored" else 0.0
    return np.where(features["request_ps"] > 0, np.maximum(time_ps, floor), 0.0)


def predict(found: dict[str, float], batches: Batches, prefill_form: str, decode_form: str) -> np.ndarray:
    """T of each batch, float64[n] ps."""
    prefill_ps = predict_prefill(found, batches, prefill_form)
    decode_ps = predict_decode(found, batches, decode_form)
    lam = found["overlap"]
    return lam * np.maximum(prefill_ps, decode_ps) + (1 - lam) * (prefill_ps + decode_ps)


def draw_batches(table: CostTable, largest_batch: int, part: int) -> dict[str, Batches]:
    """Benchmarks of each kind; another `part` is drawn apart."""
    rng = np.random.Generator(np.random.Philox(key=part))
    room = table.kv_blocks * 16
    prompts = np.rint(2.0 ** rng.uniform(4.0, np.log2(min(LONGEST_TOKENS, room)), SAMPLES)).astype(np.int64)
    empty = np.zeros(0, np.int64)
    decodes = [_contexts(rng, largest_batch, room) for _ in range(SAMPLES)]
    beside = [_contexts(rng, largest_batch, room) for _ in range(SAMPLES)]
    new = np.rint(2.0 ** rng.uniform(4.0, 11.0, SAMPLES)).astype(np.int64)
    done = np.rint(2.0 ** rng.uniform(4.0, 14.0, SAMPLES) * rng.integers(0, 2, SAMPLES)).astype(np.int64)
    kinds = {"prefill": ([empty] * SAMPLES, np.stack([0 * prompts, prompts], axis=1)),
             "decode": (decodes, np.zeros((SAMPLES, 2), np.int64)),
             "mixed": (beside, np.stack([done, new], axis=1))}
    return {kind: Batches(tuple(contexts), chunks, latency_ps(table, chunks, contexts))
            for kind, (contexts, chunks) in kinds.items()}


def latency_ps(table: CostTable, chunks: np.ndarray, contexts: Sequence[np.ndarray]) -> np.ndarray:
    """What iterations of a chunk (tokens done, new tokens; none: 0, 0) and some decodes take: float64[n], in ps."""
    return mixed_latency_ps(table, chunks[:, 1:], chunks[:, :1], [len(one) for one in contexts],
                            [one.sum() for one in contexts]).astype(np.float64)


def _contexts(rng: np.random.Generator, largest_batch: int, room: int) -> np.ndarray:
    while True:
        count = int(2.0 ** rng.uniform(0.0, np.log2(largest_batch + 0.99)))
        mean = 2.0 ** rng.uniform(6.0, 14.0)
        contexts = np.maximum(1, np.rint(mean * rng.lognormal(0.0, rng.uniform(0.0, 1.0), count))).astype(np.int64)
        if contexts.sum() <= room:
            return contexts
