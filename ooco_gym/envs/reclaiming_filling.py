"""The compiled code that fills the candidates of `Reclaiming-v0`.

`ooco_gym.runtime.reclaiming_features` has the table, says what each figure means, and computes the same from plain
descriptions of requests; a test compares both.
"""

import numpy as np

from ooco_gym.compile import inner
from ooco_gym.envs import buffers as b
from ooco_gym.envs.batching_filling import fill_engine
from ooco_gym.envs.buffers import step_kernel
from ooco_gym.envs.features import COLUMN, columns
from ooco_gym.envs.filling import log_scale, log_scales
from ooco_gym.policy.latency_budget import OPEN_FIGURES, believed_latency, decodes
from ooco_gym.policy.reclaiming import private_blocks, relief
from ooco_gym.runtime.reclaiming_features import VICTIM
from ooco_gym.sim import state as s
from ooco_gym.sim.costs import length
from ooco_gym.sim.mixed import NO_SUMS, add_to_sums

# Which column of a candidate has which figure of `VICTIM`: all environments' candidates are of one width.
PLACES = {"present": "present", "tokens": "tokens", "generated": "generated", "cost": "prefill", "wait": "wait",
          "evictions": "evictions", "decodes": "interruptions", "memory": "memory", "online": "interrupt_risk",
          "computed": "slack", "place": "running", "lack": "step", "output": "backlog", "freed": "residents",
          "swap": "level"}
F = columns(VICTIM)
_PER_LOG = log_scales(VICTIM)
_TOKENS, _GENERATED, _OUTPUT, _WAIT = (_PER_LOG[F.tokens], _PER_LOG[F.generated], _PER_LOG[F.output],
                                       _PER_LOG[F.wait])
_MEMORY, _LACK, _COST = _PER_LOG[F.memory], _PER_LOG[F.lack], _PER_LOG[F.cost]
_EVICTIONS, _FREED = VICTIM[F.evictions].limit, VICTIM[F.freed].limit


@inner
def order_of(state, instance, slot):
    """Share of the other running offline requests that were admitted before a running one; 1 of a single one."""
    before, others = 0, 0
    for place in range(state.instances[instance].running):
        one = np.int64(state.members[s.BATCH, instance, place])
        if state.requests[one].urgent == 0 and one != slot:
            others += 1
        elif one == slot:
            before = others
    return before / others if others > 0 else 1.0


@inner
def cost_ps(state, instance, slot, how):
    """What the loss of a running request's memory is believed to cost, in ps: computing it again, or two transfers."""
    spec, computed = state.instances[instance], np.int64(state.requests[slot].num_computed_tokens)
    if how == s.SWAP:
        moved = 2.0 * computed * state.tables[spec.table].kv_bytes_per_token
        return moved / state.config.host_bytes_per_s * s.PS_PER_S
    if computed == 0:
        return 0.0
    return float(believed_latency(state, instance, add_to_sums(state, spec.belief, NO_SUMS, computed, computed, 1)))


@inner
def fill_victim(state, buffers, i, k, short):
    """Writes the `VICTIM` features of candidate k.

    Args:
        state: the episode.
        buffers: of all episodes.
        i: the episode.
        k: the candidate, a running offline request; StepBuffers.iteration says what becomes of its memory.
        short: of `policy.reclaiming.lacking`.
    """
    instance, slot, how = state.pending.instance, np.int64(buffers.chosen[i, k]), buffers.iteration[i, OPEN_FIGURES + k]
    (lack, need, online), out, request = short, buffers.candidates[i, k], state.requests[slot]
    tokens = length(state, slot)
    output = max(1.0, state.observed.offline_output_mean - request.generated_tokens)
    out[COLUMN.present] = 1.0
    out[COLUMN.tokens] = log_scale(tokens, _TOKENS)
    out[COLUMN.slack] = request.num_computed_tokens / tokens
    out[COLUMN.generated] = log_scale(request.generated_tokens, _GENERATED)
    out[COLUMN.backlog] = log_scale(output, _OUTPUT)
    out[COLUMN.wait] = log_scale((state.clock.now_ps - request.arrival_ps) / s.PS_PER_S, _WAIT)
    out[COLUMN.evictions] = min(1.0, request.evictions / _EVICTIONS)
    out[COLUMN.interruptions] = decodes(state, slot)
    out[COLUMN.running] = order_of(state, instance, slot)
    out[COLUMN.memory] = log_scale(private_blocks(state, instance, slot), _MEMORY)
    out[COLUMN.residents] = min(1.0, relief(state, instance, slot) / (lack * _FREED))
    out[COLUMN.step] = log_scale(lack, _LACK)
    out[COLUMN.interrupt_risk] = online / need
    out[COLUMN.level] = how == s.SWAP
    out[COLUMN.prefill] = log_scale(cost_ps(state, instance, slot, how) / 1e9, _COST)


@step_kernel
def observe_victims(state, buffers, i):
    """Completes the observation of an open decision."""
    fill_engine(state, state.pending.instance, buffers.account[i], buffers.notes[i], buffers.cluster[i])
    return b.NO_KIND
