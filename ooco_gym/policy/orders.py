"""Scores by which waiting offline requests are admitted, least first: one text for `baselines/admitter.py` in the
simulator and for `ooco_gym/vllm/admitter.py` in vLLM."""

from __future__ import annotations

from ooco_gym.compile import inlined

ORDERS = ("arrival", "prefix", "lpm", "dfs_weight", "shortest", "least_work", "shared_work")
ARRIVAL, PREFIX, LPM, DFS_WEIGHT, SHORTEST, LEAST_WORK, SHARED_WORK = range(len(ORDERS))


@inlined
def order_score(order, arrival, tokens, cached, members, shared):
    """The score of a waiting request; all arguments but `order` are floats.

    Args:
        order: one of the places of `ORDERS`; `prefix` has none, as its walk is its order.
        arrival: what grows with the arrival.
        tokens: of the context.
        cached: tokens in the prefix cache.
        members: waiting requests with its prefix, itself included.
        shared: uncached tokens of the prefix that it shares with them.
    """
    if order == ARRIVAL:
        return arrival
    if order == LPM:
        return -cached
    if order == DFS_WEIGHT:
        return -members
    if order == SHORTEST:
        return tokens
    return tokens - (cached + (shared * (1.0 - 1.0 / members) if order == SHARED_WORK else 0.0))
