"""Echo's plan generator and plan selector (arXiv 2504.03651, sections 3.1, 4.1 and 6) for the next
offline request.

A batch's value is (Benefit - Punish) / T: the tokens that it processes, less the tokens that it
evicts although they will be needed again, over its time. Offline requests join one at a time, the
best of a few candidates. Candidates are the first in the queue, and neighbours of running or recent
requests in the trie of their length bucket, which share the longest prefixes with the cache. The
victim of a preemption is the request without which the batch's value is highest.
"""

import numpy as np

from baselines.echo_estimator import P, batch_time, with_chunk, with_decode, without_decode
from ooco_gym.compile import inner
from ooco_gym.policy.latency_budget import decodes
from ooco_gym.policy.mixed import (
    bucket_of,
    bucket_start,
    get_computed_blocks,
    next_in_order,
    num_free_blocks,
    previous_in_order,
    rank_of,
    worthless,
)
from ooco_gym.sim.costs import blocks_for, length
from ooco_gym.sim.state import BATCH, BUCKETS

LAST_RANK = 15  # place in State.memory: one more than the rank of the request admitted last; 0: none yet
NOWHERE = -1e300


# --- What memory a request would take -------------------------------------------------------------------------------
@inner
def blocks_to_start(state, instance, slot):
    """Free blocks that a waiting request needs to start with its whole context.

    Returns:
        (cached tokens, free blocks needed, those of them that hold the cached tokens).
    """
    start, blocks, idle = get_computed_blocks(state, instance, slot)
    return start, blocks_for(state, length(state, slot)) - blocks + idle, idle


# --- What a request adds to a batch ---------------------------------------------------------------------------------
@inner
def with_running(state, load, slot, tokens):
    """Adds `tokens` tokens of a running request to the batch."""
    done = np.int64(state.requests[slot].num_computed_tokens)
    if decodes(state, slot):
        return with_decode(state, load, done + 1)
    return with_chunk(state, load, done, tokens, tokens, 1)


@inner
def without_running(state, load, slot):
    """Removes a running request's tokens from the batch."""
    request = state.requests[slot]
    done, tokens = np.int64(request.num_computed_tokens), np.int64(request.num_scheduled_tokens)
    if tokens == 0:
        return load
    if decodes(state, slot):
        return without_decode(state, load, done + 1)
    return with_chunk(state, load, done, tokens, tokens, -1)


@inner
def with_waiting(state, load, start, tokens):
    """Adds a waiting request with `start` cached tokens and `tokens` new ones to the batch.

    Both count as benefit: else the best choice would have the least in the cache.
    """
    return with_chunk(state, load, start, tokens, start + tokens, 1)


@inner
def value(state, load, punish):
    """(Benefit - Punish) / T of a batch, in tokens per ps."""
    return (load.benefit - punish) / max(1.0, batch_time(state, load))


# --- The victim -----------------------------------------------------------------------------------------------------
@inner
def yields(state, instance, load, scheduled):
    """Returns the place of the running offline request to preempt, or -1; `scheduled`: only among
    requests with tokens.

    Its own tokens are its punishment, since they will be recomputed.
    """
    spec, batch = state.instances[instance], state.members[BATCH, instance]
    best, most = -1, NOWHERE
    for place in range(spec.running - 1, -1, -1):
        request = state.requests[batch[place]]
        if request.urgent or (scheduled and request.num_scheduled_tokens == 0):
            continue
        if state.params[P.selection] == 0:  # the engine's own: the one that arrived last
            worth = float(request.arrival_ps)
        else:
            own = request.num_computed_tokens - max(0, request.cached_tokens)
            worth = value(state, without_running(state, load, batch[place]), state.params[P.prefill_benefit] * own)
        if worth > most:
            best, most = place, worth
    return best


# --- The plan generator ---------------------------------------------------------------------------------------------
@inner
def propose(state, count, slot, most):
    """Adds a waiting request to the candidates in State.picks, unless it is there; returns their
    number."""
    if slot < 0 or count >= most:
        return count
    for i in range(count):
        if state.picks[i] == slot:
            return count
    state.picks[count] = slot
    return count + 1


@inner
def propose_beside(state, instance, count, rank, most):
    """Adds the waiting requests next to a rank on either side."""
    count = propose(state, count, next_in_order(state, instance, rank), most)
    return propose(state, count, previous_in_order(state, instance, rank), most)


@inner
def propose_from_bucket(state, instance, count, most):
    """Adds the first waiting request in the bucket of the running requests' mean context, or else
    in the nearest bucket."""
    spec, total = state.instances[instance], np.int64(0)
    if spec.running == 0:
        return count
    for i in range(spec.running):
        total += length(state, state.members[BATCH, instance, i])
    bucket = np.int64(bucket_of(total // spec.running))
    end = bucket_start(state, min(bucket + 1, BUCKETS))
    first = next_in_order(state, instance, bucket_start(state, bucket))
    if first >= 0 and rank_of(state, first) < end:
        return propose(state, count, first, most)
    below = previous_in_order(state, instance, bucket_start(state, bucket) - 1)
    return propose(state, propose(state, count, below, most), first, most)


@inner
def generate(state, instance):
    """Writes the candidates for one more place in the batch to State.picks; returns their number.

    Candidates are the first in the queue, the neighbours of the request admitted last, one from the
    bucket that matches the batch, and the neighbours of running requests, the latest first.
    Neighbours are in the same bucket.
    """
    spec, batch = state.instances[instance], state.members[BATCH, instance]
    most = min(int(state.params[P.candidates]), state.picks.size)
    count = propose(state, 0, np.int64(spec.offline_head), most)
    if state.config.waiting_order == 0:
        return count
    last = np.int64(state.memory[instance, LAST_RANK]) - 1
    if last >= 0:
        count = propose_beside(state, instance, count, last, most)
    if state.config.waiting_order == 2:
        count = propose_from_bucket(state, instance, count, most)
    for place in range(spec.running - 1, -1, -1):
        if count >= most:
            break
        if not state.requests[batch[place]].urgent:
            count = propose_beside(state, instance, count, rank_of(state, batch[place]), most)
    return count


# --- The plan selector ----------------------------------------------------------------------------------------------
@inner
def select(state, instance, load, limit_ps, budget, spare):
    """Selects the candidate that gives the highest batch value, within `limit_ps`, `budget` tokens
    and all but `spare` blocks.

    Returns (its slot or -1, its cached tokens, the batch's value with it).
    """
    room = num_free_blocks(state, instance) - spare
    unneeded = np.int64(-1)
    best, best_start, most = np.int64(-1), np.int64(0), NOWHERE
    for i in range(generate(state, instance)):
        slot = np.int64(state.picks[i])
        start, need, idle = blocks_to_start(state, instance, slot)
        if need > room:
            continue
        tokens = min(budget, length(state, slot) - start)
        grown = with_waiting(state, load, start, tokens)
        if state.params[P.estimator] > 0 and batch_time(state, grown) > limit_ps:
            continue
        punish = 0.0
        if state.config.prefix_caching and state.config.kv_priority:
            if unneeded < need - idle:
                unneeded = np.int64(worthless(state, instance, need - idle))
            punish = state.params[P.prefill_benefit] * max(0, need - idle - unneeded) * state.config.block_tokens
        worth = value(state, grown, punish)
        if worth > most:
            best, best_start, most = slot, start, worth
    return best, best_start, most
