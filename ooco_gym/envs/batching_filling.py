"""The compiled code that fills the observations of `Batching-v0`.

The engine's features are those of `ooco_gym.policy.engine_features`. `ooco_gym.runtime.batching_features` has the
tables, says what each figure means, and computes the same from plain descriptions of requests; a test compares both.
"""

import numpy as np

from ooco_gym.compile import inner
from ooco_gym.envs import buffers as b
from ooco_gym.envs.buffers import step_kernel
from ooco_gym.envs.features import COLUMN, Feature
from ooco_gym.envs.reward import BLOCK_ARRIVED, BLOCK_VIOLATED, BUDGET
from ooco_gym.policy.engine_features import (
    ALONE_PS,
    OFFLINE_PS,
    ONLINE_PS,
    SLACKS,
    count_late,
    engine_row,
    engine_stack,
)
from ooco_gym.runtime.batching_features import ACTION, Contracted

# Which column of a candidate has which figure of `ACTION`: all environments' candidates are of one width.
PLACES = {"present": "present", "time": "level", "online_share": "memory", "offline_share": "interrupt_risk",
          "step": "step", "late": "running", "online_time": "prefill", "offline_time": "backlog"}
_MOST_TIMES = ACTION[1].limit


def feature_of(one: Contracted) -> Feature:
    """A feature of the contract as the environments list theirs."""
    return Feature(one.name, one.unit, one.scale, one.limit, one.low, one.high, one.meaning)


@inner
def fill_engine(state, instance, account, notes, out):
    """Writes the `ENGINE` features of a mixed instance, as `engine_row` finds them.

    Args:
        state: at the decision.
        instance: the engine.
        account: of the reward, which keeps the block of 10 minutes.
        notes: float64[NOTES], what this environment keeps of the episode.
        out: float32[features].
    """
    row = engine_stack()
    engine_row(state, instance, (account[BUDGET], account[BLOCK_ARRIVED], account[BLOCK_VIOLATED]), notes, row)
    for index in range(out.size):
        out[index] = row[index]


@inner
def fill_actions(state, buffers, i):
    """Writes the `ACTION` features of every candidate; `fill_engine` has been there before."""
    notes, levels, tpot_ps = buffers.notes[i], buffers.levels, state.config.default_tpot_ps
    alone, online_work, offline_work = notes[ALONE_PS], notes[ONLINE_PS], notes[OFFLINE_PS]
    count = np.int64(notes[SLACKS])
    per_tpot = 1.0 / (tpot_ps * _MOST_TIMES)
    for k in range(levels.shape[1]):
        out = buffers.candidates[i, k]
        room = max(0.0, levels[0, k] * tpot_ps - alone)
        online = min(levels[1, k] * room, online_work)
        offline = max(0.0, min(levels[2, k] * room - online, offline_work))
        step = alone + online + offline
        out[COLUMN.present] = 1.0
        out[COLUMN.level] = min(1.0, levels[0, k] / _MOST_TIMES)
        out[COLUMN.memory] = levels[1, k]
        out[COLUMN.interrupt_risk] = levels[2, k]
        out[COLUMN.step] = min(1.0, step * per_tpot)
        out[COLUMN.running] = count_late(state, count, step) / max(1, count)
        out[COLUMN.prefill] = min(1.0, online * per_tpot)
        out[COLUMN.backlog] = min(1.0, offline * per_tpot)


@step_kernel
def observe_engine(state, buffers, i):
    """Completes the observation of an open decision."""
    fill_engine(state, state.pending.instance, buffers.account[i], buffers.notes[i], buffers.cluster[i])
    fill_actions(state, buffers, i)
    return b.NO_KIND
