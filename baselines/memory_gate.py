"""Memory gate: `slack` that prefills an offline request only where its memory will last. Ours, not a paper's.

A relaxed instance holds the KV memory of online prompts until they have moved, and of offline requests that decode
there, each a block longer every few steps. OOCO's gate (3.4.2) weighs a larger decode batch against the recomputation
that evictions have cost so far; the memory that is free now is not in it. So where memory binds, offline requests are
prefilled into the last blocks, and evicted as soon as residents grow or an online prompt arrives: a context is computed
several times for each that finishes. Here a prefill begins only if, of all blocks, this share stays free:

    free after its first prompt - gate_growth x mean offline output x (residents + 1), in blocks  >=  reserve

and `slack` would start it, or nothing decodes there. As always the batch is then filled from the queue, up to
`prefill_tokens`, whose other prompts nothing looks at; the next prefill waits for it. Evictions, pulls and steps are
those of `slack`.

`choose=density` takes, of the candidates (`gate_window` of those that wait), the one that is worth most for the memory
that it will hold: reference worth over remaining output times (context + remaining / 2), as `ooco_lengths` evicts. That
is of scenarios with a length predictor (`lengths`, docs/use.md). Without one all outputs are believed alike,
and the shortest prompt comes first, but for requests that return.

*Learned* (ours), a row of weights for each of three decisions. `start`: the left side gains z, the weights times the
figures of memory, of how many decode and wait, how fast online requests arrive, how much is evicted. `evict`, `pull`:
each resident is worth its weights times its own figures (`RESIDENT`), and 1 more where `slack` chooses it; the one that
is worth most is evicted, and those worth more than 1/2 are pulled, best first, while the step's bound and the grown
memory hold them. A row of zeros decides as without it. With `reserve` and `gate_growth` 0, `choose=first` and no
weights every decision is that of `slack`, exactly.

Parameters besides those of `slack`: conf/policy/memory_gate.yaml. What it is worth: docs/learned.md.
"""

import math
from dataclasses import replace

import numpy as np

from baselines.ooco import evict as evict_by_length
from baselines.ooco import fullest_relaxed
from baselines.ooco import gate as cost_gate
from baselines.ooco_variants import PARAMS as SLACK_PARAMS
from baselines.ooco_variants import growing_blocks, pull_what_fits_grown, slack
from ooco_gym.compile import inlined, inner
from ooco_gym.policy.decisions import EVICT, GATE, PULL, hook
from ooco_gym.policy.lengths import believed_remaining, believed_spread, density
from ooco_gym.policy.policy import Param, slots
from ooco_gym.policy.rules import (
    blocks_for,
    decodable,
    flush,
    flush_totals,
    length,
    predict_decode,
    saturated_batch,
    sort_ascending,
    tpot_bound,
)
from ooco_gym.policy.weights import Layout
from ooco_gym.sim import state as s

PARAMS = (*SLACK_PARAMS,
          Param("reserve", "share of a relaxed instance's blocks that stays free after a prefill's first prompt", 0.0,
                1.0),
          Param("gate_growth", "mean offline outputs by which residents are counted as grown already", 0.0, 100.0),
          Param("choose", "which of the candidates is prefilled", choices=("first", "density")),
          Param("weights", "file of the weights of the learned gate; none: the rule alone", default="", file=True))
P = slots(PARAMS)
DENSITY = 1  # of choose
COLUMNS = ("free", "growth", "prompt", "residents", "waiting", "returned", "evicted", "strict_free", "rate_10s",
           "rate_60s", "constant")
# Of a resident: logarithms of its context, of the output tokens that it has and that it is believed to generate yet, of
# how far that may be off, and of what it is worth for the memory that it will hold; how often it was evicted; its
# context where the batch saturates compute; whether it joined last. Then the constant, as of COLUMNS.
RESIDENT = ("context", "generated", "left", "spread", "density", "evictions", "saturated", "last")
LAYOUT = Layout(("start", "evict", "pull"), (*COLUMNS[:-1], *RESIDENT, COLUMNS[-1]))
START, EVICTED, PULLED = (place * len(LAYOUT.columns) for place in range(3))  # where the weights of a row begin
FIRST = len(COLUMNS) - 1  # of RESIDENT's, in a row
CONSTANT = len(LAYOUT.columns) - 1
WORTH = 1e6  # whole numbers to each unit of worth, to sort by
KILO = math.log(1000.0)
SOME_RATE = 0.1  # requests a second, added to a rate before its logarithm is taken


@inlined
def growth_share(state, instance):
    """Blocks by which offline residents grow by a mean output each, over all blocks."""
    residents = decodable(state, instance, s.OFFLINE)[0]
    tokens = residents * state.observed.offline_output_mean
    return tokens / (state.config.block_tokens * max(state.instances[instance].total_blocks, 1))


@inner
def strict_free(state):
    """Share of the blocks of strict instances that are free when all there have grown by `growth` times their mean."""
    free, total = 0.0, 1.0
    for instance in range(state.config.relaxed_count, state.instances.size):
        flush_totals(state, instance)
        spec = state.instances[instance]
        free += spec.free_blocks - growing_blocks(state, instance, state.observed.offline_output_mean)
        total += spec.total_blocks
    return free / total


@inner
def weigh(state, instance, slot, free, prompt):
    """What the weights make of the figures of an instance and of the request that would be prefilled."""
    w, seen, spec = state.weights, state.observed, state.instances[instance]
    rate = seen.online_rate_slow + SOME_RATE
    z = w[0] * free + w[1] * growth_share(state, instance) + w[2] * prompt
    z += w[3] * math.log(1.0 + decodable(state, instance, s.OFFLINE)[0]) / KILO
    z += w[4] * math.log(1.0 + spec.offline_waiting) / KILO + w[5] * (state.requests[slot].generated_tokens > 0)
    z += w[6] * seen.offline_evicted_share + w[7] * strict_free(state)
    z += w[8] * math.log((seen.online_rate_fast + SOME_RATE) / rate)
    z += w[9] * math.log((seen.online_rate_minute + SOME_RATE) / rate)
    return z + w[CONSTANT]


@inner
def has_weights(state, row):
    """Whether some weight of a row is not 0."""
    for place in range(row, min(row + CONSTANT + 1, state.weights.size)):
        if state.weights[place] != 0.0:
            return True
    return False


@inner
def worth(state, row, slot, saturation, last):
    """What the weights of a row make of a resident of a flushed instance."""
    w, request = state.weights[row + FIRST:row + CONSTANT + 1], state.requests[slot]
    context = math.log(1.0 + length(state, slot)) / KILO
    z = w[0] * context + w[1] * math.log(1.0 + request.generated_tokens) / KILO
    z += w[2] * math.log(believed_remaining(state, slot)) / KILO
    z += w[3] * math.log(1.0 + believed_spread(state, slot)) / KILO
    z += w[4] * math.log(density(state, slot)) / KILO + w[5] * math.log(1.0 + request.evictions)
    return z + w[6] * context * saturation + w[7] * last + w[8]


@inner
def saturation_of(state, instance):
    """Offline and online requests that decode on an instance, over those that saturate its compute; at most 2."""
    return min(2.0, state.instances[instance].decodable / max(1.0, float(saturated_batch(state, instance))))


@inner
def densest(view):
    """Position of the candidate that is worth most for the memory that it will hold; the first of equals."""
    best, most = 0, -math.inf
    for i in range(view.candidates.size):
        value = density(view.state, view.candidates[i])
        if value > most:
            best, most = i, value
    return best


@hook(GATE, flushes=True)
def start_what_lasts(view):
    """What `slack` would start, if enough memory stays free with it."""
    state, instance = view.state, view.instance
    answer = cost_gate(view)
    if answer < 0:
        return answer
    if state.params[P.choose] == DENSITY:
        answer = densest(view)
    flush_totals(state, instance)
    spec, slot = state.instances[instance], view.candidates[answer]
    residents, total = decodable(state, instance, s.OFFLINE)[0], max(spec.total_blocks, 1)
    if residents == 0:
        return answer
    need = blocks_for(state, length(state, slot) + 1)
    free, prompt = (spec.free_blocks - need) / total, need / total
    added = state.params[P.gate_growth] * growth_share(state, instance) * (residents + 1) / residents
    margin = free - added - state.params[P.reserve]
    if not has_weights(state, START):
        return answer if margin >= 0.0 else s.HOLD_UNTIL_CHANGE
    # Rates and strict instances change by time alone: a learned gate is asked again at each step.
    return answer if margin + weigh(state, instance, slot, free, prompt) >= 0.0 else s.HOLD


@hook(EVICT, flushes=True)
def evict_by_worth(view):
    """The one that `slack` evicts, unless the weights make more of another."""
    state, instance = view.state, view.instance
    best = evict_by_length(view)
    if best < 0 or not has_weights(state, EVICTED):
        return best
    flush(state, instance)
    chosen, most, saturation = best, -math.inf, saturation_of(state, instance)
    for i in range(view.candidates.size):
        last = 1.0 if i == view.candidates.size - 1 else 0.0
        value = worth(state, EVICTED, view.candidates[i], saturation, last) + (1.0 if i == chosen else 0.0)
        if value > most:
            best, most = i, value
    return best


@inner
def order_by_worth(state, instance, source, chosen):
    """Writes the decoding offline requests of an instance that are worth a pull to State.scratch[1], best first.

    Returns how many. State.picks holds the `chosen` ones of `slack`.
    """
    saturation, count = saturation_of(state, instance), 0
    for i in range(state.instances[source].offline_members):
        slot = np.int64(state.members[s.OFFLINE, source, i])
        if state.requests[slot].status != s.RESIDENT:
            continue
        value = worth(state, PULLED, slot, saturation, 0.0)
        for k in range(chosen):
            if state.picks[k] == slot:
                value += 1.0
        if value > 0.5:
            state.scratch[0, count], state.scratch[1, count] = np.int64(-WORTH * min(value, WORTH)), slot
            count += 1
    sort_ascending(state.scratch[0], state.scratch[1], count)
    return count


@hook(PULL, flushes=True)
def pull_by_worth(view):
    """What `slack` pulls, unless the weights make more of others, within the same bounds of a step and of memory."""
    state, instance = view.state, view.instance
    answer = pull_what_fits_grown(view)
    spec = state.instances[instance]
    if not has_weights(state, PULLED) or spec.all_included == 0 or spec.arriving_pulls > 0:
        return answer
    source = fullest_relaxed(state)
    if source < 0:
        return 0
    flush(state, source)
    flush(state, instance)
    count = order_by_worth(state, instance, source, max(answer, 0))
    batch = spec.running + spec.arriving
    context = decodable(state, instance, s.URGENT)[1] + decodable(state, instance, s.OFFLINE)[1] + spec.arriving_context
    bound = int((state.params[P.slo_margin] - state.params[P.pull_margin]) * tpot_bound(state, instance))
    horizon = state.params[P.growth] * state.observed.offline_output_mean
    free = spec.free_blocks - (growing_blocks(state, instance, horizon) if horizon > 0.0 else 0)
    kept, most = 0, int(state.params[P.max_pull])
    for i in range(count):
        slot = state.scratch[1, i]
        tokens = length(state, slot)
        need = blocks_for(state, tokens + 1 + int(horizon))
        if kept == most or predict_decode(state, instance, batch + 1, context + tokens) > bound:
            break
        if need <= free:
            state.picks[kept] = slot
            kept, free, batch, context = kept + 1, free - need, batch + 1, context + tokens
    return kept if kept > 0 else s.FULL


policy = replace(slack, name="memory_gate", params=PARAMS, gate=start_what_lasts, evict=evict_by_worth,
                 pull=pull_by_worth, layout=LAYOUT)
