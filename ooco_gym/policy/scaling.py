"""What a rule for `scale` may know: a controller's figures of a group, and of the fleet's load."""

import numpy as np

from ooco_gym.compile import inlined, inner
from ooco_gym.policy.policy import SCALES_FROM
from ooco_gym.sim import state as s
from ooco_gym.sim.costs import predict_decode, predict_prefill

__all__ = ["SCALES_FROM", "predict_decode", "predict_prefill"]

ONLINE, OFFLINE = 0, 2  # of `arrived` and `prompt_tokens`
DAY_PS = 86_400 * s.PS_PER_S


@inlined
def index_of(view):
    """The group's index, of `State.notes` among others."""
    return view.state.units[view.instance].group


@inlined
def group_of(view):
    """The group: `least`, `most` and `count` instances (at the beginning), `start_ps`, `target` (the last answer)."""
    return view.state.groups[view.state.units[view.instance].group]


@inlined
def notes_of(view):
    """Numbers that a rule keeps of the group, float64[NOTES], 0 at the beginning."""
    return view.state.notes[view.state.units[view.instance].group]


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
def kv_used(view):
    """Mean share of KV blocks in use of the group's instances that are on."""
    group, free, total = group_of(view), np.int64(0), np.int64(0)
    for instance in range(group.first, group.first + group.engines):
        spec = view.state.instances[instance]
        if spec.power == s.ON:
            free += spec.free_blocks
            total += spec.total_blocks
    return 1.0 - free / max(np.int64(1), total)


@inner
def online_kv_used(view):
    """The same of online requests alone: their tokens over the blocks' tokens."""
    state, group, used, total = view.state, group_of(view), np.int64(0), np.int64(0)
    for instance in range(group.first, group.first + group.engines):
        spec = state.instances[instance]
        if spec.power != s.ON:
            continue
        total += spec.total_blocks
        for place in range(spec.urgent_members):
            used += state.requests[state.members[s.URGENT, instance, place]].blocks
    return used / max(np.int64(1), total)


@inlined
def output_mean(view):
    """Moving mean of online outputs, in tokens."""
    return view.state.observed.online_output_mean
