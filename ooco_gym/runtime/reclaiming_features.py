"""What a policy of `Reclaiming-v0` sees besides the engine: the running offline requests that may give way, and how.

`observe_victims(engine, victims)` computes from plain descriptions what the simulator's compiled code computes from its
state (a test compares both); `docs/batching_features.md` says where an engine has it. The engine's own features are
those of `batching_features`. Nothing here needs numba or the simulator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ooco_gym.runtime.batching_features import LOOK_ONLINE, Found, missing, tokens_of
from ooco_gym.runtime.features import VICTIM


class Lack(NamedTuple):
    """Blocks that what must run takes beyond those that it holds, online requests' of them, and those that lack."""

    need: int
    online: int
    blocks: int


def lacking(engine: Mapping[str, Any]) -> Lack:
    """The blocks that lack for what must run in an engine's next iteration.

    That is the next token of every request that decodes; then, as far as the iteration's tokens go, online prompts that
    are under way; then whole contexts of the first online requests that wait, while there is a seat.

    Args:
        engine: as `observe_victims` takes it.
    """
    size, left, need = engine["block_size"], int(engine["max_num_batched_tokens"]), {True: 0, False: 0}
    prompts = []
    for request in engine["running"]:
        if decodes(request):
            left -= 1
            need[bool(request["online"])] += _new_blocks(request, 1, size)
        elif request["online"]:
            prompts.append(request)
    for request in prompts:
        tokens = min(left, missing(request))
        if tokens <= 0:
            break
        need[True] += _new_blocks(request, tokens, size)
        left -= tokens
    seats = min(LOOK_ONLINE, engine["max_num_seqs"] - len(engine["running"]))
    for request in list(engine["waiting_online"])[: max(0, seats)]:
        if left <= 0:
            break
        need[True] += request["num_blocks_to_allocate"]
        left -= tokens_of(request) - request["num_cached_tokens"]
    every, free = need[True] + need[False], engine["num_free_blocks"] - engine.get("num_reserved_blocks", 0)
    return Lack(every, need[True], max(0, every - free))


def decodes(request: Mapping[str, Any]) -> bool:
    """Whether a running request decodes, rather than computes its prompt (or, preempted, its context again)."""
    return request["num_output_tokens"] > 0 and missing(request) == 1


def observe_victims(engine: Mapping[str, Any], victims: Sequence[Mapping[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """What a policy of `Reclaiming-v0` sees of an engine whose blocks are short for its next iteration.

    Args:
        engine: as `batching_features.observe` takes it, with `block_size`, `offline_output_mean`
            (`admission_features.OutputMean`) and `host_tokens_per_s` (tokens whose memory the link to the host moves in
            a second); running requests have `num_blocks`, waiting online ones `num_cached_tokens` and
            `num_blocks_to_allocate` (for the whole context). Where some of `num_free_blocks` may not be taken,
            `num_reserved_blocks` says how many.
        victims: the candidates: `place` in `running`, `to_host` (bool; whether its memory goes there),
            `num_private_blocks` (that no other request reads) and `num_preemptions` of each.

    Returns:
        (float32 (features of `batching_features.ENGINE`,), float32 (victims, features of `VICTIM`)).

    Raises:
        KeyError: a description lacks a key.
    """
    found, lack = Found(engine), lacking(engine)
    offline = [place for place, request in enumerate(engine["running"]) if not request["online"]]
    orders = {place: order for order, place in enumerate(offline)}
    rows = []
    for victim in victims:
        order = orders[victim["place"]] / (len(offline) - 1) if len(offline) > 1 else 1.0
        rows.append(_victim(found, engine, lack, victim, order))
    return found.cluster(), VICTIM.scaled(rows)


def _victim(found: Found, engine: Mapping[str, Any], lack: Lack, victim: Mapping[str, Any],
            order: float) -> tuple[float, ...]:
    """The figures of one candidate."""
    request, size = engine["running"][victim["place"]], engine["block_size"]
    tokens, computed, free = tokens_of(request), request["num_computed_tokens"], victim["num_private_blocks"]
    own = _new_blocks(request, 1, size) if decodes(request) else 0
    cost = 2.0 * computed / engine["host_tokens_per_s"]
    if not victim["to_host"]:
        cost = found.latency([(computed, computed)]) if computed > 0 else 0.0
    return (1.0, tokens, computed / tokens, request["num_output_tokens"],
            max(1.0, engine["offline_output_mean"] - request["num_output_tokens"]),
            found.now - request["arrival_time"], victim["num_preemptions"], float(decodes(request)), order, free,
            (free + own) / max(1, lack.blocks), lack.blocks, lack.online / max(1, lack.need),
            float(victim["to_host"]), 1e3 * cost)


def _new_blocks(request: Mapping[str, Any], tokens: int, size: int) -> int:
    """Blocks beyond those held that a running request needs to compute `tokens` more."""
    return max(0, -(-(request["num_computed_tokens"] + tokens) // size) - request["num_blocks"])
