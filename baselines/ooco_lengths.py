"""`slack` that evicts and pulls by predicted output lengths: ours, not a paper's.

Predictions come from the scenario's length predictor (`lengths={predictor: lognormal, error:
0.3}`), revised as tokens are generated (`ooco_gym.policy.lengths`). Without one these rules use the
mean of finished outputs.

`evict=density` evicts the request with the lowest value / (remaining × (context + remaining / 2)),
where value is in reference GPU-seconds and remaining in tokens. `evict=longest_output` evicts the
longest predicted output. `pull=past_future` pulls requests that finish soonest, as long as the
predicted peak of total KV memory (Past-Future, arXiv 2507.10150, 3.3) stays within `pull_room` and
the step latency within Algorithm 1's margin (OOCO, arXiv 2511.21862, 3.4.3). `pull=soonest` and
`pull=shortest_output` use the memory that is free now, as Algorithm 1 does, and pull the requests
that finish soonest, or with the shortest predicted outputs.
"""

from dataclasses import replace

import numpy as np

from baselines.ooco import evict as by_length
from baselines.ooco import fullest_relaxed
from baselines.ooco_variants import PARAMS as SLACK_PARAMS
from baselines.ooco_variants import pull_what_fits_grown, slack
from ooco_gym.compile import inner
from ooco_gym.policy.decisions import EVICT, PULL, hook
from ooco_gym.policy.lengths import (
    add_future,
    believed_output,
    believed_remaining,
    gather_future,
    least_dense,
    longest_output,
    peak_tokens,
)
from ooco_gym.policy.policy import Param, slots
from ooco_gym.policy.rules import blocks_for, decodable, flush, length, predict_decode, sort_ascending, tpot_bound
from ooco_gym.sim import state as s

PARAMS = (*(replace(param, choices=(*param.choices, "density", "longest_output")) if param.name == "evict" else param
            for param in SLACK_PARAMS),
          Param("pull", "which requests are pulled", choices=("past_future", "soonest", "shortest_output", "slack")),
          Param("pull_room", "pull=past_future: share of the memory that the predicted peak may take", 0.0, 1.0))
P = slots(PARAMS)
DENSITY, LONGEST_OUTPUT = 3, 4
PAST_FUTURE, SOONEST, SHORTEST_OUTPUT, SLACK = range(4)


@hook(EVICT, flushes=True)
def evict_by_lengths(view):
    """Evicts the request with the lowest value for its memory, or the longest predicted output, or
    as OOCO does."""
    mode = view.state.params[P.evict]
    if mode < DENSITY:
        return by_length(view)
    flush(view.state, view.instance)
    return least_dense(view) if mode == DENSITY else longest_output(view)


@inner
def order_candidates(state, source, by_output, most):
    """Writes the first `most` decoding offline requests of an instance to State.picks, soonest (or
    shortest) first."""
    keys, values, count = state.scratch[0], state.scratch[1], 0
    for i in range(state.instances[source].offline_members):
        slot = np.int64(state.members[s.OFFLINE, source, i])
        if state.requests[slot].status == s.RESIDENT:
            believed = believed_output(state, slot, 0.5) if by_output else believed_remaining(state, slot)
            keys[count], values[count] = np.int64(16.0 * believed), slot
            count += 1
    sort_ascending(keys, values, count)
    count = min(count, most)
    for i in range(count):
        state.picks[i] = values[i]
    return count


@inner
def keep_fitting(state, instance, count, batch, context, bound):
    """Keeps the requests in State.picks, in order, that fit the step's bound and memory. Returns
    their number."""
    spec, kept, room = state.instances[instance], 0, state.config.block_tokens
    future, limit = 0, state.params[P.pull_room] * spec.total_blocks * room
    if state.params[P.pull] == PAST_FUTURE:
        future = gather_future(state, instance)
    free = spec.free_blocks
    for i in range(count):
        slot = np.int64(state.picks[i])
        tokens = length(state, slot)
        need = blocks_for(state, tokens + 1)
        if need > free or predict_decode(state, instance, batch + 1, context + tokens) > bound:
            continue
        if state.params[P.pull] == PAST_FUTURE:
            if future >= state.scratch.shape[1]:
                break  # more than a batch, which no step can hold
            add_future(state, future, np.int64(np.ceil(believed_remaining(state, slot))), tokens)
            future += 1
            if peak_tokens(state, future) > limit:
                break
        state.picks[kept] = slot
        kept, free, batch, context = kept + 1, free - need, batch + 1, context + tokens
    return kept


@hook(PULL, flushes=True)
def pull_by_lengths(view):
    """Pulls the requests that finish soonest, while the predicted peak of all residents fits the
    memory."""
    state, instance, mode = view.state, view.instance, view.state.params[P.pull]
    if mode == SLACK:
        return pull_what_fits_grown(view)
    spec = state.instances[instance]
    if spec.all_included == 0 or spec.arriving_pulls > 0 or spec.free_blocks <= 0:
        return s.FULL
    batch = spec.running + spec.arriving
    context = decodable(state, instance, s.URGENT)[1] + decodable(state, instance, s.OFFLINE)[1] + spec.arriving_context
    bound = int((state.params[P.slo_margin] - state.params[P.pull_margin]) * tpot_bound(state, instance))
    if predict_decode(state, instance, batch, context) >= bound:
        return s.FULL
    source = fullest_relaxed(state)
    if source < 0:
        return 0
    flush(state, source)
    flush(state, instance)
    count = order_candidates(state, source, mode == SHORTEST_OUTPUT, int(state.params[P.max_pull]))
    if count == 0:
        return 0
    kept = keep_fitting(state, instance, count, batch, context, bound)
    return kept if kept > 0 else s.FULL


policy = replace(slack, name="ooco_lengths", params=PARAMS, evict=evict_by_lengths, pull=pull_by_lengths)
