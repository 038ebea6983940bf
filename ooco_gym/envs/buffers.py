"""Arrays that a compiled step of N episodes reads and writes, allocated once: see
`stepping.step_all`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import typeof, types

from ooco_gym.compile import function_at, jit
from ooco_gym.compile.references import Handle, Reference, layout, reference_at
from ooco_gym.envs import features as contract
from ooco_gym.envs.reward import REWARD_SUMS, TERMS
from ooco_gym.policy.decisions import POINTS
from ooco_gym.policy.latency_budget import OPEN_FIELDS
from ooco_gym.sim.state import COMPOSE, STATE_TYPE

# --- Kinds of decisions: the simulator's points; who is preempted before an iteration is composed, and which offline
# requests enter a composed one; and by the clock one of some levels, or a vector of levels ---------------------------
NO_KIND, RECLAIM, ADMIT, CLOCK, CONTROL, KINDS = 0, *range(len(POINTS) + 1, len(POINTS) + 6)
OF_ENGINES = (COMPOSE, RECLAIM, ADMIT)  # decisions of one mixed instance
DECLINE_ACTION, BASE_ACTION, FIXED = contract.DECLINE_ACTION, contract.BASE_ACTION, contract.FIXED
ILLEGAL = -1
BOX_ONE = 1 << 30  # Box actions are stored as integers from 0 to this

# --- Columns of StepBuffers.status -----------------------------------------------------------------------------------
# WAS_ILLEGAL: an action was illegal since the flag was last read. ILLEGALS: illegal actions of
# the episode.
(KIND, PICKED, PLANNED, NEXT_CONTROL_PS, UNTIL_PS, OPEN, STEP_KIND, WAS_ILLEGAL, ILLEGALS, TURN) = range(10)
MORE = -9  # return value of an answer: the decision continues with another pick
MOST_PICKS = 16  # of one decision
NOTES = 8
MOST_PARTS = 3  # numbers of an action that may stay in force
# --- Columns of StepBuffers.held: until when an action is in force, and the action ----------------------------------
(HELD_UNTIL_PS, HELD_ACTION, HELD) = 0, 1, 1 + MOST_PARTS
# --- Slots of StepBuffers.settings ----------------------------------------------------------------------------------
# OFFERED: most requests to offer, if another decision of the environment has more candidates
# ANY_ILLEGAL: whether any episode has WAS_ILLEGAL set
(CONTROL_INTERVAL_PS, PACK_PARAM, PACK_SCALE, VIOLATION_BUDGET, BOX, OFFERED, ANY_ILLEGAL, SETTINGS) = range(8)


class StepBuffers(NamedTuple):
    """Arrays of N episodes, written in place: K candidates, A = FIXED + K actions, P dimensions
    of an action."""

    handles: np.ndarray  # int64[N], addresses of the episodes' states
    rules: np.ndarray  # int64[2, 6], addresses of rules: row 0 asks the agent, row 1 is the base policy's
    offers: np.ndarray  # int64[KINDS], address of the function that offers candidates; 0: the base policy decides
    answers: np.ndarray  # int64[KINDS], address of the function that turns an action into an answer
    bases: np.ndarray  # int64[KINDS], for CLOCK, RECLAIM, ADMIT: address of the function that does what the base policy
    # would do
    observers: np.ndarray  # int64[KINDS], address of the function that completes an observation; 0: the common one
    shown: np.ndarray  # int64[C], indices in features.CLUSTER of the columns of `cluster`, if common code fills it
    slots: np.ndarray  # int64[KINDS], slot of each kind in `decision`
    actions: np.ndarray  # int64[N, P]
    status: np.ndarray  # int64[N, TURN], progress of each episode
    chosen: np.ndarray  # int32[N, K], the candidates: positions, requests, instances or levels; -1: none
    planned: np.ndarray  # int32[N, MOST_PICKS], what the base policy would pick
    picked: np.ndarray  # int32[N, MOST_PICKS], picks so far
    levels: np.ndarray  # float64[values, levels], values of the levels set by the clock, or of each candidate
    params: np.ndarray  # int64[P], their indices in State.params
    settings: np.ndarray  # float64[SETTINGS]
    weights: np.ndarray  # float64[terms of the reward, then the environment's own]
    own_terms: np.ndarray  # int64[own terms], addresses of their readings (`custom.reading`)
    own_features: np.ndarray  # int64[own features], the same for the last columns of `cluster`
    own_scales: np.ndarray  # float64[own features, 4] (`custom.scales_of`)
    reward_sums: np.ndarray  # float64[N, REWARD_SUMS + 3 own terms]
    days: np.ndarray  # float64[N], time of day at time 0 of the episode, in seconds
    tuned: np.ndarray  # float64[N], the base policy's tuned (or profiled) packing parameter for the window
    notes: np.ndarray  # float64[N, NOTES], values that an environment keeps between decisions
    held: np.ndarray  # int64[N, instances, HELD], the actions that stay in force on each instance
    iteration: np.ndarray  # int64[N, OPEN_FIELDS + K], for ADMIT: the composed iteration (`latency_budget.
    # leave_open`), and its predicted latency with each candidate, in ps; for RECLAIM: what happens to
    # each candidate's memory (RECOMPUTE, SWAP)
    cluster: np.ndarray  # float32[N, features of the cluster]
    candidates: np.ndarray  # float32[N, K, F]
    mask: np.ndarray  # int8[N, A]
    decision: np.ndarray  # float32[N, slots of decisions], one hot


def empty_buffers(episodes: int, candidates: int, dimensions: int = 1, levels: tuple[int, int] = (1, 1),
                  actions: int | None = None, decisions: int = 1, cluster: int = 1, features: int = 1,
                  instances: int = 1, own_terms: int = 0, own_features: int = 0) -> StepBuffers:
    n = episodes
    return StepBuffers(
        np.zeros(n, np.int64), np.zeros((2, len(POINTS)), np.int64), np.zeros(KINDS, np.int64),
        np.zeros(KINDS, np.int64), np.zeros(KINDS, np.int64), np.zeros(KINDS, np.int64),
        np.zeros(cluster - own_features, np.int64), np.zeros(KINDS, np.int64),
        np.zeros((n, dimensions), np.int64), np.zeros((n, TURN), np.int64),
        np.full((n, candidates), -1, np.int32), np.zeros((n, MOST_PICKS), np.int32),
        np.zeros((n, MOST_PICKS), np.int32), np.zeros(levels), np.zeros(dimensions, np.int64),
        np.zeros(SETTINGS), np.zeros(len(TERMS) + own_terms), np.zeros(own_terms, np.int64),
        np.zeros(own_features, np.int64), np.zeros((own_features, 4)), np.zeros((n, REWARD_SUMS + 3 * own_terms)),
        np.zeros(n), np.zeros(n), np.zeros((n, NOTES)), np.zeros((n, instances, HELD), np.int64),
        np.zeros((n, OPEN_FIELDS + candidates), np.int64), np.zeros((n, cluster), np.float32),
        np.zeros((n, candidates, features), np.float32),
        np.zeros((n, FIXED + candidates if actions is None else actions), np.int8),
        np.zeros((n, decisions), np.float32),
    )


# The arrays with a row per episode, except its address.
ROWS = ("actions", "status", "chosen", "planned", "picked", "reward_sums", "days", "tuned", "notes", "held",
        "iteration", "cluster", "candidates", "mask", "decision")
_EXAMPLE = empty_buffers(1, 1)
BUFFERS_TYPE = typeof(_EXAMPLE)
buffers_at = reference_at(BUFFERS_TYPE)  # compiled: the buffers at a handle's address
_LAYOUT = layout(_EXAMPLE)

STEP_SIGNATURE = types.int64(Reference(STATE_TYPE), Reference(BUFFERS_TYPE), types.int64)
kernel_at = function_at(types.FunctionType(STEP_SIGNATURE))


def buffers_handle(buffers: StepBuffers) -> Handle:
    """Lays out buffers for `stepping.step_all`."""
    return Handle(buffers, _LAYOUT)


def step_kernel(function: Any) -> Any:
    """Compiles an environment's function of (state, buffers, episode i) for one kind of decision.

    An *offer* writes `buffers.chosen[i]`, the candidates' features and the legal actions of the
    mask (beside the base policy's), and returns the number of these actions. An *answer* converts
    the action `buffers.actions[i]` to an answer for the simulator. It returns MORE if another
    pick follows, and ASK if there is nothing to answer (a decision by the clock).
    """
    return jit(STEP_SIGNATURE, no_cpython_wrapper=True)(function)


