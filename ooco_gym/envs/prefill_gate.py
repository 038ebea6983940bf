"""`ooco_gym/PrefillGate-v1`: when does a relaxed instance start an offline prefill, and which?"""

from __future__ import annotations

import math
from typing import ClassVar

from ooco_gym.compile.instructions import prefetch
from ooco_gym.envs.base import DecisionEnv
from ooco_gym.envs.buffers import DECLINE_ACTION, FIXED, step_kernel
from ooco_gym.envs.decision import Decision, OpenDecision, add_choice, add_spread
from ooco_gym.envs.features import GATE as TABLE
from ooco_gym.envs.features import IDLE, MARGIN, PICKS, RELAXED, columns
from ooco_gym.envs.filling import fast_rate, fill_request, rank_requests, share, stack_logs, take_logs
from ooco_gym.envs.stepping import base_pick
from ooco_gym.envs.vector import register
from ooco_gym.sim.records import CACHE_LINE
from ooco_gym.sim.state import GATE, HOLD, PS_PER_S
from ooco_gym.sim.waiting import SHORTEST

COLUMN = columns(TABLE)
WINDOW = 64  # number of waiting requests from which candidates are chosen


@step_kernel
def offer_gate(state, buffers, i):
    """Offers the first request in the queue that fits, the base policy's choice, then quantiles
    of length."""
    instance, count = state.pending.instance, state.pending.count
    chosen, wanted = buffers.chosen[i], base_pick(state, buffers, i)
    first = state.picks[0]
    wanted = state.picks[wanted] if 0 <= wanted < count else -1
    chosen[0] = first
    offered = add_choice(chosen, 1, wanted)
    # Requests that fit are no longer than those that do not, so candidates are the first by length.
    shortest, low, high = state.waiting_window[instance, SHORTEST], 0, 0
    for index in range(count):
        low += index * (shortest[index] == first)
        high += index * (shortest[index] == wanted)
    if offered == 1:
        high = count
    offered = add_spread(shortest, chosen, offered, count - offered, min(low, high), max(low, high))
    logs, rate, free = stack_logs(), fast_rate(state), state.instances[instance].free_blocks
    for k in range(offered):
        prefetch(state.requests[chosen[k]], 0)
        prefetch(state.requests[chosen[k]], CACHE_LINE)
    for k in range(offered):
        out = buffers.candidates[i, k]
        prefill_ps = fill_request(state, instance, chosen[k], free, logs, k, out)
        out[COLUMN.interruptions] = share(float(state.requests[chosen[k]].interruptions), 8.0)
        out[COLUMN.interrupt_risk] = 1.0 - math.exp(-rate * prefill_ps / PS_PER_S)
        out[COLUMN.base_policy] = chosen[k] == wanted
        buffers.mask[i, FIXED + k] = 1
    take_logs(logs, offered, buffers.candidates[i])
    rank_requests(buffers.candidates[i], offered)
    buffers.mask[i, DECLINE_ACTION] = 1
    return 1 + offered


@step_kernel
def answer_gate(state, buffers, i):
    """Returns HOLD, or the position of the candidate."""
    k = buffers.actions[i, 0] - FIXED
    if k < 0:
        return HOLD
    for position in range(state.pending.count):
        if state.picks[position] == buffers.chosen[i, k]:
            return position
    return HOLD


def action_of_gate(opened: OpenDecision) -> int:
    """Returns the action for a gate's answer: its candidate, or the offered one closest in
    length."""
    if opened.answer < 0:
        return DECLINE_ACTION
    return opened.closest(opened.offered(), opened.state.picks[opened.answer])


DECISION = Decision(
    "gate", GATE, offer_gate, answer_gate, action_of_gate, window=WINDOW,
    question="Start an offline prefill?", no="hold: decode the residents",
    take="start the prefill of this request", candidates="waiting offline requests",
    table=TABLE, still=(*IDLE, *RELAXED, *MARGIN, *PICKS, "online_waiting", "online_waiting_prefill", "online_slack"),
    marks=((336, 176),))


class PrefillGateEnv(DecisionEnv):
    """The gate of OOCO's relaxed pool, one prefill at a time; a base policy takes all other
    decisions.

    ## Description
    If a relaxed instance has no online request to prefill, and waiting offline requests fit its
    KV memory, it may go on decoding resident offline requests, or start a prefill. Prefills make
    decode batches larger and feed the strict instances. But an online arrival interrupts them,
    and their computed work is lost; residents may lose their memory to online prefills later.

    ## Action Space
    `Discrete(2 + K)`: 0 holds (decodes the residents; the environment asks again after the next
    decode step, or after `gate_poll_s` if nothing is resident), `2 + k` starts the prefill of
    candidate k, filled up with waiting requests in queue order to the base policy's token budget.

    ## Candidates
    Candidate 0 is the first waiting request in the queue that fits; then comes the base policy's
    choice, if it is another one; the others are length quantiles of the first 64, shortest first.
    """

    id: ClassVar[str] = "ooco_gym/PrefillGate-v1"
    decisions: ClassVar[tuple[Decision, ...]] = (DECISION,)
    default_scenario: ClassVar[str] = "prefillgate"


register(PrefillGateEnv)
