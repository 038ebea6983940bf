"""vLLM's V1 scheduler with least-computed-first preemption (vLLM RFC 54644 and pull request 53723,
both open).

If blocks are short, the engine preempts the running request with the fewest computed tokens, which
is cheapest to recompute, instead of the last one. All else is `vllm_priority`
(`baselines/vllm_v1.py`).

In the RFC the victim is independent of the order of admission, so an online request can lose its
memory to an offline one that has computed more (`preempt=least_computed`). Priorities before
computed tokens (`preempt=least_computed_of_class`) are ours. Source: the descriptions of both, not
the patch; among equals the first admitted is preempted, as by Python's `min` over the running
requests.
"""

from baselines.vllm_v1 import PARAMS as V1_PARAMS
from baselines.vllm_v1 import as_shipped, schedule
from ooco_gym.policy.mixed import VICTIMS
from ooco_gym.policy.policy import Param, Policy
from ooco_gym.policy.rules import route_fewest_requests
from ooco_gym.sim.state import SEES_FINISHING

PARAMS = (*V1_PARAMS, Param("preempt", "which running request is preempted: the last, the one with the fewest "
                            "computed tokens, or that one among the offline ones", choices=VICTIMS))

policy = Policy("vllm_lcf", PARAMS, mixed=True, route=route_fewest_requests, compose=schedule, prepare=as_shipped,
                async_scheduling=SEES_FINISHING)
