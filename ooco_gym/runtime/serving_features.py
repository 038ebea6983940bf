"""What a policy of `Serving-v0` sees of the engines that a request may be sent to, beside one engine's own features.

`observe_targets(request, engines)` computes from plain descriptions what the simulator's compiled code computes from
its state (a test compares both); `docs/batching_features.md` says where an engine has it. Nothing here needs numba or
the simulator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ooco_gym.runtime.batching_features import (
    _BELIEF,
    _CLASS,
    _LATE_MS,
    _MISSING,
    _NONE_MS,
    _RUNNING,
    _WAITING,
    Found,
    _log,
    _share,
    _tokens,
    scaled,
)

_ALL = f"{_RUNNING}, {_WAITING}"
TARGET = (
    _share("present", 1.0, "1 where there is an engine", "–"),
    _log("tokens", "tokens", 32_768, "the request's context", "`Request.num_tokens`"),
    _share("online", 1.0, "1 where it is an online request", _CLASS),
    _log("deadline", "ms", _LATE_MS, "until its first token is due; 1 of an offline request",
         "`Request.arrival_time`; the SLO is yours"),
    _share("cached", 1.0, "share of its tokens in the engine's prefix cache", "`KVCacheManager.get_computed_blocks`"),
    _log("prefill", "ms", 10_000, "believed latency of computing alone what it misses there", _BELIEF),
    _share("memory", 1.0, "KV blocks that its context takes over the free ones; those count that are cached and that "
           "no request reads", "`KVCacheCoordinator.get_num_blocks_to_allocate`, `BlockPool.get_num_free_blocks`"),
    _share("free", 1.0, "free KV blocks over all", "`BlockPool.get_num_free_blocks`, `num_gpu_blocks`"),
    _share("seats", 1.0, "free seats over all", "`len(Scheduler.running)`, `max_num_seqs`"),
    _log("online_requests", "requests", 1024, "online requests there, running and waiting", _ALL),
    _log("online_missing", "tokens", 1e6, "tokens that the online prompts there miss, running and waiting",
         f"{_ALL}; {_MISSING}"),
    _log("offline_requests", "requests", 4096, "offline requests there, running and waiting", _ALL),
    _log("offline_missing", "tokens", 1e7, "tokens that the offline prompts there miss, running and waiting",
         f"{_ALL}; {_MISSING}"),
    _share("online_decodes", 4.0, "believed latency of an iteration of the online decodes there alone, over the TPOT "
           "SLO", _BELIEF),
    _share("decodes", 4.0, "believed latency of one of all decodes there, over the TPOT SLO", _BELIEF),
    _share("default", 1.0, "1 where the partner's router would send it", "your router's own"),
)


def observe_targets(request: Mapping[str, Any], engines: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """What a policy of `Serving-v0` sees of the engines to which a request that has just arrived may be sent.

    Args:
        request: in the manner of `batching_features.observe`.
        engines: each as `batching_features.observe` takes it, with the request's `num_cached_tokens`,
            `num_blocks_to_allocate` (for its whole context there) and `is_default` (the router's own choice) besides.

    Returns:
        float32 (engines, features of `TARGET`).

    Raises:
        KeyError: a description lacks a key.
    """
    rows = [_target(request, engine) for engine in engines]
    return np.array(rows, np.float32).reshape(len(rows), len(TARGET))


def _target(request: Mapping[str, Any], engine: Mapping[str, Any]) -> list[float]:
    """The features of one engine."""
    found, values = Found(engine), {}
    for name in ("online", "offline"):
        there = found.values
        requests = there[f"{name}_decodes"] + there[f"{name}_prompts"] + there[f"{name}_waiting"]
        values[name] = (requests, there[f"{name}_prompt_tokens"] + there[f"{name}_waiting_tokens"])
    tokens, cached = _tokens(request), engine["num_cached_tokens"]
    due = _NONE_MS
    if request["online"]:
        due = 1e3 * (request["arrival_time"] + request["ttft_slo"] - engine["now"])
    figures = (1.0, tokens, float(request["online"]), due, cached / tokens,
               1e3 * found.latency([(tokens - cached, tokens)]),
               engine["num_blocks_to_allocate"] / max(1, engine["num_free_blocks"]), found.values["kv_free"],
               found.values["seats_free"], *values["online"], *values["offline"], found.values["online_step"],
               found.values["decode_step"], float(engine["is_default"]))
    return [scaled(feature, figure) for feature, figure in zip(TARGET, figures, strict=True)]
