"""`ooco_gym/Jobs-v1`: which job's call enters the next iteration of a mixed instance?"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np

from ooco_gym.compile import inlined, inner
from ooco_gym.envs import buffers as b
from ooco_gym.envs import entering
from ooco_gym.envs.base import DecisionEnv
from ooco_gym.envs.buffers import step_kernel
from ooco_gym.envs.custom import Term, reading
from ooco_gym.envs.decision import Decision, add_choice
from ooco_gym.envs.features import JOB, SERVED, columns
from ooco_gym.envs.filling import log_scale, log_scales
from ooco_gym.envs.vector import register
from ooco_gym.policy.latency_budget import OFFLINE_CLASS, OPEN_LEFT, fewest_tokens, first_waiting
from ooco_gym.sim import state as s
from ooco_gym.sim.costs import length
from ooco_gym.sim.sessions import ATTAINED, BEGUN, END, TURN, expected_left, kind_of
from ooco_gym.sim.step_actions import has_seat, num_free_blocks, whole_need

F, S = columns(JOB), columns(SERVED)
_PER_LOG, _SERVED = log_scales(JOB), log_scales(SERVED)
_CALLS, _CONTEXTS, _OUTPUT = _SERVED[S.waiting], _SERVED[S.waiting_tokens], _SERVED[S.output_mean]
_TOKENS, _TURN, _AGE, _WAIT = _PER_LOG[F.tokens], _PER_LOG[F.turn], _PER_LOG[F.age], _PER_LOG[F.wait]
_ATTAINED, _EXPECTED, _WAITING = _PER_LOG[F.attained], _PER_LOG[F.expected], _PER_LOG[F.waiting]
FIRST_JOB, EXPECTED, ATTAINED_LEAST, ATTAINED_MOST, SHORTEST, ORDERS = range(6)


# --- What is offered --------------------------------------------------------------------------------------------------
@inlined
def of_job(state, slot, column, otherwise):
    """A column of `State.jobs` of a request's job; without one, `otherwise`."""
    return state.jobs[state.job[slot], column] if state.job.size > 0 and state.job[slot] >= 0 else float(otherwise)


@inlined
def score(state, slot, order):
    """The score of a waiting call in one of the orders above, a whole number: the least is offered."""
    if order == EXPECTED:
        return np.int64(expected_left(state, slot)) if state.job.size > 0 else np.int64(0)
    if order == SHORTEST:
        return np.int64(length(state, slot))
    if order == FIRST_JOB:
        return np.int64(of_job(state, slot, BEGUN, state.requests[slot].arrival_ps))
    attained = np.int64(of_job(state, slot, ATTAINED, 0))
    return attained if order == ATTAINED_LEAST else -attained


@inner
def choose(state, instance, chosen):
    """Writes candidates and returns their number: the scheduler's next call, and the first by each order."""
    best, least, slot = state.scratch[0], state.scratch[1], np.int64(state.instances[instance].offline_head)
    for order in range(ORDERS):
        best[order], least[order] = -1, s.NEVER
    while slot >= 0:
        for order in range(ORDERS):
            mine = score(state, slot, order)
            if mine < least[order]:
                best[order], least[order] = slot, mine
        slot = np.int64(state.requests[slot].next)
    offered = add_choice(chosen, 0, first_waiting(state, instance, OFFLINE_CLASS))
    for order in range(ORDERS):
        offered = add_choice(chosen, offered, best[order])
    return offered


@inner
def count_waiting(state, instance, chosen, kept, column):
    """Writes how many calls of the job of each of the `kept` candidates wait, as a feature."""
    slot, counts = np.int64(state.instances[instance].offline_head), state.scratch[0]
    for k in range(kept):
        counts[k] = 0
    while slot >= 0:
        for k in range(kept):
            counts[k] += state.job[slot] == state.job[chosen[k]]
        slot = np.int64(state.requests[slot].next)
    for k in range(kept):
        column[k] = log_scale(counts[k], _WAITING)


@inner
def fill_job(state, instance, slot, computed, need, out):
    """Writes the `JOB` features of a waiting call."""
    request, tokens, now = state.requests[slot], length(state, slot), state.clock.now_ps
    known = state.job.size > 0
    kind = kind_of(state, slot) if known else np.int64(0)
    out[F.present] = 1.0
    out[F.tokens] = log_scale(tokens, _TOKENS)
    out[F.cached] = computed / tokens
    out[F.turn] = log_scale(of_job(state, slot, TURN, 0), _TURN)
    out[F.client] = min(1.0, (kind + 1.0) / 16.0) if kind + 1 < state.calls.shape[0] else 0.0
    out[F.attained] = log_scale(of_job(state, slot, ATTAINED, 0) / s.PS_PER_S, _ATTAINED)
    out[F.expected] = log_scale(expected_left(state, slot) / s.PS_PER_S if known else 0.0, _EXPECTED)
    out[F.age] = log_scale((now - of_job(state, slot, BEGUN, request.arrival_ps)) / s.PS_PER_S, _AGE)
    out[F.wait] = log_scale((now - request.arrival_ps) / s.PS_PER_S, _WAIT)
    out[F.memory] = min(1.0, need / max(1, num_free_blocks(state, instance)))
    out[F.first] = slot == first_waiting(state, instance, OFFLINE_CLASS)


@step_kernel
def offer_jobs(state, buffers, i):
    """Offers the chosen calls that fit: memory, a running slot, and a chunk within the iteration's limits."""
    instance, row = state.pending.instance, buffers.iteration[i]
    chosen, kept = buffers.chosen[i, : np.int64(buffers.settings[b.OFFERED])], 0
    if row[OPEN_LEFT] <= 0 or state.instances[instance].offline_waiting == 0 or not has_seat(state, instance):
        return 0
    offered = choose(state, instance, chosen)
    for k in range(offered):
        slot = np.int64(chosen[k])
        computed, need = whole_need(state, instance, slot)
        if fewest_tokens(state, instance, row, slot, computed, need) > 0:
            chosen[kept] = slot
            fill_job(state, instance, slot, computed, need, buffers.candidates[i, kept])
            buffers.mask[i, b.FIXED + kept] = 1
            kept += 1
    for k in range(kept, offered):
        chosen[k] = -1
    if state.job.size > 0:
        count_waiting(state, instance, chosen, kept, buffers.candidates[i, :, F.waiting])
    buffers.mask[i, b.DECLINE_ACTION] = 0  # the question is who goes first, not whether
    return kept


@step_kernel
def answer_call(state, buffers, i):
    """Admits one call, after which the environment asks again; where no choice is left, the base policy goes on."""
    if buffers.actions[i, 0] < b.FIXED:
        return entering.enter_as_base_policy(state, buffers, i)
    return entering.answer_entry(state, buffers, i)


@step_kernel
def observe_served(state, buffers, i):
    """Completes the observation of an open decision."""
    spec, out = state.instances[state.pending.instance], buffers.cluster[i]
    out[S.seats] = 1.0 - spec.running / state.config.max_num_seqs
    out[S.kv_free] = spec.free_blocks / spec.total_blocks
    out[S.waiting] = log_scale(spec.offline_waiting, _CALLS)
    out[S.waiting_tokens] = log_scale(spec.offline_waiting_tokens, _CONTEXTS)
    out[S.output_mean] = log_scale(state.observed.offline_output_mean, _OUTPUT)
    return b.NO_KIND


@reading
def completion(state, instance):
    """Seconds that the jobs of the episode have been open so far, the mean over all of them, below 0."""
    open_ps, now = 0.0, float(state.clock.now_ps)
    for job in range(state.jobs.shape[0]):
        begun, end = state.jobs[job, BEGUN], state.jobs[job, END]
        if begun >= 0.0:
            open_ps += (end if end > 0.0 else now) - begun
    return -open_ps / s.PS_PER_S / max(1, state.jobs.shape[0])


DECISION: Decision = replace(
    entering.DECISION, name="job", offer=offer_jobs, answer=answer_call, observe=observe_served, table=JOB,
    cluster=SERVED, question="Which job's call enters the iteration?", take="admit this call; the decision repeats",
    no="admit none; masked, as the question is who goes first", candidates="waiting calls")


class JobsEnv(DecisionEnv):
    """Which agent's or roll-out's call enters the batch next, where more wait than can run.

    ## Description
    Two engines serve jobs of several calls: agents, whose turns wait for tools and subagents, and groups of
    roll-outs, of which the slowest decides. All calls are offline ones; a job is done with its last. At most 64
    run at a time on each, and more arrive than can be served, so which enter first decides how long jobs take:
    knowing what is left takes up to a third off the mean (docs/workloads.md). How many calls a job still has is
    hidden; what jobs of its client have needed is learned as calls end (`expected`). The reward is the time that jobs
    are open, `completion`, over the jobs of the episode: undiscounted it sums to the negative mean time to a
    job's end, as far as it lies in the episode. Each episode draws another condition (`conf/env/jobs.yaml`,
    `vary.condition`).

    ## Action Space
    `Discrete(2 + K)`: 1 does what the base policy would do (first come, first served), `2 + k` admits call k, after
    which the next is asked for. 0, to admit none, is masked: the question is who goes first.

    ## Candidates
    Waiting calls that fit: the base policy's next, and those first by when their job came, by
    expected service left, by attained service (least and most) and by context. `cluster`
    describes the engine.
    """

    id: ClassVar[str] = "ooco_gym/Jobs-v1"
    decisions: ClassVar[tuple[Decision, ...]] = (DECISION,)
    terms: ClassVar[tuple[Term, ...]] = (Term("completion", completion),)
    default_scenario: ClassVar[str] = "jobs"


register(JobsEnv)
