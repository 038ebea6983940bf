"""Memory gate: `slack` that prefills an offline request only if its memory will last. Ours, not a
paper's.

A relaxed instance holds the KV memory of online prompts until they have moved, and of its decoding
offline requests, which grow. OOCO's gate (3.4.2) weighs a larger decode batch against past
recomputation and ignores the memory that is free now. When KV memory is scarce it prefills offline
requests into the last blocks. They are evicted as soon as residents grow or an online prompt
arrives, and each context is computed several times. Here a prefill begins only if this share of all
blocks stays free:

    free after its first prompt - gate_growth x mean offline output x (residents + 1), in blocks  >=
    reserve

and `slack` would start it, or if nothing decodes there. The batch is then filled from the queue, up
to `prefill_tokens`, without checking its further prompts; the next prefill waits for it. Evictions,
pulls and steps are those of `slack`.

`choose=density` takes the candidate (of the first `gate_window` that wait) with the highest value
for the memory that it will hold: reference value over remaining output times (context + remaining /
2), as `ooco_lengths` evicts. It needs a scenario with a length predictor (`lengths`, docs/use.md).
Without one, all outputs are predicted alike, and the shortest prompt comes first, except for
requests that return.

*Learned* (ours): the left side gains z, weights times features of memory, of decoding and waiting
requests, of online arrival rates and of evictions. With `reserve` and `gate_growth` 0,
`choose=first` and no weights, every decision is exactly that of `slack`.

Parameters besides those of `slack`: conf/policy/memory_gate.yaml. Results: docs/learned.md.
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
          Param("gate_growth", "mean offline outputs by which residents must be able to grow", 0.0, 100.0),
          Param("choose", "which candidate is prefilled", choices=("first", "density")),
          Param("weights", "file of the learned gate's weights; without one: the rule alone", default="", file=True))
P = slots(PARAMS)
DENSITY = 1  # of choose
COLUMNS = ("free", "growth", "prompt", "residents", "waiting", "returned", "evicted", "strict_free", "rate_10s",
           "rate_60s", "constant")
LAYOUT = Layout(("start",), COLUMNS)
KILO = math.log(1000.0)
SOME_RATE = 0.1  # requests a second, added to a rate before its logarithm is taken


@inlined
def growth_share(state, instance):
    """Blocks by which offline residents grow by a mean output each, as a share of all blocks."""
    residents = decodable(state, instance, s.OFFLINE)[0]
    tokens = residents * state.observed.offline_output_mean
    return tokens / (state.config.block_tokens * max(state.instances[instance].total_blocks, 1))


@inner
def strict_free(state):
    """Share of the strict instances' blocks that stays free after all requests there have grown by
    `growth` times their mean output."""
    free, total = 0.0, 1.0
    for instance in range(state.config.strict_from, state.instances.size):
        flush_totals(state, instance)
        spec = state.instances[instance]
        free += spec.free_blocks - growing_blocks(state, instance, state.observed.offline_output_mean)
        total += spec.total_blocks
    return free / total


@inner
def weigh(state, instance, slot, free, prompt):
    """Weighted sum of the features of an instance and of the request to prefill."""
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
    """Position of the candidate with the highest value for the memory that it will hold; the first
    among equals."""
    best, most = 0, -math.inf
    for i in range(view.candidates.size):
        value = density(view.state, view.candidates[i])
        if value > most:
            best, most = i, value
    return best


@hook(GATE, flushes=True)
def start_what_lasts(view):
    """Starts the prefill that `slack` would start, if enough memory stays free."""
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
    # Rates and strict instances change by time alone, so a learned gate decides again at each step.
    return answer if margin + weigh(state, instance, slot, free, prompt) >= 0.0 else s.HOLD


policy = replace(slack, name="memory_gate", params=PARAMS, gate=start_what_lasts, layout=LAYOUT)
