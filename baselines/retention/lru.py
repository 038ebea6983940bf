"""LRU: the block whose last use is longest ago gives way (vLLM's block pool)."""

from ooco_gym.policy.policy import Policy
from ooco_gym.sim.retention import LRU

policy = Policy("lru", keeps=LRU)
