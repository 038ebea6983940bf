"""PrefillGate with its own reward term and its own cluster feature, in one file.

    ooco-gym train env=prefillgate env.id=examples/own_reward.py:mine/PrefillGate-v1
"""

from typing import ClassVar

from ooco_gym.envs.custom import OwnFeature, Term, reading
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


class OwnPrefillGateEnv(PrefillGateEnv):
    """PrefillGate in which interruptions cost reward, and the observation has the number of offline residents."""

    id: ClassVar[str] = "mine/PrefillGate-v1"
    terms: ClassVar[tuple[Term, ...]] = (Term("interrupted", interrupted, weight=0.1),)
    own_features: ClassVar[tuple[OwnFeature, ...]] = (
        OwnFeature(Feature("offline_residents", "requests", "log", 256, 0.0, 1.0, "offline requests that decode here"),
               offline_residents),)


register(OwnPrefillGateEnv)
