"""HyGen (arXiv 2501.14808) carried to P/D pools: what OOCO's online priority stands for, with HyGen's own rules.

Carried: the two phases of Algorithms 1 and 2 (online first, offline from what the latency budget leaves), the
regression predictor of Eq. 1 (fitted on profiled decode steps), a constant budget for an iteration, online requests
taking the memory of offline ones, the last admitted first.

Not carried, as prompts are prefilled whole on instances of their own: mixed batches, and chunks sized by the budget
(`baselines/pools.py` says what stands for them); prefix sharing and its fairness ratio (no cache is shared between
pools). One budget becomes two: a decode step's is a share of the TPOT SLO, a prefill's a share of the TTFT SLO, which
needs no prediction: a prefill that takes longer is stopped. The paper finds its one budget by a profiler that test-runs
the workload, which `ooco-gym capacity` does for these (`tuning`).
Offline prefill is admitted where Algorithm 1 would admit it: with budget and memory left for the request to go on.
Offline requests that the budget leaves out of a step keep their memory and are skipped (Algorithm 1, line 8).
Of several classes of online requests, the SLO that both are shares of is the tightest.
"""

from baselines.hygen_predictor import trained_on_decodes
from baselines.pools import PREFILL_PARAMS, decode_instances, first_resident, load_with, route_online, stop_beyond
from ooco_gym.compile import inner
from ooco_gym.policy.decisions import COMPOSE, GATE, INTERRUPT, ROUTE, hook
from ooco_gym.policy.policy import Param, Policy, slots
from ooco_gym.policy.rules import blocks_for, decodable, length, tpot_bound, write_urgent
from ooco_gym.sim import state as s

PARAMS = (
    Param("decode_share", "latency budget of a decode step, share of the TPOT SLO (4.2 profiles it)", 0.01, 2.0),
    Param("prefill_share", "latency budget of an offline prefill iteration, share of the TTFT SLO", 0.0, 2.0),
    Param("gate_window", "waiting offline requests that the gate looks at", 1, 1024),
    *PREFILL_PARAMS,
    Param("decode_base_ps", "predictor: intercept; all four 0: fitted on profiled batches"),
    Param("decode_token_ps", "for each token of context (S_d)"),
    Param("decode_square_ps", "for their sum squared (S_d^2)"),
    Param("decode_request_ps", "for each request (N_d)"),
)
P = slots(PARAMS)
COEFFICIENTS = ("decode_base_ps", "decode_token_ps", "decode_square_ps", "decode_request_ps")


# --- The predictor (4.2, Eq. 1) -------------------------------------------------------------------------------------
@inner
def decode_ps(state, batch, context):
    """Predicted latency of a decode step of `batch` requests with `context` tokens in all, in ps."""
    if batch == 0:
        return 0.0
    p = state.params
    return (p[P.decode_base_ps] + p[P.decode_token_ps] * context + p[P.decode_square_ps] * context * context
            + p[P.decode_request_ps] * batch)


@inner
def decode_budget(state, instance):
    """Latency budget of a step on a decode instance, in ps."""
    return state.params[P.decode_share] * tpot_bound(state, instance)


# --- Admission: Algorithm 1, lines 13 to 29, in the offline phase ---------------------------------------------------
@inner
def decode_instance_for(state, slot):
    """The decode instance with budget and memory for one more offline request, whose step stays shortest; WAIT if none.

    An empty instance takes any request: one that fits no budget would never run.
    """
    best, least = s.WAIT, float(s.NEVER)
    for instance in decode_instances(state):
        batch, context = load_with(state, instance, slot)
        latency = decode_ps(state, batch, context)
        if latency > decode_budget(state, instance) and batch > 1:
            continue
        if blocks_for(state, length(state, slot) + 1) <= state.instances[instance].free_blocks and latency < least:
            best, least = instance, latency
    return best


@hook(ROUTE)
def route(view):
    """Online requests at once; offline ones where budget and memory are left and no online one waits."""
    chosen = route_online(view.state, view.request)
    return decode_instance_for(view.state, view.request) if chosen == s.STAY else chosen


@hook(GATE)
def gate(view):
    """First come, first served: the first starts, if it could go on decoding."""
    state = view.state
    if state.push_queues[s.OFFLINE].head >= 0 or decode_instance_for(state, view.candidates[0]) == s.WAIT:
        return s.HOLD
    return 0


@hook(INTERRUPT)
def end_chunk(view):
    """An online arrival waits for offline prefill no longer than its budget; what was computed is kept."""
    state = view.state
    return stop_beyond(state, view.instance, state.params[P.prefill_share] * state.config.default_ttft_ps)


# --- The decode batch: Algorithm 1, lines 6 to 12 -------------------------------------------------------------------
@hook(COMPOSE)
def fill(view):
    """All online decodes, whatever they take; then offline ones in order of admission that the budget still holds."""
    state, instance = view.state, view.instance
    spec = state.instances[instance]
    spec.bound_ps = s.NEVER if spec.role == s.RELAXED else 0
    online, online_context = decodable(state, instance, 0)
    offline, offline_context = decodable(state, instance, s.OFFLINE)
    budget = decode_budget(state, instance)
    if spec.role == s.RELAXED or decode_ps(state, online + offline, online_context + offline_context) <= budget:
        return s.ALL
    count, context = write_urgent(state, instance), online_context
    left = budget - decode_ps(state, count, context)
    for i in range(spec.offline_members):
        slot = state.members[s.OFFLINE, instance, i]
        if state.requests[slot].status != s.RESIDENT:
            continue
        more = decode_ps(state, count + 1, context + length(state, slot)) - decode_ps(state, count, context)
        if more <= left:
            left -= more
            state.picks[count] = slot
            count += 1
            context += length(state, slot)
    if count == 0:  # nothing fits the budget: one at a time
        state.picks[0] = first_resident(state, instance)
        return 1
    return count


def prepare(policy, facts):
    """Fits the predictor to the decode instances (4.2), unless its coefficients are given."""
    if any(policy.values[name] for name in COEFFICIENTS):
        return {}
    most_ps = 2.0 * facts.tpot_s * s.PS_PER_S
    found = trained_on_decodes(facts.strict, most_ps, facts.mean_context_tokens, facts.max_batch)
    return {name: float(number) for name, number in zip(COEFFICIENTS, found, strict=True)}


policy = Policy("hygen_pd", PARAMS, route=route, interrupt=end_chunk, gate=gate, compose=fill, prepare=prepare)
