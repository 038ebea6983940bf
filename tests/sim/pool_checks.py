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
    found, index = [], int(state.config.index_size)
    for level in range(s.LEVELS):
        block, before = int(state.kv[instance, index + 2 * level]), -1
        while block >= 0:
            assert state.blocks["previous"][instance, block] == before
            assert state.blocks["level"][instance, block] == level
            found.append(block)
            before, block = block, int(state.blocks["next"][instance, block])
        assert state.kv[instance, index + 2 * level + 1] == before
    return found


def check_pool(state: s.State, instance: int) -> None:
    """References are those of the tables, free blocks wait in the queue, and the index knows all content."""
    blocks, spec = state.blocks[instance], state.instances[instance]
    slots = np.flatnonzero((state.requests["instance"] == instance) & (state.requests["row"] >= 0))
    references = np.zeros(len(blocks), np.int64)
    for slot in slots:
        table = table_of(state, instance, int(slot))
        assert len(set(table)) == len(table), "a request reads a block twice"
        np.add.at(references, table, 1)
    assert np.array_equal(references, blocks["references"])
    queue = free_queue(state, instance)
    reserved = int(state.config.reserved_blocks)
    assert sorted(queue) == [b for b in range(reserved, int(spec["total_blocks"])) if references[b] == 0]
    assert len(queue) == spec["free_blocks"] - reserved
    assert len(set(state.requests["row"][slots])) == len(slots)
    assert spec["rows_free"] == state.config.block_tables - len(slots)
    indexed = []
    for entry in state.kv[instance, : state.config.index_size]:
        block, key = int(entry) - 1, 0
        while block >= 0:
            assert key in (0, blocks["key"][block]), "blocks of two contents in one chain"
            key = int(blocks["key"][block])
            indexed.append(block)
            block = int(blocks["twin"][block])
    assert sorted(indexed) == np.flatnonzero(blocks["key"]).tolist()
