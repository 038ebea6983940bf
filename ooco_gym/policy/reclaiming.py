"""Blocks that a mixed instance lacks for what must run, and blocks that preempting an offline
request would free.

The following must run: the next token of every decoding request; then, as far as the iteration's
tokens go, online prompts in progress; then whole contexts of the first waiting online requests,
while a running slot is free. Offline prompts can wait. `ooco_gym.runtime.features` computes the
same from plain descriptions of requests.
"""

import numpy as np

from ooco_gym.compile import inner
from ooco_gym.policy.latency_budget import decodes
from ooco_gym.policy.mixed import missing, num_free_blocks, num_new_blocks, whole_need
from ooco_gym.runtime.features import LOOK_ONLINE
from ooco_gym.sim.bidirectional import paired
from ooco_gym.sim.blocks import _table_index, tracked
from ooco_gym.sim.costs import blocks_for, length
from ooco_gym.sim.state import BATCH


@inner
def needed_blocks(state, instance):
    """Blocks needed for what must run, beyond held ones: (by online requests, by offline ones).

    Blocks with two owners (`sim.bidirectional`) are never short, as online requests overwrite
    offline ones.
    """
    spec, batch, none = state.instances[instance], state.members[BATCH, instance], np.int64(0)
    if paired(state):
        return none, none
    online, offline, prompts, left = none, none, 0, np.int64(state.config.max_num_batched_tokens)
    for place in range(spec.running):
        slot = np.int64(batch[np.uint64(place)])
        if not decodes(state, slot):
            prompts += state.requests[slot].urgent
            continue
        left -= 1
        more = num_new_blocks(state, slot, 1)
        if state.requests[slot].urgent:
            online += more
        else:
            offline += more
    place = 0
    while prompts > 0 and left > 0 and place < spec.running:
        slot = np.int64(batch[place])
        if state.requests[slot].urgent and not decodes(state, slot):
            tokens = min(left, missing(state, slot))
            online, left, prompts = online + num_new_blocks(state, slot, tokens), left - tokens, prompts - 1
        place += 1
    return online + _waiting_blocks(state, instance, left), offline


@inner
def _waiting_blocks(state, instance, left):
    """Blocks for the first waiting online requests, as long as some of the `left` tokens remain for
    them."""
    spec, blocks, seen = state.instances[instance], np.int64(0), 0
    slot, seats = np.int64(spec.online_head), state.config.max_num_seqs - spec.running
    while slot >= 0 and left > 0 and seen < min(seats, LOOK_ONLINE):
        computed, need = whole_need(state, instance, slot)
        blocks += need
        left -= length(state, slot) - computed
        slot = np.int64(state.requests[slot].next)
        seen += 1
    return blocks


@inner
def lacking(state, instance):
    """Returns (blocks lacking for what must run on a mixed instance, blocks it needs, online
    requests' part)."""
    online, offline = needed_blocks(state, instance)
    need = online + offline
    return max(np.int64(0), need - num_free_blocks(state, instance)), need, online


@inner
def private_blocks(state, instance, slot):
    """Blocks of a running request that no other request reads."""
    blocks = np.int64(state.requests[slot].blocks)
    if not tracked(state):
        return blocks
    index, own = _table_index(state, state.requests[slot].row), np.int64(0)
    for i in range(blocks):
        own += state.blocks[instance, state.kv[instance, index + i]].references == 1
    return own


@inner
def relief(state, instance, slot):
    """How many fewer blocks lack without a running offline request: its private ones, and its next
    one."""
    return private_blocks(state, instance, slot) + (num_new_blocks(state, slot, 1) if decodes(state, slot) else 0)


@inner
def fits_host(state, instance, slot):
    """Whether host memory has room for a running request's computed tokens."""
    request = state.requests[slot]
    blocks = blocks_for(state, request.num_computed_tokens) - blocks_for(state, request.host_tokens)
    return request.num_computed_tokens > 0 and blocks <= state.instances[instance].host_free_blocks
