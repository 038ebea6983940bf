"""Sessions that their clients say have ended give way first, with offline requests' blocks; the rest is LRU. Ours.

How much it is worth to know who returns: a hint of an agent's framework, or of a classifier, which is
wrong with probability `hint_error`.
"""

from ooco_gym.policy.decisions import RETAIN, hook
from ooco_gym.policy.policy import Param, Policy
from ooco_gym.policy.retention import FIRST_TO_GO, hint


@hook(RETAIN, flushes=True)
def retain(view):
    """Returns 0 for a session that goes on, and the lowest value for others and for offline requests."""
    leaves = hint(view) == 1 or not view.state.requests[view.request].online
    return int(FIRST_TO_GO if leaves else 0)


policy = Policy("ended", (Param("hint_error", "share of hints that are wrong", 0.0, 1.0),), retain=retain)
