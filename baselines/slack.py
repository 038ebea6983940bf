"""OOCO that spends slack where there is some: ours, not a paper's.

An online arrival stops offline work only where its first token would be late otherwise (`interrupt=slack` of
`baselines/ooco.py`), and a strict instance pulls only whom it will have memory for: Algorithm 1 looks at the memory
that is free now, while its residents grow with each step, so that pulls are followed by evictions. Here a pull must
fit when everybody has grown by what requests of their class generate on average, which for lengths without memory is
also what they still generate.
"""

from dataclasses import replace

from baselines.ooco import PARAMS as OOCO_PARAMS
from baselines.ooco import policy as ooco
from baselines.ooco import preempt
from baselines.ooco import pull as algorithm_1
from ooco_gym.compile import inner
from ooco_gym.decisions import INTERRUPT, PULL, hook
from ooco_gym.policy.bundle import Param, slots
from ooco_gym.policy.rules import blocks_for, length
from ooco_gym.sim.state import BLOCK_TOKENS, FULL, OFFLINE_OUTPUT_MEAN, ONLINE_OUTPUT_MEAN

PARAMS = (*OOCO_PARAMS,
          Param("growth", "mean lengths by which all must be able to grow after a pull; 0: Algorithm 1", 0.0, 100.0))
P = slots(PARAMS)


@inner
def growing_blocks(state, instance, horizon):
    """Blocks by which residents, and who is on the way, grow in so many steps, each as far as its class's mean."""
    spec = state.instances[instance]
    offline = spec.decodable - spec.urgent_decodable + spec.arriving_pulls
    online = spec.urgent_decodable + spec.arriving - spec.arriving_pulls
    share = state.params[P.growth]
    tokens = (offline * min(horizon, share * state.stats[OFFLINE_OUTPUT_MEAN])
              + online * min(horizon, share * state.stats[ONLINE_OUTPUT_MEAN]))
    return int(tokens) // state.counters[BLOCK_TOKENS] + 1


@hook(INTERRUPT)
def stop_if_late(view):
    """Offline work is stopped only if the arrival's first token would be late otherwise (unless told otherwise)."""
    return preempt(view)


@hook(PULL)
def pull_what_fits_grown(view):
    """Algorithm 1's picks, as long as they and the residents fit the memory when all have grown to mean lengths."""
    state, instance = view.state, view.instance
    count = algorithm_1(view)
    if count <= 0 or state.params[P.growth] == 0.0:
        return count
    horizon = state.params[P.growth] * state.stats[OFFLINE_OUTPUT_MEAN]
    free = state.instances[instance].free_blocks - growing_blocks(state, instance, horizon)
    kept = 0
    for i in range(count):
        slot = state.picks[i]
        need = blocks_for(state, length(state, slot) + 1 + int(horizon))
        if need <= free:
            state.picks[kept] = slot
            kept += 1
            free -= need
    return kept if kept > 0 else FULL


policy = replace(ooco, name="slack", params=PARAMS, interrupt=stop_if_late, pull=pull_what_fits_grown)
