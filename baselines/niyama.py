"""Niyama (arXiv 2503.22562; as QoServe at ASPLOS '26): chunks by deadline slack, hybrid priorities,
relegation.

Every iteration has all decodes and a prefill chunk (Algorithm 1, on Sarathi's engine):

* Deadlines (3.2): an online request's first token is due SLO_TTFT after its arrival, the n-th (n-1)
  SLO_TBT later (Equations 1 and 2). An offline request's last token is due SLO_TTLT after it
  (Equation 3): its class's deadline, or `ttlt_s`.
* Dynamic chunking (3.3, 3.6.1): the least slack of the decodes' next tokens is the latency budget.
  The chunk is the longest that the predictor allows, up to where throughput saturates (2,500 tokens;
  4.1.4).
* Hybrid prioritisation (3.4): prefills go by t_arrival + SLO_TTFT + alpha Prefill_rem, offline ones
  by t_arrival + SLO_TTLT + alpha (Prefill_rem + Decode_rem) (Equations 4 and 5), with alpha 8 ms a
  token (3.6). Decode_rem is the history's mean plus two standard deviations.
* Eager relegation (3.4): a prefill that has violated its deadline, or will, goes behind all others;
  low priorities first (`hints`: offline requests are the paper's free tier).
* Selective preemption (3.4): a running prefill yields to one of higher priority only if it still
  meets its own deadline. Decodes are never preempted (`preempted=retain`).

Source: sections 1 to 4 of QoServe, and the authors' scheduler (github.com/microsoft/sarathi-serve,
branch niyama_asplos2026) for numbers that the paper lacks: 20 % more than predicted must fit
(`margin`), 128 tokens are always in the batch (`least_chunk`), an offline decode has 0.4 s for a
token (`offline_tbt_s`). A prefill will violate its deadline if its missing tokens take longer at
the moving mean of prefill throughput (weight 0.005 of the newest iteration). The code relegates
only requests without memory; here, as in the paper, any prefill.

Ours: the predictor is the simulator's, not a random forest, and prices each chunk as it is added.
Deadlines of tokens run from the first token (`due_from=first_token`), as TPOT is defined here. The
paper's run from the TTFT deadline (`due_from=arrival`; in its code from a later first token), so
that an early first token gives slack. If memory is short, which the paper does not treat, a request
waits until its whole context fits, and a decode preempts the last admitted request (with
`preempted=recompute`, the next online request takes memory and slot from offline ones). Of each
class the first 64 waiting requests are considered: online ones by arrival, offline ones by
priority.
"""

import numpy as np

from ooco_gym.compile import inner
from ooco_gym.perf.latency import NO_SUMS
from ooco_gym.policy.decisions import COMPOSE, hook
from ooco_gym.policy.latency_budget import (
    OFFLINE_CLASS,
    ONLINE_CLASS,
    decodes,
    longest_chunk,
    make_place,
    schedule_chunk,
    schedule_decodes,
    token_slack,
    with_tokens,
)
from ooco_gym.policy.mixed import (
    RECOMPUTE,
    admit,
    begins_ps,
    fits_whole,
    get_computed_tokens,
    missing,
    next_in_order,
    past_outputs,
    rank_of,
)
from ooco_gym.policy.policy import Param, Policy, slots
from ooco_gym.policy.rules import length, route_fewest_requests
from ooco_gym.sim.state import BATCH, NEVER, PS_PER_S, RESIDENT

PARAMS = (
    Param("max_num_seqs", "most requests that run at a time", 1, 65_536),
    Param("prefix_caching", "reuse the KV memory of shared prompt prefixes", choices=("off", "on")),
    Param("max_chunk", "most tokens of an iteration, decodes included", 1, 1_000_000),
    Param("least_chunk", "tokens of an iteration, decodes included, that need no slack", 0, 1_000_000),
    Param("margin", "factor on predicted latency, which must stay within the slack", 0.1, 10.0),
    Param("alpha_ms", "ms that a token of remaining work counts in a priority", 0.0, 1e6),
    Param("ttlt_s", "SLO_TTLT of offline requests without a deadline of their own", 0.0, 1e7),
    Param("offline_tbt_s", "slack of an offline decode's next token", 0.0, 1e7),
    Param("due_from", "start of the token deadlines of online requests", choices=("first_token", "arrival")),
    Param("relegation", "whether prefills that will be late go behind all others", choices=("on", "off")),
    Param("hints", "whether offline requests are relegated before online ones", choices=("on", "off")),
    Param("preempted", "whether offline requests keep their KV memory when an online one needs it, or recompute it",
          choices=("retain", "recompute")),
    Param("output_window", "number of past requests whose output lengths are known", 1, 100_000),
    Param("outputs_by_class", "whether lengths of online and offline requests are separate", choices=("off", "on")),
)
P = slots(PARAMS)
FROM_ARRIVAL, OFF, RETAIN = 1, 1, 0  # of due_from; of relegation and hints; of preempted
CANDIDATES = 64  # waiting requests of a class that are considered
NEWEST = 0.005  # weight of an iteration in the moving mean of prefill throughput
# Places of State.memory: prefill throughput in tokens per ps, prefill tokens of the last iteration,
# the predicted decode length of offline requests, and the number of finished ones that it is based
# on.
THROUGHPUT, LAST_TOKENS, DECODE_TOKENS, SEEN = range(4)


def priorities(policy, trace, seed, predicted):
    """Equation 5 without the part common to all waiting offline requests, in s: float64[requests]."""
    priority_s = trace.arrival_s + 1e-3 * policy.values["alpha_ms"] * trace.prompt_tokens
    if trace.deadline_s is None:
        return priority_s
    return priority_s + np.where(np.isnan(trace.deadline_s), policy.values["ttlt_s"], trace.deadline_s)


# --- Deadlines (3.2) ------------------------------------------------------------------------------------------------
@inner
def next_token_slack(state, slot):
    """Time until the next token of a decoding request is due, in ps."""
    request = state.requests[slot]
    begins = begins_ps(state, request.instance)
    if request.urgent == 0:
        return request.last_token_ps + np.int64(state.params[P.offline_tbt_s] * PS_PER_S) - begins
    if state.params[P.due_from] == FROM_ARRIVAL:
        begin_ps = max(request.arrival_ps + request.ttft_slo_ps, request.first_token_ps)
        return begin_ps + request.generated_tokens * request.tpot_slo_ps - begins
    return token_slack(state, slot, 1.0)


@inner
def least_decode_slack(state, instance):
    """GET_MIN_SLACK: the least slack of the decodes in the batch; NEVER without decodes."""
    least = np.int64(NEVER)
    for place in range(state.instances[instance].running):
        slot = state.members[BATCH, instance, place]
        if decodes(state, slot):
            least = min(least, next_token_slack(state, slot))
    return least


@inner
def expected_decodes(state, instance):
    """Decode_rem of an offline request in tokens: mean plus two standard deviations of finished
    outputs."""
    memory = state.memory[instance]
    ordered, finished = past_outputs(state, instance, 0)
    if finished != memory[SEEN] or memory[DECODE_TOKENS] == 0.0:
        known, total, squares = min(finished, ordered.size), 0.0, 0.0
        for i in range(known):
            total += ordered[i]
            squares += float(ordered[i]) * ordered[i]
        mean = total / known if known > 0 else state.observed.offline_output_mean
        spread = max(0.0, squares / known - mean * mean) if known > 0 else 0.0
        memory[DECODE_TOKENS], memory[SEEN] = mean + 2.0 * np.sqrt(spread), finished
    return memory[DECODE_TOKENS]


@inner
def ttlt_s(state, slot):
    """SLO_TTLT of an offline request, in seconds: its own deadline, or else the parameter."""
    if state.due_ps.size > 0 and state.due_ps[slot] < NEVER:
        return (state.due_ps[slot] - state.requests[slot].arrival_ps) / PS_PER_S
    return state.params[P.ttlt_s]


@inner
def prefill_due(state, instance, slot):
    """Deadline of a request's prefill, in ps; an offline one leaves time for its decodes."""
    request = state.requests[slot]
    if request.urgent:
        return request.arrival_ps + request.ttft_slo_ps
    seconds = ttlt_s(state, slot) - expected_decodes(state, instance) * state.params[P.offline_tbt_s]
    return request.arrival_ps + np.int64(seconds * PS_PER_S)


# --- Hybrid prioritisation and relegation (3.4) ---------------------------------------------------------------------
@inner
def remaining(state, instance, slot):
    """Prefill_rem of a running or a waiting request, in tokens."""
    if state.requests[slot].status == RESIDENT:
        return missing(state, slot)
    return length(state, slot) - get_computed_tokens(state, instance, slot)


@inner
def priority(state, instance, slot):
    """Equations 4 and 5, in ps: the lowest goes first."""
    request, work = state.requests[slot], float(remaining(state, instance, slot))
    slo_ps = float(request.ttft_slo_ps)
    if request.urgent == 0:
        slo_ps = ttlt_s(state, slot) * PS_PER_S
        work += expected_decodes(state, instance)
    return request.arrival_ps + slo_ps + 1e-3 * state.params[P.alpha_ms] * PS_PER_S * work


@inner
def done_at(state, instance, slot):
    """Predicted end of a prefill that begins now, in ps."""
    rate = state.memory[instance, THROUGHPUT]
    wait_ps = remaining(state, instance, slot) / rate if rate > 0.0 else 0.0
    return begins_ps(state, instance) + np.int64(min(wait_ps, float(NEVER) / 2))


@inner
def will_violate(state, instance, slot):
    """WILL_VIOLATE: whether a prefill has violated its deadline, or will."""
    return state.params[P.relegation] != OFF and done_at(state, instance, slot) > prefill_due(state, instance, slot)


@inner
def rank(state, instance, slot, pressed):
    """COMPARATOR's first key. 0: cannot wait an iteration; 1: in time; 2: relegated; 3: relegated
    offline request with `hints`."""
    request = state.requests[slot]
    if will_violate(state, instance, slot) or (pressed and request.urgent == 0):
        return 3 if request.urgent == 0 and state.params[P.hints] != OFF else 2
    spec = state.instances[instance]
    if request.status == RESIDENT:
        last_ps = max(np.int64(0), spec.end_ps - spec.start_ps)
        if done_at(state, instance, slot) + last_ps > prefill_due(state, instance, slot):
            return 0
    return 1


@inner
def better(state, instance, slot, best, pressed):
    """Returns the prefill of two that goes first; `best` may be -1 (none)."""
    if best < 0:
        return slot
    mine, other = rank(state, instance, slot, pressed), rank(state, instance, best, pressed)
    if mine != other:
        return slot if mine < other else best
    return slot if priority(state, instance, slot) < priority(state, instance, best) else best


# --- The prefill queue ----------------------------------------------------------------------------------------------
@inner
def best_online(state, instance):
    """The waiting online request that goes first, or -1."""
    best, slot, left = np.int64(-1), np.int64(state.instances[instance].online_head), CANDIDATES
    while slot >= 0 and left > 0:
        best = better(state, instance, slot, best, False)
        slot = np.int64(state.requests[slot].next)
        left -= 1
    return best


@inner
def best_offline(state, instance, pressed):
    """Returns the first waiting offline request in order of priority that is in time, else the
    first; -1 if none waits."""
    first = np.int64(next_in_order(state, instance, 0))
    slot, left = first, CANDIDATES
    while slot >= 0 and left > 0 and not pressed:
        if not will_violate(state, instance, slot):
            return slot
        slot = np.int64(next_in_order(state, instance, rank_of(state, slot) + 1))
        left -= 1
    return first


@inner
def top_job(state, instance, online, offline):
    """The prefill that goes first, among running ones without tokens yet and waiting ones of the
    permitted classes."""
    spec, best = state.instances[instance], np.int64(-1)
    waiting = best_online(state, instance) if online else np.int64(-1)
    pressed = waiting >= 0 and state.params[P.hints] != OFF and will_violate(state, instance, waiting)
    for place in range(spec.running):
        slot = np.int64(state.members[BATCH, instance, place])
        if state.requests[slot].num_scheduled_tokens == 0 and not decodes(state, slot):
            best = better(state, instance, slot, best, pressed)
    if waiting >= 0:
        best = better(state, instance, waiting, best, pressed)
    if offline:
        slot = best_offline(state, instance, pressed)
        if slot >= 0:
            best = better(state, instance, slot, best, pressed)
    return best


@inner
def clear_for_online(state, instance):
    """Preempts offline requests for the memory and slot of the next online one, unless they retain
    theirs."""
    slot = best_online(state, instance) if state.params[P.preempted] != RETAIN else np.int64(-1)
    if slot >= 0:
        make_place(state, instance, slot, ONLINE_CLASS, 0, 0, RECOMPUTE)


# --- Dynamic chunking (Algorithm 1) ---------------------------------------------------------------------------------
@inner
def give_chunk(state, instance, sums, slot, left, least, until_ps):
    """Gives the top job the longest chunk within the budget. Returns its tokens, 0 if memory or
    budget is short."""
    computed = length(state, slot) - remaining(state, instance, slot)
    tokens = max(longest_chunk(state, instance, sums, slot, computed, left, until_ps),
                 min(least, left, length(state, slot) - computed))
    if tokens <= 0:
        return np.int64(0)
    if state.requests[slot].status == RESIDENT:
        kind = OFFLINE_CLASS if state.params[P.preempted] == RETAIN else np.int64(state.requests[slot].urgent)
        return np.int64(schedule_chunk(state, instance, slot, tokens, kind, RECOMPUTE))
    return np.int64(admit(state, instance, slot, tokens))


@inner
def fill_prefill(state, instance, sums, until_ps):
    """Schedules prefills in the order of priority until the budget is used. Returns their tokens."""
    online, offline, done = True, True, np.int64(0)
    left = np.int64(state.params[P.max_chunk]) - sums[0]
    least = np.int64(state.params[P.least_chunk]) - sums[0]
    while left > 0:
        slot = top_job(state, instance, online, offline)
        if slot < 0:
            break
        if state.requests[slot].status != RESIDENT and not fits_whole(state, instance, slot):
            online, offline = online and not state.requests[slot].urgent, offline and state.requests[slot].urgent
            continue
        computed = length(state, slot) - remaining(state, instance, slot)
        tokens = give_chunk(state, instance, sums, slot, left, least, until_ps)
        if tokens == 0:
            break
        sums = with_tokens(state, instance, sums, slot, computed, tokens)
        left, least, done = left - tokens, least - tokens, done + tokens
    return done


@inner
def note_throughput(state, instance):
    """Updates the moving mean of prefill throughput with the last iteration."""
    memory, spec = state.memory[instance], state.instances[instance]
    if memory[LAST_TOKENS] > 0.0 and spec.end_ps > spec.start_ps:
        rate = memory[LAST_TOKENS] / (spec.end_ps - spec.start_ps)
        memory[THROUGHPUT] = rate if memory[THROUGHPUT] == 0.0 else (
            (1.0 - NEWEST) * memory[THROUGHPUT] + NEWEST * rate)


@hook(COMPOSE)
def create_batch(view):
    """CREATE_BATCH: all decodes, and prefills within their slack."""
    state, instance = view.state, view.instance
    note_throughput(state, instance)
    how, most = np.int64(RECOMPUTE), np.int64(1 << 40)
    sums, _ = schedule_decodes(state, instance, NO_SUMS, most, ONLINE_CLASS, NEVER, how)
    clear_for_online(state, instance)
    sums, _ = schedule_decodes(state, instance, sums, most, OFFLINE_CLASS, NEVER, how)
    slack = least_decode_slack(state, instance)
    until_ps = slack if slack >= NEVER else np.int64(max(0.0, slack / state.params[P.margin]))
    tokens = fill_prefill(state, instance, sums, until_ps)
    state.memory[instance, LAST_TOKENS] = tokens
    return sums[0] + tokens


policy = Policy("niyama", PARAMS, mixed=True, route=route_fewest_requests, compose=create_batch, order=priorities)
