"""By type of client: LRU on the time of last use plus a time by class, turn, tokens and client, with learned weights.

Ours. conf/retention/by_type.yaml has those for the clients of Retention-v1; those of a trace of your own are others.
"""

import math

from ooco_gym.perf.latency import steady
from ooco_gym.policy.decisions import RETAIN, hook
from ooco_gym.policy.policy import Param, Policy, slots
from ooco_gym.policy.retention import client, microseconds, new_tokens, turn
from ooco_gym.sim.costs import length
from ooco_gym.sim.state import PARAMS as FIRST

CLIENTS = 4  # clients with a weight of their own, the first ones
SECONDS, TIMES = ((-1e5, 1e5, (), None, False, (-most, most)) for most in (1000, 100))  # bounds, those of a search last
PARAMS = (Param("offline_s", "seconds of an offline request", *SECONDS),
          Param("first_s", "seconds of a first turn", *SECONDS),
          Param("turn_s", "seconds, times ln(turn)", *TIMES),
          Param("new_s", "seconds, times ln(1 + new tokens of the prompt) - 7", *TIMES),
          Param("tokens_s", "seconds, times ln(1 + tokens of prompt and answer) - 8", *TIMES),
          *(Param(f"client{i}_s", f"seconds of client {i}", *SECONDS) for i in range(CLIENTS)))
K = slots(PARAMS, FIRST)


@hook(RETAIN, flushes=True)
def retain(view):
    """Returns the time of a request's blocks, in microseconds."""
    state, params, who, its_turn = view.state, view.state.params, client(view), turn(view)
    if not state.requests[view.request].online:
        return microseconds(params[K.offline_s])
    seconds = params[K.first_s] * (its_turn == 1) + params[K.turn_s] * steady(math.log(its_turn))
    seconds += params[K.new_s] * (steady(math.log1p(new_tokens(view))) - 7.0)
    seconds += params[K.tokens_s] * (steady(math.log1p(length(state, view.request))) - 8.0)
    if 0 <= who < CLIENTS:
        seconds += params[K.client0_s + who]
    return microseconds(seconds)


policy = Policy("by_type", PARAMS, retain=retain)
