"""Belady's order: the block whose content is next used last, or never, gives way.

It reads the trace ahead, which no engine can: an upper bound on hits, for one instance and open
arrivals.
"""

from ooco_gym.policy.policy import Policy
from ooco_gym.sim.retention import BELADY

policy = Policy("belady", keeps=BELADY)
