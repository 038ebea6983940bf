"""Which block of the prefix cache gives way: every order against one restated, block by block."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import Episode, Setup
from hypothesis import given
from hypothesis import strategies as st
from mixed_invariants import check_memory, check_mixed
from numba import types
from pool_checks import check_pool, free_queue
from test_blocks import MIXED, ROWS, shared_trace

from ooco_gym import Scenario, simulate
from ooco_gym.cluster import Cluster
from ooco_gym.compile import jit
from ooco_gym.errors import UserError
from ooco_gym.sim import state as s
from ooco_gym.sim.blocks import (
    append_new_blocks,
    cache_full_blocks,
    find_longest_cache_hit,
    free_table,
    key_of,
    new_table,
    touch,
    unpin,
)
from ooco_gym.sim.retention import BELADY, LRU, TTL, TURNS, Retention, turn_bonus
from ooco_gym.workload.context_names import context_names

ORDERS = st.sampled_from((Retention(), Retention(TTL, ttl_s=100.0), Retention(TURNS, 100.0, 0.0),
                          Retention(TURNS, 0.0, 30.0),
                          Retention(TURNS, 50.0, -20.0), Retention(BELADY)))
SLOTS, TOKENS, SIZE = 10, 1100, 16  # requests; tokens of each prompt; of a block
START, FINISH, PREEMPT, UNPIN = range(4)


class Pool:
    """A block pool restated: blocks with their content, and the free ones sorted anew whenever one is taken."""

    def __init__(self, retention: Retention, blocks: int, keys: list[list[int]], bonus_ps: list[int]) -> None:
        self.retention, self.keys, self.bonus_ps = retention, keys, bonus_ps
        self.key = dict.fromkeys(range(1, blocks), 0)  # the engine has block 0 for itself
        self.readers = dict.fromkeys(self.key, 0)
        self.holders = dict[int, list[int]]()  # of each content, as they came
        self.empty = list(self.key)  # taken from the front
        self.idle = list[tuple[int, int, int]]()  # (worth, number, block), taken by the first two
        self.pinned = list[tuple[int, int]]()  # (until when, block) of those held for a time (`ttl`)
        self.freed, self.started = 0, set[int]()
        self.tables = dict[int, list[int]]()

    def order(self) -> list[int]:
        return self.empty + [block for _, _, block in sorted(self.idle)]

    def unpin(self, now_ps: int, more: int) -> None:
        """Blocks whose time is over become free, and `more` others."""
        over = sum(until_ps <= now_ps for until_ps, _ in self.pinned)
        for _, block in self.pinned[: over + more]:
            self.wait(block, 0)
        del self.pinned[: over + more]

    def find(self, slot: int) -> list[int]:
        found = []
        for key in self.keys[slot] if slot % 3 else []:  # some find nothing, as if they ran at the same time
            if not self.holders.get(key):
                break
            found.append(self.holders[key][0])
        return found

    def fits(self, slot: int) -> bool:
        found = self.find(slot)
        return len(self.keys[slot]) + 1 - len(found) + self.unread(found) <= len(self.order())

    def unread(self, blocks: list[int]) -> int:
        return sum(self.readers[block] == 0 and block not in [held for _, held in self.pinned] for block in blocks)

    def start(self, slot: int) -> int:
        found = self.find(slot)
        for block in found:
            self.leave(block)
            self.readers[block] += 1
        self.tables[slot] = list(found)
        for _ in range(len(self.keys[slot]) + 1 - len(found)):  # its last block is not full
            block = self.order()[0]
            self.leave(block)
            if self.key[block]:
                self.holders[self.key[block]].remove(block)
                self.key[block] = 0
            self.readers[block] = 1
            self.tables[slot].append(block)
        for i in range(len(found), len(self.keys[slot])):
            self.key[self.tables[slot][i]] = self.keys[slot][i]
            self.holders.setdefault(self.keys[slot][i], []).append(self.tables[slot][i])
        self.started.add(slot)
        return len(found)

    def leave(self, block: int) -> None:
        self.empty = [one for one in self.empty if one != block]
        self.idle = [one for one in self.idle if one[2] != block]
        self.pinned = [one for one in self.pinned if one[1] != block]

    def free(self, slot: int, now_ps: int, wanted: bool) -> None:
        table = self.tables.pop(slot)
        for i in reversed(range(len(table))):
            self.readers[table[i]] -= 1
            if self.readers[table[i]] > 0 or not self.key[table[i]]:
                continue
            if self.retention.order == TTL and not wanted:
                self.pinned.append((now_ps + round(self.retention.ttl_s * s.PS_PER_S), table[i]))
            else:
                self.keep(table[i], self.worth(slot, i, now_ps, wanted))
        bare = [block for block in reversed(table) if not self.readers[block] and not self.key[block]]
        self.empty = bare + self.empty

    def keep(self, block: int, worth: int) -> None:
        first = self.holders[self.key[block]][0]
        if self.retention.order == BELADY and first != block:
            self.wait(block, -SLOTS)
            if self.readers[first]:
                return
            self.leave(first)
            block = first
        self.wait(block, worth)

    def wait(self, block: int, worth: int) -> None:
        self.freed += 1
        self.idle.append((worth, self.freed, block))

    def worth(self, slot: int, i: int, now_ps: int, wanted: bool) -> int:
        if self.retention.order <= TTL:
            return 0
        if self.retention.order == TURNS:
            return now_ps + self.bonus_ps[slot]
        if wanted:
            return -slot
        to_come = set(range(SLOTS)) - self.started
        return -min((other for other in to_come if self.keys[slot][i] in self.keys[other]), default=SLOTS)


@jit(types.int64(types.int64, types.int64, types.int64, types.int64))
def act(handle, what, slot, now_ps):
    """One thing done with a request's blocks on instance 0; returns how many it has found."""
    state = s.state_at(handle)
    spec, request = state.instances[0], state.requests[slot]
    state.clock.now_ps = now_ps
    if what == UNPIN:
        spec.free_blocks += unpin(state, 0, slot)
        return np.int64(0)
    if what != START:
        spec.free_blocks += free_table(state, 0, slot, what == PREEMPT)
        request.blocks = 0
        return np.int64(0)
    full = TOKENS // SIZE
    found, idle = find_longest_cache_hit(state, 0, slot, full if slot % 3 else 0)
    new_table(state, 0, slot)
    touch(state, 0, slot, found)
    request.blocks = found
    append_new_blocks(state, 0, slot, full + 1 - found)
    request.blocks = full + 1
    cache_full_blocks(state, 0, slot, found, full)
    spec.free_blocks -= idle + full + 1 - found
    request.cached_tokens = max(request.cached_tokens, found * SIZE)
    return np.int64(found)


@jit(types.int64(types.int64, types.int64, types.int64))
def key_at(handle, slot, block):
    return key_of(s.state_at(handle), slot, block)


def setup_of(retention: Retention, kv_tokens: int = 4800, **values: Any) -> Setup:
    values = {"prefix_caching": "on", "max_num_seqs": 16, "reserved_blocks": 1, **values}
    return Setup((), policy="vllm_fcfs", kv_tokens=kv_tokens, values=tuple(values.items()),
                 rules={"retention": retention}, **MIXED)


@given(ORDERS, st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=SLOTS, max_size=SLOTS),
       st.sampled_from((1200, 3300, 4800)),
       st.lists(st.tuples(st.sampled_from((START, START, FINISH, PREEMPT, UNPIN)), st.integers(0, SLOTS - 1),
                          st.sampled_from((0, 1, 40, 200))), min_size=12, max_size=50))
def test_blocks_are_those_of_the_pool_restated(retention: Retention, groups: list[tuple[int, int]], kv_tokens: int,
                                               operations: list[tuple[int, int, int]]) -> None:
    trace = shared_trace([(0.0, TOKENS, 4, True, group, shared) for group, shared in groups])
    episode = Episode(setup_of(retention, kv_tokens), trace=trace)
    state, handle = episode.state, s.handle_of(episode.state)
    state.requests["instance"] = 0
    keys = [[int(key_at(handle.address, slot, block)) for block in range(TOKENS // SIZE)] for slot in range(SLOTS)]
    bonus_ps = turn_bonus(trace, context_names(trace), retention.turn_s, retention.token_s).tolist()
    pool, finished, now_ps = Pool(retention, kv_tokens // SIZE, keys, bonus_ps), set[int](), 0
    for what, slot, seconds in operations:
        now_ps += seconds * s.PS_PER_S
        if what in (FINISH, PREEMPT) and pool.tables:  # one of those that run
            slot = list(pool.tables)[slot % len(pool.tables)]
        if what == START and slot not in pool.tables and slot not in finished and pool.fits(slot):
            assert act(handle.address, START, slot, now_ps) == pool.start(slot)
        elif what == UNPIN and retention.order == TTL:
            act(handle.address, UNPIN, slot, now_ps)
            pool.unpin(now_ps, slot)
        elif what in (FINISH, PREEMPT) and slot in pool.tables:
            act(handle.address, what, slot, now_ps)
            pool.free(slot, now_ps, what == PREEMPT)
            finished |= {slot} if what == FINISH else set()
        assert free_queue(state, 0) == pool.order() + [block for _, block in pool.pinned]
        assert state.blocks["key"][0, 1:].tolist() == list(pool.key.values())
        assert state.blocks["references"][0, 1:].tolist() == list(pool.readers.values())
        check_pool(state, 0)


@given(ROWS, st.sampled_from((Retention(TTL, ttl_s=2.0), Retention(TURNS, 1.0, 0.3), Retention(BELADY))),
       st.sampled_from((2800, 6000)))
def test_memory_adds_up_and_no_token_changes(rows: list[Any], retention: Retention, kv_tokens: int) -> None:
    setup, trace = setup_of(retention, kv_tokens), shared_trace(rows)
    episode = Episode(setup, trace=trace)
    for state in episode.events(3000):
        check_memory(state)
        check_mixed(state)
    first, second = (Episode(setup, trace=trace).play(round(1e15)).state for _ in range(2))
    assert all(a.tobytes() == b.tobytes() for a, b in zip(first, second, strict=True))
    done = first.requests["status"] == s.FINISHED
    assert np.array_equal(first.requests["generated_tokens"][done], first.requests["output_tokens"][done])


# Three prompts in turn, twice; a pool for two of them: LRU has always just dropped the next one.
ROUND = [(10.0 * i, 2060, 2, True, i % 3, 4) for i in range(6)]


@pytest.mark.parametrize(("order", "found"), [(LRU, [0, 0, 0, 272, 272, 272]), (BELADY, [0, 0, 0, 2048, 272, 2048])])
def test_belady_keeps_what_comes_next(order: int, found: list[int]) -> None:
    state = Episode(setup_of(Retention(order), 4400), trace=shared_trace(ROUND)).play(round(100e12)).state
    assert state.requests["cached_tokens"].tolist() == found


@pytest.mark.parametrize("ttl_s", [0.0, 8.0, 1e5])
def test_what_is_held_keeps_a_request_waiting_while_another_runs(ttl_s: float) -> None:
    """The third prompt does not fit beside what the first one has left and what the second one needs as it answers."""
    rows = [(0.0, 2060, 2, True, 0, 4), (5.0, 100, 400, True, 1, 0), (5.1, 2400, 2, True, 2, 0)]
    state = Episode(setup_of(Retention(TTL, ttl_s=ttl_s), 3600), trace=shared_trace(rows)).play(round(200e12)).state
    left_s, answered_s, first_s = (float(state.requests[name][slot]) / 1e12 for slot, name in
                                   enumerate(("last_token_ps", "last_token_ps", "first_token_ps")))
    assert (state.requests["status"] == s.FINISHED).all()
    if ttl_s == 0.0:
        assert first_s < 6.0 < answered_s
    elif ttl_s == 8.0:
        assert left_s + ttl_s < first_s < min(left_s + ttl_s + 1.0, answered_s)
    else:
        assert answered_s < first_s < answered_s + 1.0


def test_a_turn_and_what_it_adds() -> None:
    """The second prompt begins with the first one whole, the third one with half of it, the fourth one with both."""
    trace = shared_trace([(0.0, 1024, 2, True, 0, 2), (1.0, 1600, 2, True, 0, 2), (2.0, 1100, 2, True, 0, 1),
                          (3.0, 300, 2, True, 1, 0)])
    bonus_s = turn_bonus(trace, context_names(trace), 100.0, 10.0) / 1e12
    expected = [-math.log1p(1024), 10 - math.log1p(576), -math.log1p(588), -math.log1p(300)]
    assert bonus_s.tolist() == pytest.approx([10 * one for one in expected])


def test_later_turns_get_no_more_than_the_fifth() -> None:
    trace = shared_trace([(float(i), 512 * (i + 1), 2, True, 0, 9) for i in range(7)])
    bonus_s = turn_bonus(trace, context_names(trace), 1.0, 0.0) / 1e12
    assert bonus_s.tolist() == [0, 1, 2, 3, 4, 4, 4]


CLUSTER = {"name": "small", "model": "qwen2_5_7b", "mixed": [{"chip": "ascend_910c", "kv_blocks": 1200}],
           "slo": "chat"}


def scenario_of(**cluster: Any) -> Scenario:
    return Scenario(cluster={**CLUSTER, **cluster}, workload="few_shot", rate_scale=0.3, start_s=0.0, duration_s=60.0,
                    warmup_s=10.0)


def test_a_cluster_says_the_order() -> None:
    lru, belady = (simulate(scenario_of(retention=order), "vllm_fcfs").summary for order in ("lru", "belady"))
    assert belady["online"]["hit_rate"] > lru["online"]["hit_rate"]
    unused = simulate(scenario_of(retention="turns", retention_turn_s=60), "vllm_fcfs:prefix_caching=off")
    assert unused.notes[-1] == ("retention=turns is not used: it orders a prefix cache, and policy 'vllm_fcfs' has "
                                "none here (prefix_caching)")
    for order, key in (("lru", "retention_token_s"), ("belady", "retention_ttl_s")):
        notes = simulate(scenario_of(retention=order, **{key: 60}), "vllm_fcfs").notes
        assert sum(f"{key}=60 is not used" in note and order in note for note in notes) == 1
    with pytest.raises(UserError, match="kv_priority=task has its own eviction order"):
        simulate(scenario_of(retention="turns", retention_turn_s=60), "echo")


@pytest.mark.parametrize(("cluster", "message"), [
    ({"retention": "mru"}, "retention must be one of lru, ttl, turns, belady, got 'mru'"),
    ({"retention": "turns"}, "is lru as long as retention_turn_s=0 and retention_token_s=0: give"),
    ({"retention": "ttl"}, "is lru as long as retention_ttl_s=0: give retention_ttl_s"),
    ({"retention_ttl_s": -1}, "retention_ttl_s=-1 must be from 0 to 100000 seconds"),
    ({"retention_turn_s": 1e9}, "retention_turn_s=1e\\+09 must be from -100000 to 100000 seconds")])
def test_a_cluster_with_another_order_is_refused(cluster: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Cluster.load({**CLUSTER, **cluster})


TRACE = Path(os.environ.get("OOCO_GYM_DATA", "")) / "traces" / "mooncake_conversation_dev.parquet"


@pytest.mark.skipif(not TRACE.is_file(), reason=f"OOCO_GYM_DATA does not name a folder with traces/{TRACE.name}")
def test_new_tokens_tell_conversations_that_go_on() -> None:
    """On real conversations in 2.3 million tokens the rule finds more than LRU does, and the bound more than both."""
    pool = {"model": "llama_3_1_8b", "mixed": [{"chip": "h100", "tp": 8, "kv_blocks": 143_750}]}
    scenario = scenario_of(**pool)
    scenario = replace(scenario, workload={"path": str(TRACE)}, rate_scale=1.0, start_s=900.0, duration_s=500.0,
                       warmup_s=900.0, timing="ooco")
    orders: tuple[dict[str, Any], ...] = ({}, {"retention": "turns", "retention_token_s": 100}, {"retention": "belady"})
    found = [simulate(replace(scenario, cluster={**CLUSTER, **pool, **one}), "vllm_fcfs").summary["online"]["hit_rate"]
             for one in orders]
    assert 1.2 * found[0] < found[1] < found[2]
