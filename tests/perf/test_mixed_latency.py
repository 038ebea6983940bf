"""Iterations of prefills beside decodes, priced many at once: what the table says of either alone, and of both."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooco_gym.perf import (
    CostTable,
    Deployment,
    cost_table,
    decode_latency_ps,
    load_chip,
    load_model,
    mixed_latency_ps,
    prefill_latency_ps,
)

LARGEST = 32_768  # new tokens that the table knows; more than is drawn
PROMPTS = st.lists(st.tuples(st.integers(1, 4096), st.integers(0, 8192)), min_size=1, max_size=4)


@pytest.fixture(scope="module", params=["a100_40g_sxm", "h100"])
def table(request: pytest.FixtureRequest) -> CostTable:
    timing = "ooco" if request.param == "a100_40g_sxm" else "extended"
    deployment = Deployment(load_chip(request.param), load_model("llama_2_7b"), 1, timing=timing)
    return cost_table(deployment, 64, LARGEST)


@settings(deadline=None, max_examples=50)
@given(PROMPTS, st.integers(0, 60), st.integers(1, 4096), st.integers(0, 1))
def test_latency_is_the_sum_of_what_the_table_says(table: CostTable, prompts: list[tuple[int, int]], decodes: int,
                                                   mean: int, unfinished: int) -> None:
    """Without decodes that of the prefills, without prefills that of a step; attentions are added to the rest."""
    new, before = [[one[0] for one in prompts]], [[one[1] for one in prompts]]
    context, completed = decodes * mean, len(prompts) - unfinished
    alone = mixed_latency_ps(table, new, before, [0], [0], [completed])[0]
    assert alone == prefill_latency_ps(table, [(q, q + done) for q, done in prompts], completed)
    step = mixed_latency_ps(table, np.zeros((1, 0)), 0, [decodes], [context])[0]
    assert step == decode_latency_ps(table, decodes, context)
    lines, tokens = table.attention_lines[decodes], sum(new[0])
    more = (max(lines[0] + lines[1] * context, lines[2] + lines[3] * context)
            + table.prefill_ps[tokens + decodes] - table.prefill_ps[tokens]
            + table.head_ps[completed + decodes] - table.head_ps[completed])
    both = mixed_latency_ps(table, new, before, [decodes], [context], [completed])[0]
    assert both == alone + more


def test_iterations_are_priced_apart(table: CostTable) -> None:
    """Many at once are what each is alone; an empty place among the prompts counts for nothing."""
    new, before = np.array([[300, 0], [0, 0], [200, 17]]), np.array([[0, 99], [0, 0], [64, 5]])
    decodes, context = np.array([0, 7, 3]), np.array([0, 900, 450])
    together = mixed_latency_ps(table, new, before, decodes, context)
    assert together.dtype == np.int64
    for i in range(3):
        some = new[i] > 0
        assert together[i] == mixed_latency_ps(table, new[i : i + 1, some], before[i : i + 1, some],
                                               decodes[i : i + 1], context[i : i + 1])[0]
