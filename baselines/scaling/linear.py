"""A learned linear forecast (this project's rule): what is to be on is a weighted sum of what a controller sees.

wanted = the sum of weight times figure, over `utilization`; instances = ceil(wanted), downwards the most wanted
within `hold_s`. All figures are in instances: the load of the last interval (`last`), the mean of two minutes
(`short`) and of ten (`long`), by how much this has grown within ten minutes (`trend`), its root, as which a load's
noise grows (`root`), the largest mean of two minutes within ten (`peak`), what would serve the waiting prompts
(`queue`) and the outputs in progress (`busy`) within an interval, and one (`constant`). Weights were found by CMA-ES
(conf/scale/linear.yaml).
"""

import math

from ooco_gym.compile import inner
from ooco_gym.policy.decisions import SCALE, hook
from ooco_gym.policy.policy import Param, Policy, slots
from ooco_gym.policy.scaling import (
    SCALES_FROM,
    instances_for,
    interval_s,
    intervals,
    most_of,
    output_mean,
    running,
    token_s,
    waiting,
)

WEIGHTS = ("last", "short", "long", "trend", "root", "peak", "queue", "busy", "constant")
PARAMS = (
    *(Param(name, f"weight of the figure `{name}`", -10.0, 10.0, default=0.0) for name in WEIGHTS),
    Param("utilization", "share of an instance's time that is planned with", 0.01, 10.0, default=1.0),
    Param("hold_s", "scaling down takes the most wanted within so long, seconds", 0.0, 900.0, default=300.0),
)
P = slots(PARAMS, SCALES_FROM)
SHORT_S, LONG_S = 120.0, 600.0


@inner
def mean_load(view, ago, count, cost):
    """The mean load of `count` intervals, or of those that were, the last one `ago` before the last."""
    return instances_for(view, ago, max(1, min(count, intervals(view) - ago)), cost)


@hook(SCALE, flushes=True)
def scale(view):
    """The number for the weighted sum."""
    p, cost, interval = view.state.params, token_s(view), interval_s(view)
    short, long = max(1, int(SHORT_S / interval)), max(1, int(LONG_S / interval))
    mean, peak = mean_load(view, 0, long, cost), 0.0
    for ago in range(0, long, short):
        peak = max(peak, mean_load(view, ago, short, cost))
    wanted = p[P.last] * mean_load(view, 0, 1, cost) + p[P.short] * mean_load(view, 0, short, cost)
    wanted += p[P.long] * mean + p[P.trend] * (mean - mean_load(view, long, long, cost))
    wanted += p[P.root] * math.sqrt(mean) + p[P.peak] * peak + p[P.queue] * cost[0] * waiting(view)[1] / interval
    wanted += p[P.busy] * 0.5 * cost[1] * running(view) * output_mean(view) / interval + p[P.constant]
    return most_of(view, max(0, math.ceil(wanted / p[P.utilization])), p[P.hold_s])


policy = Policy("linear", PARAMS, mixed=True, scale=scale)
