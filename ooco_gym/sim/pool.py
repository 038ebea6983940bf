"""Fills what a state holds beyond counted blocks: blocks told apart, prefix hashes, the order of the waiting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.perf import CostTable
from ooco_gym.sim import state as s
from ooco_gym.sim.bidirectional import fill_pairs, pair_entries
from ooco_gym.sim.order import words_for
from ooco_gym.workload import Trace

BY_PREFIX, BY_BUCKET = 1, 2  # values of the setting WAITING_ORDER; 0: by arrival


def pool_for(trace: Trace, tables: Sequence[CostTable], settings: Mapping[str, int], max_batch: int,
             block_tokens: int) -> s.Pool:
    """Sizes of the arrays that a policy's settings ask for; all 0 where they ask for none."""
    caching, order = bool(settings.get("prefix_caching")), settings.get("waiting_order", 0)
    n = len(trace)
    hashes = trace.prefix_hashes
    sizes = {"front": min(settings.get("gate_window", s.DEFAULT_GATE_WINDOW), max_batch)}
    if n and hashes is not None and (caching or order):
        sizes |= {"hashes": n + 1 + len(hashes[1]), "distinct": len(np.unique(hashes[1]))}
    if order and n:
        sizes |= {"ranks": 2 * n + s.BUCKETS + 1, "words": words_for(n)}
    if caching:
        if block_tokens > s.HASH_TOKENS:
            raise UserError(f"prefix_caching=on needs blocks of at most {s.HASH_TOKENS} tokens, not {block_tokens}")
        blocks = max(table.kv_blocks for table in tables)
        rows, row_size, index = _kv_sizes(trace, blocks, settings, max_batch, block_tokens)
        sizes |= {"blocks": blocks, "entries": index + 2 * s.LEVELS + rows + rows * row_size}
    if settings.get("bidirectional"):
        if caching:
            raise UserError("bidirectional blocks hold no prefixes for others: give prefix_caching=off or "
                            "bidirectional=off")
        sizes |= {"pairs": max(table.kv_blocks for table in tables), "pair_entries": pair_entries(block_tokens),
                  "owners": n}
    return s.Pool(**sizes)


def _kv_sizes(trace: Trace, blocks: int, settings: Mapping[str, int], max_batch: int,
              block_tokens: int) -> tuple[int, int, int]:
    """(Block tables, blocks in each, entries of the index: a power of two at least twice the blocks)."""
    rows = min(settings.get("max_num_seqs", max_batch), max_batch) + 1
    longest = int((trace.prompt_tokens.astype(np.int64) + trace.output_tokens).max()) if len(trace) else 1
    row_size = min(blocks, -(-(longest + 1) // block_tokens) + 1)
    return rows, row_size, 1 << int(2 * blocks - 1).bit_length()


def fill_pool(state: s.State, trace: Trace, max_batch: int) -> None:
    """Fills the arrays that `pool_for` made room for; settings are in State.config by now."""
    state.requests["row"] = -1
    state.requests["cached_tokens"] = -1
    first_seen = None
    if state.hash_ids.size:
        first_seen = _dense_ids(trace)
        offsets, _ = trace.prefix_hashes or (np.zeros(0), None)
        state.hash_ids[: len(trace) + 1] = offsets + len(trace) + 1
        state.hash_ids[len(trace) + 1 :] = first_seen
    if state.order.size:
        _fill_order(state, trace, first_seen, state.config.waiting_order == BY_BUCKET)
    if state.blocks.shape[1]:
        _fill_blocks(state, trace, max_batch)
    if state.pairs.shape[1]:
        fill_pairs(state)


def _dense_ids(trace: Trace) -> np.ndarray:
    """The trace's prefix hashes, numbered in the order in which they first come: int64[values]."""
    values = trace.prefix_hashes[1] if trace.prefix_hashes is not None else np.zeros(0, np.int64)
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    number = np.empty(len(first), np.int64)
    number[np.argsort(first, kind="stable")] = np.arange(len(first))
    return number[inverse]


def _fill_order(state: s.State, trace: Trace, ids: np.ndarray | None, by_bucket: bool) -> None:
    """Ranks of a depth-first walk through the trie of all prompts, branches in the order of their first arrival."""
    n = len(trace)
    buckets = np.minimum(s.BUCKETS - 1, np.frexp(trace.prompt_tokens.astype(np.float64))[1]) if by_bucket else \
        np.zeros(n, np.int64)
    fresh = 0 if ids is None or not len(ids) else int(ids.max()) + 1
    offsets = state.hash_ids[: n + 1] - (n + 1) if ids is not None else None
    walk = []
    for slot in range(n):
        path = tuple(ids[offsets[slot] : offsets[slot + 1]].tolist()) if ids is not None and offsets is not None else ()
        walk.append((int(buckets[slot]), path or (fresh + slot,), slot))
    walk.sort()
    slots = np.array([slot for _, _, slot in walk], np.int64)
    state.order[slots] = np.arange(n)
    state.order[n : 2 * n] = slots
    state.order[2 * n :] = np.searchsorted(np.array([bucket for bucket, _, _ in walk]), np.arange(s.BUCKETS + 1))


def _fill_blocks(state: s.State, trace: Trace, max_batch: int) -> None:
    """All blocks wait in the lowest queue, in order; those that the engine keeps for itself in none."""
    config = state.config
    settings = {"max_num_seqs": int(config.max_num_seqs)}
    rows, row_size, index = _kv_sizes(trace, state.blocks.shape[1], settings, max_batch, int(config.block_tokens))
    config.index_size, config.block_tables, config.blocks_per_table = index, rows, row_size
    reserved = int(config.reserved_blocks)
    state.instances["rows_free"] = rows
    for instance, spec in enumerate(state.instances):
        usable = np.arange(reserved, int(spec["total_blocks"]))
        blocks, kv = state.blocks[instance], state.kv[instance]
        blocks["previous"], blocks["next"], blocks["twin"] = -1, -1, -1
        blocks["previous"][usable[1:]] = usable[:-1]
        blocks["next"][usable[:-1]] = usable[1:]
        kv[index : index + 2 * s.LEVELS] = -1
        if len(usable):
            kv[index], kv[index + 1] = usable[0], usable[-1]
        spare = index + 2 * s.LEVELS
        kv[spare : spare + rows] = np.arange(rows)
