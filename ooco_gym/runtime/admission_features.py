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

from ooco_gym.runtime.batching_features import Found, tokens_of
from ooco_gym.runtime.features import ENTRY, TIE_S

MEAN_WEIGHT = 0.01  # of the newest request in the moving mean of output lengths


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
    return found.cluster(), ENTRY.scaled(_entry(found, engine, iteration, request) for request in requests)


def _entry(found: Found, engine: Mapping[str, Any], iteration: Mapping[str, Any],
           request: Mapping[str, Any]) -> tuple[float, ...]:
    """The figures of one candidate."""
    tokens, cached = tokens_of(request), request["num_cached_tokens"]
    missing, scheduled = tokens - cached, list(iteration["scheduled"])
    output = max(1.0, engine["offline_output_mean"] - request["num_output_tokens"])
    free, need = max(1, engine["num_free_blocks"]), request["num_blocks_to_allocate"]
    growth = math.ceil(math.ceil(tokens + output) / engine["block_size"]) - math.ceil(tokens / engine["block_size"])
    chunk, limit = min(missing, iteration["token_budget"]), iteration["time_limit"]
    before = found.latency(scheduled) if scheduled else 0.0
    step = max(before, min(limit, found.latency([*scheduled, (chunk, cached + chunk)])))
    late = sum(slack < step - TIE_S for slack in found.slacks) / max(1, len(found.slacks))
    return (1.0, tokens, cached / tokens, request["num_output_tokens"], output, found.now - request["arrival_time"],
            request["num_preemptions"], 1e3 * found.latency([(missing, tokens)]), need / free,
            (need + growth) / free, before / found.tpot, limit / found.tpot, step / found.tpot, late,
            float(request["is_next"]))
