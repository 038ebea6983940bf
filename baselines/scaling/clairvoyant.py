"""A bound: instances for the load to come, which no controller knows.

The number is what the greatest mean load of `window` intervals needs that begins until a start
begun at the next decision would serve; the outputs are the requests' own. `utilization` is tuned as
for other rules.
"""

import math

from ooco_gym.policy.decisions import SCALE, hook
from ooco_gym.policy.policy import Param, Policy, slots
from ooco_gym.policy.scaling import SCALES_FROM, group_of, interval_s, intervals, token_s
from ooco_gym.sim.state import PS_PER_S

PARAMS = (
    Param("window", "intervals of the mean", 1, 100, default=2),
    Param("utilization", "share of an instance's time that is planned with", 0.01, 10.0, default=0.7),
)
P = slots(PARAMS, SCALES_FROM)


@hook(SCALE, flushes=True)
def scale(view):
    """The number for the load to come."""
    state, cost = view.state, token_s(view)
    window, begin, most = int(state.params[P.window]), intervals(view), 0.0
    for first in range(begin, begin + 2 + int(group_of(view).start_ps / PS_PER_S / interval_s(view))):
        total = 0.0
        for place in range(first, min(first + window, state.foreseen.shape[1])):
            total += cost[0] * state.foreseen[0, place] + cost[1] * state.foreseen[1, place]
        most = max(most, total / (window * interval_s(view)))
    return math.ceil(most / state.params[P.utilization])


policy = Policy("clairvoyant", PARAMS, mixed=True, scale=scale, foresees=True)
