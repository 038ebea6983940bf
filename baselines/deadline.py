"""Deadline: an iteration of a mixed instance lasts as long as its online requests are ahead of
their deadlines. Ours.

A request's k-th token after the first is in time if it comes within k times its TPOT SLO of the
first. If every token is in time the SLO holds, however many tokens follow (docs/protocol.md). So
time that a request gained in short iterations may be spent on a long one. Each iteration:

1. *Budget.* B = min over the online requests that decode of first token + k s TPOT - now, with s =
`tpot_share`; at least `least_iteration_s`, at most `longest_iteration_s`, which is B if none
decodes. Requests whose first token came after the TTFT SLO have violated already and are left out,
as are those given up (5).
2. *Due.* Online prompts, running or waiting in the order of arrival, must each be computed by
arrival + f TTFT, with f = `ttft_share`. W is the predicted time of prefill up to and including a
prompt. Online prefill is due if now + W is past that time for one of the first `DUE_PROMPTS`
prompts. A prompt with now + W past arrival + TTFT is lost and does not count. With `ttft_share` 0
prefill never waits; above 1 it is never due.
3. *Online work.* Every online decode. Prefill, if due, up to the token budget, however long the
iteration gets. Otherwise it stays within B and in chunks of at least `online_chunk`, so that a
chunk is worth the overhead of an iteration with prefill.
4. *Offline work.* Decodes stay within B and within `decode_share` s TPOT (of the tightest class;
without online decodes, within B only), which saves slack; the others pause with their memory.
Prefill stays within `offline_share` B, which leaves slack for the next online prompts, in chunks of
at least `offline_chunk`, and waits while online prefill is held back. A request is admitted if
enough blocks then stay free: `headroom_share` of all, and what the running requests and this one
need until each has `growth` times the mean output of its class (as `memory_gate` on pools; 0: no
growth).
5. *Giving up.* Of the online requests that an instance has seen within `violation_window_s` (with
exponential decay), a share `give_up_share` may violate. Late first tokens use it up first. The rest
goes to the request that bounds B, if B grows by `give_up_gain_s` or more without it. That request
is still served, but bounds no iteration.

The overhead of a prefill iteration differs by chip: where a chunk hides behind the decodes' memory
traffic a few tokens suffice, elsewhere thousands. With `chunk_efficiency` e above 0, chunks may be
smaller than `online_chunk` and `offline_chunk`, as long as a token's predicted cost beside the
running decodes is at most 1/e of that in a long chunk.

All latencies are the instance's predictions; `ooco_gym/policy/latency_budget.py` fills the
iteration. An arrival goes to the instance with the fewest requests of its class.

Parameters: `conf/policy/deadline.yaml`. Their effect on four workloads: docs/learned.md.
"""

import math
from typing import NamedTuple

import numpy as np

from ooco_gym.compile import inlined, inner
from ooco_gym.perf.latency import NO_SUMS, add_to_sums, steady, sums_latency
from ooco_gym.policy.decisions import COMPOSE, ROUTE, hook
from ooco_gym.policy.latency_budget import GIVEN, MOST_GIVEN, FillLimits, decodes, fill, fill_least, token_slack
from ooco_gym.policy.mixed import AGING, begins_ps
from ooco_gym.policy.policy import Param, Policy, slots
from ooco_gym.policy.rules import length
from ooco_gym.sim.costs import predict_prefill
from ooco_gym.sim.state import BATCH, NEVER, ON, PS_PER_S, RECOMPUTE, SWAP

PARAMS = (
    Param("tpot_share", "share of the TPOT SLO from which token deadlines are computed", 0.1, 2.0),
    Param("ttft_share", "share of the TTFT SLO within which online prompts must be computed", 0.0, 2.0),
    Param("max_num_batched_tokens", "new tokens of one iteration", 1, 1_000_000),
    Param("max_num_seqs", "requests that run at a time", 1, 65_536),
    Param("decode_share", "share of the TPOT up to which offline decodes fill an iteration", 0.0, 100.0),
    Param("offline_share", "share of the budget up to which offline prefill fills an iteration", 0.0, 1.0),
    Param("online_chunk", "smallest chunk of an online prefill that is not due", 1, 1_000_000),
    Param("least_iteration_s", "smallest budget of an iteration, seconds", 0.0, 10.0),
    Param("longest_iteration_s", "largest budget of an iteration, seconds", 0.001, 60.0),
    Param("offline_chunk", "smallest chunk of an offline prefill", 1, 1_000_000),
    Param("chunk_efficiency", "allow smaller chunks if a token costs at most 1 / this of one in a long chunk; 0: never",
          0.0, 1.0),
    Param("headroom_share", "share of the KV blocks left free when an offline request is admitted", 0.0, 1.0),
    Param("give_up_share", "share of online requests that may violate", 0.0, 1.0),
    Param("give_up_gain_s", "smallest growth of the budget for which a request is given up, seconds", 0.0, 60.0),
    Param("violation_window_s", "time over which give_up_share is counted, seconds", 1.0, 1e6),
    Param("preempted", "how a preempted offline request's KV memory is handled", choices=("recompute", "swap")),
    Param("waiting_order", "order of waiting offline requests: arrival, or prefix (to share it)",
          choices=("arrival", "prefix")),
    Param("prefix_caching", "reuse the KV memory of shared prompt prefixes", choices=("off", "on")),
    Param("growth", "mean outputs to which running requests must be able to grow when an offline one is admitted", 0.0,
          10.0),
    AGING,
)
P = slots(PARAMS)
DUE_PROMPTS = 16  # online prompts that are checked
LEAST_CHUNK, LONG_CHUNK = 32, 2048  # tokens: chunks that are tried for `chunk_efficiency`, and the long one

# Places of State.memory: requests that may still violate, time of their last update, the next index
# of GIVEN.
CREDIT, SEEN_PS, NEXT = 0, 1, 2


class Shares(NamedTuple):
    """The parameters of an iteration, as `PARAMS` describes them."""

    tpot_share: float
    ttft_share: float
    decode_share: float
    offline_share: float
    online_chunk: float
    offline_chunk: float
    least_iteration_s: float
    headroom_share: float
    give_up_share: float


@inlined
def settings_of(state):
    """The policy's own parameters."""
    p = state.params
    return Shares(p[P.tpot_share], p[P.ttft_share], p[P.decode_share], p[P.offline_share], p[P.online_chunk],
                    p[P.offline_chunk], p[P.least_iteration_s], p[P.headroom_share], p[P.give_up_share])


# --- Giving up ------------------------------------------------------------------------------------------------------
@inner
def is_given_up(memory, slot):
    """Whether a request is among those given up on an instance."""
    given = False
    for i in range(MOST_GIVEN):
        given |= memory[GIVEN + i] == slot + 1.0
    return given


@inner
def is_late(state, slot):
    """Whether a request's first token came after its TTFT SLO."""
    request = state.requests[slot]
    return request.first_token_ps - request.arrival_ps > request.ttft_slo_ps


@inner
def forget(state, instance):
    """Decays the number of requests that may still violate, by `violation_window_s`."""
    memory, now = state.memory[instance], float(state.clock.now_ps)
    window_ps = state.params[P.violation_window_s] * PS_PER_S
    memory[CREDIT] *= steady(math.exp(-(now - memory[SEEN_PS]) / window_ps))
    memory[SEEN_PS] = now


# --- The budget -----------------------------------------------------------------------------------------------------
@inner
def survey(state, instance, settings):
    """Surveys the online requests that decode.

    Returns (the least slack in ps, NEVER if no request has an SLO left; its request or -1; the
    second least slack).
    """
    memory, share = state.memory[instance], settings.tpot_share
    least, tightest, second = NEVER, np.int64(-1), NEVER
    counting = settings.give_up_share > 0.0
    for place in range(state.instances[instance].running):
        slot = np.int64(state.members[BATCH, instance, place])
        request = state.requests[slot]
        if not request.urgent or not decodes(state, slot):
            continue
        late = is_late(state, slot)
        if counting and request.generated_tokens == 1:  # seen once, after its first token
            memory[CREDIT] += settings.give_up_share - late
        if late or (counting and is_given_up(memory, slot)):
            continue
        slack = token_slack(state, slot, share)
        if slack < least:
            least, tightest, second = slack, slot, least
        elif slack < second:
            second = slack
    return least, tightest, second


@inner
def due_with(state, instance, slot, tokens, work_ps, settings):
    """Returns (predicted prefill time in ps up to and including a prompt with `tokens` left,
    whether it is due)."""
    request, now = state.requests[slot], begins_ps(state, instance)
    work_ps += predict_prefill(state, instance, tokens)
    due_ps = request.arrival_ps + np.int64(settings.ttft_share * request.ttft_slo_ps)
    lost = request.generated_tokens > 0 or now + work_ps > request.arrival_ps + request.ttft_slo_ps
    return work_ps, now + work_ps >= due_ps and not lost


@inner
def prefill_due(state, instance, settings):
    """Whether online prefill is due (step 2)."""
    work_ps, looked, due = np.int64(0), 0, False
    for place in range(state.instances[instance].running):
        slot = np.int64(state.members[BATCH, instance, place])
        if state.requests[slot].urgent and not decodes(state, slot) and looked < DUE_PROMPTS:
            tokens = length(state, slot) - state.requests[slot].num_computed_tokens
            work_ps, now = due_with(state, instance, slot, tokens, work_ps, settings)
            due, looked = due or now, looked + 1
    slot = np.int64(state.instances[instance].online_head)
    while slot >= 0 and looked < DUE_PROMPTS:
        work_ps, now = due_with(state, instance, slot, length(state, slot), work_ps, settings)
        due, looked, slot = due or now, looked + 1, np.int64(state.requests[slot].next)
    return due


@inner
def budget(state, instance, settings):
    """Returns (longest allowed latency of the next iteration in ps, whether an online request
    bounds it): steps 1 and 5."""
    p, memory = state.params, state.memory[instance]
    longest = np.int64(p[P.longest_iteration_s] * PS_PER_S)
    if settings.give_up_share > 0.0:
        forget(state, instance)
    least, tightest, second = survey(state, instance, settings)
    if settings.give_up_share > 0.0 and memory[CREDIT] >= 1.0 and tightest >= 0:
        if min(second, longest) - least >= p[P.give_up_gain_s] * PS_PER_S:
            place = int(memory[NEXT])
            memory[GIVEN + place], memory[NEXT] = tightest + 1.0, (place + 1) % MOST_GIVEN
            memory[CREDIT] -= 1.0
            least = second
    allowed = max(least, np.int64(settings.least_iteration_s * PS_PER_S))
    return min(allowed, longest), least < NEVER


# --- Routing --------------------------------------------------------------------------------------------------------
@inner
def fewest_of(state, slot):
    """The instance with the fewest requests of the request's class."""
    best, least = 0, NEVER
    for instance in range(state.config.relaxed_count):
        spec = state.instances[instance]
        requests = spec.offline_members + spec.offline_waiting
        if state.requests[slot].urgent:
            requests = spec.urgent_members + spec.online_waiting
        if requests < least and spec.power == ON:
            best, least = instance, requests
    return best


@hook(ROUTE, flushes=True)
def route(view):
    return fewest_of(view.state, view.request)


# --- Chunks ---------------------------------------------------------------------------------------------------------
@inner
def worthwhile_chunk(state, instance, efficiency):
    """Fewest tokens (a power of two from `LEAST_CHUNK` on, at most `LONG_CHUNK`) each of which
    costs at most 1 / `efficiency` of one in a long chunk, beside the running decodes."""
    belief, sums = state.instances[instance].belief, NO_SUMS
    for place in range(state.instances[instance].running):
        slot = np.int64(state.members[BATCH, instance, place])
        if decodes(state, slot):
            sums = add_to_sums(state, belief, sums, np.int64(1), length(state, slot), True)
    alone_ps = sums_latency(state, belief, sums)
    long_ps = beside(state, belief, sums, 2 * LONG_CHUNK) - beside(state, belief, sums, LONG_CHUNK)
    tokens = np.int64(LEAST_CHUNK)
    while tokens < LONG_CHUNK:
        more_ps = beside(state, belief, sums, tokens) - alone_ps
        if efficiency * more_ps * LONG_CHUNK <= float(long_ps) * tokens:
            break
        tokens *= 2
    return tokens


@inner
def beside(state, belief, sums, tokens):
    """Predicted latency of a batch with these sums and a prompt of `tokens` tokens, in ps."""
    reach = np.int64(tokens)
    return sums_latency(state, belief, add_to_sums(state, belief, sums, reach, reach, True))


# --- Memory ---------------------------------------------------------------------------------------------------------
@inner
def blocks_to_grow(state, instance, growth):
    """Returns (blocks that the running requests and one new offline request need until each has
    `growth` mean outputs, blocks for each further offline request)."""
    seen, room = state.observed, state.config.block_tokens
    one = growth * seen.offline_output_mean
    tokens = one
    for place in range(state.instances[instance].running):
        request = state.requests[state.members[BATCH, instance, place]]
        mean = seen.online_output_mean if request.online else seen.offline_output_mean
        tokens += max(0.0, growth * mean - request.generated_tokens)
    return np.int64(tokens / room), np.int64(one / room)


# --- The iteration --------------------------------------------------------------------------------------------------
@inner
def compose_within(state, instance, settings):
    """Fills the iteration (steps 3 and 4); returns its new tokens."""
    p, due = state.params, prefill_due(state, instance, settings)
    online_chunk, offline_chunk = np.int64(settings.online_chunk), np.int64(settings.offline_chunk)
    if p[P.chunk_efficiency] > 0.0:
        worthwhile = worthwhile_chunk(state, instance, p[P.chunk_efficiency])
        online_chunk, offline_chunk = min(online_chunk, worthwhile), min(offline_chunk, worthwhile)
    allowed, bound = budget(state, instance, settings)
    decode_ps = allowed
    if bound:
        decode_ps = min(allowed, np.int64(settings.decode_share * settings.tpot_share * state.config.default_tpot_ps))
    offline_ps = np.int64(settings.offline_share * allowed)
    headroom = np.int64(settings.headroom_share * state.instances[instance].total_blocks)
    grown = np.int64(0)
    if p[P.growth] > 0.0:
        growing, grown = blocks_to_grow(state, instance, p[P.growth])
        headroom += growing
    limits = FillLimits(
        np.int64(NEVER) if due else allowed, decode_ps, offline_ps, np.int64(p[P.max_num_batched_tokens]),
        np.int64(1) if due else online_chunk, offline_chunk, headroom, grown,
        np.int64(SWAP) if p[P.preempted] else np.int64(RECOMPUTE))
    tokens = fill(state, instance, limits)
    return tokens if tokens > 0 else fill_least(state, instance, limits.tokens, limits.how)


@hook(COMPOSE)
def within_deadlines(view):
    """Fills the iteration by the policy's own parameters."""
    return compose_within(view.state, view.instance, settings_of(view.state))


policy = Policy("deadline", PARAMS, mixed=True, leaves_open=True, route=route, compose=within_deadlines)
