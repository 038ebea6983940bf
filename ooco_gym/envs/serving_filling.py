"""The compiled code that fills the candidates of `Serving-v0` where a request is sent to one of several engines.

`ooco_gym.runtime.serving_features` has the table, says what each figure means, and computes the same from plain
descriptions of engines; a test compares both.
"""

import numpy as np

from ooco_gym.compile import inlined, inner
from ooco_gym.envs import buffers as b
from ooco_gym.envs.batching_filling import fill_engine
from ooco_gym.envs.buffers import step_kernel
from ooco_gym.envs.features import COLUMN, columns
from ooco_gym.envs.filling import log_scale, log_scales
from ooco_gym.policy.engine_features import NONE_MS, believed
from ooco_gym.policy.latency_budget import believed_latency, decodes
from ooco_gym.runtime.serving_features import TARGET
from ooco_gym.sim import state as s
from ooco_gym.sim.costs import blocks_for, length
from ooco_gym.sim.mixed import NO_SUMS, add_to_sums
from ooco_gym.sim.step_actions import get_computed_blocks, missing, num_free_blocks

# Which column of a candidate has which figure of `TARGET`: all environments' candidates are of one width.
PLACES = {"present": "present", "tokens": "tokens", "online": "generated", "deadline": "slack", "cached": "wait",
          "prefill": "prefill", "memory": "memory", "free": "evictions", "seats": "interruptions",
          "online_requests": "running", "online_missing": "backlog", "offline_requests": "residents",
          "offline_missing": "level", "online_decodes": "interrupt_risk", "decodes": "step", "default": "partner"}
F = columns(TARGET)
_PER_LOG = log_scales(TARGET)
_TOKENS, _DEADLINE, _PREFILL = _PER_LOG[F.tokens], _PER_LOG[F.deadline], _PER_LOG[F.prefill]
_ONLINE, _ONLINE_MISSING = _PER_LOG[F.online_requests], _PER_LOG[F.online_missing]
_OFFLINE, _OFFLINE_MISSING = _PER_LOG[F.offline_requests], _PER_LOG[F.offline_missing]
_TIMES = TARGET[F.decodes].limit


@inlined
def _running(state, instance):
    """Of the running requests by class: ((decodes, their context, prompts, tokens that these miss) of the online ones,
    the same of the offline ones)."""
    spec, batch = state.instances[instance], state.members[s.BATCH, instance]
    online = offline = (np.int64(0), np.int64(0), np.int64(0), np.int64(0))
    for place in range(spec.running):
        slot = np.int64(batch[np.uint64(place)])
        count, context, prompts, lack = online if state.requests[slot].online else offline
        if decodes(state, slot):
            count, context = count + 1, context + length(state, slot)
        else:
            prompts, lack = prompts + 1, lack + missing(state, slot)
        if state.requests[slot].online:
            online = (count, context, prompts, lack)
        else:
            offline = (count, context, prompts, lack)
    return online, offline


@inner
def fill_target(state, instance, slot, default, out):
    """Writes the `TARGET` features of an engine that a request may be sent to.

    Args:
        state: at a `route` decision.
        instance: the engine.
        slot: the request, which has just arrived.
        default: whether the partner would send it there.
        out: float32[CANDIDATE_SIZE].
    """
    spec, request, tokens = state.instances[instance], state.requests[slot], length(state, slot)
    table, tpot_ps = spec.belief, state.config.default_tpot_ps
    computed, shared, idle = get_computed_blocks(state, instance, slot)
    online, offline = _running(state, instance)
    due_ms = NONE_MS
    if request.online:
        due_ms = (request.arrival_ps + request.ttft_slo_ps - state.clock.now_ps) / 1e9
    alone = believed_latency(state, instance, add_to_sums(state, table, NO_SUMS, tokens - computed, tokens, 1))
    per_tpot = 1.0 / (tpot_ps * _TIMES)
    out[COLUMN.present] = 1.0
    out[COLUMN.tokens] = log_scale(tokens, _TOKENS)
    out[COLUMN.generated] = request.online
    out[COLUMN.slack] = log_scale(due_ms, _DEADLINE)
    out[COLUMN.wait] = computed / tokens
    out[COLUMN.prefill] = log_scale(alone / 1e9, _PREFILL)
    need = blocks_for(state, tokens) - shared + idle
    out[COLUMN.memory] = min(1.0, need / max(1, num_free_blocks(state, instance)))
    out[COLUMN.evictions] = spec.free_blocks / spec.total_blocks
    out[COLUMN.interruptions] = 1.0 - spec.running / state.config.max_num_seqs
    out[COLUMN.running] = log_scale(online[0] + online[2] + spec.online_waiting, _ONLINE)
    out[COLUMN.backlog] = log_scale(online[3] + spec.online_waiting_tokens, _ONLINE_MISSING)
    out[COLUMN.residents] = log_scale(offline[0] + offline[2] + spec.offline_waiting, _OFFLINE)
    out[COLUMN.level] = log_scale(offline[3] + spec.offline_waiting_tokens, _OFFLINE_MISSING)
    some, context = online[0], online[1]
    out[COLUMN.interrupt_risk] = min(1.0, believed(state, table, some, context, 0) * per_tpot)
    every, whole = some + offline[0], context + offline[1]
    out[COLUMN.step] = min(1.0, believed(state, table, every, whole, 0) * per_tpot)
    out[COLUMN.partner] = default


@step_kernel
def observe_targets(state, buffers, i):
    """Completes the observation of an open `target` decision: `cluster` is of the engine that the partner would take.
    """
    wanted = min(max(np.int64(0), np.int64(buffers.turns[i, b.PLANNED])), np.int64(state.config.relaxed_count - 1))
    fill_engine(state, wanted, buffers.account[i], buffers.notes[i], buffers.cluster[i])
    return b.NO_KIND
