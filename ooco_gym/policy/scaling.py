"""What a rule for `scale` may know: a controller's figures of a group, and of the fleet's load."""

import numpy as np

from ooco_gym.compile import inlined, inner
from ooco_gym.policy.policy import SCALES_FROM
from ooco_gym.sim import state as s
from ooco_gym.sim.costs import predict_decode, predict_prefill

__all__ = ["SCALES_FROM"]

ONLINE, OFFLINE = 0, 2  # of `arrived` and `prompt_tokens`
PACE_TOKENS = 2048  # prompt whose prefill says what a token takes
DAY_PS = 86_400 * s.PS_PER_S


@inlined
def index_of(view):
    """The group's index; `view.state.notes[index_of(view)]` are numbers that a rule keeps of it, 0 at the beginning."""
    return view.state.units[view.instance].group


@inlined
def group_of(view):
    """The group: `least`, `most` and `count` instances (at the beginning), `start_ps`, `target` (the last answer)."""
    return view.state.groups[view.state.units[view.instance].group]


@inlined
def interval_s(view):
    """Seconds between decisions."""
    return view.state.fleet.interval_ps / s.PS_PER_S


@inlined
def time_of_day_s(view):
    """Seconds since midnight."""
    return ((view.state.fleet.day_ps + view.state.clock.now_ps) % DAY_PS) / s.PS_PER_S


@inner
def count_in(view, power):
    """Number of the group's instances in a state: ON, DRAINING, STARTING, OFF."""
    group, count = group_of(view), 0
    for instance in range(group.first, group.first + group.engines):
        count += view.state.instances[instance].power == power
    return count


@inlined
def intervals(view):
    """Number of intervals so far."""
    return view.state.fleet.intervals


@inlined
def arrived(view, ago, kind):
    """Requests that arrived in the fleet `ago` intervals before the last (0: the last one); 0 before the beginning."""
    at = view.state.fleet.intervals - 1 - ago
    return view.state.tides[kind, at] if at >= 0 else 0.0


@inlined
def prompt_tokens(view, ago, kind):
    """The same of these requests' prompt tokens."""
    return arrived(view, ago, kind + 1)


@inner
def running(view):
    """Online requests that run on the group's instances that are on."""
    group, count = group_of(view), 0
    for instance in range(group.first, group.first + group.engines):
        spec = view.state.instances[instance]
        count += spec.urgent_members if spec.power == s.ON else np.int64(0)
    return count


@inner
def waiting(view):
    """(Online requests that wait on the group's instances, their tokens)."""
    group, count, tokens = group_of(view), np.int64(0), np.int64(0)
    for instance in range(group.first, group.first + group.engines):
        count += view.state.instances[instance].online_waiting
        tokens += view.state.instances[instance].online_waiting_tokens
    return count, tokens


@inner
def kv_of(view, instance):
    """Share of an instance's KV blocks that online requests hold (offline work takes any)."""
    state, used = view.state, np.int64(0)
    for place in range(state.instances[instance].urgent_members):
        used += state.requests[state.members[s.URGENT, instance, place]].blocks
    return used / max(np.int64(1), np.int64(state.instances[instance].total_blocks))


@inner
def kv_used(view):
    """The mean of these shares over the group's instances that are on."""
    group, used, count = group_of(view), 0.0, 0
    for instance in range(group.first, group.first + group.engines):
        if view.state.instances[instance].power == s.ON:
            used, count = used + kv_of(view, instance), count + 1
    return used / max(1, count)


@inlined
def output_mean(view):
    """Moving mean of online outputs, in tokens."""
    return view.state.observed.online_output_mean


# --- What load needs --------------------------------------------------------------------------------------------------
@inlined
def context_of(view):
    """Mean context of an online request of the last interval as it decodes, in tokens."""
    requests = max(1.0, arrived(view, 0, ONLINE))
    return max(1.0, prompt_tokens(view, 0, ONLINE)) / requests + 0.5 * output_mean(view)


@inner
def token_s(view):
    """Seconds of an instance for (a prompt token, an output token), by its predictions: a token of a long prompt, and
    of the largest decode batch whose step keeps the TPOT SLO at the mean context of the last interval."""
    state, context = view.state, context_of(view)
    low, high = np.int64(1), np.int64(state.config.max_num_seqs)
    while low < high:
        middle = (low + high + 1) // 2
        if predict_decode(state, view.instance, middle, np.int64(middle * context)) <= state.config.default_tpot_ps:
            low = middle
        else:
            high = middle - 1
    step_ps = predict_decode(state, view.instance, low, np.int64(low * context))
    return predict_prefill(state, view.instance, PACE_TOKENS) / PACE_TOKENS / s.PS_PER_S, step_ps / low / s.PS_PER_S


@inner
def instances_for(view, ago, count, cost):
    """Instances that the online arrivals of `count` intervals, the last one `ago` before the last, keep busy; `cost` is
    from `token_s`."""
    total = 0.0
    for back in range(ago, ago + count):
        total += cost[0] * prompt_tokens(view, back, ONLINE) + cost[1] * output_mean(view) * arrived(view, back, ONLINE)
    return total / (count * interval_s(view))


@inner
def most_of(view, wanted, seconds):
    """The most that a rule has wanted within the last `seconds` (scaling down waits for so long); keeps it in the last
    half of the notes."""
    notes, size = view.state.notes[index_of(view)], np.int64(s.NOTES // 2)
    notes[size + intervals(view) % size] = wanted
    for back in range(min(size, intervals(view), np.int64(seconds / interval_s(view)))):
        wanted = max(wanted, np.int64(notes[size + (intervals(view) - back) % size]))
    return wanted
