"""Prefix caches of pools: what is computed and moved, by hand; that nothing leaks, and that runs stay one event."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooco_gym.perf import cost_table, prefill_latency_ps
from ooco_gym.sim import state as s
from ooco_gym.workload import Trace
from tests.sim.episodes import setups
from tests.sim.harness import Episode, Setup, differences
from tests.sim.sides import check
from tests.sim.test_blocks import ROWS, shared_trace

LINK = 25e9


def second_asks(tokens: int, more: int, **columns: Any) -> Trace:
    """Two requests, ten seconds apart, with the same first `tokens`; the second has `more`."""
    names = np.arange(1, tokens // 16 + 1)
    return Trace(np.array([0.0, 10.0]), np.array([tokens, tokens + more], np.int32), np.array([16, 16], np.int32),
                 np.array([True, True]), prefix_hashes=(np.array([0, len(names), 2 * len(names)]), np.tile(names, 2)),
                 block_tokens=16, **columns)


@pytest.mark.parametrize("policy", ["base_pd", "ooco"])
def test_a_second_turn_computes_and_moves_what_is_new(policy: str) -> None:
    """8,000 shared tokens, 100 new ones: 500 blocks are found on either side."""
    played = Episode(Setup((), policy=policy, values=(("prefix_caching", "on"),)), trace=second_asks(8000, 100)).play()
    first, second = played.state.requests
    assert (first["cached_tokens"], second["cached_tokens"]) == (0, 8000)
    table = cost_table(played.machines[0].deployment, 64)
    for request, new, context in ((first, 8000, 8000), (second, 100, 8100)):
        assert request["first_token_ps"] - request["arrival_ps"] == prefill_latency_ps(table, [(new, context)])
    moved_ps = [max(1, int(tokens * table.kv_bytes_per_token / LINK * s.PS_PER_S)) for tokens in (8000, 100)]
    assert played.state.links["busy_ps"].sum() == sum(moved_ps)
    assert (played.state.instances["free_blocks"] == played.state.instances["total_blocks"]).all()


def test_two_turns_as_vllms_own_hand_over_had_them() -> None:
    """vLLM 0.32 on a CPU, NixlConnector, blocks of 32 tokens: 1,984 tokens found where the second turn was prefilled,
    2,016 where it decoded, and 63, 4 and 8 blocks sent. Ours sends their tokens, not whole blocks."""
    names = [range(1, 64), range(1, 68), range(500, 508)]
    trace = Trace(np.array([0.0, 100.0, 200.0]), np.array([2000, 2140, 256], np.int32),
                  np.array([40, 40, 20], np.int32), np.ones(3, bool), session=np.array([0, 0, 1]), block_tokens=32,
                  prefix_hashes=(np.cumsum([0, *map(len, names)]), np.concatenate(names)))
    setup = Setup((), policy="base_pd", values=(("prefix_caching", "on"),), window_s=(0.0, 300.0),
                  rules={"block_tokens": 32})
    played = Episode(setup, trace=trace).play()
    assert played.state.requests["cached_tokens"].tolist() == [0, 1984, 0]
    token = cost_table(played.machines[0].deployment, 64).kv_bytes_per_token / LINK * s.PS_PER_S
    assert played.state.links["busy_ps"].sum() == sum(int(tokens * token) for tokens in (2000, 2140 - 2016, 256))


@st.composite
def cached(draw: st.DrawFn) -> tuple[Setup, Trace]:
    setup = draw(setups(("base_pd", "ooco"), noisy=False))
    values = dict(setup.values) | {"prefix_caching": "on"} | ({"mixed.prefix_caching": "on"} if setup.mixed else {})
    return setup.with_(values=tuple(values.items()), sessions=(), clients=0), shared_trace(draw(ROWS))


@given(cached())
def test_everything_holds_after_every_event(case: tuple[Setup, Trace]) -> None:
    setup, trace = case
    for state in Episode(setup, trace=trace).events(2000):
        check(state)


@given(cached())
def test_runs_and_single_steps_are_the_same(case: tuple[Setup, Trace]) -> None:
    setup, trace = case
    runs, steps = (Episode(setup, trace=trace, bulk=bulk).play().state for bulk in (True, False))
    assert not differences(runs, steps)


@pytest.mark.parametrize(("longest", "moves", "shared"), [(0, 2, 8000), (99, 2, 8000), (100, 1, 8000)])
def test_a_short_rest_is_prefilled_where_it_decodes(longest: int, moves: int, shared: int) -> None:
    """The second prompt lacks 100 tokens where the first one decoded: within the bound nothing of it moves."""
    setup = Setup((), policy="base_pd", values=(("prefix_caching", "on"), ("local_prefill_tokens", longest)))
    played = Episode(setup, trace=second_asks(8000, 100)).play()
    table, request = cost_table(played.machines[0].deployment, 64), played.state.requests[1]
    bytes_per_ps = table.kv_bytes_per_token / LINK * s.PS_PER_S
    assert played.state.links["busy_ps"].sum() == sum(int(n * bytes_per_ps) for n in (8000, 100)[:moves])
    assert request["cached_tokens"] == shared and request["instance"] == 1
    assert request["first_token_ps"] - request["arrival_ps"] == prefill_latency_ps(table, [(100, 8100)])
    assert (played.state.instances["online_prefill_ps"][1] > 0) == (moves == 1)


def test_what_arrives_counts_where_a_short_prompt_is_prefilled() -> None:
    """Lists for four: a moved request is on its way while nine short prompts wait where they will decode."""
    rows = ((0.0, 1, 1, False), *((0.0, 1, 2, False),) * 8, (0.0, 900, 2, False))
    setup = Setup(rows, policy="base_pd", values=(("local_prefill_tokens", 200),), rules={"max_batch": 4})
    for state in Episode(setup).events(200):
        check(state)
