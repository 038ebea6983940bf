"""S3-FIFO (Yang et al., SOSP 2023) for the blocks of a prefix cache: a small queue, a main queue, and a list of ghosts.

New content enters the small queue, and the main one if it is a ghost: evicted from the small queue
not long ago. If the small queue has more than a tenth of the blocks its first block gives way: to
the main queue if its content was used again twice or more, else for good, as a ghost. Else the
first block of the main queue does, unless it was used again: then it goes to the end, with one use
less. Uses are counted up to three.

Of a paged cache: blocks that requests read cannot give way; they stand in no queue, and return to
the end of theirs. Columns of State.heaps: WORTH has a block's uses, NUMBER its queue; the last row
has the blocks of the small queue, read or not, and the number of ghosts so far. State.retained has
a table of ghosts for each instance: (key, its number), by a hash of the key.
"""

import numpy as np

from ooco_gym.compile import inlined, inner
from ooco_gym.sim.free_queue import push, queue_index, unlink
from ooco_gym.sim.retention import NUMBER, WORTH

SMALL, MAIN = 1, 2  # levels of the queues
SMALL_SHARE, GHOST_SHARE = 0.1, 0.9  # of the blocks
PROMOTED, MOST_USES = 2, 3


@inlined
def _ghost(state, instance, key):
    """Index in State.retained of a key's place among an instance's ghosts."""
    places = state.retained.size // (2 * state.instances.size)  # a power of two
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    return 2 * (instance * places + np.int64((mixed >> np.uint64(20)) & np.uint64(places - 1)))


@inner
def enter_fifo(state, instance, block, key):
    """Chooses the queue of a block with new content; host memory, a second tier, has one of its own."""
    if instance >= state.instances.size:
        return
    totals, ghost = state.heaps[instance, -1], _ghost(state, instance, key)
    recent = totals[NUMBER] - state.retained[ghost + 1] < GHOST_SHARE * state.instances[instance].total_blocks
    queue = MAIN if state.retained[ghost] == key and recent else SMALL
    state.heaps[instance, block, WORTH], state.heaps[instance, block, NUMBER] = 0, queue
    totals[WORTH] += queue == SMALL


@inner
def leave_fifo(state, instance, block):
    """Notes that a block's content is gone."""
    if instance >= state.instances.size:
        return
    state.heaps[instance, -1, WORTH] -= state.heaps[instance, block, NUMBER] == SMALL
    state.heaps[instance, block, NUMBER] = 0


@inlined
def use_again(state, instance, block):
    """Counts a use of cached content."""
    state.heaps[instance, block, WORTH] = min(state.heaps[instance, block, WORTH] + 1, MOST_USES)


@inlined
def fifo_of(state, instance, block):
    """The level of a block with content."""
    return state.heaps[instance, block, NUMBER]


@inner
def fifo_victim(state, instance):
    """Returns the block that gives way, still in its queue; there is one."""
    kv, heap, totals = state.kv[instance], state.heaps[instance], state.heaps[instance, -1]
    while True:
        small, main = kv[queue_index(state, SMALL)], kv[queue_index(state, MAIN)]
        if small >= 0 and (main < 0 or totals[WORTH] > SMALL_SHARE * state.instances[instance].total_blocks):
            if heap[small, WORTH] < PROMOTED:
                key = state.blocks[instance, small].key
                ghost = _ghost(state, instance, key)
                totals[NUMBER] += 1
                state.retained[ghost], state.retained[ghost + 1] = key, totals[NUMBER]
                return small
            totals[WORTH] -= 1
            heap[small, WORTH], heap[small, NUMBER] = 0, MAIN
            unlink(state, instance, small)
            push(state, instance, small, MAIN, False)
        else:
            if heap[main, WORTH] <= 0:
                return main
            heap[main, WORTH] -= 1
            unlink(state, instance, main)
            push(state, instance, main, MAIN, False)
