"""`ooco_gym/Packing-v0`: how full are the steps of the next interval packed?"""

from __future__ import annotations

from typing import ClassVar

from ooco_gym.envs.base import DecisionEnv
from ooco_gym.envs.buffers import (
    FIXED,
    PACK,
    PACK_PARAM,
    PACK_SCALE,
    PARTNER_ACTION,
    step_kernel,
)
from ooco_gym.envs.decision import Decision
from ooco_gym.envs.filling import fill_step, share
from ooco_gym.envs.stepping import set_margin
from ooco_gym.sim.decode import settle
from ooco_gym.sim.state import ASK


@step_kernel
def offer_levels(state, buffers, i):
    """The levels that the margin may have, in ascending order."""
    instance = min(state.config.relaxed_count, state.instances.size - 1)
    settle(state, instance)
    spec = state.instances[instance]
    context = spec.urgent_context + spec.offline_context
    place = int(buffers.settings[PACK_PARAM])
    for k in range(buffers.levels.shape[1]):
        value, out = buffers.levels[0, k], buffers.candidates[i, k]
        out[0] = 1.0
        fill_step(state, instance, spec.decodable, context, out)
        out[10] = state.params[place] == value
        out[14] = share(value * buffers.settings[PACK_SCALE], 2.0)
        out[15] = value == buffers.tuned[i]
        buffers.chosen[i, k] = k
        buffers.mask[i, FIXED + k] = 1
    buffers.mask[i, PARTNER_ACTION] = 1
    return buffers.levels.shape[1]


@step_kernel
def answer_level(state, buffers, i):
    """Sets the margin for the interval that begins."""
    set_margin(state, buffers, buffers.levels[0, buffers.actions[i, 0] - FIXED])
    return ASK


DECISION = Decision("pack", PACK, offer_levels, answer_level)


class PackingEnv(DecisionEnv):
    """How full the steps of the next interval are packed; a partner policy takes all other decisions.

    ## Description
    OOCO's Algorithm 2 (arXiv 2511.21862, section 3.4.4) adds offline decodes to a strict step while its believed
    latency stays within a share of the TPOT SLO; HyGen (arXiv 2501.14808) fills a mixed iteration up to a latency
    budget. That share is a fixed figure there. TPOT is a mean over a request's life: a full step is safe while the
    requests that decode are ahead of their promise, or few, or about to end, and an empty one buys back time after a
    burst. Here the share is chosen anew at each control interval (`interval_s`), without looking at single requests.

    ## Action Space
    `Discrete(2 + K)`: 0 is never legal, 1 takes the partner's own value, `2 + k` takes level k.

    ## Candidates
    The levels of `conf/env` (`levels`: shares of the TPOT SLO), ascending; `step` is the believed latency of a step of
    all that is resident on the first strict (or mixed) instance. The setting is the partner's `slo_margin`, or
    `latency_budget_s` where it has that.
    """

    decisions: ClassVar[tuple[Decision, ...]] = (DECISION,)
    default_scenario: ClassVar[str] = "packing"
