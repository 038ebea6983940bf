"""NVIDIA Dynamo's load-based planner (docs/architecture/load_planner.md of version 0.3), on mixed instances.

One instance more if the queue for prefill (online requests that wait, for each instance) or the
share of KV memory in use is above its upper threshold, one less if both are below their lower ones;
none while one starts, and none less within three intervals after one was added. Thresholds are the
source's. KV memory is that of online requests, as offline work takes what is free.
"""

from ooco_gym.policy.decisions import SCALE, hook
from ooco_gym.policy.policy import Param, Policy, slots
from ooco_gym.policy.scaling import SCALES_FROM, count_in, index_of, intervals, kv_used, waiting
from ooco_gym.sim.state import ON, STARTING

PARAMS = (
    Param("kv_up", "share of KV memory above which an instance is added", 0.0, 1.0, default=0.9),
    Param("kv_down", "share of KV memory below which one is removed", 0.0, 1.0, default=0.5),
    Param("queue_up", "waiting requests of an instance above which one is added", 0.0, 1e6, default=0.5),
    Param("queue_down", "waiting requests of an instance below which one is removed", 0.0, 1e6, default=0.2),
    Param("grace", "intervals after an addition in which none is removed", 0, 100, default=3),
)
P = slots(PARAMS, SCALES_FROM)
ADDED = 0  # index of the notes: interval of the last addition


@hook(SCALE, flushes=True)
def scale(view):
    """One more, one less, or as many."""
    p, on, notes = view.state.params, count_in(view, ON), view.state.notes[index_of(view)]
    queue, kv = waiting(view)[0] / max(1, on), kv_used(view)
    if count_in(view, STARTING) > 0:
        return on + count_in(view, STARTING)
    if queue > p[P.queue_up] or kv > p[P.kv_up]:
        notes[ADDED] = intervals(view)
        return on + 1
    if queue < p[P.queue_down] and kv < p[P.kv_down] and intervals(view) > notes[ADDED] + p[P.grace]:
        return on - 1
    return on


policy = Policy("planner_load", PARAMS, mixed=True, scale=scale)
