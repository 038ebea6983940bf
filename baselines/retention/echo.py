"""Echo's task-aware cache manager (Echo 4.2): content that more offline requests in the system need gives way later.

Content that none needs goes first, offline requests' before online requests'. The policy `echo` has
it by itself (`kv_priority=task`).
"""

from ooco_gym.policy.policy import Policy
from ooco_gym.sim.retention import TASK

policy = Policy("echo", keeps=TASK)
