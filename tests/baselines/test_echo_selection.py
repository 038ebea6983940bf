"""Echo's choice of offline work and its KV manager on examples made by hand (arXiv 2504.03651, Figures 4 and 5)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from ooco_gym.sim import state as s
from ooco_gym.workload import Trace
from tests.sim.harness import Episode, Setup
from tests.sim.pool_checks import check_pool, free_queue

Row = tuple[float, int, int, bool, list[int]]  # arrival, prompt, output, online, prefix hashes


def episode(rows: list[Row], policy: str, **values: Any) -> Episode:
    """An episode on one instance whose requests have these prefix hashes."""
    counts = [len(row[4]) for row in rows]
    trace = Trace(np.array([row[0] for row in rows]), np.array([row[1] for row in rows], np.int32),
                  np.array([row[2] for row in rows], np.int32), np.array([row[3] for row in rows]),
                  prefix_hashes=(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
                                 np.array([one for row in rows for one in row[4]], np.int64)))
    setup = Setup((), relaxed=(), strict=(), mixed=(("ascend_910c", 1),), policy=policy,
                  values=tuple(({"max_num_seqs": 16} | values).items()))
    return Episode(setup, trace=trace)


def order_of(one: Episode) -> list[int]:
    """Slots in the order of their first tokens."""
    return np.argsort(one.play().state.requests["first_token_ps"], kind="stable").tolist()


@pytest.mark.parametrize(("policy", "order"), [("echo", [0, 2, 4, 1, 3]), ("echo_bs_e_s", [0, 2, 4, 1, 3]),
                                               ("echo_bs_e", [0, 1, 2, 3, 4]), ("echo_bs", [0, 1, 2, 3, 4])])
def test_those_that_share_a_prefix_follow_each_other(policy: str, order: list[int]) -> None:
    """Figure 4: by arrival, two documents take turns; by benefit, all questions on the first come first."""
    rows: list[Row] = [(0.0, 1536, 3, False, [10 + i % 2, 20 + i % 2, 30 + i]) for i in range(5)]
    one = episode(rows, policy, max_num_seqs=1)
    assert order_of(one) == order
    found = one.state.requests["cached_tokens"].tolist()
    assert sorted(found) == [0, 0, 1024, 1024, 1024]


def test_online_requests_take_memory_from_the_offline_ones() -> None:
    """A burst that finds the memory full preempts offline work; no offline request joins while an online one waits."""
    rows: list[Row] = [*[(0.0, 1000, 400, False, [i, 100 + i]) for i in range(4)],
                       *[(0.5, 1000, 4, True, [i, 100 + i]) for i in range(10, 13)]]
    setup = Setup(tuple(row[:4] for row in rows), relaxed=(), strict=(), mixed=(("ascend_910c", 1),), policy="echo",
                  values=(("max_num_seqs", 16),), kv_tokens=4800)
    one = Episode(setup).play()
    requests = one.state.requests
    assert requests["evictions"][:4].sum() > 0
    assert requests["evictions"][4:].sum() == 0
    assert (requests["status"] == s.FINISHED).all()
    check_pool(one.state, 0)


def test_blocks_go_in_the_order_of_their_worth() -> None:
    """4.2, conformance (d): finished offline, then finished online, then by how many offline requests want them.

    Documents of 512 and 1,024 tokens are wanted by two requests and by one; one of 1,536 by none; an online request
    of 2,048 has finished, two others run and keep all others waiting.
    """
    a, b, c, d = [1], [2, 3], [4, 5, 6], [7, 8, 9, 10]
    rows: list[Row] = [(0.0, 512, 2, False, a), (0.0, 1024, 2, False, b), (0.0, 1536, 2, False, c),
                       (0.0, 2048, 2, True, d), (3.0, 512, 9000, True, [20]), (3.0, 512, 9000, True, [21]),
                       (5.0, 512, 2, False, a), (5.0, 512, 2, False, a), (5.0, 1024, 2, False, b)]
    one = episode(rows, "echo", max_num_seqs=2)
    one.play(6 * s.PS_PER_S)
    state = one.state
    assert (state.requests["status"][:4] == s.FINISHED).all()
    assert (state.requests["status"][6:] == s.WAITING).all()
    queue = free_queue(state, 0)
    held = [int(state.blocks["level"][0, block]) for block in queue if state.blocks["key"][0, block] != 0]
    assert held == sorted(held)
    assert Counter(held) == {0: 1536 // 16, 1: 2048 // 16, 2: 1024 // 16, 3: 512 // 16}
    running = state.members[s.BATCH, 0, : state.instances[0]["running"]]
    assert sorted(running.tolist()) == [4, 5], "what runs is in no queue"
    check_pool(state, 0)


def test_memory_is_left_free_for_bursts() -> None:
    """4.2: with an hour of online load behind it, offline work may not fill the memory."""
    rows = [(0.25 * i, 800, 60, True) for i in range(80)]
    rows += [(19.0, 800, 400, False) for _ in range(30)]
    held = {}
    for reserve in ("off", "total"):
        setup = Setup(tuple(sorted(rows)), relaxed=(), strict=(), mixed=(("ascend_910c", 1),), policy="echo",
                      values=(("max_num_seqs", 63), ("reserve", reserve), ("reserve_sigmas", 4.0)), kv_tokens=9000,
                      rules={"max_batch": 128})
        one = Episode(setup)
        one.play(round(19.6 * s.PS_PER_S))
        running = one.state.members[s.BATCH, 0, : one.state.instances[0]["running"]]
        requests = one.state.requests[running]
        held[reserve] = int(requests["blocks"][requests["online"] == 0].sum())
    assert held["total"] < held["off"]
