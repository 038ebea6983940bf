"""`ooco_gym/Colocation-v1`: all decisions, each when it is due, by one agent."""

from __future__ import annotations

from typing import ClassVar

from ooco_gym.envs import eviction, interruption, migration, packing, prefill_gate, routing
from ooco_gym.envs.base import DecisionEnv
from ooco_gym.envs.decision import Decision
from ooco_gym.envs.vector import register


class ColocationEnv(DecisionEnv):
    """The whole of a co-located cluster by one agent; a base policy only composes the batches.

    ## Description
    Prefills that start, eviction, interruption, migration, packing and, where there is a choice, routing: each is asked
    when it is due, and `decision` says which it is. What one decides, the others meet: pulls fill the memory that
    pushes need, gates start what arrivals stop. The base policy composes strict batches within the margin that packing
    sets.

    ## Action Space
    `Discrete(2 + K)`: 0 is the decision's own *no* (hold, let the newcomer wait, keep on, no more picks, stay), 1 does
    what the base policy would do, `2 + k` takes candidate k. Each is as in its own environment.

    ## Candidates
    Those of the decision that is due.
    """

    id: ClassVar[str] = "ooco_gym/Colocation-v1"
    decisions: ClassVar[tuple[Decision, ...]] = (
        prefill_gate.DECISION, eviction.DECISION, interruption.DECISION, migration.DECISION, packing.DECISION,
        routing.DECISION)
    default_scenario: ClassVar[str] = "colocation"


register(ColocationEnv)
