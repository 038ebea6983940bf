"""What an iteration of prompts' chunks and decodes takes, from what its requests have been given."""

import numpy as np

from ooco_gym.compile import inner
from ooco_gym.sim.costs import (
    attention_latency,
    decode_latency,
    dense_latency,
    prefill_attention,
    prompt_rows,
    prompt_work,
)
from ooco_gym.sim.state import BATCH


@inner
def iteration_sums(state, instance, table):
    """What sets an iteration's latency: tokens, requests that make one, decodes, their contexts; prompts, their rows,
    work and contexts."""
    tokens, sampled, decodes, decode_context = 0, 0, 0, 0
    prompts, rows, work, context = 0, 0, 0.0, 0
    batch = state.members[BATCH, instance]
    for i in range(state.instances[instance].running):
        request = state.requests[np.uint64(batch[i])]
        new = np.int64(request.scheduled_tokens)
        if new == 0:
            continue
        reach = request.computed_tokens + new
        tokens += new
        sampled += reach == np.int64(request.prompt_tokens) + request.generated_tokens
        if new == 1:
            decodes += 1
            decode_context += reach
        else:
            prompts += 1
            rows += prompt_rows(state, table, new)
            work += prompt_work(state, table, new, reach)
            context += reach
    return tokens, sampled, decodes, decode_context, prompts, rows, work, context


@inner
def sums_latency(state, table, sums):
    """Latency of an iteration, in ps: its linear layers together, its attentions one after the other."""
    tokens, sampled, decodes, decode_context, prompts, rows, work, context = sums
    if prompts == 0:
        return decode_latency(state, table, decodes, decode_context)
    attention = prefill_attention(state, table, work, float(rows), float(context), float(prompts))
    latency = (dense_latency(state, table, tokens) + state.head_ps[table, sampled] + np.int64(round(attention))
               + attention_latency(state, table, decodes, decode_context))
    return max(latency, state.tables[table].prefill_floor_ps)


@inner
def iteration_latency(state, instance):
    """What a policy believes that the iteration composed so far would take, in ps; transfers to the host left out."""
    sums = iteration_sums(state, instance, state.instances[instance].belief)
    return sums_latency(state, state.instances[instance].belief, sums)
