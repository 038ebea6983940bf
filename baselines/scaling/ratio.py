"""Roles in proportion to load, the ratio of NVIDIA Dynamo's planner for disaggregated serving (baselines/scaling/
planner_sla.py has its source), with the number of instances given.

The planner has as many prefill and decode engines as either's load needs; here relaxed = round(all instances x prefill
/ (prefill + `decode_weight` x decode)), of the load of the last `window` intervals in time that prompts and outputs
take. The boundary moves where the number wanted has been on the same side of it for `hold` decisions.
"""

import math

from ooco_gym.policy.decisions import SCALE, hook
from ooco_gym.policy.policy import Param, Policy, slots
from ooco_gym.policy.scaling import SCALES_FROM, group_of, index_of, instances_for, intervals, token_s
from ooco_gym.sim.state import NOTES

PARAMS = (
    Param("decode_weight", "of a second of decoding against one of prefill", 0.0, 100.0, default=1.0),
    Param("window", "intervals of the mean", 1, 1000, default=4),
    Param("hold", "decisions that must agree to move the boundary", 1, NOTES, default=3),
)
P = slots(PARAMS, SCALES_FROM)


@hook(SCALE, flushes=True)
def scale(view):
    """The number of relaxed instances for the load."""
    p, group, cost = view.state.params, group_of(view), token_s(view)
    window = min(int(p[P.window]), max(1, intervals(view)))
    prefill = instances_for(view, 0, window, (cost[0], 0.0))
    decode = p[P.decode_weight] * instances_for(view, 0, window, (0.0, cost[1]))
    if prefill + decode <= 0.0:
        return group.target
    wanted = min(max(math.floor(0.5 + group.engines * prefill / (prefill + decode)), group.least), group.most)
    notes, now, hold = view.state.notes[index_of(view)], intervals(view), int(p[P.hold])
    notes[now % NOTES] = wanted  # by interval: who asks twice gets the same answer
    if now < hold:
        return group.target
    for back in range(1, hold):
        before = notes[(now - back) % NOTES]
        if (before > group.target) != (wanted > group.target) or (before < group.target) != (wanted < group.target):
            return group.target
    return wanted


policy = Policy("ratio", PARAMS, scale=scale)
