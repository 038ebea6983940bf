"""Shortest predicted job first on vLLM's V1 schedule.

The textbook rule with predicted output lengths: waiting requests are admitted in the order of the predicted length of
their outputs; what runs is never stopped for a shorter one. Online requests go before offline ones, as in
`vllm_priority`, and all else is that schedule. Papers on predictors (SSJF, arXiv 2404.08509; learning to rank, arXiv
2408.15792) build on this rule; their own refinements are not in it.

What is predicted is what the scenario's length predictor says (`lengths={predictor: rank, tau: 0.5}`). A scenario
without one has `{predictor: lognormal, error: SIGMA}` here, with the parameter `sigma`: the true output length times
exp(`sigma` z) with a normal z of its own. The order stays when a request is preempted.

Ours: of the waiting online requests the first 256 by arrival are compared. Long offline requests may wait for ever:
shortest first has no fairness, and none is added.
"""

import numpy as np

from baselines.vllm_v1 import SCHEDULE_PARAMS
from ooco_gym.compile import inner
from ooco_gym.policy.decisions import COMPOSE, hook
from ooco_gym.policy.mixed import admit, continue_running, fits_whole, next_in_order, rank_of
from ooco_gym.policy.policy import Param, Policy
from ooco_gym.policy.rules import route_fewest_requests
from ooco_gym.workload.keyed import keyed_generator
from ooco_gym.workload.predicted import lognormal

PARAMS = (
    *SCHEDULE_PARAMS,
    Param("sigma", "error of the log-normal predictor, where the scenario has none", 0.0, 10.0),
)
CANDIDATES = 256  # waiting online requests that are compared, the first by arrival


def predicted_lengths(policy, trace, seed, predicted):
    """What each request is predicted to take, in output tokens: float64[requests].

    Args:
        policy: with its parameters.
        trace: all requests.
        seed: keys the errors; the error of a request hangs on its place in the trace alone.
        predicted: float64[requests, 2], what the scenario's predictor says, or None.
    """
    if predicted is None:
        z = keyed_generator(seed, "sjf").standard_normal(len(trace))
        predicted = lognormal(trace.output_tokens, policy.values["sigma"], z)
    return predicted[:, 0]


@inner
def shortest_waiting(state, instance):
    """The waiting request that is predicted to be the shortest, online ones first; or -1."""
    slot = np.int64(state.instances[instance].online_head)
    if slot < 0:
        return np.int64(next_in_order(state, instance, 0))
    best, left = slot, CANDIDATES
    while slot >= 0 and left > 0:
        if rank_of(state, slot) < rank_of(state, best):
            best = slot
        slot = np.int64(state.requests[slot].next)
        left -= 1
    return best


@hook(COMPOSE)
def compose(view):
    """vLLM's V1 schedule with the shortest waiting request first."""
    state, instance = view.state, view.instance
    whole = state.config.max_num_batched_tokens
    while True:
        budget, preempted = continue_running(state, instance, whole)
        while preempted == 0 and budget > 0:
            slot = shortest_waiting(state, instance)
            if slot < 0 or not fits_whole(state, instance, slot):
                break
            budget -= admit(state, instance, slot, budget)
        if preempted == 0 or budget < whole:
            return whole - budget


policy = Policy("sjf", PARAMS, mixed=True, route=route_fewest_requests, compose=compose, order=predicted_lengths)
