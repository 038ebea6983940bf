"""Pools and mixed instances side by side, looked at as two clusters: what must hold of either kind is one text."""

from __future__ import annotations

import numpy as np

from ooco_gym.sim import state as s
from tests.sim.invariants import check as check_pools
from tests.sim.invariants import check_turns
from tests.sim.mixed_invariants import check_mixed

BY_INSTANCE = ("instances", "lanes", "ends", "gaps", "waiting_window", "memory", "blocks", "kv", "heaps", "waiting",
               "outputs")


def side_of(state: s.State, mixed: bool) -> s.State:
    """A copy with the instances of one side; requests of the other have not arrived."""
    chosen = np.flatnonzero((state.instances["role"] == s.MIXED) == mixed)
    number = np.full(state.instances.size + 1, -1)
    number[chosen] = np.arange(len(chosen))
    requests, config = state.requests.copy(), state.config.copy()
    other = (requests["instance"] >= 0) & (number[requests["instance"]] < 0)
    waits = np.zeros(1, requests.dtype)
    for name in ("instance", "origin", "target", "previous", "next", "row", "cached_tokens"):
        waits[name] = -1
    waits["arrival_ps"], waits["prompt_tokens"], waits["output_tokens"] = s.NEVER, 1, 1
    requests[other] = waits
    for name in ("instance", "origin", "target"):
        requests[name] = number[requests[name]]
    config.strict_from -= config.mixed_count
    config.clients = 0  # what waits for another waits for either side's: looked at as a whole
    mine = {name: getattr(state, name)[chosen] for name in BY_INSTANCE}
    return state._replace(requests=requests, config=config, members=state.members[:, chosen],
                          followers=state.followers[:0], turns=np.zeros_like(state.turns), **mine)


def check(state: s.State) -> None:
    """What must hold of a cluster of pools, or of pools with mixed instances beside them."""
    if state.config.mixed_count == 0:
        check_pools(state)
        return
    check_turns(state)
    check_pools(side_of(state, False))
    check_mixed(side_of(state, True))
