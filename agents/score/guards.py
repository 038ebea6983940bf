"""What `agents.score.language` puts around a rule's indices, actions and answers, compiled with the rule.

A wrong one raises, and the run ends: what an engine would not have offered is no answer.
"""

import numpy as np
from numba import types
from numba.core.errors import TypingError

from ooco_gym.compile import inlined, inner, intrinsic
from ooco_gym.policy.policy import MIXED_FROM
from ooco_gym.sim import state as s
from ooco_gym.sim import step_actions as act
from ooco_gym.sim.costs import length

MARK = MIXED_FROM - 1  # in State.params, which a rule cannot write: 1 + the instance it composes
LONGEST_US = 10**13  # of an answer to `retain`, in microseconds
MOST = 1 << 40  # of tokens, contexts and intervals


# --- Values -----------------------------------------------------------------------------------------------------------
@intrinsic
def plain(typing_context, values):
    """What a rule may index or unpack by its own name: tuples, and rows of numbers. A record by its index, or by a text
    that stands outside functions, would be any field."""
    row = isinstance(values, types.Array) and values.dtype == types.float64 and values.ndim == 1
    if not row and not isinstance(values, types.BaseTuple):
        raise TypingError("a rule indexes and unpacks tuples and its own numbers only")
    return values(values), lambda context, builder, signature, arguments: arguments[0]


@inlined
def count(state, number):
    """A number of tokens or intervals."""
    if not 0 <= number < MOST:
        raise ValueError("the rule counts with what is no number of tokens")
    return np.int64(number)


@inlined
def sums(state, values):
    """Sums of an iteration that the cost tables have."""
    tokens, sampled, decodes, context, longest, prompts, rows, work, reach, far = values
    least = min(tokens, sampled, decodes, context, longest, prompts, rows, work, reach, far)
    most = max(tokens, sampled, decodes, context, longest, prompts, rows, reach, far)
    total = work + tokens + context + longest + rows + reach + far
    if least < 0 or most >= MOST or not total < np.inf or max(sampled, decodes) >= state.head_ps.shape[1]:
        raise ValueError("the rule predicts an iteration that cannot be")
    return values


@inlined
def scaled(state, view):
    """The view of a decision on an elastic fleet."""
    if not 0 <= view.instance < view.state.units.size:
        raise ValueError("the rule asks about an elastic fleet where there is none")
    return view


# --- Indices ----------------------------------------------------------------------------------------------------------
@inner
def seen(state, slot):
    """The slot of a request that has arrived."""
    if not 0 <= slot < state.requests.size:  # so that it is no NaN either, here and below
        raise IndexError("the rule reads a request that does not exist")
    request = state.requests[slot]
    future = request.status == s.FUTURE and (request.arrival_ps > state.clock.now_ps or (
        state.unfinished.size > 0 and state.unfinished[slot] > 0))
    if future:
        raise IndexError("the rule reads a request that has not arrived")
    return np.int64(slot)


@inlined
def place(state, instance):
    """The index of an instance."""
    if not 0 <= instance < state.instances.size:
        raise IndexError("the rule reads an instance that does not exist")
    return np.int64(instance)


@inner
def belief(state, table):
    """The row of cost tables by which an instance predicts; its true costs are another's."""
    for instance in range(state.instances.size):
        if state.instances[instance].belief == table:
            return np.int64(table)
    raise IndexError("the rule reads costs that no instance predicts by")


@inlined
def row(state, kind):
    """A row of State.members that an engine knows; the last one says whose last token is on its way."""
    if not 0 <= kind <= s.BATCH:
        raise IndexError("the rule reads a row of State.members that no engine has")
    return np.int64(kind)


@inlined
def pick(state, index):
    """An index of State.picks while they are an answer: elsewhere the loop reads its candidates there."""
    if state.params[MARK] == 0.0:
        raise IndexError("the rule uses State.picks outside compose and pull; candidates are in view.candidates")
    return np.int64(index)


@inlined
def group(state, index):
    """The index of an elastic fleet's group."""
    if not 0 <= index < state.groups.size:
        raise IndexError("the rule reads a group that does not exist")
    return np.int64(index)


@inlined
def how(state, kind):
    """What is done with a preempted request's memory."""
    if kind != s.RECOMPUTE and kind != s.SWAP:
        raise ValueError("the rule preempts in a way that does not exist")
    return np.int64(kind)


# --- Actions ----------------------------------------------------------------------------------------------------------
@inlined
def begin(view):
    """Begins the composition of an iteration, or a pull."""
    view.state.params[MARK] = view.instance + 1
    return 0


@inlined
def mine(state, instance):
    """The instance whose iteration is composed: of any other one an iteration may be in progress."""
    if state.params[MARK] != instance + 1 or state.instances[instance].role != s.MIXED:
        raise ValueError("the rule acts on an instance whose iteration it was not asked for")
    return np.int64(instance)


@inner
def admit(state, instance, slot, tokens):
    """`admit` of a request that waits there, and fits."""
    request = state.requests[slot]
    if request.status != s.WAITING or request.instance != instance or not 1 <= tokens < MOST or (
            not act.fits_chunk(state, instance, slot, tokens, 0)):
        raise ValueError("the rule admits a request that does not wait there, or does not fit")
    return act.admit(state, instance, slot, np.int64(tokens))


@inner
def allocate_slots(state, instance, slot, tokens):
    """`allocate_slots` of a request that runs there, of tokens that it lacks."""
    left = act.missing(state, slot) - state.requests[slot].num_scheduled_tokens
    if act.running_index(state, instance, slot) < 0 or not 1 <= tokens <= left:
        raise ValueError("the rule gives tokens to a request that does not run there, or more than it lacks")
    return act.allocate_slots(state, instance, slot, np.int64(tokens))


@inner
def preempt(state, instance, index, how):
    """`preempt` of a request that runs there, without tokens in the batch: the blocks of these would stay findable."""
    if not 0 <= index < state.instances[instance].running:
        raise ValueError("the rule preempts a request that does not run")
    if state.requests[state.members[s.BATCH, instance, np.int64(index)]].num_scheduled_tokens > 0:
        raise ValueError("the rule preempts a request to which it has just given tokens")
    act.preempt(state, instance, np.int64(index), np.int64(how))


# --- Answers ----------------------------------------------------------------------------------------------------------
@inlined
def whole(answer):
    """An answer as a whole number."""
    if not abs(float(answer)) < 9e18 or np.int64(answer) != answer:
        raise ValueError("the rule answers with what is no whole number")
    return np.int64(answer)


@inlined
def one_of(view, answer, least, most):
    """An answer from `least` on, below `most`."""
    found = whole(answer)
    if found < least or found >= most:
        raise ValueError("the rule answers with what was not offered")
    return found


@inner
def route(view, answer):
    prefilled = view.state.requests[view.request].status > s.WAITING
    return one_of(view, answer, s.STAY if prefilled and whole(answer) != s.ASK else 0, view.state.instances.size)


@inlined
def interrupt(view, answer):
    return one_of(view, answer, s.KEEP, s.STOP + 1)


@inlined
def gate(view, answer):
    held = whole(answer) == s.HOLD or whole(answer) == s.HOLD_UNTIL_CHANGE
    return whole(answer) if held else one_of(view, answer, 0, view.candidates.size)


@inlined
def evict(view, answer):
    return whole(answer) if whole(answer) == s.DECLINE else one_of(view, answer, 0, view.candidates.size)


@inlined
def pull(view, answer):
    view.state.params[MARK] = 0.0
    return whole(answer) if whole(answer) == s.FULL else one_of(view, answer, 0, view.state.picks.size + 1)


@inlined
def retain(view, answer):
    return one_of(view, answer, 0, LONGEST_US)


@inlined
def scale(view, answer):
    mine = view.state.groups[view.state.units[view.instance].group]
    return one_of(view, answer, 0, mine.engines + 1)


@inner
def compose(view, answer):
    """On pools the answer; on a mixed instance the books of the composed iteration: memory, seats, tokens."""
    state, spec = view.state, view.state.instances[view.instance]
    state.params[MARK] = 0.0
    if spec.role != s.MIXED:
        return whole(answer) if whole(answer) == s.ALL else one_of(view, answer, 0, state.picks.size + 1)
    if spec.free_blocks < 0 or spec.running > state.config.max_num_seqs:
        raise ValueError("the rule takes memory or seats that are not there")
    for at in range(spec.running):
        slot = state.members[s.BATCH, view.instance, at]
        request = state.requests[slot]
        reach = np.int64(request.num_computed_tokens) + request.num_scheduled_tokens
        if request.status != s.RESIDENT or request.num_scheduled_tokens < 0 or reach > length(state, slot) or (
                state.config.prefix_caching == 0 and reach > request.blocks * state.config.block_tokens + 1):
            raise ValueError("the rule gives a request tokens or memory that it cannot have")
    return np.int64(0)
