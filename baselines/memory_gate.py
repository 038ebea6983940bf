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

*Learned* (ours): the left side gains z, the weights times the figures of memory, of how many decode and wait, how fast
online requests arrive, how much is evicted. With `reserve` and `gate_growth` 0, `choose=first` and no weights every
decision is that of `slack`, exactly.

Parameters besides those of `slack`: conf/policy/memory_gate.yaml. What it is worth: docs/learned.md.
"""

import math
from dataclasses import replace

from baselines.ooco import gate as cost_gate
from baselines.ooco_variants import PARAMS as SLACK_PARAMS
from baselines.ooco_variants import growing_blocks, slack
from ooco_gym.compile import inlined, inner
from ooco_gym.policy.decisions import GATE, hook
from ooco_gym.policy.lengths import density
from ooco_gym.policy.policy import Param, slots
from ooco_gym.policy.rules import blocks_for, decodable, flush_totals, is_weighted, length
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
LAYOUT = Layout(("start",), COLUMNS)
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
    """Weighted sum of the figures of an instance and of the request that would be prefilled."""
    w, seen, spec = state.weights, state.observed, state.instances[instance]
    rate = seen.online_rate_slow + SOME_RATE
    z = w[0] * free + w[1] * growth_share(state, instance) + w[2] * prompt
    z += w[3] * math.log(1.0 + decodable(state, instance, s.OFFLINE)[0]) / KILO
    z += w[4] * math.log(1.0 + spec.offline_waiting) / KILO + w[5] * (state.requests[slot].generated_tokens > 0)
    z += w[6] * seen.offline_evicted_share + w[7] * strict_free(state)
    z += w[8] * math.log((seen.online_rate_fast + SOME_RATE) / rate)
    z += w[9] * math.log((seen.online_rate_minute + SOME_RATE) / rate)
    return z + w[10]


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
    """Starts the prefill that `slack` would start, if enough memory stays free with it."""
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
    if not is_weighted(state):
        return answer if margin >= 0.0 else s.HOLD_UNTIL_CHANGE
    # Rates and strict instances change by time alone: a learned gate is asked again at each step.
    return answer if margin + weigh(state, instance, slot, free, prompt) >= 0.0 else s.HOLD


policy = replace(slack, name="memory_gate", params=PARAMS, gate=start_what_lasts, layout=LAYOUT)
