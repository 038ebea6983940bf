"""Admission order of waiting offline requests on a mixed instance: published orders, and one of
ours.

Iterations are filled as by `deadline`, so policies of this kind differ only in which waiting
offline request an instance admits next. `rule` names a score; the request with the least score is
admitted. If it does not fit, none is.

- `arrival`: order of arrival. `prefix`: order of a walk through the tree of all prompts (Echo 4.1;
  Preble's and BatchLLM's grouping). Both are `deadline`'s own orders.
- `lpm`, the longest prefix match: most tokens in the prefix cache (the default order of SGLang,
  arXiv 2312.07104).
- `dfs_weight`: the prefix that most waiting requests share (SGLang's other order).
- `shortest`: the shortest context (shortest job first, as far as it is known).
- `longest`: the longest context.
- `shortest_output`: the least predicted output (shortest job first with a length predictor).
- `edf`: the earliest deadline; without one, after all that have one, by arrival.
- `jobs`: batch jobs, as vllm-ascend's batch-job-aware scheduler orders them (pull request 12240). A
  client (`Trace.client`) is a job; its predicted output is the moving mean of those that have ended.
  Jobs of which none has go first. Then, while more than 4,096 tokens of KV memory are free, long
  jobs (over 32 tokens) before short ones, else short ones; among each the longest first, and within
  a job the longest prompt. Not modelled: the KV memory that it reserves.
- `first_job`: the request whose job (`Trace.job`, an agent's calls; in closed sessions a session) came first.
- `attained`: the request whose job has had the least service, in reference GPU time of its calls that have ended
  (Autellix's PLAS, arXiv 2502.13965, without its queues' steps and without preemption).
- `job_left`: the request whose job has the least service left. It knows the future: a bound for the others.
- `job_expected`: the request whose job has the least expected service left, learned as calls end: by the job's client
  (`Trace.client`) and by how many of its calls have ended, the mean of a call and the share of jobs that end with it.
- `least_work`: fewest uncached tokens to compute.
- `shared_work` (ours): the same, but an uncached prefix is divided among the requests that wait for
  it.
- `index` (ours): the sum of weights `w_…` times features of the request from 0 to 1 (`index_of`). Its
  numbers of tokens and seconds are logarithms, so a score orders by a product of powers: w_work
  alone is `shared_work`; with w_output -1, by its tokens over the predicted output. Two weights
  multiply the output by the share of KV memory in use and by the number that wait, so its sign can
  depend on them. With all weights 0 it is the order of arrival. The weights are for a search or an
  agent to set.

In `shortest`, `least_work`, `shared_work` and the tokens of w_work, `output_weight` adds the
predicted remaining output tokens: a length predictor's (`lengths`, docs/use.md), or else the mean,
which changes no order of the first three.

Every `refresh_s`, or when its list is empty, the instance scores all waiting requests and keeps the
`KEPT` lowest: an engine cannot afford to score thousands in each iteration. Requests of a group,
neighbours in the walk with the same first piece of prompt, are looked up in the cache once. With
`waiting_order` arrival the walk is by arrival, and each request is its own group.

Prefixes are distinguished by their first `Trace.block_tokens` tokens, if prefix caching is on. A
system prompt of that length before all prompts therefore makes them one group, and `shared_work`
divides only that.

`affinity` is for several instances: an offline request goes to the instance that a hash of its
first piece names, or to the next one with at most 1 + `affinity` times the mean offline requests
(hashing with bounded loads, after Mirrokni, Thorup and Zadimoghaddam 2018). With 0 it goes where
`deadline` routes it.

Parameters besides those of `deadline`: conf/policy/admitter.yaml. Results of the orders:
docs/learned.md.
"""

import math

import numpy as np

from baselines.deadline import PARAMS, compose_within, fewest_of, settings_of
from ooco_gym.compile import inlined, inner
from ooco_gym.errors import UserError
from ooco_gym.perf.latency import steady
from ooco_gym.policy.decisions import COMPOSE, ROUTE, hook
from ooco_gym.policy.latency_budget import (
    GIVEN,
    LEAVE_OPEN,
    LEFT_OPEN,
    MOST_GIVEN,
    OPEN_CHUNK,
    OPEN_FIELDS,
    OPEN_HEADROOM,
    OPEN_LEFT,
    OPEN_TOKENS,
    OPEN_UNTIL_PS,
    close,
    enter,
)
from ooco_gym.policy.lengths import believed_remaining, believed_spread
from ooco_gym.policy.mixed import get_computed_blocks, next_in_order
from ooco_gym.policy.orders import ORDERS, PREFIX, SHORTEST, order_score
from ooco_gym.policy.policy import Param, Policy, slots
from ooco_gym.sim import state as s
from ooco_gym.sim.blocks import prompt_names
from ooco_gym.sim.costs import length
from ooco_gym.sim.sessions import BEGUN, LEFT, expected_left
from ooco_gym.sim.step_actions import num_free_blocks
from ooco_gym.sim.waiting import rank_of

RULES = (*ORDERS, "longest", "shortest_output", "edf", "jobs", "index", "first_job", "attained", "job_left",
         "job_expected")
LONGEST, SHORTEST_OUTPUT, EDF, JOBS, INDEX, FIRST_JOB, ATTAINED_LEAST, JOB_LEFT, JOB_EXPECTED = range(
    len(ORDERS), len(RULES))
PER_LOG = 0.1  # of the features of `index`: ln 22,025 is 1, and so is all beyond
COLD_OUTPUT, SHORT_OUTPUT, FEW_TOKENS = 128.0, 32.0, 4096  # of `jobs`, its defaults
OWN = (
    Param("rule", "score by which waiting offline requests are admitted", choices=RULES),
    Param("refresh_s", "time between two scorings of all waiting requests, seconds", 0.0, 3600.0),
    Param("output_weight", "prompt tokens of a predicted output token; shortest, least_work, shared_work, index", 0.0,
          1000.0),
    Param("affinity", "route offline requests by prefix, up to this share above the mean number; 0: prefixes do not "
          "matter", 0.0, 100.0),
    *(Param(f"w_{name}", f"index: weight of {meaning}", -3.0, 3.0, default=0.0) for name, meaning in (
        ("output", "ln predicted remaining output"), ("spread", "spread of that prediction, of both together"),
        ("work", "ln uncached tokens, as shared_work counts them"),
        ("shared", "share of its tokens that fall to others that wait for its prefix"),
        ("age", "ln seconds since arrival"), ("slack", "ln seconds to the deadline; without one 1"),
        ("output_memory", "ln output times the share of KV memory in use"),
        ("output_waiting", "ln output times ln waiting offline requests"))),
)
ALL = (*PARAMS, *OWN)
Q = slots(ALL)

# Places of State.memory behind those of `deadline`: time of the next scoring, number of kept
# requests, their slots, and their scores.
KEPT = 12
DUE_S = GIVEN + MOST_GIVEN
COUNT, SLOTS = DUE_S + 1, DUE_S + 2
SCORES = SLOTS + KEPT
if SCORES + KEPT > s.MEMORY:
    raise AssertionError("the requests that are kept do not fit State.memory")


# --- Walking through what waits -------------------------------------------------------------------------------------
@inlined
def first_of(state, instance):
    """The first waiting offline request of the walk, or -1."""
    if state.config.waiting_order > 0:
        return np.int64(next_in_order(state, instance, 0))
    return np.int64(state.instances[instance].offline_head)


@inlined
def next_of(state, instance, slot):
    """The next waiting offline request of the walk, or -1."""
    if state.config.waiting_order > 0:
        return np.int64(next_in_order(state, instance, rank_of(state, slot) + 1))
    return np.int64(state.requests[slot].next)


@inner
def common_tokens(state, one, other):
    """Prompt tokens, in whole pieces, of the common prefix of two requests."""
    (a, pieces), (b, more) = prompt_names(state, one), prompt_names(state, other)
    index, most = np.int64(0), min(pieces, more)
    while index < most and state.hash_ids[a + index] == state.hash_ids[b + index]:
        index += 1
    return index * state.config.hash_tokens


@inlined
def whole_pieces(state, slot):
    """Tokens of the whole pieces of a prompt."""
    piece = state.config.hash_tokens
    return min(prompt_names(state, slot)[1], state.requests[slot].prompt_tokens // piece) * piece


@inner
def members_of(state, instance, slot):
    """How many requests from `slot` on, in the order of the walk, share its first piece; at least 1."""
    first, pieces = prompt_names(state, slot)
    count = np.int64(1)
    if pieces == 0 or state.config.waiting_order == 0:
        return count
    other = next_of(state, instance, slot)
    while other >= 0:
        start, have = prompt_names(state, other)
        if have == 0 or state.hash_ids[start] != state.hash_ids[first]:
            break
        count += 1
        other = next_of(state, instance, other)
    return count


# --- Scores ---------------------------------------------------------------------------------------------------------
@inlined
def score_of_job(state, instance, slot):
    """The score of a batch job's request (`jobs`)."""
    known, output = state.ended.shape[0] > 0 and state.ended[state.client[slot], 0] > 0.0, COLD_OUTPUT
    if known:
        output = state.ended[state.client[slot], 3]
    many = num_free_blocks(state, instance) * state.config.block_tokens > FEW_TOKENS
    group = 0.0 if not known else 1.0 + ((output > SHORT_OUTPUT) != many)
    return group * 1e12 - 1e5 * output - 1e-3 * state.requests[slot].prompt_tokens


@inlined
def score_of_calls(state, slot, column):
    """A column of the request's job (`State.jobs`), which the rules for these are in the order of; of a request
    without one, what it were with this request alone."""
    request = state.requests[slot]
    if state.job.size > 0 and state.job[slot] >= 0:
        return state.jobs[state.job[slot], column]
    if column == BEGUN:
        return float(request.arrival_ps)
    return float(request.service_ps) if column == LEFT else 0.0


@inlined
def logged(number):
    """The logarithm of 1 + a number, as a feature from 0 to 1."""
    return min(1.0, PER_LOG * steady(math.log1p(max(0.0, number))))


@inlined
def index_of(state, instance, slot, cached, others):
    """The score of a request by the weights (`index`); among equals the first to arrive has the least.

    Args:
        others: tokens of an uncached prefix that fall to others that wait for it.
    """
    params, request, spec = state.params, state.requests[slot], state.instances[instance]
    tokens, left = length(state, slot), believed_remaining(state, slot)
    spread, output = believed_spread(state, slot), logged(left)
    unsure = steady(spread / (left + spread))  # the same for all that a predictor is as sure of
    age_s = (state.clock.now_ps - request.arrival_ps) / s.PS_PER_S
    slack = 1.0
    if state.due_ps.size and state.due_ps[slot] < s.NEVER:
        slack = logged((state.due_ps[slot] - state.clock.now_ps) / s.PS_PER_S)
    work = tokens - cached - others + params[Q.output_weight] * left
    used = min(1.0, 1.0 - num_free_blocks(state, instance) / spec.total_blocks)
    return (params[Q.w_output] * output + params[Q.w_spread] * unsure
            + params[Q.w_work] * logged(work) + params[Q.w_shared] * others / tokens
            + params[Q.w_age] * logged(age_s) + params[Q.w_slack] * slack
            + output * (params[Q.w_output_memory] * used + params[Q.w_output_waiting] * logged(spec.offline_waiting))
            - 1e-12 * age_s)


@inlined
def score_by_rule(state, instance, slot, index, cached, members, shared):
    """The rule's score of the request at an index of the walk."""
    rule, tokens = np.int64(state.params[Q.rule]), length(state, slot)
    if rule == PREFIX:
        return float(index)
    if rule == LONGEST:
        return -float(tokens)
    if rule == SHORTEST_OUTPUT:
        return believed_remaining(state, slot)
    if rule == EDF:
        due_ps = state.due_ps[slot] if state.due_ps.size else np.int64(s.NEVER)
        return float(due_ps) if due_ps < s.NEVER else float(s.NEVER) + state.requests[slot].arrival_ps
    if rule == JOBS:
        return score_of_job(state, instance, slot)
    if rule == JOB_EXPECTED:
        return expected_left(state, slot) if state.job.size > 0 else 0.0
    if rule >= FIRST_JOB:
        return score_of_calls(state, slot, rule - FIRST_JOB)
    if rule == INDEX:
        return index_of(state, instance, slot, cached, shared * (1.0 - 1.0 / members))
    arrival = float(state.requests[slot].arrival_ps) if state.config.waiting_order else float(index)
    cost = order_score(rule, arrival, float(tokens), float(cached), float(members), shared)
    if rule >= SHORTEST and state.params[Q.output_weight] > 0.0:
        cost += state.params[Q.output_weight] * believed_remaining(state, slot)
    return cost


@inlined
def keep(memory, slot, score):
    """Inserts a request into the kept list if its score is low enough; among equals the first stays."""
    count = np.int64(memory[COUNT])
    if count == KEPT and score >= memory[SCORES + KEPT - 1]:
        return
    place = min(count, KEPT - 1)
    while place > 0 and memory[SCORES + place - 1] > score:
        memory[SLOTS + place], memory[SCORES + place] = memory[SLOTS + place - 1], memory[SCORES + place - 1]
        place -= 1
    memory[SLOTS + place], memory[SCORES + place] = slot, score
    memory[COUNT] = min(count + 1, KEPT)


@inner
def rank(state, instance):
    """Scores all waiting offline requests of an instance, and keeps the lowest."""
    memory = state.memory[instance]
    memory[COUNT] = 0.0
    slot, index = first_of(state, instance), np.int64(0)
    while slot >= 0:
        members, head, found = members_of(state, instance, slot), np.int64(-1), np.int64(0)
        in_common = common_tokens(state, slot, next_of(state, instance, slot)) if members > 1 else np.int64(0)
        for _ in range(members):
            tokens, fresh = length(state, slot), state.requests[slot].generated_tokens == 0
            common = common_tokens(state, head, slot) if head >= 0 else in_common
            if head >= 0 and fresh and (found < common or common >= whole_pieces(state, slot)):
                cached = min(found, common, tokens - 1)
            else:  # the first with its prefix, one with a longer prefix, or preempted: more may be cached
                cached = np.int64(get_computed_blocks(state, instance, slot)[0])
                if fresh:
                    head, found = slot, cached
            shared = float(max(np.int64(0), min(in_common, common, tokens - 1) - cached))
            keep(memory, slot, score_by_rule(state, instance, slot, index, cached, members, shared))
            index += 1
            slot = next_of(state, instance, slot)


# --- Decisions ------------------------------------------------------------------------------------------------------
@inner
def next_kept(state, instance):
    """The kept waiting request with the least score, after a new scoring if the list is empty; -1:
    none waits."""
    spec, memory = state.instances[instance], state.memory[instance]
    for _ in range(2):
        while memory[COUNT] > 0.0:
            slot = np.int64(memory[SLOTS])
            request = state.requests[slot]
            if request.status == s.WAITING and request.instance == instance:
                return slot
            drop_first(memory)
        if spec.offline_waiting == 0:
            return np.int64(-1)
        rank(state, instance)
        memory[DUE_S] = state.clock.now_ps / s.PS_PER_S + state.params[Q.refresh_s]
    return np.int64(-1)


@inlined
def drop_first(memory):
    """Removes the first request from the kept list."""
    count = np.int64(memory[COUNT]) - 1
    for place in range(count):
        memory[SLOTS + place], memory[SCORES + place] = memory[SLOTS + place + 1], memory[SCORES + place + 1]
    memory[COUNT] = count


@inner
def admit_by_score(state, instance, row):
    """Admits waiting offline requests to an open iteration, the least score first, until one does
    not fit."""
    if state.clock.now_ps / s.PS_PER_S >= state.memory[instance, DUE_S]:
        state.memory[instance, COUNT] = 0.0
    while row[OPEN_LEFT] > 0:
        slot = next_kept(state, instance)
        if slot < 0:
            break
        enter(state, instance, row, slot)
        if state.requests[slot].status == s.WAITING:
            break
        drop_first(state.memory[instance])


@hook(COMPOSE)
def compose(view):
    """Fills the iteration as `deadline` does, except for the order of entering offline requests."""
    state, instance = view.state, view.instance
    spec = state.instances[instance]
    stage = spec.stage
    spec.stage = LEAVE_OPEN
    tokens = compose_within(state, instance, settings_of(state))
    left_open = spec.stage == LEFT_OPEN
    spec.stage = stage
    if not left_open:
        return tokens
    row = state.scratch[1]
    for place in range(OPEN_FIELDS):
        row[place] = state.scratch[0, place]
    admit_by_score(state, instance, row)
    if row[0] == 0 and spec.running == 0 and spec.online_head < 0:  # an idle engine: nothing binds
        row[OPEN_UNTIL_PS], row[OPEN_CHUNK], row[OPEN_HEADROOM] = s.NEVER, 1, 0
        row[OPEN_LEFT] = row[OPEN_TOKENS]
        admit_by_score(state, instance, row)
    return close(state, instance, row)


@inlined
def offline_of(state, instance):
    """Number of offline requests on an instance, running or waiting."""
    return state.instances[instance].offline_members + state.instances[instance].offline_waiting


@hook(ROUTE, flushes=True)
def route(view):
    """Returns the instance that the first piece of an offline request names, or the next that is
    not too full; otherwise as `deadline`."""
    state, slot, share = view.state, view.request, view.state.params[Q.affinity]
    first, pieces = prompt_names(state, slot)
    if state.requests[slot].urgent or share <= 0.0 or pieces == 0:
        return fewest_of(state, slot)
    count, total = state.config.relaxed_count, 1.0
    for instance in range(count):
        total += offline_of(state, instance)
    # Multiplied by an odd constant, the upper bits of a counter are hash bits (Knuth 6.4).
    mixed = np.uint64(state.hash_ids[first]) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(40)
    named = np.int64(mixed) % count
    for step in range(count):
        instance = (named + step) % count
        if offline_of(state, instance) + 1.0 <= math.ceil((1.0 + share) * total / count):
            return instance
    return fewest_of(state, slot)


def checked(policy, context):
    """Refuses clusters with too few slots to write down an open iteration.

    Raises:
        UserError: `max_batch` is too small.
    """
    if context.max_batch < OPEN_FIELDS:
        raise UserError(f"policy {policy.name}: max_batch is {context.max_batch}; expected {OPEN_FIELDS} or more")
    return {}


policy = Policy("admitter", ALL, mixed=True, route=route, compose=compose, prepare=checked)
