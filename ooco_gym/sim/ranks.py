"""Data-parallel ranks: instances that share a model's experts, so that their iterations start and
end together.

Each rank has its own queue, memory and batch, composed as on any mixed instance. Their iteration
starts when all are idle and have composed, and some rank has a token; it lasts as long as the
slowest rank's. A rank without tokens runs a dummy one (vLLM: `DPEngineCoreProc.run_busy_loop`,
`execute_dummy_batch`). Linear layers and attention depend on a rank's own tokens, experts and
exchange on all ranks'. If no rank has a token, all rest until something arrives at one of them, and
then all compose.
"""

import numpy as np

from ooco_gym.compile import inlined, inner
from ooco_gym.perf.latency import decode_latency, shared_latency, sums_latency
from ooco_gym.sim import state as s
from ooco_gym.sim.mixed import begin, iteration_sums, rest, whole_latency
from ooco_gym.sim.queues import add_dispatch

AHEAD, NOW = 1, 2  # values of `composed`: while the previous iteration ran, or when idle


@inner
def start_ranks(state, instance):
    """Starts the iteration of all ranks of `instance`'s group if it is the last to end its own and
    to compose. Returns whether `instance` composes again at once."""
    first = state.instances[instance].first_rank
    last = first + state.instances[instance].ranks
    for rank in range(first, last):
        if state.instances[rank].activity != s.IDLE:
            return False  # it ends at this same time
    composed = True
    for rank in range(first, last):
        if state.instances[rank].composed == 0:
            composed = False
            state.instances[rank].pull_wake_ps = s.NEVER  # as if its timer expired: its rule sets another
            add_dispatch(state, rank)
    if not composed:
        return False
    tokens = _own_parts(state, first, last)
    if tokens == 0:
        return _rest_all(state, first, last)
    _begin_all(state, first, last, tokens)
    return state.config.async_scheduling != s.SYNCHRONOUS


@inlined
def _own_parts(state, first, last):
    """Computes each rank's own latency into `end_ps`. Returns the tokens of all ranks; 0: none has
    work."""
    tokens, idle, ranks = 0, 0, last - first
    for rank in range(first, last):
        spec = state.instances[rank]
        sums = iteration_sums(state, rank, spec.table)
        spec.new_tokens = sums[0]
        if sums[0] > 0:
            latency = sums_latency(state, spec.table, sums)
        else:
            latency = decode_latency(state, spec.table, 1, 1)
            idle += 1
        spec.end_ps = latency - shared_latency(state, spec.table, ranks * max(sums[0], 1), ranks)
        tokens += sums[0]
    return tokens + idle if tokens > 0 else 0


@inlined
def _begin_all(state, first, last, tokens):
    """Starts the iteration on all ranks, with `tokens` in total, as long as the slowest rank."""
    longest = np.int64(0)
    for rank in range(first, last):
        spec = state.instances[rank]
        together = shared_latency(state, spec.table, tokens, last - first)
        longest = max(longest, whole_latency(state, rank, spec.end_ps + together))
    for rank in range(first, last):
        state.instances[rank].composed = 0
        begin(state, rank, longest)
        if state.config.async_scheduling != s.SYNCHRONOUS:
            add_dispatch(state, rank)


@inlined
def _rest_all(state, first, last):
    """Rests all ranks, as none has a token, or composes again if a rank composed before recent
    arrivals."""
    again = False
    for rank in range(first, last):
        again |= state.instances[rank].composed == AHEAD
        state.instances[rank].composed = 0
    for rank in range(first, last):
        if again:
            add_dispatch(state, rank)
        else:
            rest(state, rank)
    return again
