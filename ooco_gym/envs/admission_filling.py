"""The compiled code that fills the candidates of `Admission-v0`.

`ooco_gym.runtime.admission_features` has the table, says what each figure means, and computes the same from plain
descriptions of requests; a test compares both.
"""

import math

import numpy as np

from ooco_gym.compile import inlined, inner
from ooco_gym.envs import buffers as b
from ooco_gym.envs.batching_filling import fill_engine
from ooco_gym.envs.buffers import step_kernel
from ooco_gym.envs.features import COLUMN, columns
from ooco_gym.envs.filling import log_scale, log_scales
from ooco_gym.policy.engine_features import SLACKS, count_late
from ooco_gym.policy.latency_budget import (
    OFFLINE_CLASS,
    OPEN_FIGURES,
    OPEN_LEFT,
    OPEN_UNTIL_PS,
    believed_latency,
    first_waiting,
    open_sums,
)
from ooco_gym.runtime.admission_features import ENTRY
from ooco_gym.sim import state as s
from ooco_gym.sim.costs import blocks_for, length
from ooco_gym.sim.mixed import NO_SUMS, add_to_sums
from ooco_gym.sim.step_actions import num_free_blocks

# Which column of a candidate has which figure of `ENTRY`: all environments' candidates are of one width.
PLACES = {"present": "present", "tokens": "tokens", "generated": "generated", "prefill": "prefill", "wait": "wait",
          "evictions": "evictions", "memory": "memory", "step": "step", "cached": "slack", "output": "backlog",
          "growth": "residents", "before": "level", "limit": "interrupt_risk", "late": "running", "first": "partner"}
F = columns(ENTRY)
_PER_LOG = log_scales(ENTRY)
_TOKENS, _GENERATED, _OUTPUT = _PER_LOG[F.tokens], _PER_LOG[F.generated], _PER_LOG[F.output]
_WAIT, _PREFILL = _PER_LOG[F.wait], _PER_LOG[F.prefill]
_EVICTIONS, _GROWTH, _TIMES = ENTRY[F.evictions].limit, ENTRY[F.growth].limit, ENTRY[F.step].limit


@inlined
def as_priced(state, instance, row):
    """(Sums of the open iteration in which each request makes a token, its believed latency): what an engine prices
    that is told tokens alone."""
    tokens, _, decoding, context, longest, prompts, rows, work, reach, far = open_sums(row)
    sums = (tokens, decoding + prompts, decoding, context, longest, prompts, rows, work, reach, far)
    return sums, (believed_latency(state, instance, sums) if tokens > 0 else np.int64(0))


@inner
def fill_entry(state, buffers, i, k, computed, need, so_far):
    """Writes the `ENTRY` features of candidate k, but for `late`, which needs the engine's slacks.

    Args:
        state: the episode.
        buffers: of all episodes.
        i: the episode.
        k: the candidate, a waiting offline request.
        computed: its tokens that are in memory.
        need: free blocks that its context takes.
        so_far: `as_priced`.
    """
    instance, row, slot = state.pending.instance, buffers.iteration[i], np.int64(buffers.chosen[i, k])
    (sums, before), table = so_far, state.instances[instance].belief
    out, request, tokens = buffers.candidates[i, k], state.requests[slot], length(state, slot)
    missing, per_tpot = tokens - computed, 1.0 / (state.config.default_tpot_ps * _TIMES)
    chunk = min(missing, row[OPEN_LEFT])
    whole = believed_latency(state, instance, add_to_sums(state, table, sums, chunk, computed + chunk, 1))
    step = max(before, min(row[OPEN_UNTIL_PS], whole))
    alone = believed_latency(state, instance, add_to_sums(state, table, NO_SUMS, missing, tokens, 1))
    output = max(1.0, state.observed.offline_output_mean - request.generated_tokens)
    grown = need + blocks_for(state, np.int64(math.ceil(tokens + output))) - blocks_for(state, tokens)
    free = max(1, num_free_blocks(state, instance))
    out[COLUMN.present] = 1.0
    out[COLUMN.tokens] = log_scale(tokens, _TOKENS)
    out[COLUMN.slack] = computed / tokens
    out[COLUMN.generated] = log_scale(request.generated_tokens, _GENERATED)
    out[COLUMN.backlog] = log_scale(output, _OUTPUT)
    out[COLUMN.wait] = log_scale((state.clock.now_ps - request.arrival_ps) / s.PS_PER_S, _WAIT)
    out[COLUMN.evictions] = min(1.0, request.evictions / _EVICTIONS)
    out[COLUMN.prefill] = log_scale(alone / 1e9, _PREFILL)
    out[COLUMN.memory] = min(1.0, need / free)
    out[COLUMN.residents] = min(1.0, grown / (free * _GROWTH))
    out[COLUMN.level] = min(1.0, before * per_tpot)
    out[COLUMN.interrupt_risk] = min(1.0, row[OPEN_UNTIL_PS] * per_tpot)
    out[COLUMN.step] = min(1.0, step * per_tpot)
    out[COLUMN.partner] = slot == first_waiting(state, instance, OFFLINE_CLASS)
    row[OPEN_FIGURES + k] = step


@step_kernel
def observe_entries(state, buffers, i):
    """Completes the observation of an open decision."""
    fill_engine(state, state.pending.instance, buffers.account[i], buffers.notes[i], buffers.cluster[i])
    chosen, count = buffers.chosen[i], np.int64(buffers.notes[i, SLACKS])
    for k in range(chosen.size):
        if chosen[k] >= 0:
            late = count_late(state, count, buffers.iteration[i, OPEN_FIGURES + k])
            buffers.candidates[i, k, COLUMN.running] = late / max(1, count)
    return b.NO_KIND
