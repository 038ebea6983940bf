"""Past-Future (arXiv 2507.10150, ASPLOS '25; LightLLM): a request is admitted if the batch's future
peak fits.

Waiting requests are admitted first come first served, while the predicted peak memory of all
running requests and the new one fits the instance's, less a reserve. Output lengths are drawn from
the past (3.1, 3.2): for a waiting request from the last `window` finished ones, for a running
request from the longer ones of them. The peak is at the end of some request (3.3): ordered by
remaining tokens r_1 >= r_2 >= … with contexts c_i, it is the maximum of c_1 + … + c_i + i r_i. Of
several draws the greatest peak counts. If memory is short all the same, the last request to arrive
is preempted and recomputed.

Source: notes on sections 3.1 to 3.3 and 5, and the authors' artifact
(github.com/WuSiYu/lightllm-ae), not the paper itself. The sources differ: the window is 1,000
requests in the paper, 40 in the artifact's server, 1,000 in its behaviour study; the reserve is 5 %
and 3 %. At the start the window holds `initial` lengths of `max_output_tokens`, the longest that
may be requested, until finished requests replace them. `lengths=exact` uses the true lengths, the
paper's theoretical optimum. `lengths=predicted` draws from the scenario's length predictor
(`ooco_gym.policy.lengths`).

LightLLM's other engine rules (prefills alone, every tenth step) are left out: all else is vLLM's V1
schedule by class (`vllm_priority`), where the paper has one class. LightLLM checks the queue after
every ten steps, here after each. `outputs_by_class` separates the lengths of online and offline
requests; the paper's history is of one service.

Ours: prompts are computed in chunks beside decodes, so a request's remaining steps include those of
its prompt and of earlier prompts; blocks count as whole ones. Both are conservative: with exact
lengths and without shared prefixes nothing is ever preempted. If nothing runs, the first request
enters whatever its draws.
"""

import numpy as np

from baselines.vllm_v1 import SCHEDULE_PARAMS
from ooco_gym.compile import inner
from ooco_gym.policy.decisions import COMPOSE, hook
from ooco_gym.policy.lengths import believed_output
from ooco_gym.policy.mixed import (
    admit,
    continue_running,
    count_up_to,
    first_waiting,
    fits_whole,
    get_computed_tokens,
    missing,
    past_outputs,
)
from ooco_gym.policy.policy import Param, Policy, slots
from ooco_gym.policy.rules import length, route_fewest_requests, sort_ascending
from ooco_gym.sim.costs import random_below, random_unit
from ooco_gym.sim.state import BATCH

PARAMS = (
    *SCHEDULE_PARAMS,
    Param("output_window", "number of past requests whose output lengths are known", 1, 100_000),
    Param("outputs_by_class", "whether lengths of online and offline requests are separate", choices=("off", "on")),
    Param("initial", "number of lengths of max_output_tokens in the initial window", 0, 100_000),
    Param("max_output_tokens", "longest output that a request may ask for, tokens", 1, 1_000_000),
    Param("lengths", "output lengths: drawn from the past, true, or drawn from the scenario's predictor",
          choices=("past", "exact", "predicted")),
    Param("reserve", "share of the memory that predicted peaks must leave free", 0.0, 1.0),
    Param("draws", "most draws for the whole batch; the worst counts", 1, 64),
    Param("draws_in_all", "limit of the lengths drawn in all, beyond one for each request", 0, 100_000),
)
P = slots(PARAMS)
EXACT, PREDICTED = 1, 2
LENGTH_STREAM = 3  # of random numbers


# --- The past (3.1, 3.2) --------------------------------------------------------------------------------------------
@inner
def output_length(state, instance, slot, draw):
    """Draws a request's output length, longer than what it has generated."""
    request, longest = state.requests[slot], np.int64(state.params[P.max_output_tokens])
    if state.params[P.lengths] == EXACT:
        return np.int64(request.output_tokens)
    if state.params[P.lengths] == PREDICTED:
        unit = random_unit(state, LENGTH_STREAM, instance, state.instances[instance].steps_begun,
                           np.int64(slot) * 64 + draw)
        most = max(state.params[P.max_output_tokens], request.generated_tokens + 1.0)
        return np.int64(round(min(most, believed_output(state, slot, unit))))
    ordered, finished = past_outputs(state, instance, request.online)
    known = min(finished, ordered.size)
    unset = min(np.int64(state.params[P.initial]), ordered.size - known) if longest > request.generated_tokens else 0
    below = count_up_to(ordered, known, request.generated_tokens)
    longer = known - below + unset
    if longer <= 0:
        return max(longest, np.int64(request.generated_tokens) + 1)
    place = below + random_below(state, LENGTH_STREAM, instance, state.instances[instance].steps_begun,
                                 np.int64(slot) * 64 + draw, longer)
    return np.int64(ordered[place]) if place < known else longest


# --- The future (3.3) -----------------------------------------------------------------------------------------------
@inner
def peak_blocks(state, instance, candidate, draw):
    """Most blocks that the running requests and a waiting one will need at one time, by one draw of
    their lengths."""
    spec, batch, todo = state.instances[instance], state.members[BATCH, instance], np.int64(0)
    for i in range(spec.running + 1):
        slot = np.int64(batch[i]) if i < spec.running else candidate
        more, steps = missing(state, slot) if i < spec.running else (
            length(state, slot) - get_computed_tokens(state, instance, slot)), np.int64(0)
        if more > 1:
            todo += more
            room = max(1, state.config.max_num_batched_tokens - i)
            steps = (todo + room - 1) // room
        left = output_length(state, instance, slot, draw) - state.requests[slot].generated_tokens
        state.scratch[0, i], state.scratch[1, i] = steps + left, length(state, slot)
    return greatest(state, spec.running + 1)


@inner
def greatest(state, count):
    """The peak of the first `count` requests in State.scratch, in blocks."""
    size, held, most = state.config.block_tokens, np.int64(0), np.int64(0)
    sort_ascending(state.scratch[0], state.scratch[1], count)
    for i in range(1, count + 1):
        held += state.scratch[1, count - i]
        most = max(most, held + i * (state.scratch[0, count - i] + size - 1))
    return most // size


@inner
def fits_future(state, instance, candidate):
    """Whether a waiting request may enter: the worst of the predicted peaks is within the memory."""
    spec = state.instances[instance]
    if spec.running == 0:
        return True
    room = (spec.total_blocks - state.config.reserved_blocks) * (1.0 - state.params[P.reserve])
    draws = min(state.params[P.draws], state.params[P.draws_in_all] // spec.running + 1)
    for draw in range(1 if state.params[P.lengths] == EXACT else int(draws)):
        if peak_blocks(state, instance, candidate, draw) > room:
            return False
    return True


# --- The schedule (Algorithm 1) -------------------------------------------------------------------------------------
@inner
def admit_predicted(state, instance, budget):
    """Admits waiting requests in order while they fit, now and in future. Returns the remaining
    budget."""
    while budget > 0:
        slot = np.int64(first_waiting(state, instance))
        if slot < 0 or not fits_whole(state, instance, slot) or not fits_future(state, instance, slot):
            break
        budget -= admit(state, instance, slot, budget)
    return budget


@hook(COMPOSE)
def compose(view):
    """vLLM's V1 schedule with the admission of Past-Future."""
    state, instance = view.state, view.instance
    whole = state.config.max_num_batched_tokens
    while True:
        budget, preempted = continue_running(state, instance, whole)
        if preempted == 0:
            budget = admit_predicted(state, instance, budget)
        if preempted == 0 or budget < whole:
            return whole - budget


policy = Policy("past_future", PARAMS, mixed=True, route=route_fewest_requests, compose=compose)
