"""By turn and new tokens: LRU on the time of last use + turn_s · min(turn - 1, 4) - token_s · ln(1 + new tokens). Ours.

Turn and new tokens are those of the request that used the block last: turn - 1 is the number of earlier prompts that
are a prefix of its prompt; new tokens are those after the longest prefix that it shares with an earlier prompt.
"""

import math

from ooco_gym.perf.latency import steady
from ooco_gym.policy.decisions import RETAIN, hook
from ooco_gym.policy.policy import Param, Policy, slots
from ooco_gym.policy.retention import microseconds, new_tokens, turn
from ooco_gym.sim.state import PARAMS as FIRST

PARAMS = (Param("turn_s", "seconds of each turn of a conversation after the first, up to the fifth", -1e5, 1e5,
                usual=(0, 500)),
          Param("token_s", "seconds less, times ln(1 + new tokens of a prompt)", -1e5, 1e5, usual=(-100, 100)))
K = slots(PARAMS, FIRST)
LAST_TURN = 5  # later turns get no larger bonus


@hook(RETAIN, flushes=True)
def retain(view):
    """Returns the bonus of a request's blocks, in microseconds."""
    params = view.state.params
    seconds = params[K.turn_s] * (min(turn(view), LAST_TURN) - 1)
    seconds -= params[K.token_s] * steady(math.log1p(new_tokens(view)))
    return microseconds(seconds)


policy = Policy("turns", PARAMS, retain=retain)
