"""vLLM's V1 scheduler, first come first served: prefill chunks and decodes share every iteration's token budget.

Running requests go first, then waiting ones in the order of arrival until the head does not fit; what loses its memory
is the request admitted last, and it computes its context again (`ooco_gym/policy/mixed.py` has the rules step by step).
Offline requests are treated as online ones. Not in it: asynchronous scheduling, speculation.
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

policy = Policy("vllm_fcfs", PARAMS, class_blind=True, mixed=True, route=route_fewest_requests,
                compose=schedule_v1)
