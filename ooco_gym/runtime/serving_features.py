"""What a policy of `Serving-v0` sees of the engines that a request may be sent to, beside one engine's own features.

`observe_targets(request, engines)` computes from plain descriptions what the simulator's compiled code computes from
its state (a test compares both); `docs/batching_features.md` says where an engine has it. Nothing here needs numba or
the simulator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ooco_gym.runtime.batching_features import Found, tokens_of
from ooco_gym.runtime.features import NONE_MS, TARGET


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
    return TARGET.scaled(_target(request, engine) for engine in engines)


def _target(request: Mapping[str, Any], engine: Mapping[str, Any]) -> tuple[float, ...]:
    """The figures of one engine."""
    found, values = Found(engine), {}
    for name in ("online", "offline"):
        there = found.values
        requests = there[f"{name}_decodes"] + there[f"{name}_prompts"] + there[f"{name}_waiting"]
        values[name] = (requests, there[f"{name}_prompt_tokens"] + there[f"{name}_waiting_tokens"])
    tokens, cached = tokens_of(request), engine["num_cached_tokens"]
    due = NONE_MS
    if request["online"]:
        due = 1e3 * (request["arrival_time"] + request["ttft_slo"] - engine["now"])
    return (1.0, tokens, float(request["online"]), due, cached / tokens,
            1e3 * found.latency([(tokens - cached, tokens)]),
            engine["num_blocks_to_allocate"] / max(1, engine["num_free_blocks"]), found.values["kv_free"],
            found.values["seats_free"], *values["online"], *values["offline"], found.values["online_step"],
            found.values["decode_step"], float(engine["is_default"]))
