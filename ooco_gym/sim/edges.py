"""What a run has done up to a time. A window's metrics are the differences between its two edges."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ooco_gym.sim import state as s
from ooco_gym.sim.memory import PS_PER_US

KINDS = ("online_prefill", "offline_prefill", "decode")  # of an instance's time
_OF_POOLS = {s.PREFILL_ONLINE: 0, s.PREFILL_OFFLINE: 1, s.DECODE: 2}


class Edge(NamedTuple):
    """Sums of a run up to a time, of n requests and m instances.

    Attributes:
        computed_tokens: int32[n], computed and not lost tokens (`computed_tokens`).
        busy_ps: int64[m, 3], time by `KINDS`, with the iteration in progress.
        block_us: int64[m], blocks of KV memory in use, times microseconds.
        prefix_tokens: int64[m, 2], context lengths at first admission, and tokens of these found in the prefix cache.
        used_ps: int64[m], time for which an instance of an elastic fleet is paid for; int64[0] of a fixed one.
        changes: int64[g, 2], starts and reclaims of its groups.
        loaded: int64[m, 2], tokens loaded from host memory as second tier, and hits only there; int64[0, 2] without.
    """

    computed_tokens: np.ndarray
    busy_ps: np.ndarray
    block_us: np.ndarray
    prefix_tokens: np.ndarray
    used_ps: np.ndarray
    changes: np.ndarray
    loaded: np.ndarray

    def since(self, before: Edge) -> Edge:
        """Returns the sums between an earlier time and this one."""
        return Edge(*(mine - theirs for mine, theirs in zip(self, before, strict=True)))


def edge_of(state: s.State, at_ps: int) -> Edge:
    """Returns the sums up to a time, from a flushed state in which all events before it have
    happened, and none at it."""
    instances = state.instances
    busy_ps = np.stack([instances[f"{kind}_ps"] for kind in KINDS], axis=1)
    for index, spec in enumerate(instances):
        busy_ps[index] += _in_progress_ps(state, index, spec, at_ps)
    used, units = instances["total_blocks"] - instances["free_blocks"], state.units
    paid = instances["power"][: units.size] != s.OFF
    return Edge(computed_tokens(state.requests), busy_ps, used * (at_ps // PS_PER_US) - instances["kv_times_us"],
                np.stack([instances["looked_tokens"], instances["cached_tokens"]], axis=1),
                units["used_ps"] + np.where(paid, at_ps - units["begun_ps"], 0),
                np.stack([state.groups["starts"], state.groups["reclaims"]], axis=1),
                np.stack([state.tier["loaded_tokens"], state.tier["hits"]], axis=1))


def _in_progress_ps(state: s.State, index: int, spec: Any, at_ps: int) -> list[int]:
    """Returns the time by `KINDS` that an instance's present iteration has taken; a mixed
    instance's is shared by tokens, as when it ends."""
    shares, elapsed = [0, 0, 0], at_ps - int(spec["start_ps"])
    if spec["activity"] in _OF_POOLS:
        shares[_OF_POOLS[spec["activity"]]] = elapsed
    elif spec["activity"] == s.MIXING and spec["new_tokens"] > 0:
        prompts = [int(spec["online_tokens"]), int(spec["offline_tokens"])]
        if not state.config.async_scheduling:  # they are counted when it ends
            requests = state.requests[state.members[s.BATCH, index, : spec["running"]]]
            tokens = requests["num_scheduled_tokens"]
            prefills = (requests["generated_tokens"] == 0) | (tokens > 1)
            prompts = [int(tokens[prefills & (requests["urgent"] == urgent)].sum()) for urgent in (1, 0)]
        shares[:2] = [elapsed * part // int(spec["new_tokens"]) for part in prompts]
        shares[2] = elapsed - sum(shares)
    return shares


def computed_tokens(requests: np.ndarray) -> np.ndarray:
    """Computed and not lost tokens of each of n requests (`REQUEST`), int32[n]: prompt tokens,
    except those from the prefix cache, and generated ones. A prompt counts as far as it is
    computed; on pools, and once the first token exists, as a whole."""
    generated = requests["generated_tokens"]
    tokens = np.where(generated > 0, requests["prompt_tokens"], requests["num_computed_tokens"])
    tokens -= np.maximum(requests["cached_tokens"], 0)
    return np.maximum(tokens, 0, out=tokens) + generated
