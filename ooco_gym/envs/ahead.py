"""Prefetches the memory of episodes that step next, while another one steps.

With many episodes in a vector, none is in the cache when its turn comes, and a step would wait
for a hundred addresses one after the other. Here they are prefetched together: first the
addresses of an episode's arrays, then the arrays.
"""

from ooco_gym.compile import inlined, inner
from ooco_gym.compile.instructions import prefetch
from ooco_gym.envs.buffers import OPEN
from ooco_gym.sim.records import CACHE_LINE
from ooco_gym.sim.state import HANDLE_BYTES, state_at

MOST_INSTANCES = 4  # number of instances whose members are prefetched
SMALL_BYTES = 6144  # size of a state's small arrays, which are contiguous (`state.in_one_piece`)


@inlined
def _fetch(place, size):
    for offset in range(0, size, CACHE_LINE):
        prefetch(place, offset)


@inner
def _fetch_arrays(state):
    _fetch(state.integrals, SMALL_BYTES)
    prefetch(state.tasks, 0)
    prefetch(state.picks, 0)
    for instance in range(min(state.instances.size, MOST_INSTANCES)):
        for row in range(2):
            _fetch(state.members[row, instance], 2 * CACHE_LINE)
            _fetch(state.lanes[instance, row], 2 * CACHE_LINE)
            _fetch(state.lanes[instance, 2 + row], 2 * CACHE_LINE)
            _fetch(state.gaps[instance, row], 2 * CACHE_LINE)
    if state.clock.next_arrival < state.requests.size:
        _fetch(state.requests[state.clock.next_arrival], 2 * CACHE_LINE)


@inlined
def look_ahead(buffers, i, last):
    """Prefetches what the episodes after i read, when episode i is about to step."""
    if i + 2 < last:
        _fetch(buffers.handles[i + 2], HANDLE_BYTES)
    if i + 1 < last and buffers.status[i + 1, OPEN]:
        _fetch_arrays(state_at(buffers.handles[i + 1]))
