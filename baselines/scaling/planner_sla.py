"""NVIDIA Dynamo's throughput-based planner (docs/design-docs/planner-design.md of version 1.1), on mixed instances.

Every 180 s: instances = ceil(forecast load / what an instance carries at the SLO). Load is the time
that prompts and outputs take: a prompt token in a long prefill, an output token in the largest
decode batch whose step keeps the TPOT, by the chip's own tables (the source profiles prefill and
decode likewise, for an instance of each). The forecast is the last interval's load (`constant`),
the mean of the last `window` intervals (`mean`), or the load one period ago, if known, times the
ratio of now to one period and an interval ago (`seasonal`); the source also has ARIMA, Prophet and
a Kalman filter. Without its correction by measured latencies (`--no-correction`).
"""

import math

from ooco_gym.policy.decisions import SCALE, hook
from ooco_gym.policy.policy import Param, Policy, slots
from ooco_gym.policy.scaling import SCALES_FROM, group_of, instances_for, interval_s, intervals, token_s

PARAMS = (
    Param("forecast", "of the next interval's load", choices=("constant", "mean", "seasonal"), default="constant"),
    Param("interval_s", "between changes, seconds", 1.0, 86_400.0, default=180.0),
    Param("window", "intervals of the mean", 1, 1000, default=5),
    Param("period_s", "of the season", 60.0, 1e6, default=86_400.0),
    Param("utilization", "share of an instance's time that is planned with", 0.01, 10.0, default=1.0),
)
P = slots(PARAMS, SCALES_FROM)
CONSTANT, MEAN, SEASONAL = range(3)


@hook(SCALE, flushes=True)
def scale(view):
    """The number for the forecast."""
    p, step = view.state.params, max(1, round(view.state.params[P.interval_s] / interval_s(view)))
    if intervals(view) % step != 0:
        return group_of(view).target
    cost, kind, back = token_s(view), p[P.forecast], int(p[P.period_s] / interval_s(view))
    load = instances_for(view, 0, step * int(p[P.window]) if kind == MEAN else step, cost)
    if kind == SEASONAL and intervals(view) >= back + step:
        before = instances_for(view, back, step, cost)
        load *= instances_for(view, back - step, step, cost) / before if before > 0.0 else 1.0
    return math.ceil(load / p[P.utilization])


policy = Policy("planner_sla", PARAMS, mixed=True, scale=scale)
