"""OOCO with other rules for some of its decisions; everything else, its parameters too, is OOCO's.

`random` and `least_urgent` replace one decision, for comparison. `slack` (ours, not a paper's)
spends latency slack. It stops offline work for an online arrival only if its first token would
otherwise be late (`interrupt=slack` of `baselines/ooco.py`).

A strict instance pulls only requests for which it will have memory. Algorithm 1 uses the memory
that is free now, but residents grow with each step, so evictions follow pulls. Here a pull must fit
when all requests have grown by the mean output of their class (for memoryless lengths also the mean
remaining output).

Algorithm 2 bounds each step by the TPOT SLO, but the SLO is on the mean. So a step may also take
the time by which every online request of its batch is ahead of its deadlines (Echo, arXiv
2504.03651, 5.1), unless a request is known to join after it and would wait for its end.
"""

from dataclasses import replace

from baselines.ooco import PARAMS as OOCO_PARAMS
from baselines.ooco import mix, mix_within
from baselines.ooco import policy as ooco
from baselines.ooco import pull as algorithm_1
from ooco_gym.compile import inner
from ooco_gym.policy.decisions import COMPOSE, EVICT, GATE, PULL, hook
from ooco_gym.policy.policy import Param, slots
from ooco_gym.policy.rules import all_fit, blocks_for, flush, length, tpot_bound
from ooco_gym.sim import state as s
from ooco_gym.sim.costs import random_below

PARAMS = (*OOCO_PARAMS,
          Param("growth", "mean outputs by which all must be able to grow after a pull; 0: Algorithm 1", 0.0, 100.0),
          Param("bank", "longest step, in TPOT SLOs, if all online requests are ahead of their deadlines; 0: Algorithm "
                "2's bound", 0.0, 100.0))
P = slots(PARAMS)
GATE_STREAM = 2  # of `random`'s draws


# --- One decision ---------------------------------------------------------------------------------------------------
@hook(GATE, flushes=True)
def at_random(view):
    """Holds, or starts one of the candidates, all equally likely."""
    step = view.state.instances[view.instance].steps_begun
    choice = random_below(view.state, GATE_STREAM, view.instance, step, 0, view.candidates.size + 1)
    return choice if choice < view.candidates.size else s.HOLD


@hook(EVICT, flushes=True)
def last_arrived(view):
    """BROS's least urgent: best-effort requests have no deadline, so the last to arrive is evicted
    (`bros_model`)."""
    best = 0
    for i in range(view.candidates.size):
        if view.candidates[i] > view.candidates[best]:  # slots are in the order of arrival
            best = i
    return best


random = replace(ooco, name="random", gate=at_random)
least_urgent = replace(ooco, name="least_urgent", evict=last_arrived)


# --- Slack ----------------------------------------------------------------------------------------------------------

@inner
def growing_blocks(state, instance, horizon):
    """Blocks by which residents, and arriving requests, grow in `horizon` steps, each at most to
    its class's mean."""
    spec = state.instances[instance]
    offline = spec.decodable - spec.urgent_decodable + spec.arriving_pulls
    online = spec.urgent_decodable + spec.arriving - spec.arriving_pulls
    share = state.params[P.growth]
    tokens = (offline * min(horizon, share * state.observed.offline_output_mean)
              + online * min(horizon, share * state.observed.online_output_mean))
    return int(tokens) // state.config.block_tokens + 1


@hook(PULL, flushes=True)
def pull_what_fits_grown(view):
    """Keeps Algorithm 1's picks that fit the memory, with the residents, after all have grown to
    mean lengths."""
    state, instance = view.state, view.instance
    count = algorithm_1(view)
    if count <= 0 or state.params[P.growth] == 0.0:
        return count
    flush(state, state.requests[state.picks[0]].instance)  # all picks decode there
    horizon = state.params[P.growth] * state.observed.offline_output_mean
    free = state.instances[instance].free_blocks - growing_blocks(state, instance, horizon)
    kept = 0
    for i in range(count):
        slot = state.picks[i]
        need = blocks_for(state, length(state, slot) + 1 + int(horizon))
        if need <= free:
            state.picks[kept] = slot
            kept += 1
            free -= need
    return kept if kept > 0 else s.FULL


@inner
def ahead_ps(state, instance):
    """The least time until an online request that decodes here has its next token due."""
    least, now = float(s.NEVER), state.clock.now_ps
    for i in range(state.instances[instance].urgent_members):
        request = state.requests[state.members[s.URGENT, instance, i]]
        if request.status == s.RESIDENT and request.online:
            due_ps = request.first_token_ps + float(request.generated_tokens) * request.tpot_slo_ps
            least = min(least, due_ps - now)
    return least


@hook(COMPOSE, flushes=True)
def spend_what_is_ahead(view):
    """Algorithm 2 within the time that all online requests are ahead of Echo's deadlines; OOCO's
    before a known join."""
    state, instance = view.state, view.instance
    spec, limit = state.instances[instance], float(tpot_bound(state, instance))
    if spec.role == s.RELAXED or state.params[P.bank] == 0.0:
        return mix(view)
    plain = int(state.params[P.slo_margin] * limit)
    if all_fit(state, instance, plain):
        return s.ALL
    bound = plain
    joins = spec.arriving > spec.arriving_pulls or state.push_queues[s.URGENT].head >= 0
    if not joins:  # no online request is on its way here, or waits to be sent
        flush(state, instance)
        bound = max(plain, int(state.params[P.slo_margin] * min(
            state.params[P.bank] * limit, ahead_ps(state, instance))))
    answer = mix_within(state, instance, bound)
    spec.bound_ps = 0  # the time ahead and the joining requests differ at the next step
    return answer


slack = replace(ooco, name="slack", params=PARAMS, compose=spend_what_is_ahead, pull=pull_what_fits_grown)
