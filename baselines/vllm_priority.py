"""vLLM's V1 scheduler by priority: online requests before offline ones, each class by arrival.

As `vllm_fcfs`, but the waiting are ordered by class first, and what loses its memory is the running offline request
that arrived last (where none is offline, the online one). A waiting online request never takes memory from a running
offline one: that is how the engine is, and why priority alone does not protect the online promises.
"""

from ooco_gym.policy.bundle import Param, Policy
from ooco_gym.policy.mixed import schedule_v1
from ooco_gym.policy.rules import route_fewest_requests

PARAMS = (
    Param("max_num_batched_tokens", "new tokens of one iteration (the engine's option of this name)", 1, 1_000_000),
    Param("max_num_seqs", "requests that run at a time (the engine's option of this name)", 1, 1_000_000),
    Param("reserved_blocks", "KV blocks that the engine keeps for itself (V1: the null block)", 0, 1_000_000),
    Param("prefix_caching", "whether blocks of prompts that begin alike are shared (on in V1 by default)",
          choices=("off", "on")),
)

policy = Policy("vllm_priority", PARAMS, mixed=True, route=route_fewest_requests,
                compose=schedule_v1)
