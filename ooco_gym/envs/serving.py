"""`ooco_gym/Serving-v0`: all decisions of one or many mixed instances, each when it is due, by one agent."""

from __future__ import annotations

from typing import ClassVar

from ooco_gym.compile import inlined
from ooco_gym.envs import admission, batching, reclaiming
from ooco_gym.envs import buffers as b
from ooco_gym.envs.base import DecisionEnv
from ooco_gym.envs.batching_filling import feature_of
from ooco_gym.envs.buffers import step_kernel
from ooco_gym.envs.decision import Decision, add_choice
from ooco_gym.envs.serving_filling import PLACES, fill_target, observe_targets
from ooco_gym.envs.stepping import partner_pick
from ooco_gym.envs.vector import register
from ooco_gym.policy.rules import sort_ascending
from ooco_gym.runtime.batching_features import ENGINE
from ooco_gym.runtime.serving_features import TARGET
from ooco_gym.sim.state import ROUTE


@inlined
def requests_of_class(state, instance, online):
    """Requests of a class on an instance, running and waiting."""
    spec = state.instances[instance]
    return spec.urgent_members + spec.online_waiting if online else spec.offline_members + spec.offline_waiting


@step_kernel
def offer_targets(state, buffers, i):
    """The partner's choice, then the engines with the fewest requests of the arrival's class."""
    slot, chosen, count = state.pending.request, buffers.chosen[i], state.config.relaxed_count
    wanted, listed = partner_pick(state, buffers, i), min(count, state.scratch.shape[1])
    offered = add_choice(chosen, 0, wanted if wanted < count else -1)
    for instance in range(listed):
        state.scratch[0, instance] = requests_of_class(state, instance, state.requests[slot].urgent)
        state.scratch[1, instance] = instance
    sort_ascending(state.scratch[0], state.scratch[1], listed)
    for j in range(listed):
        offered = add_choice(chosen, offered, state.scratch[1, j])
    for k in range(offered):
        fill_target(state, chosen[k], slot, chosen[k] == wanted, buffers.candidates[i, k])
        buffers.mask[i, b.FIXED + k] = 1
    buffers.mask[i, b.PARTNER_ACTION] = 1
    return offered


@step_kernel
def answer_target(state, buffers, i):
    """The engine."""
    return buffers.chosen[i, buffers.actions[i, 0] - b.FIXED]


DECISION = Decision(
    "target", ROUTE, offer_targets, answer_target,
    question="Which engine takes the request that has arrived?", take="send it to this engine", candidates="engines",
    figures=tuple(one.name for one in TARGET if one.name != "present"),
    features={PLACES[one.name]: feature_of(one) for one in TARGET}, cluster=tuple(map(feature_of, ENGINE)),
    observe=observe_targets, marks=((158, 147),))


class ServingEnv(DecisionEnv):
    """The whole of one or many engines by one agent: where requests go, how iterations are filled, who enters them.

    ## Description
    The decisions of [Reclaiming-v0](reclaiming.md), [Batching-v0](batching.md) and [Admission-v0](admission.md) on the
    same engines, and, where there are several, which of them takes a request that arrives; each is asked when it is
    due, and `decision` says which it is. What one decides, the others meet: a request that is sent to an engine must be
    computed within the time that its iterations are given, an iteration that is filled to its end admits none, and who
    enters holds memory that prompts to come will want. Where blocks lack for what must run, it is asked first which
    request gives way; then how the iteration is filled; then, where that leaves time, tokens, a seat and memory, which
    waiting offline requests enter. The partner answers what it is left: arrivals that have one engine to go to,
    iterations without a choice.

    ## Action Space
    `Discrete(2 + K)`: 0 is the decision's own *no* (online decodes alone; no more requests enter), 1 does what the
    partner would do, `2 + k` takes candidate k. After the partner's way to fill an iteration, which offline requests
    enter is still asked, where the partner leaves it open, as `deadline` does; other policies admit within their rule.
    K is how many combinations of `levels` and `shares` there are; of engines and of requests there are fewer:
    `candidates` requests at most.

    ## Candidates
    Those of the decision that is due. Of `target` they are the partner's choice, then the engines with the fewest
    requests of the arrival's class. `cluster` is of the engine that composes; where a request arrives, of the one that
    the partner would send it to, as its scheduler last left it.
    """

    id: ClassVar[str] = "ooco_gym/Serving-v0"
    decisions: ClassVar[tuple[Decision, ...]] = (DECISION, reclaiming.DECISION, batching.DECISION, admission.DECISION)
    default_scenario: ClassVar[str] = "serving"


register(ServingEnv)
