"""OOCO with other answers to some of its decisions; everything else, its parameters too, is OOCO's.

`random` and `least_urgent` answer one decision, for comparison. `slack` spends slack where there is some: ours, not a
paper's. An online arrival stops offline work only where its first token would be late otherwise (`interrupt=slack` of
`baselines/ooco.py`), and a strict instance pulls only requests that it will have memory for: Algorithm 1 looks at the
memory that is free now, while its residents grow with each step, so that pulls are followed by evictions. Here a pull
must fit when all requests have grown by what their class generates on average, which for lengths without memory is
also what they still generate. Algorithm 2 bounds each step by the TPOT SLO; the promise is one on the mean, so a step
may also take what every online request of its batch is ahead of its own deadlines (Echo, arXiv 2504.03651, 5.1), as
long as no request is known to join after it that would wait for its end.
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
          Param("growth", "mean lengths by which all must be able to grow after a pull; 0: Algorithm 1", 0.0, 100.0),
          Param("bank", "times the TPOT SLO that a step may take at most, where all online requests are ahead of their "
                "deadlines; 0: Algorithm 2's bound", 0.0, 100.0))
P = slots(PARAMS)
GATE_STREAM = 2  # of `random`'s draws


# --- One decision ---------------------------------------------------------------------------------------------------
@hook(GATE, flushes=True)
def at_random(view):
    """Hold or start one of the candidates, all equally likely."""
    step = view.state.instances[view.instance].steps_begun
    choice = random_below(view.state, GATE_STREAM, view.instance, step, 0, view.candidates.size + 1)
    return choice if choice < view.candidates.size else s.HOLD


@hook(EVICT, flushes=True)
def last_arrived(view):
    """BROS's least urgent: best-effort requests have no deadline, so the one that arrived last goes (`bros_model`)."""
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
    """Blocks by which residents, and arriving requests, grow in so many steps, each as far as its class's mean."""
    spec = state.instances[instance]
    offline = spec.decodable - spec.urgent_decodable + spec.arriving_pulls
    online = spec.urgent_decodable + spec.arriving - spec.arriving_pulls
    share = state.params[P.growth]
    tokens = (offline * min(horizon, share * state.observed.offline_output_mean)
              + online * min(horizon, share * state.observed.online_output_mean))
    return int(tokens) // state.config.block_tokens + 1


@hook(PULL, flushes=True)
def pull_what_fits_grown(view):
    """Algorithm 1's picks, as long as they and the residents fit the memory when all have grown to mean lengths."""
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
    """The least of the times by which the next tokens of the online requests that decode here are due."""
    least, now = float(s.NEVER), state.clock.now_ps
    for i in range(state.instances[instance].urgent_members):
        request = state.requests[state.members[s.URGENT, instance, i]]
        if request.status == s.RESIDENT and request.online:
            due_ps = request.first_token_ps + float(request.generated_tokens) * request.tpot_slo_ps
            least = min(least, due_ps - now)
    return least


@hook(COMPOSE, flushes=True)
def spend_what_is_ahead(view):
    """Algorithm 2 within what all online requests are ahead of Echo's deadlines, but before a known join as OOCO's."""
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
    spec.bound_ps = 0  # the time ahead and the requests about to join differ at the next step
    return answer


slack = replace(ooco, name="slack", params=PARAMS, compose=spend_what_is_ahead, pull=pull_what_fits_grown)
