"""HyGen (arXiv 2501.14808): online requests first, offline ones within the rest of a latency
budget; and HyGen*.

Algorithms 1 and 2 (sections 4.1 and A.1), the predictor of Equation 1 (4.2), prefix sharing
maximisation with its fairness ratio (4.3; Algorithms 3 and 4). The profiler finds the budget
(`hygen_profile`) if it is not given. HyGen* (5.1) is Sarathi++ with offline requests at a fixed
rate, profiled alike.

Differences from the printed text, with reasons:

- Algorithms 3 and 4, line 9, break where a decode *fits*; here where it does not, and then no
  request enters. As printed, only the loop over running requests ends: a rest too small for a
  decode then admits new requests in tiny chunks, ahead of running prefills.
- Algorithm 1 retries a prefill after preempting, whichever budget was short; here only for memory.
- Its victims are running online requests outside the batch. Memory of offline requests counts as
  free in the first phase (Algorithm 2, lines 11 and 14), so these go first, the last admitted of
  them.
- If nothing runs because each running offline request exceeds the budget by itself, the first
  continues: else all would hold their memory for ever.
- Algorithm 2 schedules one step ahead of the engine and repairs the batch when a request arrives;
  here it is synchronous, with nothing to repair.

Left open, so parameters: whether the budget also shortens online prefills (`budget_binds_online`);
S_d (`decode_tokens`); the fairness ratio (`utility`). Algorithm 1 as printed applies the budget in
both phases, section 4.1 only in the second. If it binds online, no small budget leaves online
service as it is. A request's cost is its addition to the batch's predicted latency; the intercept
counts once. Others: docs/readings.md.
"""

import numpy as np

from baselines.hygen_predictor import trained
from baselines.hygen_profile import PROFILE_PARAMS, profile_budget, profile_rate
from baselines.sarathi import (
    FAMILY,
    OFFLINE_CLASS,
    ONLINE_CLASS,
    begin,
    decode,
    first_waiting,
    prefill,
    running_of,
    runs,
    scheduled,
    serve,
)
from ooco_gym.compile import inner
from ooco_gym.policy.decisions import COMPOSE, hook
from ooco_gym.policy.latency_budget import decodes
from ooco_gym.policy.mixed import get_computed_tokens, next_in_order, wake_at
from ooco_gym.policy.policy import Param, Policy, slots
from ooco_gym.policy.rules import length, route_fewest_requests
from ooco_gym.sim.costs import random_unit
from ooco_gym.sim.state import NEVER, PS_PER_S

COEFFICIENTS = ("one_ps", "prefill_token_ps", "decode_token_ps", "prefill_token_2_ps", "decode_token_2_ps",
                "prefill_ps", "decode_ps")
PARAMS = (
    *FAMILY,
    Param("latency_budget_s", "predicted latency up to which an iteration is filled; -1: found by the profiler", -1.0),
    Param("budget_binds_online", "whether the budget also shortens online prefills", 0, 1),
    Param("waiting_order", "order of offline requests: arrival, or prefix (PSM)",
          choices=("arrival", "prefix")),
    Param("utility", "u: probability of the next by prefix instead of the one that waits longest", 0.0, 1.0),
    Param("decode_tokens", "S_d: sum of the decodes' contexts or of their new tokens", choices=("context", "new")),
    *(Param(name, "coefficient of Equation 1; all 0: trained") for name in COEFFICIENTS),
    *PROFILE_PARAMS,
)
P = slots(PARAMS)
STAR_PARAMS = (*FAMILY, Param("offline_qps", "offline requests admitted per second; -1: found by the profiler", -1.0),
               *PROFILE_PARAMS)
STAR = slots(STAR_PARAMS)
FAIRNESS_STREAM = 2  # of Algorithm 4's random numbers

# Places of State.memory: the remaining budgets, the sums of the batch, and prediction errors of past
# batches.
TIME, CHUNK, PREFILL_TOKENS, DECODE_TOKENS, PREFILLS, DECODES, PREDICTED, ERRORS, PREDICTIONS, ENTERED = range(10)


# --- The predictor (4.2, Equation 1) --------------------------------------------------------------------------------
@inner
def predict(state, prefill_tokens, decode_tokens, prefills, decoding):
    """Predicted latency of a batch from its sums, in ps."""
    p = state.params
    return (p[P.one_ps] + p[P.prefill_token_ps] * prefill_tokens + p[P.decode_token_ps] * decode_tokens
            + p[P.prefill_token_2_ps] * prefill_tokens ** 2 + p[P.decode_token_2_ps] * decode_tokens ** 2
            + p[P.prefill_ps] * prefills + p[P.decode_ps] * decoding)


@inner
def decode_cost(state, batch, slot):
    """Predicted latency that one more decode adds to the batch, in ps."""
    more = length(state, slot) if state.params[P.decode_tokens] == 0 else 1
    total = batch[DECODE_TOKENS]
    return (state.params[P.decode_token_ps] * more + state.params[P.decode_ps]
            + state.params[P.decode_token_2_ps] * ((total + more) ** 2 - total ** 2))


@inner
def prefill_cost(state, batch, tokens):
    """Predicted latency that one more prefill of `tokens` new tokens adds, in ps."""
    total = batch[PREFILL_TOKENS]
    return (state.params[P.prefill_token_ps] * tokens + state.params[P.prefill_ps]
            + state.params[P.prefill_token_2_ps] * ((total + tokens) ** 2 - total ** 2))


@inner
def max_prefill(state, batch, online):
    """The longest chunk within latency and token budget (get_max_prefill; memory limits it later)."""
    low, high = 0, max(0, int(batch[CHUNK]))
    if online and state.params[P.budget_binds_online] == 0:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if prefill_cost(state, batch, middle) <= batch[TIME]:
            low = middle
        else:
            high = middle - 1
    return low


@inner
def add_decode(state, batch, slot, cost):
    """Adds a decode to the batch: t, c and the sums."""
    batch[TIME] -= cost
    batch[CHUNK] -= 1
    batch[DECODE_TOKENS] += length(state, slot) if state.params[P.decode_tokens] == 0 else 1
    batch[DECODES] += 1


@inner
def add_prefill(state, batch, tokens):
    """Adds a chunk to the batch: t, c and the sums."""
    batch[TIME] -= prefill_cost(state, batch, tokens)
    batch[CHUNK] -= tokens
    batch[PREFILL_TOKENS] += tokens
    batch[PREFILLS] += 1


# --- Algorithm 1: SLO_AWARE_SCHEDULE --------------------------------------------------------------------------------
@inner
def slo_aware_schedule(state, instance, online):
    """Schedules decodes within the budget (online ones always), then chunks; what
    remains of t, c and m stays for the next phase."""
    batch, count = state.memory[instance], running_of(state, instance, online)
    for i in range(count):
        slot = state.scratch[0, i]
        if runs(state, slot) and decodes(state, slot):
            cost = decode_cost(state, batch, slot)
            if (online or cost <= batch[TIME]) and decode(state, instance, slot, online):
                add_decode(state, batch, slot, cost)
    for i in range(count):
        slot = state.scratch[0, i]
        if runs(state, slot) and not decodes(state, slot) and not extend(state, instance, slot, online):
            return
    while enter(state, instance, first_waiting(state, instance, online), online):
        pass


@inner
def extend(state, instance, slot, online):
    """Gives a running request its next chunk; returns whether there was any."""
    batch = state.memory[instance]
    tokens = prefill(state, instance, slot, max_prefill(state, batch, online), online)
    if tokens == 0:
        return False
    add_prefill(state, batch, tokens)
    return True


@inner
def resume(state, instance, slot, online):
    """Admits a preempted request whose whole context but the next token is cached. Returns whether
    it was admitted."""
    batch = state.memory[instance]
    cost = decode_cost(state, batch, slot)
    if batch[CHUNK] < 1 or (cost > batch[TIME] and not online) or begin(state, instance, slot, 1, online) == 0:
        return False
    add_decode(state, batch, slot, cost)
    return True


@inner
def enter(state, instance, slot, online):
    """Admits a waiting request (-1: there is none) with a first chunk; returns whether it was
    admitted."""
    if slot >= 0 and state.requests[slot].generated_tokens > 0:
        if get_computed_tokens(state, instance, slot) == length(state, slot) - 1:
            return resume(state, instance, slot, online)
    batch = state.memory[instance]
    most = max_prefill(state, batch, online) if slot >= 0 else 0
    tokens = begin(state, instance, slot, most, online) if most > 0 else 0
    if tokens == 0:
        return False
    add_prefill(state, batch, tokens)
    return True


# --- Algorithms 3 and 4: prefix sharing maximisation, with fairness -------------------------------------------------
@inner
def prefix_sharing_schedule(state, instance):
    """Schedules running offline requests in order until one does not fit; then waiting ones in the
    order of the tree or, with probability 1 - u, the one that waits longest."""
    batch, count, draw = state.memory[instance], running_of(state, instance, OFFLINE_CLASS), 0
    for i in range(count):
        slot = state.scratch[0, i]
        if not runs(state, slot):
            continue
        if decodes(state, slot):
            cost = decode_cost(state, batch, slot)
            if cost > batch[TIME]:
                return
            if decode(state, instance, slot, OFFLINE_CLASS):
                add_decode(state, batch, slot, cost)
        elif not extend(state, instance, slot, OFFLINE_CLASS):
            return
    while enter(state, instance, next_offline(state, instance, draw), OFFLINE_CLASS):
        draw += 1


@inner
def next_offline(state, instance, draw):
    """Algorithm 4, lines 23 to 28: the first of the tree with probability u, else the most stale;
    -1 if none waits."""
    u = state.params[P.utility]
    if u < 1.0 and random_unit(state, FAIRNESS_STREAM, instance, state.instances[instance].steps_begun, draw) >= u:
        return first_waiting(state, instance, OFFLINE_CLASS)
    return next_in_order(state, instance, 0)


# --- Algorithm 2: the two phases ------------------------------------------------------------------------------------
@inner
def note_error(state, instance):
    """Adds the last iteration's relative prediction error to the running sum (Figure 5)."""
    batch, spec = state.memory[instance], state.instances[instance]
    if batch[PREDICTED] > 0:
        took = spec.end_ps - spec.start_ps
        batch[ERRORS] += abs(batch[PREDICTED] - took) / took
        batch[PREDICTIONS] += 1
        batch[PREDICTED] = 0.0


@inner
def go_on(state, instance):
    """Schedules the longest-running offline request if nothing fits the budget."""
    batch = state.memory[instance]
    for i in range(running_of(state, instance, OFFLINE_CLASS)):
        slot = state.scratch[0, i]
        if not runs(state, slot):
            continue
        if decodes(state, slot):
            if decode(state, instance, slot, OFFLINE_CLASS):
                add_decode(state, batch, slot, decode_cost(state, batch, slot))
                return
        else:
            tokens = prefill(state, instance, slot, int(state.params[P.chunk_size]), OFFLINE_CLASS)
            if tokens > 0:
                add_prefill(state, batch, tokens)
                return


@hook(COMPOSE)
def two_phases(view):
    """Schedules online requests with the whole budget, then offline ones with its rest."""
    state, instance = view.state, view.instance
    batch = state.memory[instance]
    note_error(state, instance)
    batch[TIME] = state.params[P.latency_budget_s] * PS_PER_S - state.params[P.one_ps]
    batch[CHUNK] = state.params[P.chunk_size]
    for place in (PREFILL_TOKENS, DECODE_TOKENS, PREFILLS, DECODES):
        batch[place] = 0.0
    slo_aware_schedule(state, instance, ONLINE_CLASS)
    if state.params[P.waiting_order] == 1:
        prefix_sharing_schedule(state, instance)
    else:
        slo_aware_schedule(state, instance, OFFLINE_CLASS)
    tokens = scheduled(state, instance)
    if tokens == 0:
        go_on(state, instance)
        tokens = scheduled(state, instance)
    batch[PREDICTED] = 0.0 if tokens == 0 else predict(
        state, batch[PREFILL_TOKENS], batch[DECODE_TOKENS], batch[PREFILLS], batch[DECODES])
    return tokens


def service_error(state):
    """Mean absolute percentage error of the predictor on an episode's batches so far, as a share."""
    return float(state.memory[:, ERRORS].sum() / max(1.0, state.memory[:, PREDICTIONS].sum()))


def prepare(policy, context):
    """Trains the predictor on the instance's cost table, unless coefficients are given."""
    if any(policy.values[name] for name in COEFFICIENTS):
        return {}
    found = trained(context.strict, int(policy.values["chunk_size"]), policy.values["decode_tokens"])
    return {name: float(number) for name, number in zip(COEFFICIENTS, found, strict=True)}


# --- HyGen* (5.1) ---------------------------------------------------------------------------------------------------
@hook(COMPOSE)
def fixed_rate(view):
    """Sarathi++ with a new offline request every 1/qps seconds; requests not yet served wait
    outside."""
    state, instance = view.state, view.instance
    memory, rate = state.memory[instance], state.params[STAR.offline_qps] / PS_PER_S
    due = NEVER if rate == np.inf else int(state.clock.now_ps * rate)
    left, _ = serve(state, instance, ONLINE_CLASS, int(state.params[STAR.chunk_size]), NEVER)
    _, entered = serve(state, instance, OFFLINE_CLASS, left, due - int(memory[ENTERED]))
    memory[ENTERED] += entered
    tokens = scheduled(state, instance)
    waits = state.instances[instance].offline_head >= 0
    if tokens == 0 and waits and 0 < rate < np.inf and due <= memory[ENTERED]:  # not due yet, or by a rounding
        wake_at(state, instance, max(int((memory[ENTERED] + 1) / rate) + 1, state.clock.now_ps + PS_PER_S // 1000))
    return tokens


hygen = Policy("hygen", PARAMS, mixed=True, route=route_fewest_requests, compose=two_phases, prepare=prepare,
               profile=profile_budget)
hygen_star = Policy("hygen_star", STAR_PARAMS, mixed=True, route=route_fewest_requests, compose=fixed_rate,
                    profile=profile_rate)
