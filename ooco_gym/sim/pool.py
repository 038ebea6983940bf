"""Arrays that only some policies need: tracked KV blocks, prefix hashes, an order of waiting
requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.perf import CostTable
from ooco_gym.sim import state as s
from ooco_gym.sim.bidirectional import fill_pairs, pair_entries
from ooco_gym.sim.config import SimConfig
from ooco_gym.sim.policy_context import PREFILL_ENTRIES
from ooco_gym.sim.retention import BELADY, LRU, RULED, TASK, TTL, Retention, history, next_uses, retained_size
from ooco_gym.sim.waiting import words_for
from ooco_gym.workload import Trace
from ooco_gym.workload.context_names import ContextNames

POOL_TABLES = 2  # times the largest batch, in block tables of an instance of a pool: members, and a prefill


def pool_for(trace: Trace, tables: Sequence[CostTable], settings: Mapping[str, int], sim: SimConfig,
             names: ContextNames | None = None, mixed: bool = True) -> s.OptionalSizes:
    """Returns the array sizes that a policy's settings, the trace and the cost tables need."""
    caching, order = bool(settings.get("prefix_caching")), settings.get("waiting_order", 0)
    n = len(trace)
    window = settings.get("gate_window", 0 if mixed else s.DEFAULT_GATE_WINDOW)  # mixed instances have no gate
    sizes = {"waiting_window": window if mixed else min(window, sim.max_batch),
             "outputs": settings.get("output_window", 0), "deadlines": 0 if trace.deadline_s is None else n,
             "clients": 0 if trace.client is None or not n else 2 * (int(trace.client.max()) + 2),
             "shared": PREFILL_ENTRIES if any(table.shared_ps.size for table in tables) else 0}
    if names is not None:
        sizes |= {"hashes": 2 * n + len(names.values), "distinct": len(np.unique(names.values))}
    if order and n:
        sizes |= {"ranks": 2 * n + s.BUCKETS + 1, "words": words_for(n)}
    if caching:
        blocks = max(*(table.kv_blocks for table in tables), *offloaded_blocks(trace, tables, sim))
        sizes |= {"tiers": 1 + (mixed and sim.offloading_bytes > 0), "owners": 0 if mixed else n}
        seats = min(settings.get("max_num_seqs", sim.max_batch), sim.max_batch)
        seats = seats if mixed else POOL_TABLES * sim.max_batch
        rows, row_size, index = _kv_sizes(trace, blocks, seats, sim.block_tokens)
        sizes |= {"blocks": blocks, "entries": index + 2 * s.LEVELS + rows + rows * row_size}
        if sim.retention.order not in (LRU, TASK):
            places = len(tables) << int(blocks).bit_length()  # for each instance a power of two
            sizes |= {"heaps": blocks + 1, "retained": retained_size(sim.retention.order, trace, names, places)}
    if settings.get("bidirectional"):
        if caching:
            raise UserError("bidirectional blocks cannot share prefixes: give prefix_caching=off or bidirectional=off")
        sizes |= {"pairs": max(table.kv_blocks for table in tables), "pair_entries": pair_entries(sim.block_tokens),
                  "owners": n}
    return s.OptionalSizes(**sizes)


def offloaded_blocks(trace: Trace, tables: Sequence[CostTable], sim: SimConfig) -> list[int]:
    """Blocks of each instance's second tier in host memory: those that fit, at most what all
    requests fill."""
    most = int(((trace.prompt_tokens.astype(np.int64) + trace.output_tokens) // sim.block_tokens).sum())
    return [min(most, int(sim.offloading_bytes / (table.kv_bytes_per_token * sim.block_tokens)))
            for table in tables]


def _kv_sizes(trace: Trace, blocks: int, tables: int, block_tokens: int) -> tuple[int, int, int]:
    """(Number of block tables, blocks in each, index entries: a power of two, at least twice the
    blocks)."""
    rows = tables + 1
    longest = int((trace.prompt_tokens.astype(np.int64) + trace.output_tokens).max()) if len(trace) else 1
    row_size = min(blocks, -(-(longest + 1) // block_tokens) + 1)
    return rows, row_size, 1 << int(2 * blocks - 1).bit_length()


def fill_pool(state: s.State, trace: Trace, max_batch: int, names: ContextNames | None = None,
              keys: np.ndarray | None = None) -> None:
    """Fills the arrays that `pool_for` sized; State.config has the settings by now."""
    n = len(trace)
    state.requests["row"] = -1
    state.requests["cached_tokens"] = -1
    if names is not None:
        state.hash_ids[:n] = names.first + 2 * n
        state.hash_ids[n : 2 * n] = names.tokens
        state.hash_ids[2 * n :] = _dense_ids(names.values)
    if state.order.size and keys is not None:
        _order_by_key(state, keys)
    elif state.order.size:
        _fill_order(state, trace, state.config.waiting_order == s.BY_BUCKET)
    if state.blocks.shape[1]:
        _fill_blocks(state, trace, max_batch)
    if state.pairs.shape[1]:
        fill_pairs(state)


def fill_retained(state: s.State, trace: Trace, names: ContextNames | None, retention: Retention, seed: int) -> None:
    """Sets the eviction order of the prefix cache's free blocks, and the data for their values.

    Raises:
        UserError: the policy has its own order.
    """
    if state.config.kv_priority and retention.order not in (LRU, TASK):
        raise UserError("kv_priority=task has its own eviction order: give kv_priority=lru or the cluster's "
                        "retention=lru")
    if retention.order == TTL and (state.instances["role"] != s.MIXED).any():
        raise UserError("retention=ttl holds blocks on mixed instances alone: give relaxed and strict ones another one")
    if retention.order == TASK:
        state.config.kv_priority, retention = 1, Retention()
    state.config.retention = retention.order
    state.config.pinned_ps = round(retention.ttl_s * s.PS_PER_S)
    if state.retained.size and retention.order == RULED:
        state.retained[:] = history(trace, names, retention.hint_error, seed)
    elif state.retained.size and names is not None and retention.order == BELADY:
        state.retained[:] = next_uses(trace, names, _dense_ids(names.values))


def _dense_ids(values: np.ndarray) -> np.ndarray:
    """Numbers prefix hashes in order of first occurrence: int64[values]."""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    number = np.empty(len(first), np.int64)
    number[np.argsort(first, kind="stable")] = np.arange(len(first))
    return number[inverse]


def _fill_order(state: s.State, trace: Trace, by_bucket: bool) -> None:
    """Ranks requests by a depth-first walk through the trie of all prompts, branches in order of
    first arrival."""
    n = len(trace)
    buckets = np.minimum(s.BUCKETS - 1, np.frexp(trace.prompt_tokens.astype(np.float64))[1]) if by_bucket else \
        np.zeros(n, np.int64)
    offsets, values = trace.prefix_hashes or (np.zeros(n + 1, np.int64), np.zeros(0, np.int64))
    ids = _dense_ids(values)
    fresh = int(ids.max(initial=-1)) + 1
    walk = []
    for slot in range(n):
        path = tuple(ids[offsets[slot] : offsets[slot + 1]].tolist())
        walk.append((int(buckets[slot]), path or (fresh + slot,), slot))
    walk.sort()
    slots = np.array([slot for _, _, slot in walk], np.int64)
    state.order[slots] = np.arange(n)
    state.order[n : 2 * n] = slots
    state.order[2 * n :] = np.searchsorted(np.array([bucket for bucket, _, _ in walk]), np.arange(s.BUCKETS + 1))


def _order_by_key(state: s.State, keys: np.ndarray) -> None:
    """Ranks requests by keys, ties by arrival, without buckets."""
    n = len(keys)
    slots = np.argsort(keys, kind="stable")
    state.order[slots] = np.arange(n)
    state.order[n : 2 * n] = slots
    state.order[2 * n :] = n


def _fill_blocks(state: s.State, trace: Trace, max_batch: int) -> None:
    """Puts all blocks, host memory's too, in the lowest queue in order, except those that the
    engine reserves."""
    config = state.config
    mixed = bool((state.instances["role"] == s.MIXED).all())
    tables = min(int(config.max_num_seqs), max_batch) if mixed else POOL_TABLES * max_batch
    rows, row_size, index = _kv_sizes(trace, state.blocks.shape[1], tables, int(config.block_tokens))
    config.index_size, config.block_tables, config.blocks_per_table = index, rows, row_size
    reserved = int(config.reserved_blocks) * (state.instances["role"] == s.MIXED)
    state.instances["rows_free"] = rows
    pools = [*zip(reserved, state.instances["total_blocks"], strict=True)] + [(0, end) for end in state.tier["blocks"]]
    for (first, end), blocks, kv in zip(pools, state.blocks, state.kv, strict=True):
        usable = np.arange(first, end)
        blocks["previous"], blocks["next"], blocks["twin"] = -1, -1, -1
        blocks["previous"][usable[1:]] = usable[:-1]
        blocks["next"][usable[:-1]] = usable[1:]
        kv[index : index + 2 * s.LEVELS] = -1
        if len(usable):
            kv[index], kv[index + 1] = usable[0], usable[-1]
        spare = index + 2 * s.LEVELS
        kv[spare : spare + rows] = np.arange(rows)
