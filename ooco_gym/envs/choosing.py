"""Which of many are offered as candidates: what rules would pick, then quantiles of length."""

from ooco_gym.compile import inlined, inner
from ooco_gym.envs.buffers import KIND, PLANNED
from ooco_gym.envs.stepping import pending_view
from ooco_gym.policy.rules import sort_ascending
from ooco_gym.sim.dispatch import ask_rule
from ooco_gym.sim.state import ROUTE_STEP, rule_at


@inlined
def add_choice(chosen, count, value):
    """Adds a value to the `count` chosen ones, where it is new and there is room; returns how many there are."""
    if value < 0 or count >= chosen.size:
        return count
    for k in range(count):
        if chosen[k] == value:
            return count
    chosen[count] = value
    return count + 1


@inner
def add_quantiles(state, chosen, count, found):
    """Fills `chosen` up with quantiles of what is in State.scratch: `found` pairs of (length, value).

    The first is the shortest, the last the longest. Returns how many are chosen.
    """
    keys, values, left = state.scratch[0], state.scratch[1], 0
    for j in range(found):
        new = True
        for k in range(count):
            if chosen[k] == values[j]:
                new = False
        if new:
            keys[left], values[left] = keys[j], values[j]
            left += 1
    sort_ascending(keys, values, left)
    return add_spread(values, chosen, count, left, left, left)


@inlined
def add_spread(ordered, chosen, count, left, low, high):
    """Fills `chosen` up with every so many of the first entries of `ordered`, evenly, from the first to the last.

    Args:
        ordered: int[at least left + those left out].
        chosen: int32[K], written from `count` on.
        count: how many are chosen by now.
        left: entries to choose from.
        low, high: places in `ordered` that are left out, the lower one first; `left` and beyond: nobody is.

    Returns:
        How many are chosen.
    """
    offered = min(chosen.size - count, left)
    gaps = max(1, offered - 1)
    step, rest = (left - 1) // gaps, (left - 1) % gaps
    place, beyond = 0, 0  # place + beyond / gaps is k (left - 1) / gaps
    for k in range(offered):
        at = place + (place >= low)
        chosen[count + k] = ordered[at + (at >= high)]
        place += step
        beyond += rest
        if beyond >= gaps:
            place += 1
            beyond -= gaps
    return count + offered


@inlined
def partner_pick(state, buffers, i):
    """What the partner's rule answers to the open decision; StepBuffers.turns[i, PLANNED] keeps it."""
    view = pending_view(state)
    spec = state.instances[max(0, view.instance)]
    wake_ps, turn = spec.pull_wake_ps, state.counters[ROUTE_STEP]
    answer = ask_rule(rule_at(buffers.rules[1, buffers.turns[i, KIND] - 1]), view)
    spec.pull_wake_ps, state.counters[ROUTE_STEP] = wake_ps, turn
    buffers.turns[i, PLANNED] = answer
    return answer
