"""The requests of a cell, and what a cell comes to, the same for the real engine and for the simulator."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ooco_gym.errors import UserError, check_keys
from ooco_gym.files import atomic_write
from ooco_gym.scenario import Scenario
from ooco_gym.sim import state as s
from ooco_gym.simulation import Simulation
from ooco_gym.workload import Trace, write_trace
from ooco_gym.workload.trace import BLOCK_TOKENS

FEW_TOKENS = 16  # of the protocol: below, a request's end is held against TTFT and TPOT together


class Promise(NamedTuple):
    """SLOs in seconds, and the share of online requests that may miss them."""

    ttft_s: float
    tpot_s: float
    budget: float


class Seen(NamedTuple):
    """What requests saw, float64[n] seconds from the beginning of the cell; NaN where it did not come.

    Attributes:
        sent_s: arrival.
        first_s: first token.
        last_s: last token that it asked for.
        offline_tokens: tokens that offline requests generated within the window.
        preemptions: of all requests.
    """

    sent_s: np.ndarray
    first_s: np.ndarray
    last_s: np.ndarray
    offline_tokens: int
    preemptions: int


def drawn_trace(plan: Mapping[str, Any], online_per_s: float, offline_per_s: float, seed: int) -> Trace:
    """Requests of both classes that arrive at random within the window, and offline ones that are there from the start.

    Args:
        plan: `window_s`, `longest` (tokens of a request), `offline_first` (requests at the start), and for `online` and
            `offline` the `prompt_tokens` and `output_tokens` as `{median, sigma}` of a log-normal; with `documents`
            (`count`, and `tokens` in whole pieces of 512) each offline prompt begins with one of these.
        online_per_s: rate of online arrivals.
        offline_per_s: rate of offline ones.
        seed: of the draws.
    """
    columns = []
    for place, (kind, rate) in enumerate((("online", online_per_s), ("offline", offline_per_s))):
        draws = np.random.Generator(np.random.Philox(key=[seed, place]))
        count = draws.poisson(rate * plan["window_s"])
        arrivals = np.sort(draws.uniform(0.0, plan["window_s"], count))
        if kind == "offline":
            arrivals = np.concatenate([np.zeros(plan["offline_first"]), arrivals])
        sizes = []
        for key in ("prompt_tokens", "output_tokens"):
            shape = plan[kind][key]
            tokens = np.rint(shape["median"] * np.exp(shape["sigma"] * draws.standard_normal(len(arrivals))))
            sizes.append(np.clip(tokens, 2, plan["longest"] // 2 - 1).astype(np.int32))
        columns.append((arrivals, *sizes, np.full(len(arrivals), kind == "online")))
    arrival, prompt, output, online = (np.concatenate(part) for part in zip(*columns, strict=True))
    order = np.argsort(arrival, kind="stable")
    trace = Trace(arrival_s=arrival[order], prompt_tokens=prompt[order], output_tokens=output[order],
                  online=online[order])
    return on_documents(trace, plan["documents"], int(plan["longest"]), seed) if plan.get("documents") else trace


def on_documents(trace: Trace, documents: Mapping[str, int], longest: int, seed: int) -> Trace:
    """The same with each offline prompt behind a document, drawn from `count` of `tokens` tokens; what is then longer
    than `longest` has a shorter question.

    Raises:
        UserError: there is no document, one is of no whole pieces, or too long for an engine of such requests.
    """
    check_keys("live.trace.documents", documents, ("count", "tokens"))
    tokens, count = int(documents.get("tokens", 0)), int(documents.get("count", 0))
    pieces, rest = divmod(tokens, BLOCK_TOKENS)
    if rest or not pieces or count < 1:
        raise UserError(f"live.trace.documents is {dict(documents)}; expected a count of at least 1, and tokens "
                        f"that are a multiple of {BLOCK_TOKENS}, by which traces tell prefixes apart")
    spare = longest - tokens - trace.output_tokens - 1
    if (spare[~trace.online] < 2).any():
        raise UserError(f"live.trace.documents.tokens is {tokens}; a document, a question and an answer of up "
                        f"to {trace.output_tokens[~trace.online].max()} tokens exceed the {longest} of a request")
    draws = np.random.Generator(np.random.Philox(key=[seed, 2]))
    drawn = draws.integers(count, size=int((~trace.online).sum()))
    offsets = np.concatenate([[0], np.cumsum(np.where(trace.online, 0, pieces))]).astype(np.int64)
    hashes = (drawn[:, None] * pieces + np.arange(pieces) + 1).ravel().astype(np.int64)
    prompts = np.where(trace.online, trace.prompt_tokens, tokens + np.minimum(trace.prompt_tokens, spare))
    return replace(trace, prompt_tokens=prompts.astype(np.int32), prefix_hashes=(offsets, hashes))


def document_of(trace: Trace, row: int) -> list[int] | None:
    """[Document, its tokens] that the prompt of a request begins with; None: none."""
    if trace.prefix_hashes is None:
        return None
    offsets, hashes = trace.prefix_hashes
    pieces = int(offsets[row + 1] - offsets[row])
    return [int(hashes[offsets[row]]), pieces * BLOCK_TOKENS] if pieces else None


def figures(trace: Trace, seen: Seen, promise: Promise, window_s: float, warm_s: float) -> dict[str, float]:
    """The figures of a cell: online requests that arrive between `warm_s` and the window's end count.

    Violations are those of docs/protocol.md. Percentiles of TTFT are over all that count, the ones without a first
    token as the largest there was.
    """
    counted = trace.online & (trace.arrival_s >= warm_s)
    tokens = trace.output_tokens
    ttft = seen.first_s - seen.sent_s
    tpot = (seen.last_s - seen.first_s) / np.maximum(tokens - 1, 1)
    ends = seen.sent_s + promise.ttft_s + (tokens - 1) * promise.tpot_s
    late = np.where(tokens >= FEW_TOKENS, tpot > promise.tpot_s, seen.last_s > ends)
    missed = ~(ttft <= promise.ttft_s) | np.isnan(seen.last_s) | late
    shown = np.where(np.isnan(ttft), np.nanmax(ttft[counted], initial=0.0), ttft)[counted]
    steady = tpot[counted & (tokens > 1) & ~np.isnan(tpot)]
    return {"offline_streamed_tokens_per_s": seen.offline_tokens / window_s,
            "violation_rate": float(missed[counted].mean()) if counted.any() else 0.0,
            "ttft_p50_s": float(np.quantile(shown, 0.5)) if shown.size else 0.0,
            "ttft_p99_s": float(np.quantile(shown, 0.99)) if shown.size else 0.0,
            "tpot_p50_s": float(np.quantile(steady, 0.5)) if steady.size else 0.0,
            "preemptions": float(seen.preemptions)}


def seen_by_client(trace: Trace, answers: list[dict[str, Any] | None], window_s: float, preemptions: float) -> Seen:
    """From what the client wrote of each request."""
    n = len(trace.arrival_s)
    sent, first, last = (np.full(n, np.nan) for _ in range(3))
    offline = 0
    for i, answer in enumerate(answers):
        if answer is None or answer["sent_s"] is None:
            continue
        sent[i] = answer["sent_s"]
        if answer["tokens"]:
            first[i] = answer["tokens"][0][0]
            if answer["tokens"][-1][1] == trace.output_tokens[i]:
                last[i] = answer["tokens"][-1][0]
        if not trace.online[i]:
            offline += max((count for at, count in answer["tokens"] if at <= window_s), default=0)
    return Seen(sent, first, last, offline, int(preemptions))


def simulated(trace: Trace, policy: dict[str, Any], cluster: dict[str, Any], promise: Promise, window_s: float,
              until_s: float, work: Path, belief: float = 1.0) -> Seen:
    """Plays a cell.

    Args:
        trace: its requests.
        policy: name and parameters.
        cluster: one mixed instance.
        promise: SLOs.
        window_s: of arrivals.
        until_s: for how long after it requests are waited for.
        work: folder for the trace.
        belief: what the policy believes that iterations take, over what they take.
    """
    path = work / "cell.parquet"
    with atomic_write(path) as temporary:
        write_trace(trace, temporary)
    scenario = Scenario(cluster=cluster, workload=str(path), timing="measured", start_s=0.0,
                        duration_s=window_s + until_s, warmup_s=0.0, drain_s=0.0, rate_scale=1.0,
                        slo={"ttft_s": promise.ttft_s, "tpot_s": promise.tpot_s}, offline={"mode": "rate", "rate": 0.0},
                        predictor="exact" if belief == 1.0 else {"name": "biased", "factor": belief})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        simulation = Simulation(scenario, policy)
        simulation.advance(window_s)
        rows = simulation.state.requests
        offline = int(rows["generated_tokens"][~trace.online].sum())
        simulation.advance(window_s + until_s)
    rows = simulation.state.requests
    began, done = rows["generated_tokens"] > 0, rows["status"] == s.FINISHED
    return Seen(1e-12 * rows["arrival_ps"], np.where(began, 1e-12 * rows["first_token_ps"], np.nan),
                np.where(done, 1e-12 * rows["finish_ps"], np.nan), offline, int(rows["evictions"].sum()))
