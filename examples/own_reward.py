"""Gating with a term of the reward and a figure of the observation that are one's own, in one file.

    ooco-gym train env=prefillgate env.id=examples/own_reward.py:mine/PrefillGate-v1
"""

from typing import ClassVar

from ooco_gym.envs.custom import Figure, Term, reading
from ooco_gym.envs.features import Feature
from ooco_gym.envs.prefill_gate import PrefillGateEnv
from ooco_gym.envs.vector import register


@reading
def interrupted(state, instance):
    """Interruptions so far, counted downwards: they cost."""
    return -state.totals.interruptions


@reading
def offline_residents(state, instance):
    """Offline requests that hold memory where the prefill would start."""
    return state.instances[instance].offline_members


class OwnGatingEnv(PrefillGateEnv):
    """The gate of OOCO's relaxed pool, where interruptions cost something and the offline residents are seen."""

    id: ClassVar[str] = "mine/PrefillGate-v1"
    terms: ClassVar[tuple[Term, ...]] = (Term("interrupted", interrupted, weight=0.1),)
    figures: ClassVar[tuple[Figure, ...]] = (
        Figure(Feature("offline_residents", "requests", "log", 256, 0.0, 1.0, "offline requests that decode here"),
               offline_residents),)


register(OwnGatingEnv)
