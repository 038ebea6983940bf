"""What must hold of an instance's blocks at any time, looked up block by block."""

from __future__ import annotations

import numpy as np
from numba import types

from ooco_gym.compile import jit
from ooco_gym.sim import state as s
from ooco_gym.sim.blocks import key_of
from ooco_gym.sim.retention import HEAPED, HELD, NUMBER, PINNED, RULED, TTL, WORTH
from ooco_gym.workload import Trace


def table_of(state: s.State, instance: int, slot: int) -> list[int]:
    """The blocks that a request reads, in order."""
    config, request = state.config, state.requests[slot]
    place = int(config.index_size + 2 * s.LEVELS + config.block_tables + request["row"] * config.blocks_per_table)
    return state.kv[instance, place : place + request["blocks"]].tolist()


@jit
def follow(following: np.ndarray, block: int, found: np.ndarray) -> int:
    """Writes a chain of blocks into `found`; returns how many they are, at most as many as there are blocks.

    Compiled: a chip has some 50,000 blocks, nearly all of them in the queue, which is looked through after each event.
    """
    count = 0
    while block >= 0 and count < found.size:
        found[count] = block
        block = following[block]
        count += 1
    return count


def queued(state: s.State, instance: int) -> np.ndarray:
    """The blocks that may be taken, in the order in which they would be, int64[n]."""
    blocks, begin = state.blocks[instance], int(state.config.index_size)
    ends = state.kv[instance, begin : begin + 2 * s.LEVELS].reshape(s.LEVELS, 2)
    queues, space = [], np.empty(len(blocks) + 1, np.int64)
    for level, (first, last) in enumerate(ends.tolist()):
        queue = space[: follow(blocks["next"], first, space)].copy()
        assert len(queue) <= len(blocks), "a queue without an end"
        assert np.array_equal(blocks["previous"][queue], np.append(-1, queue)[: len(queue)])
        assert (blocks["level"][queue] == level).all()
        assert last == (queue[-1] if len(queue) else -1)
        queues.append(queue)
    if instance < len(state.heaps) and state.config.retention >= RULED:
        queues.append(heaped(state, instance))
    return np.concatenate(queues)


def heaped(state: s.State, instance: int) -> np.ndarray:
    """The blocks of the heap in the order in which they would be taken, int64[n]."""
    size, blocks = int(state.heaps[instance, 0, 0]), state.blocks[instance]
    heap = state.heaps[instance, 1 : size + 1]
    assert np.array_equal(blocks["previous"][heap[:, HELD]], np.arange(1, size + 1))
    assert (blocks["level"][heap[:, HELD]] == HEAPED).all() and (blocks["key"][heap[:, HELD]] != 0).all()
    assert len(np.unique(heap[:, NUMBER])) == size
    for place in range(2, size + 1):
        assert heap[place // 2 - 1, :HELD].tolist() < heap[place - 1, :HELD].tolist()
    return heap[np.lexsort((heap[:, NUMBER], heap[:, WORTH])), HELD]


def free_queue(state: s.State, instance: int) -> list[int]:
    """The blocks that may be taken, in the order in which they would be."""
    return queued(state, instance).tolist()


@jit(types.int64(types.int64, types.int64, types.int64))
def key_at(handle: int, slot: int, block: int) -> int:
    """Key of a request's full block."""
    return key_of(s.state_at(handle), slot, block)


def content(state: s.State, instance: int, trace: Trace) -> np.ndarray:
    """What free blocks hold, first to give way first: the first request with that block, and its number; int64[n, 2].
    """
    names, handle, keys = {}, s.handle_of(state), state.blocks["key"]
    for slot, tokens in enumerate((trace.prompt_tokens + trace.output_tokens).tolist() if keys.size else ()):
        for block in range(tokens // state.config.block_tokens):
            names.setdefault(int(key_at(handle.address, slot, block)), (slot, block))
    order = keys[instance, free_queue(state, instance)].tolist() if keys.size else []
    return np.array([names[key] for key in order if key], np.int64).reshape(-1, 2)


def indexed(state: s.State, instance: int) -> np.ndarray:
    """The blocks that the index knows, each as often as it does, int64[n]; all chains are followed side by side."""
    blocks, entries = state.blocks[instance], state.kv[instance, : state.config.index_size]
    block = entries[entries > 0].astype(np.int64) - 1
    key, found, count = blocks["key"][block], [block], len(block)
    while len(block):
        block = blocks["twin"][block].astype(np.int64)
        block, key = block[block >= 0], key[block >= 0]
        assert (blocks["key"][block] == key).all(), "blocks of two contents in one chain"
        count += len(block)
        assert count <= len(blocks), "a chain without an end, or a block in two"
        found.append(block)
    return np.concatenate(found)


def check_pool(state: s.State, instance: int) -> None:
    """References are those of the tables, free blocks wait in the queue, and the index knows all content."""
    blocks, spec = state.blocks[instance], state.instances[instance]
    slots = np.flatnonzero((state.requests["instance"] == instance) & (state.requests["row"] >= 0))
    references = np.zeros(len(blocks), np.int64)
    for slot in slots:
        table = table_of(state, instance, int(slot))
        assert len(set(table)) == len(table), "a request reads a block twice"
        references[table] += 1
    assert np.array_equal(references, blocks["references"])
    queue, reserved = queued(state, instance), int(state.config.reserved_blocks)
    unread, waiting = references == 0, np.zeros(len(blocks), bool)
    unread[:reserved] = unread[spec["total_blocks"]:] = False
    waiting[queue] = True
    assert np.array_equal(waiting, unread) and np.count_nonzero(unread) == len(queue)
    pinned = np.count_nonzero(blocks["level"][queue] == PINNED) if state.config.retention == TTL else 0
    assert len(queue) == spec["free_blocks"] - reserved + pinned
    assert len(set(state.requests["row"][slots])) == len(slots)
    assert spec["rows_free"] == state.config.block_tables - len(slots)
    assert np.array_equal(np.sort(indexed(state, instance)), np.flatnonzero(blocks["key"]))


def offloaded(state: s.State, instance: int) -> list[int]:
    """Keys of the blocks in an instance's host memory, in the order in which they would be taken; 0 where it is free.
    """
    row = len(state.instances) + instance
    return state.blocks["key"][row, queued(state, row)].tolist()


def check_host(state: s.State, instance: int) -> None:
    """Every block of an instance's second tier waits in the queue, once, and the index knows all content, once."""
    row, size = len(state.instances) + instance, int(state.tier[instance]["blocks"])
    blocks, queue = state.blocks[row], queued(state, row)
    assert np.array_equal(np.sort(queue), np.arange(size))
    assert (blocks["references"] == 0).all() and (blocks["level"] == 0).all() and (blocks["twin"] == -1).all()
    assert (blocks["key"][size:] == 0).all()
    keys = blocks["key"][blocks["key"] != 0]
    assert len(np.unique(keys)) == len(keys), "a block is there twice"
    assert np.array_equal(np.sort(indexed(state, row)), np.flatnonzero(blocks["key"]))


def check_pairs(state: s.State, instance: int) -> None:
    """Slots of blocks with two owners add up, by block and by request; what was overwritten is in host memory."""
    requests, size = state.requests, int(state.config.block_tokens)
    spec = state.instances[instance]
    pairs = state.pairs[instance, : int(spec["total_blocks"])]
    slots, blocks, lost = (np.zeros(len(requests), np.int64) for _ in range(3))
    assert (pairs["online_used"] + pairs["offline_used"] <= size).all()
    assert ((pairs["online"] >= 0) == (pairs["online_used"] > 0)).all()
    assert (pairs["preempted"][pairs["offline"] < 0] == 0).all()
    for side in ("online", "offline"):
        owned = pairs[pairs[side] >= 0]
        assert (requests["urgent"][owned[side]] == (side == "online")).all()
        np.add.at(slots, owned[side], owned[f"{side}_used"])
        np.add.at(blocks, owned[side], 1)
        if side == "offline":
            np.add.at(lost, owned[side], owned["preempted"])
    here = (requests["status"] == s.RESIDENT) & (requests["instance"] == instance)
    assert (slots[~here] == 0).all() and (blocks[~here] == 0).all(), "a block of a request that is not here"
    assert (slots == state.owned[:, 2])[here].all() and (blocks == requests["blocks"])[here].all()
    assert (lost == requests["host_tokens"])[here].all()
    assert (requests["host_tokens"][here & (requests["num_scheduled_tokens"] > 0)] == 0).all()
    reach = requests["num_computed_tokens"] + requests["num_scheduled_tokens"]
    assert (slots + lost >= reach)[here].all()
    assert spec["free_blocks"] == np.count_nonzero((pairs["online"] < 0) & (pairs["offline"] < 0))
