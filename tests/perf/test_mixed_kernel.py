"""Chunks and decodes in one kernel, contexts of different lengths, and who computes what they take."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooco_gym.perf import ChipSpec, CostTable, Deployment, cost_table, kernels, load_chip, load_model, mixed_latency_ps
from ooco_gym.protocol import Slo
from tests.oracle.cases import Case, random_case
from tests.oracle.schedulers import simulate, tables_of
from tests.oracle.scripts.oracle_driver.iterations import Clock

MIXED = kernels.MixedAttentionParameters(
    head_s=3.3e-8, head_s_per_token=2.6e-10, memory_bytes_per_s=9.5e11, cache_bytes=3.5e8,
    head_s_per_chunk_token=4.8e-11, critical_s_per_token=3.1e-8, exponent=2.8, launch_s=7.3e-6)
SKEW = kernels.SkewParameters(decode_s_per_token=7e-8, decode_rows=256.0, mixed_s_per_token=9e-8)


def chip(mixed: kernels.MixedAttentionParameters | None = MIXED,
         skew: kernels.SkewParameters | None = SKEW) -> ChipSpec:
    one = load_chip("rtx4090")
    assert one.extended is not None
    return replace(one, extended=replace(one.extended, mixed_attention=mixed, skew=skew))


def table_of(mixed: kernels.MixedAttentionParameters | None = MIXED,
             skew: kernels.SkewParameters | None = SKEW) -> CostTable:
    return cost_table(Deployment(chip(mixed, skew), load_model("llama_3_1_8b"), timing="extended"), 256, 4096)


PROMPTS = st.lists(st.tuples(st.integers(1, 4096), st.integers(0, 8192)), min_size=1, max_size=4)
TABLE, ALONE, EVEN = table_of(), table_of(None, None), table_of(skew=None)


def price(table: CostTable, chunk: int, contexts: list[int]) -> int:
    return int(mixed_latency_ps(table, [[chunk]] if chunk else np.zeros((1, 0)), 0, [len(contexts)], [sum(contexts)],
                                longest=[max(contexts, default=0)])[0])


def test_decodes_beside_a_chunk_take_what_was_measured() -> None:
    """A chunk of 16 beside 128 decodes at 1,024 tokens takes 1,428 µs on the RTX 4090, where the sum is 616 µs."""
    layers = load_model("llama_3_1_8b").layers
    work = kernels.mixed_work_s(MIXED, 32, 8, 128, 128, 1024)
    together = float(kernels.mixed_attention_s(MIXED, 1e-5, work, 32 * MIXED.head_s_per_chunk_token * 128 * 16, 1024))
    assert together == pytest.approx(1428e-6, rel=0.15)
    more = price(EVEN, 16, [1024] * 128) - price(ALONE, 16, [1024] * 128)
    assert more / layers / 1e12 == pytest.approx(1428e-6 - 616e-6, rel=0.3)


@settings(deadline=None, max_examples=60)
@given(st.integers(16, 4096), st.lists(st.integers(64, 6000), min_size=1, max_size=64), st.integers(0, 63),
       st.integers(1, 500))
def test_longer_contexts_and_chunks_take_longer(chunk: int, contexts: list[int], which: int, more: int) -> None:
    """Alone and beside a chunk; with no chunk, lines that were fitted may be flat but do not fall."""
    longer = list(contexts)
    longer[which % len(contexts)] += more
    assert price(TABLE, chunk, longer) >= price(TABLE, chunk, contexts)
    assert price(TABLE, chunk, contexts) >= price(EVEN, chunk, contexts)
    assert price(TABLE, 0, contexts) >= price(EVEN, 0, contexts)


@settings(deadline=None, max_examples=50)
@given(st.sampled_from(["a100_40g_sxm", "h100"]), PROMPTS, st.integers(0, 60), st.integers(1, 4096), st.integers(0, 1))
def test_chunks_and_decodes_add_up(name: str, prompts: list[tuple[int, int]], decodes: int, mean: int,
                                   unfinished: int) -> None:
    """Attentions are added to the rest, where they share no kernel."""
    timing = "ooco" if name == "a100_40g_sxm" else "extended"
    table = cost_table(Deployment(load_chip(name), load_model("llama_2_7b"), 1, timing=timing), 64, 32_768)
    new, before = [[one[0] for one in prompts]], [[one[1] for one in prompts]]
    context, completed = decodes * mean, len(prompts) - unfinished
    alone = mixed_latency_ps(table, new, before, [0], [0], [completed])[0]
    lines, tokens = table.attention_lines[decodes], sum(new[0])
    more = (max(lines[0] + lines[1] * context, lines[2] + lines[3] * context)
            + table.prefill_ps[tokens + decodes] - table.prefill_ps[tokens]
            + table.head_ps[completed + decodes] - table.head_ps[completed])
    both = mixed_latency_ps(table, new, before, [decodes], [context], [completed])[0]
    assert both == alone + more


@settings(deadline=None, max_examples=4)
@given(st.integers(0, 10_000))
def test_the_restated_clock_is_the_simulators(seed: int) -> None:
    """Every iteration of random cases takes what the clock of the comparison says, to the picosecond."""
    case, tables = shared(random_case(seed))
    clock, played = Clock(tables), simulate(case, tables)
    given_tokens: dict[int, int] = {}
    made = np.zeros(len(case.trace), np.int64)
    computed = np.zeros(len(case.trace), np.int64)
    if len(played["preempted_slot"]) or case.prefix_caching:
        return
    for step in range(len(played["start_ps"])):
        for index in np.flatnonzero(played["change_step"] == step):
            slot, tokens = int(played["change_slot"][index]), int(played["change_tokens"][index])
            given_tokens.pop(slot, None)
            given_tokens |= {slot: tokens} if tokens else {}
        length = case.trace.prompt_tokens + made
        took = clock.iteration_ps((new, int(computed[slot]) + new, int(length[slot]))
                                  for slot, new in given_tokens.items())
        assert took == played["end_ps"][step] - played["start_ps"][step]
        for slot, new in given_tokens.items():
            computed[slot] += new
            made[slot] += computed[slot] == length[slot]


def shared(case: Case) -> tuple[Case, dict]:
    """A case, and the tables of a chip whose decodes share a kernel with chunks."""
    from ooco_gym.policy import get_policy
    from ooco_gym.sim.build import build_state
    from ooco_gym.sim.config import Machine, SimConfig

    policy = get_policy(case.policy).with_values({
        "max_num_batched_tokens": case.max_num_batched_tokens, "reserved_blocks": 1,
        "max_num_seqs": case.max_num_seqs})
    machine = Machine("mixed", Deployment(chip(), load_model("llama_3_1_8b"), timing="extended", kv_fraction=0.9,
                                          block_tokens=case.block_tokens, known_kv_blocks=case.kv_blocks))
    rules = SimConfig(Slo(1e6, 1e3, 2), case.max_num_seqs + 1, case.block_tokens, 25e9, 0.1, 64.0)
    state = build_state([machine], case.trace, rules, seed=1, window_s=(0.0, 1e6), params=policy.vector(),
                        settings=policy.settings(), class_blind=policy.class_blind, weights=policy.weights)
    assert state.tables["together"].all()
    return case, tables_of(state)
