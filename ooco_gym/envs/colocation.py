"""`ooco_gym/Colocation-v1`: one agent takes all decisions of relaxed and strict pools."""

from __future__ import annotations

from typing import ClassVar

from ooco_gym.envs import eviction, interruption, migration, packing, prefill_gate, routing
from ooco_gym.envs.base import DecisionEnv
from ooco_gym.envs.decision import Decision
from ooco_gym.envs.vector import register


class ColocationEnv(DecisionEnv):
    """One agent takes all decisions of a co-located cluster; a base policy only composes the
    batches.

    ## Description
    The decisions are prefill starts, eviction, interruption, migration, packing and, if there is
    a choice, routing; `decision` names the present one. They interact: pulls fill the memory that
    pushes need, gates start what arrivals stop. The base policy composes strict batches within
    the margin that packing sets.

    ## Action Space
    `Discrete(2 + K)`: 0 is the decision's own *no* (hold, let the newcomer wait, keep on, no more
    picks, stay), 1 does what the base policy would do, `2 + k` takes candidate k, as in the
    decision's own environment.

    ## Candidates
    The candidates of the present decision.
    """

    id: ClassVar[str] = "ooco_gym/Colocation-v1"
    decisions: ClassVar[tuple[Decision, ...]] = (
        prefill_gate.DECISION, eviction.DECISION, interruption.DECISION, migration.DECISION, packing.DECISION,
        routing.DECISION)
    default_scenario: ClassVar[str] = "colocation"


register(ColocationEnv)
