"""What a policy of `Admission-v0` sees besides the engine: the waiting offline requests that may enter, and how.

`observe_entries(engine, iteration, requests)` computes from plain descriptions what the simulator's compiled code
computes from its state (a test compares both); `docs/batching_features.md` says where an engine has it. The engine's
own features are those of `batching_features`. Nothing here needs numba or the simulator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ooco_gym.runtime.batching_features import (
    _BELIEF,
    _DUE,
    _TIE_S,
    _TIMES_SLO,
    ENGINE,
    Found,
    _log,
    _share,
    _tokens,
    scaled,
)

MEAN_WEIGHT = 0.01  # of the newest request in the moving mean of output lengths
_BLOCKS = "`KVCacheCoordinator.get_num_blocks_to_allocate`, `BlockPool.get_num_free_blocks`"
_OUTPUT = "to be kept where requests finish: `OutputMean`; `num_output_tokens`"
ENTRY = (
    _share("present", 1.0, "1 where there is a candidate", "–"),
    _log("tokens", "tokens", 32_768, "its context: prompt and what it has generated", "`Request.num_tokens`"),
    _share("cached", 1.0, "share of them that need not be computed: in the prefix cache, or swapped out",
           "`KVCacheManager.get_computed_blocks`"),
    _log("generated", "tokens", 16_384, "tokens generated so far", "`Request.num_output_tokens`"),
    _log("output", "tokens", 16_384, "tokens that it is believed to generate still: the moving mean of finished "
         "offline requests less what it has generated, at least 1", _OUTPUT),
    _log("wait", "s", 3600, "time since its arrival", "`Request.arrival_time`"),
    _share("evictions", 4.0, "times that it was preempted", "`Request.num_preemptions`"),
    _log("prefill", "ms", 10_000, "believed latency of computing alone what it misses", _BELIEF),
    _share("memory", 1.0, "KV blocks that its context takes over the free ones; those count that are cached and that "
           "no request reads", _BLOCKS),
    _share("growth", 4.0, "the same with the output that it is believed to generate", f"{_BLOCKS}; {_OUTPUT}"),
    _share("before", _TIMES_SLO, "believed latency of the iteration as composed so far, over the TPOT SLO", _BELIEF),
    _share("limit", _TIMES_SLO, "how long offline prompts may make it, over the TPOT SLO", "your scheduler's own"),
    _share("step", _TIMES_SLO, "its believed latency with this request, which gets as many tokens as the limit and the "
           "token budget leave, over the TPOT SLO", f"{_BELIEF}; `max_num_batched_tokens`"),
    _share("late", 1.0, "share of the running online requests in time that would be behind their deadline after that",
           f"{_DUE}; {_BELIEF}"),
    _share("first", 1.0, "1 where it is what the scheduler would try next", "`Scheduler.waiting.peek_request`"),
)


class OutputMean:
    """Moving mean of the output lengths of offline requests that finished, the newest with weight `MEAN_WEIGHT`.

    Args:
        tokens: what is believed before one has finished.
    """

    def __init__(self, tokens: float = 0.0) -> None:
        self.tokens = tokens

    def finished(self, num_output_tokens: int) -> None:
        """An offline request has finished."""
        self.tokens += MEAN_WEIGHT * (num_output_tokens - self.tokens)

    def describe(self) -> dict[str, Any]:
        """The key of an engine that is kept here."""
        return {"offline_output_mean": self.tokens}


def observe_entries(engine: Mapping[str, Any], iteration: Mapping[str, Any],
                    requests: Sequence[Mapping[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """What a policy of `Admission-v0` sees of an engine whose next iteration lacks but the offline newcomers.

    Args:
        engine: as `batching_features.observe` takes it, with `block_size` and `offline_output_mean` (`OutputMean`).
        iteration: as composed so far: `scheduled` (new tokens, context after them) of each request in it,
            `time_limit` (believed seconds that it may take with offline prompts), `token_budget` (tokens left).
        requests: the candidates, waiting offline requests in the manner of `engine`, with `num_cached_tokens`,
            `num_preemptions`, `num_blocks_to_allocate` (for the whole context) and `is_next` besides.

    Returns:
        (float32 (features of `batching_features.ENGINE`,), float32 (requests, features of `ENTRY`)).

    Raises:
        KeyError: a description lacks a key.
    """
    found = Found(engine)
    cluster = np.array([scaled(feature, found.values[feature.name]) for feature in ENGINE], np.float32)
    rows = [_entry(found, engine, iteration, request) for request in requests]
    return cluster, np.array(rows, np.float32).reshape(len(rows), len(ENTRY))


def _entry(found: Found, engine: Mapping[str, Any], iteration: Mapping[str, Any],
           request: Mapping[str, Any]) -> list[float]:
    """The features of one candidate."""
    tokens, cached = _tokens(request), request["num_cached_tokens"]
    missing, scheduled = tokens - cached, list(iteration["scheduled"])
    output = max(1.0, engine["offline_output_mean"] - request["num_output_tokens"])
    free, need = max(1, engine["num_free_blocks"]), request["num_blocks_to_allocate"]
    growth = math.ceil(math.ceil(tokens + output) / engine["block_size"]) - math.ceil(tokens / engine["block_size"])
    chunk, limit = min(missing, iteration["token_budget"]), iteration["time_limit"]
    before = found.latency(scheduled) if scheduled else 0.0
    step = max(before, min(limit, found.latency([*scheduled, (chunk, cached + chunk)])))
    late = sum(slack < step - _TIE_S for slack in found.slacks) / max(1, len(found.slacks))
    figures = (1.0, tokens, cached / tokens, request["num_output_tokens"], output, found.now - request["arrival_time"],
               request["num_preemptions"], 1e3 * found.latency([(missing, tokens)]), need / free,
               (need + growth) / free, before / found.tpot, limit / found.tpot, step / found.tpot, late,
               float(request["is_next"]))
    return [scaled(feature, figure) for feature, figure in zip(ENTRY, figures, strict=True)]
