"""`ooco_gym/Packing-v1`: how full are the steps of the next interval packed?"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ooco_gym.envs import buffers as b
from ooco_gym.envs.base import DecisionEnv
from ooco_gym.envs.buffers import step_kernel
from ooco_gym.envs.config import EpisodeConfig, pack_parameter
from ooco_gym.envs.decision import Decision
from ooco_gym.envs.features import LEVEL, PICKS, columns
from ooco_gym.envs.filling import share, step_share
from ooco_gym.envs.stepping import set_margin
from ooco_gym.envs.vector import register
from ooco_gym.errors import UserError
from ooco_gym.policy.policy import Policy
from ooco_gym.sim.decode import flush
from ooco_gym.sim.state import ASK

COLUMN = columns(LEVEL)


@step_kernel
def offer_levels(state, buffers, i):
    """Offers the levels of the margin, in ascending order."""
    instance = min(state.config.strict_from, state.instances.size - 1)
    flush(state, instance)
    spec = state.instances[instance]
    context = spec.urgent_context + spec.offline_context
    index, listed = int(buffers.settings[b.PACK_PARAM]), False
    step = step_share(state, instance, spec.decodable, context)
    for k in range(buffers.levels.shape[1]):
        value, out = buffers.levels[0, k], buffers.candidates[i, k]
        out[COLUMN.present] = 1.0
        out[COLUMN.step] = step
        out[COLUMN.in_force] = state.params[index] == value
        out[COLUMN.level] = share(value * buffers.settings[b.PACK_SCALE], 2.0)
        out[COLUMN.base_policy] = value == buffers.tuned[i]
        listed = listed or value == buffers.tuned[i]
        buffers.chosen[i, k] = k
        buffers.mask[i, b.FIXED + k] = 1
    buffers.mask[i, b.BASE_ACTION] = not listed
    return buffers.levels.shape[1]


@step_kernel
def answer_level(state, buffers, i):
    """Sets the margin for the coming interval."""
    set_margin(state, buffers, buffers.levels[0, buffers.actions[i, 0] - b.FIXED])
    return ASK


@step_kernel
def keep_tuned(state, buffers, i):
    """Sets the margin to the base policy's tuned value."""
    set_margin(state, buffers, buffers.tuned[i])
    return ASK


def pack_levels(policy: Policy, config: EpisodeConfig) -> np.ndarray:
    """Returns the values of the packing parameter to choose from: float64[1, levels], ascending.

    Raises:
        UserError: the policy has no such parameter, or a level is invalid.
    """
    index, scale = pack_parameter(policy, config)
    if index < 0:
        raise UserError(f"base policy '{policy.name}' has neither 'slo_margin' nor 'latency_budget_s', so there is no "
                        "packing to decide; use ooco or hygen")
    levels = sorted(float(level) / scale for level in config.levels)
    if not levels:
        raise UserError("levels is empty: expected shares of the TPOT SLO")
    for level in levels:
        policy.params[index].number(level, "levels")
    return np.array([levels])


DECISION = Decision(
    "pack", b.CLOCK, offer_levels, answer_level, base_policy=keep_tuned, levels=pack_levels,
    question="Up to which share of the TPOT SLO are decode steps filled in the next interval?",
    take="fill decode steps up to this share of the TPOT SLO",
    candidates="levels", table=LEVEL, still=PICKS, marks=((750, 168),))


class PackingEnv(DecisionEnv):
    """How full the steps of the next interval are packed; a base policy takes all other
    decisions.

    ## Description
    OOCO's Algorithm 2 (arXiv 2511.21862, section 3.4.4) adds offline decodes to a strict step
    while its predicted latency stays within a share of the TPOT SLO; HyGen (arXiv 2501.14808)
    fills a mixed iteration up to a latency budget. Both keep this share fixed; here the agent
    sets it every `interval_s`, without looking at single requests.

    ## Action Space
    `Discrete(2 + K)`: 0 is never legal, `2 + k` takes level k; 1 takes the base policy's own
    value, if it is none of the levels.

    ## Candidates
    The levels of `conf/env` (`levels`: shares of the TPOT SLO), ascending; `step` is the
    predicted latency of a step of all residents on the first strict (or mixed) instance. They set
    the base policy's `slo_margin`, or its `latency_budget_s`.
    """

    id: ClassVar[str] = "ooco_gym/Packing-v1"
    decisions: ClassVar[tuple[Decision, ...]] = (DECISION,)
    default_scenario: ClassVar[str] = "packing"


register(PackingEnv)
