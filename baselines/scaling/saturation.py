"""llm-d's Workload Variant Autoscaler, saturation analyser version 1 (its saturation-scaling-config), on one group.

An instance is saturated at 80 % of its KV memory or five waiting requests. One instance more if what the others have
left of either, on average, is below 0.1 or three; one less if it would stay above these with one of them gone; none
while one starts. Thresholds are the source's. KV memory and requests are online ones, as offline work takes what is
free; the source reads the most of a minute, this the present.
"""

from ooco_gym.policy.decisions import SCALE, hook
from ooco_gym.policy.policy import Param, Policy, slots
from ooco_gym.policy.scaling import SCALES_FROM, count_in, group_of, kv_of
from ooco_gym.sim.state import ON, STARTING

PARAMS = (
    Param("kv_full", "share of KV memory at which an instance is saturated", 0.0, 1.0, default=0.8),
    Param("queue_full", "waiting requests at which an instance is saturated", 0.0, 1e6, default=5.0),
    Param("kv_spare", "mean share left below which one is added", 0.0, 1.0, default=0.1),
    Param("queue_spare", "mean requests left below which one is added", 0.0, 1e6, default=3.0),
)
P = slots(PARAMS, SCALES_FROM)


@hook(SCALE, flushes=True)
def scale(view):
    """One more, one less, or as many."""
    p, group, on = view.state.params, group_of(view), count_in(view, ON)
    if count_in(view, STARTING) > 0:
        return on + count_in(view, STARTING)
    count, kv, queue = 0, 0.0, 0.0
    for instance in range(group.first, group.first + group.engines):
        mine, waits = kv_of(view, instance), view.state.instances[instance].online_waiting
        if view.state.instances[instance].power == ON and mine < p[P.kv_full] and waits < p[P.queue_full]:
            count, kv, queue = count + 1, kv + mine, queue + waits
    if count == 0 or p[P.kv_full] - kv / count < p[P.kv_spare] or p[P.queue_full] - queue / count < p[P.queue_spare]:
        return on + 1
    rest = count - 1
    if rest > 0 and p[P.kv_full] - kv / rest >= p[P.kv_spare] and p[P.queue_full] - queue / rest >= p[P.queue_spare]:
        return on - 1
    return on


policy = Policy("saturation", PARAMS, mixed=True, scale=scale)
