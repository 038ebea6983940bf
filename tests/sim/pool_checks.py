"""What must hold of an instance's blocks at any time, looked up block by block."""

from __future__ import annotations

import numpy as np

from ooco_gym.sim import state as s


def table_of(state: s.State, instance: int, slot: int) -> list[int]:
    """The blocks that a request reads, in order."""
    config, request = state.config, state.requests[slot]
    place = int(config.index_size + 2 * s.LEVELS + config.block_tables + request["row"] * config.blocks_per_table)
    return state.kv[instance, place : place + request["blocks"]].tolist()


def free_queue(state: s.State, instance: int) -> list[int]:
    """The blocks that may be taken, in the order in which they would be."""
    found, index, blocks = [], int(state.config.index_size), state.blocks[instance]
    following = blocks["next"].tolist()  # a list: an array's element costs ten times as much
    ends = state.kv[instance, index : index + 2 * s.LEVELS].reshape(s.LEVELS, 2).tolist()
    for level, (block, last) in enumerate(ends):
        queue: list[int] = []
        while block >= 0:
            assert len(queue) < len(following), "a queue without an end"
            queue.append(block)
            block = following[block]
        assert last == (queue[-1] if queue else -1)
        assert blocks["previous"][queue].tolist() == [-1, *queue][:-1]
        assert (blocks["level"][queue] == level).all()
        found += queue
    return found


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
    queue = free_queue(state, instance)
    reserved = int(state.config.reserved_blocks)
    unread = np.flatnonzero(references[: int(spec["total_blocks"])] == 0)
    assert np.array_equal(np.sort(queue), unread[unread >= reserved])
    assert len(queue) == spec["free_blocks"] - reserved
    assert len(set(state.requests["row"][slots])) == len(slots)
    assert spec["rows_free"] == state.config.block_tables - len(slots)
    index = state.kv[instance, : state.config.index_size]
    first, indexed = index[index > 0] - 1, []
    keys, twins = (blocks[name].tolist() if len(first) else [] for name in ("key", "twin"))
    for block in first.tolist():
        key = 0
        while block >= 0:
            assert key in (0, keys[block]), "blocks of two contents in one chain"
            assert len(indexed) < len(keys), "a chain without an end"
            key = keys[block]
            indexed.append(block)
            block = twins[block]
    assert sorted(indexed) == np.flatnonzero(blocks["key"]).tolist()
