"""Queues of free blocks, one a level: doubly linked, their first and last block in a row of State.kv (`sim.blocks`)."""

from ooco_gym.compile import inner
from ooco_gym.sim.retention import HEAPED, unlink_heap

NONE = -1


@inner
def queue_index(state, level):
    """Place in a row of State.kv of the first block of a level's queue; the last one is next."""
    return state.config.index_size + 2 * level


@inner
def push(state, instance, block, level, at_head):
    """Appends a free block to a queue, or puts it in front."""
    blocks, kv, index = state.blocks[instance], state.kv[instance], queue_index(state, level)
    head, tail = kv[index], kv[index + 1]
    one = blocks[block]
    one.level = level
    one.previous, one.next = (NONE, head) if at_head else (tail, NONE)
    if head < 0:
        kv[index], kv[index + 1] = block, block
    elif at_head:
        blocks[head].previous = block
        kv[index] = block
    else:
        blocks[tail].next = block
        kv[index + 1] = block


@inner
def unlink(state, instance, block):
    """Takes a free block out of its queue, or of the heap."""
    blocks, kv = state.blocks[instance], state.kv[instance]
    one = blocks[block]
    if one.level == HEAPED:
        unlink_heap(state, instance, block)
        return
    index = queue_index(state, one.level)
    if one.previous < 0:
        kv[index] = one.next
    else:
        blocks[one.previous].next = one.next
    if one.next < 0:
        kv[index + 1] = one.previous
    else:
        blocks[one.next].previous = one.previous
