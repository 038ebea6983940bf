"""A time to live, after Continuum (arXiv 2511.02230): a finished request's blocks are held for a time, then follow LRU.

Held blocks count as used, so other requests wait; a running request that lacks memory takes those
held longest. Unlike in Continuum, the time is the same for all requests.
"""

from ooco_gym.policy.policy import Param, Policy
from ooco_gym.sim.retention import TTL

policy = Policy("ttl", (Param("ttl_s", "time that a finished request's blocks are held, seconds", 0.001, 100_000.0),),
                keeps=TTL)
