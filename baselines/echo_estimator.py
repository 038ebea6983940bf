"""Echo's estimator (arXiv 2504.03651, section 5): how long a batch takes, how soon it must end, what bursts may need.

A prompt's prefill takes T_p = max(a l^2 + b l, c); decodes take T_d = g max(l) + d mean(l), "a pooling operation"; a
batch of both T = lam max(T_p, T_d) + (1 - lam) (T_p + T_d), prompts being summed "one by one" (5.2). The paper's
formulae did not survive in our copy of it; these are read from its prose. Ours: a chunk from token s to s + q costs
a ((s + q)^2 - s^2) + b q, so that a cached prefix is paid for once. The coefficients come from micro-benchmarks
(at the end of this file).

The i-th token of a request is due D(i) = TTFT + (i - 1) TPOT after its arrival (5.1), so that early tokens leave slack.
Online requests' KV memory is expected to stay within mean + 2 standard deviations of the past hour (5.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ooco_gym.compile import inner
from ooco_gym.perf import CostTable, mixed_latency_ps, prefill_alone_ps
from ooco_gym.policy.policy import Param, slots
from ooco_gym.rounding import least_squares, steady
from ooco_gym.sim.costs import (
    attention_together,
    dense_latency,
    prefill_attention,
    prompt_rows,
    prompt_work,
    skewed_decode,
)
from ooco_gym.sim.state import BATCH, NEVER, PS_PER_S

BUCKETS = 4  # the history is kept as sums over quarters of it
NEWEST, SINCE, USED = 3 * BUCKETS, 3 * BUCKETS + 1, 3 * BUCKETS + 2  # places in State.memory after the quarters' sums

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
PARAMS = (
    Param("max_num_batched_tokens", "new tokens of one iteration (the engine's option of this name)", 1, 1_000_000),
    Param("max_num_seqs", "requests that run at a time (the engine's option of this name)", 1, 1_000_000),
    Param("reserved_blocks", "KV blocks that the engine keeps for itself", 0, 1_000_000),
    Param("prefix_caching", "blocks of prompts that begin alike are kept and shared", choices=("off", "on")),
    Param("kv_priority", "4.2: whose blocks are taken first", choices=("lru", "task")),
    Param("waiting_order", "6: how waiting offline requests can be found", choices=("arrival", "prefix",
                                                                                    "bucket_prefix")),
    Param("estimator", "5.2: what iterations are held to the SLO by; exact: the simulator's own tables",
          choices=("off", "fitted", "exact")),
    Param("selection", "4.1: how offline requests are chosen", choices=("fcfs", "kv_aware")),
    Param("reserve", "4.2: memory left free for bursts; total: what online requests lack of mean + sigmas, above: all "
          "of mean + sigmas beyond what they hold (the paper leaves it open)", choices=("off", "total", "above")),
    Param("reserve_sigmas", "5.3: standard deviations above the mean (footnote 2: tunable)", 0.0, 100.0),
    Param("history_s", "5.3: how far back online memory is looked at (7.4 has 15 minutes for arrivals)", 1.0, 1e6),
    Param("prefill_form", "5.2: how the minimum time c enters", choices=("max", "additive")),
    Param("decode_form", "5.2: pooled: as described; floored: at least c; counted: constant, requests and tokens, too",
          choices=("pooled", "floored", "counted")),
    Param("due_from", "5.1: D(i) runs from the arrival, as printed, or the first token's own time starts the TPOT",
          choices=("arrival", "first_token")),
    Param("late", "5.1: an online request past its deadline stops offline work, or no longer counts (open)",
          choices=("hold", "forget")),
    Param("online_slo", "6: online prefills, too, wait until the batch's SLO has room for them", 0, 1),
    Param("slo_yields", "4.1: an offline request that a tight SLO takes out of the batch keeps its memory, or not "
          "(open)", choices=("skip", "preempt")),
    Param("stop", "4.1: offline requests join while the ratio grows, or while they fit (open)",
          choices=("improving", "feasible")),
    Param("candidates", "6: waiting offline requests that are looked at for one place", 1, 256),
    Param("benefit_counts", "3.1: a prefill is worth its prompt's tokens, cached ones among them, or those computed "
          "(open)", choices=("logical", "computed")),
    Param("prefill_benefit", "3.1: b_p, the worth of a prefilled token", 0.0, 1e6),
    Param("decode_benefit", "3.1: b_d, the worth of a decoded token", 0.0, 1e6),
    *COEFFICIENTS,
    Param("overlap", "lam of T: 1: the shorter phase hides behind the longer one", 0.0, 1.0),
)
P = slots(PARAMS)


class Load(NamedTuple):
    """A batch to be, as far as its time and its benefit depend on it."""

    decodes: int | np.int64
    context: int | np.int64  # of the decodes, in all
    longest: int | np.int64
    second: int | np.int64  # the next to longest, for taking the longest out
    prefill_ps: float  # sum of T_p
    prompts: int | np.int64
    tokens: int | np.int64  # new tokens of the prompts
    rows: float  # what `exact` needs of the prompts
    work: float
    reach: float
    benefit: float


# --- Execution time (5.2) -------------------------------------------------------------------------------------------
@inner
def nothing():
    """The empty batch."""
    zero = np.int64(0)
    return Load(zero, zero, zero, zero, 0.0, zero, zero, 0.0, 0.0, 0.0, 0.0)


@inner
def chunk_time(a, b, c, additive, done, tokens):
    """T_p of `tokens` new tokens behind `done` others, in ps."""
    reach = float(done + tokens)
    whole = a * (reach * reach - float(done) * float(done)) + b * tokens
    return whole + c if additive else max(whole, c)


@inner
def decode_time(coefficients, floor, decodes, context, longest):
    """T_d in ps; `coefficients`: g, d, and of decode_form=counted the constant, for a request, for a token."""
    if decodes == 0:
        return 0.0
    g, d, base, request, token = coefficients
    return max(floor, g * longest + d * context / decodes + base + request * decodes + token * context)


@inner
def mixed_time(overlap, prefill_ps, decode_ps):
    """T of prefills and decodes in one batch, in ps."""
    return overlap * max(prefill_ps, decode_ps) + (1.0 - overlap) * (prefill_ps + decode_ps)


@inner
def with_decode(state, load, context):
    """The batch with one more decode that reaches `context` tokens."""
    longest, second = load.longest, load.second
    if context > longest:
        longest, second = context, longest
    elif context > second:
        second = context
    return Load(load.decodes + 1, load.context + context, longest, second, load.prefill_ps, load.prompts, load.tokens,
                load.rows, load.work, load.reach, load.benefit + state.params[P.decode_benefit])


@inner
def without_decode(state, load, context):
    """The batch without one of its decodes; to take out another one after it, `ranked` must come between."""
    longest = load.second if context == load.longest else load.longest
    return Load(load.decodes - 1, load.context - context, longest, longest, load.prefill_ps, load.prompts, load.tokens,
                load.rows, load.work, load.reach, load.benefit - state.params[P.decode_benefit])


@inner
def ranked(state, instance, load):
    """The batch with its two longest contexts looked up again among what is scheduled to decode."""
    longest, second = np.int64(0), np.int64(0)
    for i in range(state.instances[instance].running):
        request = state.requests[state.members[BATCH, instance, i]]
        context = np.int64(request.num_computed_tokens) + 1
        if request.num_scheduled_tokens == 1 and request.generated_tokens > 0 and context > second and (
                context == np.int64(request.prompt_tokens) + request.generated_tokens):
            if context > longest:
                longest, second = context, longest
            else:
                second = context
    return Load(load.decodes, load.context, longest, second, load.prefill_ps, load.prompts, load.tokens, load.rows,
                load.work, load.reach, load.benefit)


@inner
def with_chunk(state, instance, load, done, tokens, worth, sign):
    """The batch with (`sign` 1) or without (-1) a chunk of `tokens` behind `done` others that counts `worth` tokens."""
    params, table = state.params, state.instances[instance].table
    time_ps = chunk_time(params[P.square_ps], params[P.token_ps], params[P.least_ps], params[P.prefill_form] == 1, done,
                         tokens)
    return Load(load.decodes, load.context, load.longest, load.second, load.prefill_ps + sign * time_ps,
                load.prompts + sign, load.tokens + sign * tokens,
                load.rows + sign * prompt_rows(state, table, tokens),
                load.work + sign * prompt_work(state, table, tokens, done + tokens),
                load.reach + float(sign * (done + tokens)),
                load.benefit + sign * params[P.prefill_benefit] * worth)


@inner
def batch_time(state, instance, load):
    """T of a batch, in ps: fitted, or the simulator's own tables where the estimator is `exact`."""
    params = state.params
    if params[P.estimator] == 2:
        return exact_time(state, instance, load)
    coefficients = (params[P.longest_ps], params[P.mean_ps], params[P.base_ps], params[P.request_ps],
                    params[P.context_ps])
    floor = params[P.least_ps] if params[P.decode_form] == 1 else 0.0
    return mixed_time(params[P.overlap], load.prefill_ps,
                      decode_time(coefficients, floor, load.decodes, load.context, load.longest))


@inner
def exact_time(state, instance, load):
    """What the simulator's tables say of a batch, in ps; each prompt is taken to end its prefill."""
    table = state.instances[instance].belief
    if load.prompts == 0:
        if load.decodes == 0:
            return 0.0
        return float(skewed_decode(state, table, load.decodes, load.context, load.longest))
    alone = prefill_attention(state, table, load.work, load.rows, load.reach, float(load.prompts))
    latency = (dense_latency(state, table, load.tokens + load.decodes)
               + state.head_ps[table, load.prompts + load.decodes]
               + attention_together(state, table, alone, load.tokens / load.prompts, load.reach / load.prompts,
                                    load.decodes, load.context, load.longest))
    return max(float(latency), float(state.tables[table].prefill_floor_ps))


# --- Service level (5.1) --------------------------------------------------------------------------------------------
@inner
def slack(state, slot):
    """Ps from now until a request's next token is due: D(i) less what it has waited; NEVER for offline ones."""
    request, now = state.requests[slot], state.clock.now_ps
    if not request.urgent:
        return np.int64(NEVER)
    due = request.arrival_ps + request.ttft_slo_ps
    if request.generated_tokens > 0:
        if state.params[P.due_from] == 1:
            due = request.first_token_ps
        due += np.int64(request.generated_tokens) * request.tpot_slo_ps
    if due <= now and state.params[P.late] == 1:
        return np.int64(NEVER)
    return due - now


# --- Memory of bursts to come (5.3) ---------------------------------------------------------------------------------
@inner
def online_blocks(state, instance):
    """KV blocks that running online requests hold, shared ones counted for each holder."""
    blocks = np.int64(0)
    for i in range(state.instances[instance].running):
        request = state.requests[state.members[BATCH, instance, i]]
        if request.urgent:
            blocks += request.blocks
    return blocks


@inner
def remember(state, instance, blocks):
    """Adds the time since the last call, during which online requests held what they held then, to the history.

    State.memory of an instance: for each quarter of the history the sums of seconds, of block-seconds and of squared
    blocks times seconds; then the number of the newest quarter, the time of the last call and the blocks held then.
    """
    memory, quarter_s = state.memory[instance], state.params[P.history_s] / BUCKETS
    now_s = state.clock.now_ps / PS_PER_S
    at_s = memory[SINCE]
    while at_s < now_s:
        number = np.floor(at_s / quarter_s)
        if now_s - at_s > 2.0 * state.params[P.history_s]:  # an idle day: no need to walk through it
            number = np.floor(now_s / quarter_s) - BUCKETS
            at_s = number * quarter_s
        if number != memory[NEWEST]:
            place = 3 * (int(number) % BUCKETS)
            memory[place : place + 3] = 0.0
            memory[NEWEST] = number
        place = 3 * (int(number) % BUCKETS)
        until_s = min(now_s, (number + 1.0) * quarter_s)
        if until_s <= at_s:  # the quarter's end rounds to here
            until_s = min(now_s, (number + 2.0) * quarter_s)
        memory[place] += until_s - at_s
        memory[place + 1] += (until_s - at_s) * memory[USED]
        memory[place + 2] += (until_s - at_s) * memory[USED] * memory[USED]
        at_s = until_s
    memory[SINCE], memory[USED] = now_s, float(blocks)


@inner
def expected_blocks(state, instance):
    """Mean plus `reserve_sigmas` standard deviations of the blocks that online requests held in the history."""
    memory = state.memory[instance]
    seconds, first, square = 0.0, 0.0, 0.0
    for quarter in range(BUCKETS):
        seconds += memory[3 * quarter]
        first += memory[3 * quarter + 1]
        square += memory[3 * quarter + 2]
    if seconds <= 0.0:
        return 0.0
    mean = first / seconds
    return mean + state.params[P.reserve_sigmas] * np.sqrt(max(0.0, square / seconds - mean * mean))


@inner
def reserved_for_bursts(state, instance, held):
    """Blocks to leave free for online requests to come, which hold `held` now (4.2's threshold)."""
    mode = state.params[P.reserve]
    if mode == 0:
        return np.int64(0)
    expected = expected_blocks(state, instance)
    return np.int64(np.ceil(expected if mode == 2 else max(0.0, expected - held)))


# --- Micro-benchmarks (5.2) -----------------------------------------------------------------------------------------
# The paper does not print its benchmarks. Ours are batches drawn at random, priced by the cost tables: prompts alone at
# lengths in equal steps of their logarithm; decode batches whose size and mean context are log-uniform, whose contexts
# spread log-normally, and which fit the memory; and such batches beside one chunk of a prompt. Coefficients by least
# squares, none negative; the error is measured on batches drawn apart.
SAMPLES = 400  # batches of a kind, and as many to measure the error on
LONGEST_TOKENS = 32_768
TRIES = 1000  # draws of a batch
PREFILL_FORMS, DECODE_FORMS = ("max", "additive"), ("pooled", "floored", "counted")
DECODE_COLUMNS = {"pooled": ("longest_ps", "mean_ps"), "floored": ("longest_ps", "mean_ps"),
                  "counted": ("base_ps", "request_ps", "longest_ps", "context_ps")}
KEPT = 256  # estimates of tables
KEPT_DRAWS = 256  # of some 0.3 MB each


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


def fit(table: CostTable, largest_batch: int, prefill_form: str = "max", decode_form: str = "pooled",
        block_tokens: int = 16) -> Estimate:
    """Fits the estimator to an instance.

    Args:
        table: what the instance's iterations take.
        largest_batch: requests in the largest decode batch benchmarked.
        prefill_form: `max` or `additive`, how the minimum time enters T_p.
        decode_form: `pooled`, `floored` or `counted`.
        block_tokens: tokens of a block of the instance's memory, which no benchmark exceeds.
    """
    return _fit(table, largest_batch, prefill_form, decode_form, table.kv_blocks * block_tokens)


@lru_cache(KEPT)
def _fit(table: CostTable, largest_batch: int, prefill_form: str, decode_form: str, memory_tokens: int) -> Estimate:
    lengths = prompt_lengths(memory_tokens)
    found = fit_prefill(lengths, prefill_alone_ps(table, lengths), prefill_form)
    train, test = (draw_batches(table, largest_batch, part, memory_tokens) for part in (0, 1))
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


def prompt_lengths(memory_tokens: int) -> np.ndarray:
    """Lengths of the prompts that are benchmarked alone: int64[n], four to a doubling, as far as memory goes."""
    longest = max(16, min(LONGEST_TOKENS, memory_tokens))
    return np.unique(np.rint(steady(2.0 ** np.arange(4.0, np.log2(longest) + 1e-9, 0.25))).astype(np.int64))


def fit_prefill(lengths: np.ndarray, true_ps: np.ndarray, form: str) -> dict[str, float]:
    """Least squares of T_p.

    Args:
        lengths: int64[n] ascending, tokens.
        true_ps: float64[n].
        form: `max`: every number of short prompts is tried as those that take the least time; `additive`.
    """
    tokens = lengths.astype(np.float64)
    columns = np.stack([tokens**2, tokens], axis=1)
    if form == "additive":
        whole = np.column_stack([columns, np.ones(len(tokens))])
        a, b, c = least_squares(whole / true_ps[:, None], np.ones(len(tokens)))
        return {"square_ps": float(a), "token_ps": float(b), "least_ps": float(c)}
    best, least = {}, np.inf
    for short in range(len(tokens) - 2):
        a, b = least_squares(columns[short:] / true_ps[short:, None], np.ones(len(tokens) - short))
        c = float(true_ps[:short].mean()) if short else 0.0
        error = (((np.maximum(columns[:, 0] * a + columns[:, 1] * b, c) - true_ps) / true_ps) ** 2).sum()
        if error < least:
            best, least = {"square_ps": float(a), "token_ps": float(b), "least_ps": c}, error
    return best


def fit_decode(batches: Batches, form: str) -> dict[str, float]:
    """Least squares of T_d; `floored` has the minimum time of the prefill besides."""
    found = dict.fromkeys(("longest_ps", "mean_ps", "base_ps", "request_ps", "context_ps"), 0.0)
    names = DECODE_COLUMNS[form]
    columns = np.stack([decode_features(batches)[name] for name in names], axis=1)
    return found | dict(zip(names, least_squares(columns, batches.true_ps).tolist(), strict=True))


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


def draw_batches(table: CostTable, largest_batch: int, part: int, memory_tokens: int) -> dict[str, Batches]:
    """Benchmarks of each kind; another `part` is drawn apart."""
    return {kind: Batches(contexts, chunks, latency_ps(table, chunks, contexts))
            for kind, (contexts, chunks) in _drawn(largest_batch, part, memory_tokens).items()}


@lru_cache(maxsize=KEPT_DRAWS)
def _drawn(largest_batch: int, part: int, memory_tokens: int) -> dict[str, tuple[tuple[np.ndarray, ...], np.ndarray]]:
    """Contexts and chunks of each kind of benchmark: instances that differ in speed alone have the same ones."""
    rng = np.random.Generator(np.random.Philox(key=part))
    longest = max(16, min(LONGEST_TOKENS, memory_tokens))
    prompts = np.rint(steady(2.0 ** rng.uniform(4.0, np.log2(longest), SAMPLES))).astype(np.int64)
    empty = np.zeros(0, np.int64)
    decodes = [_contexts(rng, largest_batch, memory_tokens) for _ in range(SAMPLES)]
    beside = [_contexts(rng, largest_batch, memory_tokens) for _ in range(SAMPLES)]
    new = np.rint(steady(2.0 ** rng.uniform(4.0, 11.0, SAMPLES))).astype(np.int64)
    done = np.rint(steady(2.0 ** rng.uniform(4.0, 14.0, SAMPLES)) * rng.integers(0, 2, SAMPLES)).astype(np.int64)
    return {"prefill": ((empty,) * SAMPLES, np.stack([0 * prompts, prompts], axis=1)),
            "decode": (tuple(decodes), np.zeros((SAMPLES, 2), np.int64)),
            "mixed": (tuple(beside), np.stack([done, new], axis=1))}


def latency_ps(table: CostTable, chunks: np.ndarray, contexts: Sequence[np.ndarray]) -> np.ndarray:
    """What iterations of a chunk (tokens done, new tokens; none: 0, 0) and some decodes take: float64[n], in ps."""
    return mixed_latency_ps(table, chunks[:, 1:], chunks[:, :1], [len(one) for one in contexts],
                            [one.sum() for one in contexts],
                            longest=[one.max(initial=0) for one in contexts]).astype(np.float64)


def _contexts(rng: np.random.Generator, largest_batch: int, memory_tokens: int) -> np.ndarray:
    """Contexts of a batch that memory holds; one request that fills it, where it holds hardly any that is drawn."""
    most = np.log2(largest_batch + 0.99)
    for _ in range(TRIES):
        count = int(steady(2.0 ** rng.uniform(0.0, most)))
        mean = steady(2.0 ** rng.uniform(6.0, 14.0))
        drawn = steady(rng.lognormal(0.0, rng.uniform(0.0, 1.0), count))
        if mean * np.add.reduce(drawn) > memory_tokens + count:  # also when rounded; where memory is small, most are
            continue
        contexts = np.maximum(1, np.rint(mean * drawn)).astype(np.int64)
        if contexts.sum() <= memory_tokens:
            return contexts
    return np.array([memory_tokens])
