"""HyGen, HyGen*, Sarathi++ and Sarathi: batches worked out by hand from the algorithms, and what must hold always."""

from __future__ import annotations

import math
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.hygen import COEFFICIENTS, service_error
from baselines.hygen_predictor import trained
from ooco_gym.perf import cost_table
from ooco_gym.policy import get_policy
from ooco_gym.sim import state as s
from ooco_gym.sim.config import SimConfig
from ooco_gym.sim.policy_context import policy_context
from tests.sim.episodes import traces
from tests.sim.harness import DEFAULT_RULES, Episode, Setup, differences, machines_of, play
from tests.sim.iterations import iterations
from tests.sim.pool_checks import check_pool
from tests.sim.test_blocks import shared_trace

MIXED: dict[str, Any] = {"relaxed": (), "strict": (), "mixed": (("a100_40g_sxm", 1),), "window_s": (0.0, 20.0),
                         "rules": {"max_batch": 300}}
FREE = ("latency_budget_s", math.inf)
MS = 1e9  # picoseconds
# A predictor by hand: 10 ms, 0.02 ms a prefill token, 0.001 ms a token of decode context, 0.1 ms a decode.
BY_HAND = {"one_ps": 10 * MS, "prefill_token_ps": 0.02 * MS, "decode_token_ps": 0.001 * MS, "decode_ps": 0.1 * MS}


def batches(setup: Setup, trace: Any = None):
    """Yields each iteration as it begins: {slot: new tokens}, in the order of admission; those without any left out."""
    episode = Episode(setup, trace=trace)
    for batch in iterations(episode):
        yield batch, episode.state


def first(setup: Setup, count: int, trace: Any = None) -> list[dict[int, int]]:
    """The first iterations' batches."""
    return [batch for (batch, _), _ in zip(batches(setup, trace=trace), range(count), strict=False)]


def at_once(*rows: tuple[int, int, bool], policy: str = "hygen", **values: Any) -> Setup:
    """Requests of (prompt, output, online) that are all there from the start."""
    return Setup(tuple((0.0, *row) for row in rows), policy=policy, values=tuple(values.items()), **MIXED)


# --- Sarathi: stall-free batching -----------------------------------------------------------------------------------
def test_chunks_fill_up_what_decodes_leave() -> None:
    setup = at_once((700, 9, True), (600, 9, True), (100, 9, True), policy="sarathi")
    assert first(setup, 4) == [{0: 512}, {0: 188, 1: 324}, {0: 1, 1: 276, 2: 100}, {0: 1, 1: 1, 2: 1}]


@pytest.mark.parametrize("offline,batch", [("never", {1: 100}), ("fcfs", {0: 100, 1: 100})])
def test_sarathi_serves_online_requests_alone_or_all_alike(offline: str, batch: dict[int, int]) -> None:
    assert first(at_once((100, 5, False), (100, 5, True), policy="sarathi", offline=offline), 1) == [batch]


# --- Sarathi++: two queues ------------------------------------------------------------------------------------------
def test_online_requests_first() -> None:
    setup = at_once((300, 9, False), (400, 9, True), (300, 9, False), policy="sarathi_pp")
    assert first(setup, 2) == [{1: 400, 0: 112}, {1: 1, 0: 188, 2: 300}]


def memory_setup(**values: Any) -> Setup:
    """Two offline requests that all but fill 1,600 tokens, then an online one of 800."""
    return Setup(((0.0, 700, 40, False), (0.0, 600, 40, False), (0.2, 800, 5, True)), kv_tokens=1600,
                 policy="sarathi_pp", values=(("chunk_size", 2048), *values.items()), **MIXED)


def test_online_requests_take_the_memory_of_the_last_admitted() -> None:
    state = play(memory_setup()).state
    assert state.requests["evictions"].tolist() == [0, 1, 0]
    assert state.requests["wasted_tokens"][1] >= 600


# --- HyGen: Algorithm 1 by hand -------------------------------------------------------------------------------------
def test_budget_of_time_sets_the_offline_chunk() -> None:
    """20 ms: less 10 ms and 400 · 0.02 ms for the online chunk, 2 ms are left: 100 tokens."""
    assert first(at_once((400, 9, True), (300, 9, False), latency_budget_s=0.02, **BY_HAND), 1) == [{0: 400, 1: 100}]


def test_a_decode_that_does_not_fit_is_skipped_and_keeps_its_memory() -> None:
    """10.9 ms: beside the online decode 0.499 ms are left or less: 24 tokens of the prompt, but no decode of 501."""
    setup = at_once((300, 40, True), (500, 9, False), latency_budget_s=0.0109, chunk_size=2048, **BY_HAND)
    seen = [(batch, int(state.requests["blocks"][1])) for (batch, state), _ in zip(batches(setup), range(48),
                                                                                   strict=False)]
    assert [batch for batch, _ in seen[:2]] == [{0: 300}, {0: 1, 1: 24}]
    skipped = [blocks for batch, blocks in seen if batch == {0: 1}]
    assert len(skipped) > 5 and set(skipped) == {32}  # 500 tokens in blocks of 16
    assert [batch for batch, _ in seen[40:]] == [{1: 1}] * 8


def test_online_requests_enter_whatever_the_budget() -> None:
    setup = at_once((600, 4, True), (300, 4, False), latency_budget_s=0.0, **BY_HAND)
    assert first(setup, 3) == [{0: 512}, {0: 88}, {0: 1}]


def test_a_budget_that_binds_online_prefills_shortens_them() -> None:
    setup = at_once((600, 4, True), latency_budget_s=0.012, budget_binds_online=1, **BY_HAND)
    assert first(setup, 2) == [{0: 100}, {0: 100}]


# --- Conformance with the paper ---------------------------------------------------------------------------------------
VALUES = st.fixed_dictionaries({
    "chunk_size": st.sampled_from((16, 128, 512, 2048)), "max_num_seqs": st.sampled_from((2, 16, 63)),
    "prefix_caching": st.sampled_from(("off", "on"))})
MEMORY = st.sampled_from((None, 2800, 6000))


@settings(deadline=None, max_examples=20)
@given(traces(), VALUES, MEMORY)
def test_sarathi_pp_is_hygen_without_a_budget(rows: Any, values: dict[str, Any], memory: int | None) -> None:
    setup = Setup(rows, policy="sarathi_pp", values=tuple(values.items()), kv_tokens=memory, **MIXED)
    free = (*values.items(), FREE, ("waiting_order", "arrival"))
    assert differences(play(setup).state, play(setup.with_(policy="hygen", values=free)).state) == []


@settings(deadline=None, max_examples=10)
@given(traces(), VALUES, MEMORY)
def test_hygen_star_without_a_rate_is_sarathi_pp(rows: Any, values: dict[str, Any], memory: int | None) -> None:
    setup = Setup(rows, policy="sarathi_pp", values=tuple(values.items()), kv_tokens=memory, **MIXED)
    star = setup.with_(policy="hygen_star", values=(*values.items(), ("offline_qps", math.inf)))
    assert differences(play(setup).state, play(star).state) == []


@settings(deadline=None, max_examples=15)
@given(traces(), VALUES, MEMORY, st.sampled_from((0.0, 0.001)))
def test_no_offline_work_without_time(rows: Any, values: dict[str, Any], memory: int | None, budget: float) -> None:
    """t <= 0 once the intercept is off: offline requests never enter, and online ones see pure online service."""
    setup = Setup(rows, policy="hygen", values=(*values.items(), ("latency_budget_s", budget)), kv_tokens=memory,
                  **MIXED)
    state = play(setup).state
    assert (state.requests["status"][state.requests["online"] == 0] <= s.WAITING).all()
    alone = play(setup.with_(policy="sarathi", values=tuple(values.items()))).state
    assert differences(state, alone) == []


@settings(deadline=None, max_examples=15)
@given(traces(), VALUES, MEMORY, st.sampled_from((0.011, 0.013, 0.02)))
def test_offline_work_stays_within_the_budget(rows: Any, values: dict[str, Any], memory: int | None,
                                              budget: float) -> None:
    """A batch with offline tokens is predicted within the budget, unless its online part alone is beyond it, or it is
    one request that nothing else would let go on."""
    setup = Setup(rows, policy="hygen", values=(*values.items(), ("latency_budget_s", budget), *BY_HAND.items()),
                  kv_tokens=memory, **MIXED)
    for batch, state in islice(batches(setup), 200):
        requests, cost, online = state.requests, 10 * MS, True
        for slot, tokens in batch.items():
            request = requests[slot]
            reach = request["prompt_tokens"] + request["generated_tokens"]
            decoding = request["generated_tokens"] > 0 and reach - request["num_computed_tokens"] == 1
            cost += (0.1 + 0.001 * reach) * MS if decoding else 0.02 * tokens * MS
            online &= bool(request["online"])
        assert online or len(batch) == 1 or cost <= budget * s.PS_PER_S * (1 + 1e-9)


# --- Prefix sharing maximisation ------------------------------------------------------------------------------------
def few_shot():
    """Twelve offline requests of three groups in turn; a prompt is two shared blocks of 512 tokens and its own end."""
    return shared_trace([(0.0, 1100 + i, 3, False, i % 3, 2) for i in range(12)])


def order_of(trace: Any, **values: Any) -> list[int]:
    """Requests in the order in which they are admitted, one after the other."""
    setup = Setup((), policy="hygen", values=(("waiting_order", "prefix"), ("prefix_caching", "on"), FREE,
                                              ("max_num_seqs", 1), *values.items()), **MIXED)
    seen: list[int] = []
    for batch, _ in batches(setup, trace=trace):
        seen += [slot for slot in batch if slot not in seen]
    return seen


def test_u_1_is_the_order_of_the_tree_and_u_0_that_of_age() -> None:
    trace = few_shot()
    by_tree, by_age = order_of(trace, utility=1.0), order_of(trace, utility=0.0)
    assert by_age == list(range(12))
    groups = [slot % 3 for slot in by_tree]
    assert sorted(by_tree) == list(range(12)) and sum(a != b for a, b in pairwise(groups)) == 2


def test_the_papers_example_of_sharing() -> None:
    """Section 4.3: (What is ML, How to code, What is AI, How to debug) is served What, What, How, How."""
    trace = shared_trace([(0.0, 600, 2, False, group, 1) for group in (0, 1, 0, 1)])
    groups = [slot % 2 for slot in order_of(trace, utility=1.0)]
    assert groups in ([0, 0, 1, 1], [1, 1, 0, 0])


def test_sharing_saves_prefill_only_where_memory_is_short() -> None:
    """Room for one group's prefix: in the order of arrival each request has pushed the next one's out."""
    base = {"prefix_caching": "on", "max_num_seqs": 1, "latency_budget_s": math.inf}
    found = {}
    for order in ("arrival", "prefix"):
        setup = Setup((), policy="hygen", kv_tokens=1600, values=(("waiting_order", order), ("utility", 1.0),
                                                                 *base.items()), **MIXED)
        state = Episode(setup, trace=few_shot()).play().state
        found[order] = int(state.instances["cached_tokens"].sum())
        check_pool(state, 0)
    assert found["prefix"] > found["arrival"] == 0


# --- HyGen* ---------------------------------------------------------------------------------------------------------
def test_offline_requests_enter_at_the_rate() -> None:
    rows = tuple((0.0, 50, 2, False) for _ in range(30))
    state = play(Setup(rows, policy="hygen_star", values=(("offline_qps", 2.0),), **MIXED)).state
    done = state.requests["first_token_ps"] > 0
    waited = state.requests["first_token_ps"][done] / s.PS_PER_S
    assert np.allclose(waited, 0.5 * (1 + np.arange(done.sum())), atol=0.05) and done.sum() == 30


# --- The predictor in service ---------------------------------------------------------------------------------------
def test_training_sets_the_coefficients_of_the_instances_table() -> None:
    episode = Episode(at_once((400, 40, True), (300, 40, False), latency_budget_s=1.0))
    values = episode.policy.values
    table = cost_table(episode.machines[0].deployment, 300, 16_384)
    assert [values[name] for name in COEFFICIENTS] == trained(table, 512, "context").tolist()
    episode.play()
    assert 0 < service_error(episode.state) < 0.25


# --- Neither ever stands still while there is something that it may do -----------------------------------------------
SEATS = ("max_num_seqs", 63)
ASCEND = {"relaxed": (), "strict": (), "mixed": (("ascend_910c", 1),)}


def test_a_budget_that_no_decode_keeps_stops_nobody() -> None:
    """The budget lets prompts in, whose decodes then exceed it one by one: they go on, one at a time."""
    rows = tuple((0.0, 90_000, 5, False) for _ in range(4))
    setup = Setup(rows, policy="hygen", window_s=(0.0, 3000.0), values=(("latency_budget_s", 1.0), SEATS), **ASCEND)
    fitted = get_policy("hygen", dict(setup.values))
    coefficients = fitted.prepare(fitted, policy_context(machines_of(setup), setup.trace(), SimConfig(**DEFAULT_RULES)))
    decode_ps = coefficients["decode_token_ps"] * 90_000 + coefficients["decode_ps"]
    chunk_ps = coefficients["prefill_ps"] + 64 * coefficients["prefill_token_ps"]
    assert 0.0 < chunk_ps < decode_ps
    budget_s = (coefficients["one_ps"] + chunk_ps) / s.PS_PER_S
    state = Episode(setup.with_(values=(("latency_budget_s", budget_s), SEATS))).play().state
    assert (state.requests["status"] == s.FINISHED).all()


def test_a_fixed_rate_goes_on_for_hours() -> None:
    """Late in a run the time at which the next is due rounds to just before it: the alarm must ring again."""
    rows = tuple((0.0, 200, 5, False) for _ in range(310))
    setup = Setup(rows, policy="hygen_star", window_s=(0.0, 15_000.0), values=(("offline_qps", 0.0207), SEATS),
                  **ASCEND)
    state = Episode(setup).play().state
    assert (state.requests["status"] == s.FINISHED).sum() >= 309
