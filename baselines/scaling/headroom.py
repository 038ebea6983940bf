"""Headroom by the forecast's own errors (this project's rule).

What is started now serves `start_s` later. The load then is forecast as the mean load of the last
`window` intervals, times the `quantile` of how much larger the load has been than this forecast
made it, in the last `look` intervals: a load with steep ramps gets room before it is needed, a flat
one none. Instances = ceil(that / utilization), downwards the most wanted within `hold_s`.
"""

import math

import numpy as np

from ooco_gym.compile import inner
from ooco_gym.policy.decisions import SCALE, hook
from ooco_gym.policy.policy import Param, Policy, slots
from ooco_gym.policy.scaling import SCALES_FROM, group_of, instances_for, interval_s, intervals, most_of, token_s
from ooco_gym.sim.state import PS_PER_S

PARAMS = (
    Param("window", "intervals of the mean", 1, 100, default=4),
    Param("quantile", "of the forecast's errors", 0.0, 1.0, default=0.9),
    Param("look", "intervals whose errors are looked at", 1, 1000, default=60),
    Param("utilization", "share of an instance's time that is planned with", 0.01, 10.0, default=0.7),
    Param("hold_s", "scaling down takes the most wanted within so long, seconds", 0.0, 900.0, default=300.0),
)
P = slots(PARAMS, SCALES_FROM)
MOST_ERROR, HALVINGS = 8.0, 12


@inner
def errors_below(view, bound, ahead, window, look, cost):
    """Share of the forecasts of the last `look` intervals that the load exceeded by a factor of at most `bound`."""
    count, below = 0, 0
    for ago in range(min(look, intervals(view) - ahead - window)):
        forecast = instances_for(view, ago + ahead, window, cost)
        count += 1
        below += instances_for(view, ago, 1, cost) <= bound * forecast
    return below / count if count > 0 else 1.0


@hook(SCALE, flushes=True)
def scale(view):
    """The number for the forecast and its errors."""
    p, cost = view.state.params, token_s(view)
    window, look = int(p[P.window]), int(p[P.look])
    ahead = 1 + int(group_of(view).start_ps / PS_PER_S / interval_s(view))
    low, high = 0.0, MOST_ERROR
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        if errors_below(view, middle, ahead, window, look, cost) >= p[P.quantile]:
            high = middle
        else:
            low = middle
    factor = high if intervals(view) > ahead + window else 1.0
    wanted = factor * instances_for(view, 0, min(window, max(1, intervals(view))), cost) / p[P.utilization]
    return most_of(view, np.int64(math.ceil(wanted)), p[P.hold_s])


policy = Policy("headroom", PARAMS, mixed=True, scale=scale)
