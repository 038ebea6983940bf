"""Blocks that an offline request used last give way before all others; within each class LRU. Ours.

An offline prompt seldom comes back, and no user waits for it.
"""

from ooco_gym.policy.decisions import RETAIN, hook
from ooco_gym.policy.policy import Policy
from ooco_gym.policy.retention import FIRST_TO_GO


@hook(RETAIN, flushes=True)
def retain(view):
    """Returns 0 for an online request, and the lowest value for an offline one."""
    return FIRST_TO_GO * (1 - view.state.requests[view.request].online)


policy = Policy("offline_first", retain=retain)
