"""Adaptive deadline: `deadline` with parameters that follow the engine's state. Ours, with learned
weights.

No fixed parameters of `deadline` are best under every load (docs/learned.md). How eagerly slack is
spent, how long a prompt is held back and how much memory stays free should depend on the load.
Every `interval_s` an instance reads the 44 features of its engine
(`ooco_gym.runtime.features.ENGINE`: running and waiting requests, slacks, memory, predicted
latencies, the used part of the violation budget, arrival rates from seconds to half an hour),
scaled as there. From them it sets each parameter of `ADJUSTED`:

    z = the parameter's row of weights times (features, 1)
    linear: base + step z        log: base exp(step z)        both cut at the bounds

where `base` is the parameter's value in conf. Without weights z is 0, and every iteration is that
of `deadline`. A real engine has the same features, so the same weights work there (docs/use.md).

Parameters besides those of `deadline`: `weights`, the file (`ooco_gym/policy/weights.py`);
`interval_s`; and `violation_budget`, the share of online requests that may violate, for the
features that count it.
"""

import math
from typing import NamedTuple

import numpy as np

from baselines.deadline import PARAMS, P, Shares, compose_within, route
from ooco_gym.compile import inlined, inner
from ooco_gym.perf.latency import steady
from ooco_gym.policy.decisions import COMPOSE, hook
from ooco_gym.policy.engine_features import engine_row, engine_stack
from ooco_gym.policy.latency_budget import GIVEN, MOST_GIVEN
from ooco_gym.policy.policy import Param, Policy, slots
from ooco_gym.policy.weights import Layout, SetsParameters
from ooco_gym.runtime.features import BLOCKS_S, ENGINE
from ooco_gym.sim.state import PS_PER_S


class Adjusted(NamedTuple):
    """A parameter that weights change: name, `linear` or `log`, the step of z = 1 (added to the
    value or its logarithm), and bounds."""

    name: str
    scale: str
    step: float
    low: float
    high: float


ADJUSTED = (
    Adjusted("tpot_share", "linear", 0.05, 0.3, 1.0),
    Adjusted("ttft_share", "linear", 0.2, 0.0, 1.5),
    Adjusted("decode_share", "linear", 0.2, 0.0, 4.0),
    Adjusted("offline_share", "linear", 0.25, 0.0, 1.0),
    Adjusted("online_chunk", "log", 0.7, 32.0, 16_384.0),
    Adjusted("offline_chunk", "log", 0.7, 32.0, 16_384.0),
    Adjusted("least_iteration_s", "linear", 0.01, 0.0, 0.5),
    Adjusted("headroom_share", "linear", 0.1, 0.0, 0.9),
    Adjusted("give_up_share", "linear", 0.02, 0.0, 0.5),
)
if tuple(one.name for one in ADJUSTED) != Shares._fields:
    raise AssertionError("ADJUSTED must have the parameters of Settings in their order")
OWN = (
    Param("interval_s", "time between two updates of the parameters, seconds", 0.0, 3600.0),
    Param("violation_budget", "share of online requests that may violate the SLO", 1e-6, 1.0),
    Param("weights", "file of the weights; without one: `deadline`", default="", file=True),
)
ALL = (*PARAMS, *OWN)
Q = slots(ALL)
LAYOUT = Layout(tuple(one.name for one in ADJUSTED), (*(one.name for one in ENGINE), "constant"))
_MOST_Z = 20.0  # largest |z|
_COUNT, _WIDTH = len(ADJUSTED), len(ENGINE) + 1
_INDEX = np.array([getattr(P, one.name) for one in ADJUSTED])
_LOG = np.array([one.scale == "log" for one in ADJUSTED])
_STEP = np.array([one.step for one in ADJUSTED])
_LOW = np.array([one.low for one in ADJUSTED])
_HIGH = np.array([one.high for one in ADJUSTED])

# Places of State.memory behind those of `deadline`: time of the next update, the parameters in
# force, the current block of 10 minutes (its number from 1 on, arrivals and violations before it),
# and the notes of `engine_row`.
DUE_S = GIVEN + MOST_GIVEN
SET = DUE_S + 1
BLOCK, ARRIVED, VIOLATED, NOTES = (SET + _COUNT + i for i in range(4))
BLOCK_S = float(BLOCKS_S[0])


@inner
def engine_features(state, instance, row):
    """Fills `row` (of `engine_stack`) with the features of an instance's engine."""
    memory, now_s = state.memory[instance], state.clock.now_ps / PS_PER_S
    if math.floor(now_s / BLOCK_S) != memory[BLOCK] - 1.0:
        memory[BLOCK] = math.floor(now_s / BLOCK_S) + 1.0
        memory[ARRIVED], memory[VIOLATED] = state.totals.online_arrived, state.totals.violations
    spent = (state.params[Q.violation_budget], memory[ARRIVED], memory[VIOLATED])
    engine_row(state, instance, spent, memory[NOTES:], row)


@inner
def look(state, instance):
    """Sets the parameters of an instance from the features of its engine."""
    row, weights = engine_stack(), state.weights
    engine_features(state, instance, row)
    for j in range(_COUNT):
        z = weights[j * _WIDTH + _WIDTH - 1]
        for k in range(_WIDTH - 1):
            z += weights[j * _WIDTH + k] * np.float64(np.float32(row[k]))
        set_parameter(state, instance, j, z)


@inner
def set_parameter(state, instance, j, z):
    """Sets parameter j of an instance: z steps away from its value in conf, cut at its bounds."""
    z, base = min(_MOST_Z, max(-_MOST_Z, z)), state.params[_INDEX[j]]
    value = base * steady(math.exp(_STEP[j] * z)) if _LOG[j] else base + _STEP[j] * z
    state.memory[instance, SET + j] = min(max(_HIGH[j], base), max(min(_LOW[j], base), value))


@inlined
def settings_now(state, instance):
    """The parameters in force on an instance."""
    m = state.memory[instance]
    return Shares(m[SET], m[SET + 1], m[SET + 2], m[SET + 3], m[SET + 4], m[SET + 5], m[SET + 6], m[SET + 7],
                    m[SET + 8])


@hook(COMPOSE)
def within_adjusted(view):
    """Fills the iteration by the parameters in force, after an update if one is due."""
    state, instance = view.state, view.instance
    memory, now_s = state.memory[instance], state.clock.now_ps / PS_PER_S
    if now_s >= memory[DUE_S] or memory[BLOCK] == 0.0:
        look(state, instance)
        memory[DUE_S] = now_s + state.params[Q.interval_s]
    return compose_within(state, instance, settings_now(state, instance))


policy = Policy("adaptive_deadline", ALL, mixed=True, leaves_open=True, route=route, compose=within_adjusted,
                layout=LAYOUT, linear=SetsParameters("deadline", ADJUSTED, ENGINE, "ooco_gym/Batching-v1"))
