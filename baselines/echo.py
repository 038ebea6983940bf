"""Echo (arXiv 2504.03651) on one mixed instance, and its ablations, by switching parts off.

The scheduler (4.1, 6) starts from the last batch and changes little. Online requests come first, in
the order of arrival, within the memory and the SLO. Offline requests continue as far as the SLO
allows. Further offline requests join only when no online request waits. The parts (7.1):

* E, `estimator`: iterations keep the batch's tightest deadline (`echo_estimator`);
* S, `selection`: offline requests are chosen by (Benefit - Punish) / T (`echo_selection`) instead
  of in order;
* M, `kv_priority` and `reserve`: cached blocks are kept by their future use, and memory is left
  free for bursts of online requests (4.2).

`echo` has all three, `echo_bs_e_s` the first two, `echo_bs_e` the first, `echo_bs` none: the
engine's own scheduling by priority (all in `conf/policy`). Prefills are chunked and share
iterations with decodes, as in 5.2's mixed batches, under vLLM 0.6.3's token budget for them;
preempted requests are recomputed (6). A waiting request starts if its whole context fits the
memory, as in the engine. An offline request that a tight SLO takes out of the batch loses its
memory ("evicting", 4.1), but its blocks remain in the prefix cache. Ours: no offline request joins
in an iteration that preempted one; an instance that may start nothing though offline requests wait
tries again a second later.
"""

import numpy as np

from baselines.echo_benchmarks import fit_mixed
from baselines.echo_estimator import (
    PARAMS,
    P,
    batch_time,
    nothing,
    online_blocks,
    ranked,
    remember,
    reserved_for_bursts,
    slack,
)
from baselines.echo_selection import (
    LAST_RANK,
    blocks_to_start,
    select,
    value,
    with_running,
    with_waiting,
    without_running,
    yields,
)
from ooco_gym.compile import inner
from ooco_gym.policy.decisions import COMPOSE, hook
from ooco_gym.policy.mixed import (
    RECOMPUTE,
    admit,
    allocate_slots,
    has_seat,
    missing,
    num_free_blocks,
    preempt,
    rank_of,
    unschedule,
    wake_at,
)
from ooco_gym.policy.policy import Policy
from ooco_gym.policy.rules import route_fewest_requests
from ooco_gym.sim.costs import length
from ooco_gym.sim.state import BATCH, NEVER, PS_PER_S


# --- Taking away ----------------------------------------------------------------------------------------------------
@inner
def drop(state, instance, place, budget, load):
    """Preempts the running request at `place`; returns (budget, batch) without it."""
    slot = state.members[BATCH, instance, place]
    load = without_running(state, load, slot)
    tokens = unschedule(state, slot)
    if tokens > 0:
        load = ranked(state, instance, load)
    preempt(state, instance, place, RECOMPUTE)
    return budget + tokens, load


@inner
def last_online(state, instance):
    """Place of the running online request that arrived last."""
    spec, batch, last = state.instances[instance], state.members[BATCH, instance], -1
    for place in range(spec.running):
        if state.requests[batch[place]].urgent and (
                last < 0 or state.requests[batch[place]].arrival_ps >= state.requests[batch[last]].arrival_ps):
            last = place
    return last


@inner
def keep_within(state, instance, budget, load, limit_ps):
    """Takes offline requests out of the batch until it meets the deadline (4.1: "to fit the tight
    SLOs").

    Returns (budget, batch, number preempted).
    """
    preempted = 0
    while batch_time(state, load) > limit_ps:
        place = yields(state, instance, load, True)
        if place < 0:
            break
        budget, load = drop(state, instance, place, budget, load)
        preempted += 1
    return budget, load, preempted


# --- The last batch -------------------------------------------------------------------------------------------------
@inner
def go_on(state, instance, urgent, budget, load):
    """Schedules running requests of one class in the order of admission; offline ones are preempted
    for memory.

    Returns (budget, batch, tightest slack of those in it, number preempted).
    """
    spec, batch = state.instances[instance], state.members[BATCH, instance]
    place, preempted, limit_ps = 0, 0, np.int64(NEVER)
    while place < spec.running and budget > 0:
        slot = batch[place]
        if state.requests[slot].urgent != urgent:
            place += 1
            continue
        tokens = min(missing(state, slot), budget)
        gone = False
        while not gone and not allocate_slots(state, instance, slot, tokens):
            victim = yields(state, instance, load, False)
            if victim < 0:
                victim = last_online(state, instance)
            gone = victim == place
            if victim < place:
                place -= 1
            budget, load = drop(state, instance, victim, budget, load)
            preempted += 1
        if gone:
            continue
        load = with_running(state, load, slot, tokens)
        limit_ps = min(limit_ps, slack(state, slot))
        budget -= tokens
        place += 1
    return budget, load, limit_ps, preempted


# --- The online queue -----------------------------------------------------------------------------------------------
@inner
def must_wait(state, slot, load, grown, limit_ps):
    """Whether an online prefill must wait: the batch would exceed its SLO, and this request is not
    the most urgent."""
    if state.params[P.estimator] == 0 or load.decodes + load.prompts == 0:
        return False
    return batch_time(state, grown) > limit_ps and slack(state, slot) > limit_ps


@inner
def make_room(state, instance, slot, budget, load):
    """Preempts offline requests until a waiting online one has memory and a slot.

    Returns (whether it has, budget, batch, number preempted).
    """
    preempted = 0
    while not has_seat(state, instance) or blocks_to_start(state, instance, slot)[1] > num_free_blocks(state, instance):
        victim = yields(state, instance, load, False)
        if victim < 0:
            return False, budget, load, preempted
        budget, load = drop(state, instance, victim, budget, load)
        preempted += 1
    return True, budget, load, preempted


@inner
def admit_online(state, instance, budget, load, limit_ps):
    """Admits waiting online requests in the order of arrival until one must wait.

    Returns (budget, batch, tightest slack in it, number preempted).
    """
    spec, preempted = state.instances[instance], 0
    while spec.online_head >= 0 and budget > 0:
        slot = np.int64(spec.online_head)
        start = blocks_to_start(state, instance, slot)[0]
        grown = with_waiting(state, load, start, min(budget, length(state, slot) - start))
        if must_wait(state, slot, load, grown, limit_ps):
            break
        fits, budget, load, lost = make_room(state, instance, slot, budget, load)
        preempted += lost
        if not fits:
            break
        tokens = admit(state, instance, slot, budget)
        start = np.int64(state.requests[slot].num_computed_tokens)
        load = with_waiting(state, load, start, tokens)
        limit_ps = min(limit_ps, slack(state, slot))
        budget -= tokens
    return budget, load, limit_ps, preempted


# --- The offline pool -----------------------------------------------------------------------------------------------
@inner
def first_in_queue(state, instance, load, limit_ps, budget, spare):
    """Returns the offline request that arrived first, if it may join: as `select`, without a choice."""
    slot = np.int64(state.instances[instance].offline_head)
    start, need, _ = blocks_to_start(state, instance, slot)
    grown = with_waiting(state, load, start, min(budget, length(state, slot) - start))
    late = state.params[P.estimator] > 0 and batch_time(state, grown) > limit_ps
    if late or need > num_free_blocks(state, instance) - spare:
        return np.int64(-1), start, 0.0
    return slot, start, 0.0


@inner
def admit_offline(state, instance, budget, load, limit_ps):
    """Admits waiting offline requests, the best one each time, until none may join or none improves
    the batch's value."""
    spec, chooses = state.instances[instance], state.params[P.selection] == 1
    spare = reserved_for_bursts(state, instance, online_blocks(state, instance))
    worth = value(state, load, 0.0) if load.decodes + load.prompts > 0 else 0.0
    while budget > 0 and spec.offline_waiting > 0 and has_seat(state, instance) and (
            num_free_blocks(state, instance) > spare):
        if chooses:
            slot, start, grown_worth = select(state, instance, load, limit_ps, budget, spare)
            if grown_worth <= worth and state.params[P.stop] == 0:
                break
            worth = grown_worth
        else:
            slot, start, _ = first_in_queue(state, instance, load, limit_ps, budget, spare)
        if slot < 0:
            break
        if state.config.waiting_order > 0:
            state.memory[instance, LAST_RANK] = rank_of(state, slot) + 1
        tokens = admit(state, instance, slot, budget)
        load = with_waiting(state, load, start, tokens)
        budget -= tokens
    return budget


@hook(COMPOSE)
def compose(view):
    """Composes an iteration (6): online requests, then the last batch's offline ones, then further
    offline ones."""
    state, instance = view.state, view.instance
    spec, whole = state.instances[instance], state.config.max_num_batched_tokens
    remember(state, instance, online_blocks(state, instance))
    budget, load, limit_ps, lost = go_on(state, instance, 1, whole, nothing())
    budget, load, limit_ps, more = admit_online(state, instance, budget, load, limit_ps)
    budget, load, _, again = go_on(state, instance, 0, budget, load)
    lost += more + again
    if state.params[P.estimator] > 0:
        budget, load, more = keep_within(state, instance, budget, load, limit_ps)
        lost += more
    if spec.online_head < 0 and lost == 0:
        budget = admit_offline(state, instance, budget, load, limit_ps)
    if budget == whole and spec.offline_waiting > 0:
        wake_at(state, instance, state.clock.now_ps + PS_PER_S)
    return whole - budget


def prepare(policy, context):
    """Fits the estimator to the instance (5.2), except for given coefficients."""
    largest = int(min(policy.values["max_num_seqs"], context.max_batch))
    found = fit_mixed(context.strict, largest, context.block_tokens)
    return {name: ps for name, ps in found.items() if name not in policy.values}


policy = Policy("echo", PARAMS, mixed=True, route=route_fewest_requests, compose=compose, prepare=prepare)
