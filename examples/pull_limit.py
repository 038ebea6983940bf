"""An environment with a kind of decision of its own, in one file and its YAML: how many requests may one pull take?

    ooco-gym train env=examples/pull_limit.yaml
"""

from pathlib import Path
from typing import ClassVar

import numpy as np

from ooco_gym.envs.base import DecisionEnv
from ooco_gym.envs.buffers import CLOCK, FIXED, step_kernel
from ooco_gym.envs.config import EpisodeConfig
from ooco_gym.envs.decision import Decision
from ooco_gym.envs.features import PRESENT, Feature, columns
from ooco_gym.envs.filling import share
from ooco_gym.envs.vector import register
from ooco_gym.errors import UserError
from ooco_gym.policy import Policy, get_policy
from ooco_gym.sim.state import ASK

MOST = 32.0  # requests
TABLE = (PRESENT,
         Feature("limit", "requests", "linear", MOST, 0.0, 1.0, "most requests that one pull takes"),
         Feature("base_policy", "", "as is", 1.0, 0.0, 1.0, "1 where it is the base policy's own"))
COLUMN = columns(TABLE)
_OOCO = get_policy("ooco")
_MAX_PULL = [param.name for param in _OOCO.params].index("max_pull")  # index in State.params
_TUNED = float(_OOCO.values["max_pull"])


@step_kernel
def offer_limits(state, buffers, i):
    """One candidate a limit, ascending."""
    for k in range(buffers.levels.shape[1]):
        limit, out = buffers.levels[0, k], buffers.candidates[i, k]
        out[COLUMN.present] = 1.0
        out[COLUMN.limit] = share(limit, MOST)
        out[COLUMN.base_policy] = limit == _TUNED
        buffers.chosen[i, k] = k
        buffers.mask[i, FIXED + k] = 1
    return buffers.levels.shape[1]


@step_kernel
def answer_limit(state, buffers, i):
    """Sets the limit for the interval that begins."""
    state.params[_MAX_PULL] = buffers.levels[0, buffers.actions[i, 0] - FIXED]
    return ASK


@step_kernel
def keep_tuned(state, buffers, i):
    """The limit as the base policy was tuned."""
    state.params[_MAX_PULL] = _TUNED
    return ASK


def limits(policy: Policy, config: EpisodeConfig) -> np.ndarray:
    """The limits to choose among: float64[1, limits].

    Raises:
        UserError: the base policy is another policy than ooco as it is tuned.
    """
    if policy.name != "ooco" or policy.values["max_pull"] != _TUNED:
        raise UserError(f"base policy '{policy.name}': the limit of pulls is ooco's parameter; take base_policy=ooco")
    return np.array([sorted(config.levels)])


DECISION = Decision(
    "pull_limit", CLOCK, offer_limits, answer_limit, base_policy=keep_tuned, levels=limits,
    question="How many requests may one pull take in the next interval?", take="pull at most so many requests",
    candidates="limits", table=TABLE, marks=((504, 232),))


class PullLimitEnv(DecisionEnv):
    """How many requests one pull of OOCO's Algorithm 1 may take, chosen again at each interval.

    ## Description
    One pull moves up to `max_pull` offline requests to a strict instance. A higher limit fills the instance sooner, and
    leaves it less memory for what arrives next.

    ## Action Space
    `Discrete(2 + K)`: 0 is never legal, `2 + k` takes limit k.
    """

    id: ClassVar[str] = "examples/PullLimit-v0"
    decisions: ClassVar[tuple[Decision, ...]] = (DECISION,)
    default_scenario: ClassVar[str] = str(Path(__file__).with_suffix(".yaml"))


register(PullLimitEnv)
