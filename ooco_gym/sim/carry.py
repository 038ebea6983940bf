"""What one decode run leaves to the next, so that a run need not look at its whole batch again to begin.

Most runs end because somebody finishes or joins, and the others go on as they were: what the next run needs to know of
them was at hand when the last one was written down. It holds as long as nobody left in between but by finishing.
"""

from ooco_gym.compile import inner
from ooco_gym.sim.state import GAP_PS, NEVER

GROWING, JOINED = range(2)  # rows of State.carry: whose next token needs a block; who came since the run began


@inner
def note_joined(state, instance, slot):
    """A request can decode here from now on."""
    spec = state.instances[instance]
    if spec.joined == state.carry.shape[2]:
        spec.broken = 1
        return
    state.carry[JOINED, instance, spec.joined] = slot
    spec.joined += 1


@inner
def carry_over(state, instance, going, left, miss_ps):
    """Keeps what is known of the `going` requests of a run that has ended, and go on; `_advance` has laid GROWING."""
    spec = state.instances[instance]
    known = spec.broken == 0 and spec.leaving == 0 and state.counters[GAP_PS] >= NEVER
    spec.carried = going if known else 0
    spec.carried_left, spec.carried_miss_ps = left, miss_ps


@inner
def carries(state, instance):
    """Whether the batch just composed is who was carried over, and who joined."""
    spec = state.instances[instance]
    return (spec.carried > 0 and spec.broken == 0 and spec.all_included == 1
            and spec.carried + spec.joined == spec.running)


@inner
def forget(state, instance, broken):
    """A run begins: what the last one left is used up. Nothing is to be kept of this one if it is `broken`."""
    spec = state.instances[instance]
    spec.carried, spec.growing, spec.joined, spec.broken = 0, 0, 0, broken
