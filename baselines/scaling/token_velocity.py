"""TokenScale's token velocity (Lai et al. 2025, arXiv 2512.03416), on mixed instances, as its convertible decoders are.

Instances = tokens that arrive / velocity, of prefill and of decode, each by the last interval. The velocity of prefill
is what an instance computes; that of decode is what it completes, prompts too, as this frees its memory: the largest
batch whose step keeps the TPOT and whose tokens fit the KV memory. The source has a velocity for each of nine classes
of lengths, predicted; here mean lengths stand for all. Both loads share an instance's time.
"""

import math

from ooco_gym.policy.decisions import SCALE, hook
from ooco_gym.policy.policy import Param, Policy, slots
from ooco_gym.policy.scaling import SCALES_FROM, context_of, instances_for, token_s
from ooco_gym.sim.costs import predict_decode
from ooco_gym.sim.state import PS_PER_S

PARAMS = (Param("utilization", "share of a velocity that is planned with", 0.01, 10.0, default=1.0),)
P = slots(PARAMS, SCALES_FROM)


@hook(SCALE, flushes=True)
def scale(view):
    """The number for the last interval's tokens."""
    state, context, cost = view.state, context_of(view), token_s(view)
    spec = state.instances[view.instance]
    fits = max(1, int(spec.total_blocks * state.config.block_tokens / context))
    in_memory_s = predict_decode(state, view.instance, fits, int(fits * context)) / PS_PER_S / fits
    load = instances_for(view, 0, 1, (cost[0], max(cost[1], in_memory_s)))
    return math.ceil(load / state.params[P.utilization])


policy = Policy("token_velocity", PARAMS, mixed=True, scale=scale)
