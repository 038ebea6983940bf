"""SGLang's scheduler: prompts before all decodes, admission by estimated outputs, retraction.

An iteration computes prompts as long as any can start, up to `max_num_batched_tokens` (SGLang's
`chunked_prefill_size`) new tokens: first the rest of the prompt that was cut last, then waiting
requests in order of arrival, whatever their class. Only without prompts does every running request
generate a token. So a prompt never waits for decodes, and decodes wait for every prompt.

A waiting request is admitted if its prompt and all tokens that it may ask for fit, beside the share
`new_token_ratio` of the tokens that running requests may still ask for. That share starts at 0.7,
falls with every decode step to 0.098 after 600 of them, and is reset when nothing runs. After a
request that did not fit, admission pauses until a running request has left. If the next tokens of
all do not fit, running requests are retracted until they do: first the one with the fewest
generated tokens, among equals the one with the longest prompt. A retracted request waits behind all
others and is recomputed. The share becomes the remaining requests' generated tokens plus twenty
more each, over all that they may ask for.

Source: SGLang's code as of November 2026 (`schedule_policy.py`, `schedule_batch.py`,
`scheduler.py`) with default flags (`fcfs`, `schedule_conservativeness` 1, no mixed chunks, no
priorities). Ours: a request that runs alone starts if its prompt fits; memory is in the cluster's
blocks, where SGLang's pages hold one token. The overlap of scheduling with the last iteration, by
which a finished request generates one more token, is left out.
"""

import numpy as np

from baselines.vllm_v1 import SCHEDULE_PARAMS
from ooco_gym.compile import inner
from ooco_gym.policy.decisions import COMPOSE, hook
from ooco_gym.policy.mixed import (
    RECOMPUTE,
    admit,
    allocate_slots,
    first_waiting,
    get_computed_blocks,
    has_seat,
    missing,
    num_free_blocks,
    num_new_blocks,
    preempt_to_tail,
    running_index,
)
from ooco_gym.policy.policy import Param, Policy, slots
from ooco_gym.policy.rules import length, route_fewest_requests
from ooco_gym.sim.state import BATCH, SYNCHRONOUS

PARAMS = (
    *SCHEDULE_PARAMS,
    Param("max_new_tokens", "output tokens that each request asks for; 0: its true output, as in benchmarks "
          "with ignore_eos", 0, 1_000_000),
    Param("schedule_conservativeness", "factor on the reserved share of requested tokens (SGLang's option)",
          0.0, 10.0),
)
P = slots(PARAMS)
RATIO, FULL, RUNNING, CHUNKED = range(4)  # indices in State.memory; CHUNKED: slot + 1 of the prompt that was cut
INITIAL_RATIO, LOWEST_SHARE, DECAY_STEPS = 0.7, 0.14, 600
MOST_NEW_TOKENS = 4096  # most remaining tokens that an estimate counts
RETRACT_STEPS = 20


# --- What a request may still ask for -------------------------------------------------------------------------------
@inner
def asked_tokens(state, slot):
    """Output tokens that a request may ask for in all."""
    asked = np.int64(state.params[P.max_new_tokens])
    return asked if asked > 0 else np.int64(state.requests[slot].output_tokens)


@inner
def reserved_tokens(state, slot):
    """A request's remaining output tokens, capped at `MOST_NEW_TOKENS`."""
    return min(max(asked_tokens(state, slot) - state.requests[slot].generated_tokens, 0), MOST_NEW_TOKENS)


@inner
def initial_ratio(state):
    """The initial share of them that is reserved."""
    return min(INITIAL_RATIO * state.params[P.schedule_conservativeness], 1.0)


@inner
def reserved_by_running(state, instance, chunked):
    """Tokens that the running requests are predicted to generate yet."""
    spec, batch, total = state.instances[instance], state.members[BATCH, instance], np.int64(0)
    for index in range(spec.running):
        if batch[index] != chunked:
            total += reserved_tokens(state, batch[index])
    return total * state.memory[instance, RATIO]


# --- Prompts --------------------------------------------------------------------------------------------------------
@inner
def fits_beside(state, instance, slot, reserved):
    """Whether a waiting request's prompt, and all that it may ask for, fit beside the reserved
    tokens."""
    spec, size = state.instances[instance], state.config.block_tokens
    start, _, idle = get_computed_blocks(state, instance, slot)
    prompt = length(state, slot) - start + idle * size
    free = num_free_blocks(state, instance) * size
    if spec.running == 0:
        return prompt <= free
    return prompt + reserved_tokens(state, slot) + size < free - reserved


@inner
def continue_chunked(state, instance, slot, budget):
    """Continues the prompt that the last iteration cut; returns its tokens."""
    left = missing(state, slot)
    tokens = min(left, budget)
    if tokens == 0 or not allocate_slots(state, instance, slot, tokens):  # 0: its load is still pending
        return np.int64(0)
    if tokens == left:
        state.memory[instance, CHUNKED] = 0
    return tokens


@inner
def start_prompts(state, instance):
    """Starts the rest of a cut prompt, then waiting ones in order, until one does not fit; returns
    their tokens."""
    memory, budget = state.memory[instance], state.config.max_num_batched_tokens
    chunked, used = np.int64(memory[CHUNKED]) - 1, np.int64(0)
    if chunked >= 0:
        used = continue_chunked(state, instance, chunked, budget)
    elif memory[FULL] > 0:
        return used
    if first_waiting(state, instance) < 0:
        return used
    reserved = reserved_by_running(state, instance, chunked)
    if chunked >= 0 and memory[CHUNKED] == 0:  # its prompt ends in this pass: reserve as for a new request
        reserved += reserved_tokens(state, chunked)
    while used < budget and memory[CHUNKED] == 0:
        slot = first_waiting(state, instance)
        if slot < 0:
            break
        if not has_seat(state, instance) or not fits_beside(state, instance, slot, reserved):
            memory[FULL] = state.instances[instance].running > 0
            break
        reserved += reserved_tokens(state, slot)
        used += admit(state, instance, slot, budget - used)
        if state.requests[slot].num_computed_tokens + state.requests[slot].num_scheduled_tokens < length(state, slot):
            memory[CHUNKED] = slot + 1
    return used


# --- Decodes --------------------------------------------------------------------------------------------------------
@inner
def blocks_for_next(state, instance, chunked):
    """Blocks that the next tokens of all running requests need."""
    batch, total = state.members[BATCH, instance], np.int64(0)
    for index in range(state.instances[instance].running):
        if batch[index] != chunked:
            total += num_new_blocks(state, batch[index], 1)
    return total


@inner
def first_to_retract(state, instance, chunked):
    """Index of the running request with the fewest generated tokens, then the longest prompt, then
    the last; the cut prompt is excluded."""
    batch, best = state.members[BATCH, instance], -1
    for index in range(state.instances[instance].running):
        if batch[index] == chunked:
            continue
        one, other = state.requests[batch[index]], state.requests[batch[max(best, 0)]]
        fewer = one.generated_tokens < other.generated_tokens
        as_many = one.generated_tokens == other.generated_tokens
        if best < 0 or fewer or (as_many and one.prompt_tokens >= other.prompt_tokens):
            best = index
    return best


@inner
def retract(state, instance, chunked):
    """Preempts running requests, one after another, until the next tokens of the rest fit; one
    stays."""
    spec, memory = state.instances[instance], state.memory[instance]
    while True:
        decoding = spec.running - (chunked >= 0)
        if decoding > 1:
            preempt_to_tail(state, instance, first_to_retract(state, instance, chunked), RECOMPUTE)
        elif chunked >= 0:
            preempt_to_tail(state, instance, running_index(state, instance, chunked), RECOMPUTE)
            memory[CHUNKED], chunked = 0, -1
        else:
            break
        if blocks_for_next(state, instance, chunked) <= num_free_blocks(state, instance):
            break
    made, asked, batch = np.int64(0), np.int64(1), state.members[BATCH, instance]
    for index in range(spec.running):
        made += state.requests[batch[index]].generated_tokens
        asked += asked_tokens(state, batch[index])
    memory[RATIO] = min(1.0, (made + RETRACT_STEPS * spec.running) / asked)


@inner
def decode_all(state, instance):
    """Generates a token for each running request, once there is memory for all; returns their
    number."""
    memory, chunked, given = state.memory[instance], np.int64(state.memory[instance, CHUNKED]) - 1, np.int64(0)
    if blocks_for_next(state, instance, chunked) > num_free_blocks(state, instance):
        retract(state, instance, chunked)
        chunked = np.int64(memory[CHUNKED]) - 1
    else:
        lowest = LOWEST_SHARE * initial_ratio(state)
        memory[RATIO] = max(memory[RATIO] - (initial_ratio(state) - lowest) / DECAY_STEPS, lowest)
    batch = state.members[BATCH, instance]
    for index in range(state.instances[instance].running):
        if batch[index] != chunked:
            given += allocate_slots(state, instance, batch[index], 1)
    return given


@hook(COMPOSE)
def schedule(view):
    """Computes prompts if any can start, else decodes."""
    state, instance = view.state, view.instance
    spec, memory = state.instances[instance], state.memory[instance]
    if spec.running == 0:
        memory[RATIO], memory[CHUNKED] = initial_ratio(state), 0
    if spec.running < memory[RUNNING]:
        memory[FULL] = 0
    tokens = start_prompts(state, instance)
    if tokens == 0 and spec.running > 0:
        tokens = decode_all(state, instance)
    memory[RUNNING] = spec.running
    return tokens


sglang = Policy("sglang", PARAMS, class_blind=True, mixed=True, route=route_fewest_requests, compose=schedule,
                async_scheduling=SYNCHRONOUS)
