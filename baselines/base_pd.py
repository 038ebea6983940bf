"""Base P/D (OOCO 5.1.4): a standard prefill/decode-disaggregated engine that does not know of classes.

Offline requests are treated as online ones: first come, first served prefill on the prefill (relaxed) pool, a push to
the decode (strict) pool as soon as there is room, and everything resident decodes in every step. Memory that runs
short takes the request that joined last, which is recomputed (as vLLM does).
"""

from ooco_gym.decisions import ROUTE, hook
from ooco_gym.policy.bundle import Param, Policy, slots
from ooco_gym.policy.rules import least_backlog, lightest_strict
from ooco_gym.sim.state import WAITING

PARAMS = (
    Param("routing", "which instance of a pool", choices=("least_loaded", "round_robin")),
    Param("prefill_tokens", "token budget of one prefill batch", 1, 1_000_000),
)
P = slots(PARAMS)


@hook(ROUTE, settles=True)
def route(view):
    """Least predicted backlog for prefill; for decode the instance whose step would be the shortest."""
    state = view.state
    arriving, relaxed = state.requests[view.request].status < WAITING, state.config.relaxed_count
    if state.params[P.routing] == 1:
        return view.request % relaxed if arriving else relaxed + view.request % (state.instances.size - relaxed)
    if arriving:
        return least_backlog(state, True)
    return lightest_strict(state, view.request, 0)  # no bound: the shortest step of all, not the first that keeps it


policy = Policy("base_pd", PARAMS, class_blind=True, route=route)
