"""vLLM's V1 scheduler: prefill chunks and decodes share every iteration's token budget.

Running requests go first, then waiting ones in order until the head does not fit; a preempted
request is recomputed. Speculation is left out.

`vllm_fcfs` serves in the order of arrival, treats offline requests as online ones, and preempts the
request admitted last. `vllm_priority` orders waiting requests by class first, each class by
arrival, and preempts the running offline request that arrived last (without one, the online one).
As in the engine, a waiting online request never takes memory from a running offline one, so
priority alone does not protect the online SLOs.

`engine_version` follows an older release. Up to 0.32 a running request that preempts itself ends
the pass over the running ones; up to 0.23 freed blocks are reused in another order; up to 0.18 a
waiting request is admitted as soon as its first chunk fits.

Token budget and slots default to those of the release's server on the card (`as_shipped`).

The schedule is in `ooco_gym/policy/mixed.py`, since other policies build on it; only vLLM's own
part is here.
"""

from collections.abc import Mapping
from typing import Any

from ooco_gym.perf.memory import batch_defaults
from ooco_gym.policy.decisions import COMPOSE, hook
from ooco_gym.policy.mixed import AGING, schedule_with
from ooco_gym.policy.policy import Param, Policy, slots
from ooco_gym.policy.rules import route_fewest_requests
from ooco_gym.sim.engine_versions import ENGINE_VERSIONS, LARGEST_CARDS
from ooco_gym.sim.policy_context import PolicyContext
from ooco_gym.sim.state import SEES_FINISHING

ENGINE_PARAMS = (
    Param("max_num_batched_tokens", "new tokens of one iteration (the engine's option of this name)", 1, 1_000_000),
    Param("max_num_seqs", "requests that run at a time (the engine's option of this name)", 1, 1_000_000),
)
SCHEDULE_PARAMS = (  # shared by schedulers that build on the V1 schedule
    *ENGINE_PARAMS,
    Param("reserved_blocks", "KV blocks that the engine keeps for itself (V1: the null block)", 0, 1_000_000),
    Param("prefix_caching", "whether blocks of common prompt prefixes are shared (on in V1 by default)",
          choices=("off", "on")),
)
PARAMS = (
    Param("max_num_batched_tokens", "new tokens of one iteration; 0: the release's default on the card", 0, 1_000_000,
          usual=(256, 16_384)),
    Param("max_num_seqs", "requests that run at a time; 0: the release's default on the card", 0, 1_000_000,
          usual=(16, 1024)),
    *SCHEDULE_PARAMS[2:],
    Param("engine_version", "vLLM release whose schedule is followed (changes: docs/oracle.md)",
          choices=ENGINE_VERSIONS),
    Param("long_prefill_token_threshold", "new tokens of a request in an iteration at most, if it is not alone; 0: no "
          "limit (the engine's option of this name)", 0, 1_000_000, default=0),
    Param("watermark", "share of the blocks that must stay free as a request joins running ones", 0.0, 0.5,
          default=0.0),
    AGING,
)
P = slots(PARAMS)


@hook(COMPOSE)
def schedule(view):
    """vLLM's V1 schedule with its watermark (vLLM pull request 44594)."""
    return schedule_with(view, view.state.params[P.watermark])


def as_shipped(policy: Policy, context: PolicyContext) -> Mapping[str, Any]:
    """The default token budget and slots of a server, by the card's memory (`batch_defaults`)."""
    release = ENGINE_VERSIONS.index(str(policy.values["engine_version"]))
    tokens, seats = batch_defaults(context.chip, context.memory_bytes, release <= LARGEST_CARDS)
    tokens = int(policy.values["max_num_batched_tokens"]) or tokens
    seats = int(policy.values["max_num_seqs"]) or min(seats, tokens, context.max_batch)
    return {"max_num_batched_tokens": tokens, "max_num_seqs": seats}


vllm_fcfs = Policy("vllm_fcfs", PARAMS, class_blind=True, mixed=True, route=route_fewest_requests,
                   compose=schedule, prepare=as_shipped, async_scheduling=SEES_FINISHING)
vllm_priority = Policy("vllm_priority", PARAMS, mixed=True, route=route_fewest_requests, compose=schedule,
                       prepare=as_shipped, async_scheduling=SEES_FINISHING)
