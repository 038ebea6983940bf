"""As many instances as `instances` says (0: as at the beginning), all the time."""

from ooco_gym.policy.decisions import SCALE, hook
from ooco_gym.policy.policy import Param, Policy, slots
from ooco_gym.policy.scaling import SCALES_FROM, group_of

PARAMS = (Param("instances", "instances of each group; 0: as at the beginning", 0, 4096, default=0),)
P = slots(PARAMS, SCALES_FROM)


@hook(SCALE, flushes=True)
def scale(view):
    """The number."""
    wanted = int(view.state.params[P.instances])
    return wanted if wanted > 0 else group_of(view).count


policy = Policy("static", PARAMS, mixed=True, scale=scale)
