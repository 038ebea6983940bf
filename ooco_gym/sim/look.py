"""An episode's records for whoever reads them from Python: while a decision is open they may be behind the books."""

from numba import types

from ooco_gym.compile import jit
from ooco_gym.sim.decode import settle_all
from ooco_gym.sim.state import State, copy_state, handle_of, state_at


@jit(types.void(types.int64))
def bring_up(handle):
    """Brings the books and records of every instance up to now."""
    settle_all(state_at(handle))


def look(state: State) -> State:
    """A copy of an episode with the books of every instance brought up to now; the episode itself is left alone."""
    copy = copy_state(state)
    handle = handle_of(copy)  # must live as long as its address is used
    bring_up(handle.address)
    return copy
