"""Kubernetes' Horizontal Pod Autoscaler on a load metric ("Horizontal Pod Autoscaling", algorithm details).

desired = ceil(current * metric / target), nothing within a tolerance of 0.1, and downwards the most
that was desired within 300 s. Instances that still start count with a metric of 0, as pods that are
not ready. The metric is the number of online requests of an instance, waiting ones too
(`requests`), or its share of KV memory that these hold (`kv`); targets are the user's. Of its speed
limits upwards (double, or four more, in 15 s) none is kept: a decision comes every 30 s.
"""

import math

import numpy as np

from ooco_gym.policy.decisions import SCALE, hook
from ooco_gym.policy.policy import Param, Policy, slots
from ooco_gym.policy.scaling import SCALES_FROM, count_in, kv_used, most_of, running, waiting
from ooco_gym.sim.state import ON, STARTING

PARAMS = (
    Param("metric", "what is to be at its target", choices=("requests", "kv"), default="requests"),
    Param("requests", "target: online requests of an instance", 1.0, 1e6, default=60.0),
    Param("kv", "target: share of KV memory that online requests hold", 0.01, 1.0, default=0.5),
    Param("tolerance", "relative deviation at which nothing changes", 0.0, 1.0, default=0.1),
    Param("stabilization_s", "scaling down takes the most desired within so long, seconds", 0.0, 900.0, default=300.0),
)
P = slots(PARAMS, SCALES_FROM)


@hook(SCALE, flushes=True)
def scale(view):
    """The number desired."""
    p, on = view.state.params, count_in(view, ON)
    current, ratio = max(1, on + count_in(view, STARTING)), kv_used(view) * on / p[P.kv]
    if p[P.metric] == 0.0:
        ratio = (running(view) + waiting(view)[0]) / p[P.requests]
    wanted = np.int64(math.ceil(ratio))
    if abs(ratio / current - 1.0) <= p[P.tolerance]:
        wanted = np.int64(current)
    return most_of(view, wanted, p[P.stabilization_s])


policy = Policy("hpa", PARAMS, mixed=True, scale=scale)
