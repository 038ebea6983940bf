"""Host memory as second tier of the prefix cache: what is there, what is found again, and what loading it takes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import types

from ooco_gym import Scenario, simulate
from ooco_gym.compile import jit
from ooco_gym.perf import cost_table, prefill_latency_ps
from ooco_gym.policy import Param, Policy
from ooco_gym.sim import state as s
from ooco_gym.sim.blocks import find_offloaded, key_of, offload, renew_offloaded
from tests.sim.harness import Episode, Setup, differences
from tests.sim.iterations import steps
from tests.sim.pool_checks import check_host, check_pool, offloaded
from tests.sim.test_blocks import MIXED, ROWS, fickle, shared_trace

BLOCK_BYTES = 16 * 57_344  # of 16 tokens: qwen2_5_7b keeps 28 layers of 2 x 4 heads of 128 in 16 bits
STORE, FINISH, LOOK = range(3)


class Host:
    """What vLLM's manager of offloaded blocks does, restated: an LRU cache that is written as requests are computed
    (`prepare_store`), and whose order changes besides where one finishes (`on_request_finished`)."""

    def __init__(self, size: int) -> None:
        self.size, self.keys = size, OrderedDict[int, None]()

    def store(self, given: Sequence[int]) -> bool:
        """A request's blocks since its last store. False: they must be given again, with the next ones."""
        fresh = [key for key in given if key not in self.keys]
        must_go = max(0, len(fresh) - (self.size - len(self.keys)))
        old = [key for key in self.keys if key not in given][:must_go]
        if len(old) < must_go:
            return False
        for key in old:
            del self.keys[key]
        self.keys.update(dict.fromkeys(fresh))
        return True

    def finished(self, keys: Sequence[int]) -> None:
        for key in reversed(keys):
            if key in self.keys:
                self.keys.move_to_end(key)

    def lookup(self, keys: Sequence[int]) -> int:
        return next((i for i, key in enumerate(keys) if key not in self.keys), len(keys))


@jit(types.int64(types.int64, types.int64, types.int64, types.int64, types.int64))
def act(handle, what, slot, computed, first):
    """One thing done with a request's blocks on instance 0's host."""
    state = s.state_at(handle)
    state.requests[slot].num_computed_tokens = computed
    if what == STORE:
        offload(state, 0, slot)
    elif what == FINISH:
        renew_offloaded(state, 0, slot)
    return find_offloaded(state, 0, slot, first, computed // 16)


@jit(types.int64(types.int64, types.int64, types.int64))
def key_at(handle, slot, block):
    return key_of(s.state_at(handle), slot, block)


def setup_of(blocks: int, policy: Any = "vllm_fcfs", kv_tokens: int = 4800, link: float = 25e9, **values: Any) -> Setup:
    """One instance with so many blocks in host memory."""
    values = {"prefix_caching": "on", "max_num_seqs": 16, **values}
    return Setup((), policy=policy, kv_tokens=kv_tokens, values=tuple(values.items()),
                 rules={"host_link_bytes_per_s": link, "offloading_bytes": (blocks + 0.5) * BLOCK_BYTES}, **MIXED)


OPERATIONS = st.lists(st.tuples(st.sampled_from((STORE, STORE, FINISH, LOOK)), st.integers(0, 3),
                                st.integers(0, 400), st.integers(0, 30)), max_size=40)


@given(st.integers(1, 150), OPERATIONS)
def test_the_host_is_vllms_lru_cache(size: int, operations: list[tuple[int, int, int, int]]) -> None:
    """Same blocks in the same order after every store, finish and look, of requests that share half of what they have.
    """
    trace = shared_trace([(0.0, 1100, 4, True, slot % 2, 1) for slot in range(4)])
    episode = Episode(setup_of(size), trace=trace)
    handle, other = s.handle_of(episode.state), Host(size)
    keys = [[int(key_at(handle.address, slot, block)) for block in range(68)] for slot in range(4)]
    assert keys[0][:32] == keys[2][:32] and keys[0][32] != keys[2][32]
    computed, stored = [0] * 4, [0] * 4
    for what, slot, tokens, first in operations:
        computed[slot] = min(computed[slot] + tokens, 68 * 16)
        end = computed[slot] // 16
        found = act(handle.address, what, slot, computed[slot], first)
        if what == STORE and other.store(keys[slot][stored[slot]:end]):
            stored[slot] = end
        elif what == FINISH:
            other.finished(keys[slot][:end])
        assert found == other.lookup(keys[slot][first:end])
        assert episode.state.offloaded.tolist() == stored
        assert [key for key in offloaded(episode.state, 0) if key] == list(other.keys)
        check_host(episode.state, 0)


# 2,048 tokens in common, evicted from the device's 300 blocks by the second request, and wanted again by the third.
AGAIN = [(0.0, 2060, 2, True, 0, 4), (5.0, 4000, 2, True, 1, 0), (10.0, 2060, 2, True, 0, 4)]


def played(setup: Setup, rows: list[Any] | None = None) -> s.State:
    return Episode(setup, trace=shared_trace(AGAIN if rows is None else rows)).play(round(60e12)).state


def test_what_the_device_has_evicted_is_found_in_host_memory() -> None:
    off, on = played(setup_of(0)), played(setup_of(400))
    left = int(off.requests["cached_tokens"][2])
    assert 0 < left < 2048, "some of it is still on the device"
    assert on.requests["cached_tokens"].tolist() == [0, 0, 2048]
    assert on.tier[["loaded_tokens", "hits"]][0].tolist() == (2048 - left, 2048 - left)
    assert on.instances["cached_tokens"][0] - off.instances["cached_tokens"][0] == 2048 - left
    prefilled = [int(state.instances["online_prefill_ps"][0]) for state in (off, on)]
    assert prefilled[1] < prefilled[0]
    check_pool(on, 0)
    check_host(on, 0)


@pytest.mark.parametrize("link", [25e9, 1e8])
def test_a_request_waits_for_its_load_and_computes_in_the_iteration_after_it(link: float) -> None:
    """The third request's first iteration computes 12 tokens, once the rest has come over the link."""
    left = int(played(setup_of(0)).requests["cached_tokens"][2])
    episode = Episode(setup_of(400, link=link), trace=shared_trace(AGAIN))
    spec = next(spec for spec in steps(episode) if spec["start_ps"] >= 10e12)
    assert episode.state.requests["num_scheduled_tokens"].tolist() == [0, 0, 12]
    table = cost_table(episode.machines[0].deployment, 63)
    computing = prefill_latency_ps(table, [(12, 2060)])
    loading = int((2048 - left) * 57_344 / link * 1e12)
    assert spec["start_ps"] == 10e12 + loading
    assert spec["end_ps"] - spec["start_ps"] == computing


def test_others_go_on_meanwhile() -> None:
    """Over a slow link a request that comes later and finds nothing has its first token before the one that loads."""
    rows = [*AGAIN, (10.1, 300, 2, True, 9, 0)]
    requests = Episode(setup_of(400, link=1e8), trace=shared_trace(rows)).play().state.requests
    assert (requests["status"] == s.FINISHED).all()
    third, fourth = (requests[requests["arrival_ps"] == round(at_s * 1e12)][0] for at_s in (10.0, 10.1))
    assert fourth["first_token_ps"] < third["first_token_ps"] and third["cached_tokens"] == 2048


@pytest.mark.parametrize(("blocks", "loads"), [(1, False), (128, False), (250, False), (400, True)])
def test_what_was_used_longest_ago_has_left_the_host(blocks: int, loads: bool) -> None:
    """The second request fills 250 blocks, all that a host of 250 has."""
    state = played(setup_of(blocks))
    assert (state.tier["loaded_tokens"][0] > 0) == loads
    assert (state.requests["status"] == s.FINISHED).all()


def test_what_a_request_has_used_stays() -> None:
    """Of 400 blocks two prefixes fill 128 each; the first one, asked for again, outlives the second one."""
    rows = [(0.0, 2060, 2, True, 0, 4), (5.0, 2060, 2, True, 1, 4), (10.0, 2060, 2, True, 0, 4),
            (15.0, 4000, 2, True, 2, 0), (20.0, 2060, 2, True, 0, 4), (25.0, 2060, 2, True, 1, 4)]
    found = played(setup_of(400, kv_tokens=4080), rows).requests["cached_tokens"].tolist()
    assert found[2] == found[4] == 2048
    assert found[5] < 2048, "and the second one's last blocks made room"


def test_a_preempted_request_comes_back_from_the_host() -> None:
    rows = [(0.0, 200, 150, i % 2 == 0, i, 0) for i in range(12)]
    off, on = (played(setup_of(blocks, kv_tokens=2800, policy="vllm_priority"), rows) for blocks in (0, 1000))
    assert off.totals.evictions > 0 and on.totals.evictions > 0
    assert on.tier["loaded_tokens"][0] > 0 and on.tier["hits"][0] == 0, "no hit of a first admission"
    assert on.totals.wasted_tokens < off.totals.wasted_tokens


def test_without_a_prefix_cache_there_is_no_second_tier() -> None:
    setup = setup_of(400, prefix_caching="off")
    first, second = (Episode(one, trace=shared_trace(AGAIN)).play().state for one in (setup, setup.with_(rules={})))
    assert first.tier.size == first.offloaded.size == 0
    for name, one, other in zip(s.State._fields, first, second, strict=True):
        assert one.tobytes() == other.tobytes(), name


def test_what_was_never_computed_is_not_stored() -> None:
    policy = Policy("fickle", (Param("prefix_caching", "", choices=("off", "on")),), {"prefix_caching": "on"},
                    mixed=True, compose=fickle)
    state = Episode(Setup((), policy=policy, rules={"offloading_bytes": 2.0**30}, **MIXED),
                    trace=shared_trace([(0.0, 700, 3, True, 0, 1)])).play().state
    assert state.memory[0, :2].tolist() == [1.0, 0.0]
    assert sum(key != 0 for key in offloaded(state, 0)) == 701 // 16


@settings(max_examples=25)
@given(ROWS, st.sampled_from(("vllm_priority", "conserve", "deadline", "echo")), st.sampled_from((23, 117, 4000)))
def test_the_host_has_only_what_was_computed(rows: list[Any], policy: str, blocks: int) -> None:
    """And what finishes is the same as without it, token by token."""
    values: dict[str, Any] = {"preemption": "always"} if policy == "conserve" else {}
    setup, trace = setup_of(blocks, policy, kv_tokens=2800, **values), shared_trace(rows)
    episode = Episode(setup, trace=trace)
    computed, reach = np.zeros((2, len(rows)), np.int64)
    begun, stopped = 0, True
    for state in episode.events(3000):
        spec = state.instances[0]
        if not stopped and (spec["steps_begun"] != begun or spec["activity"] == s.IDLE):  # its iteration is over
            computed = np.maximum(computed, reach)
        reach = (state.requests["num_computed_tokens"] + state.requests["num_scheduled_tokens"]).astype(np.int64)
        begun, stopped = int(spec["steps_begun"]), bool(spec["interrupted"])
    handle = s.handle_of(episode.state)
    known = {int(key_at(handle.address, slot, block)) for slot in range(len(rows))
             for block in range(computed[slot] // 16)}
    assert {key for key in offloaded(episode.state, 0) if key} <= known
    state = Episode(setup, trace=trace).play(round(1e15)).state
    done = state.requests["status"] == s.FINISHED
    assert np.array_equal(state.requests["generated_tokens"][done], state.requests["output_tokens"][done])


@given(ROWS, st.sampled_from((23, 117, 4000)))
def test_it_is_the_same_again_and_from_outside(rows: list[Any], blocks: int) -> None:
    setup, trace = setup_of(blocks, kv_tokens=2800), shared_trace(rows)
    first, second = (Episode(setup, trace=trace).play().state for _ in range(2))
    assert all(a.tobytes() == b.tobytes() for a, b in zip(first, second, strict=True))
    assert differences(first, Episode(setup, trace=trace, outside=("compose", "route")).play().state) == []


def test_the_summary_says_what_was_loaded() -> None:
    cluster = {"name": "small", "model": "qwen2_5_7b", "mixed": [{"chip": "ascend_910c", "kv_blocks": 1200}],
               "slo": "chat"}
    scenario = Scenario(cluster=cluster, workload="few_shot", rate_scale=0.3, offline={"mode": "rate", "rate": 1.0},
                        start_s=0.0, duration_s=60.0, warmup_s=10.0)
    large = replace(scenario, cluster={**cluster, "kv_offloading_gib": 16})
    off, on = (simulate(one, "vllm_fcfs:prefix_caching=on").summary for one in (scenario, large))
    assert "kv_offloading" not in off
    found = on["kv_offloading"]
    assert found["loaded_tokens"] > 0 and 0 < found["hit_rate"] < 1 and found["host_blocks"] > 1200
    assert on["online"]["hit_rate"] > off["online"]["hit_rate"]
    without = simulate(large, "vllm_fcfs:prefix_caching=off")
    assert "kv_offloading" not in without.summary
    assert without.notes[-1] == ("kv_offloading_gib=16 is not used: it is memory for a prefix cache, and policy "
                                 "'vllm_fcfs' has none here (prefix_caching)")
