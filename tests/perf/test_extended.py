"""`timing=extended`: sane for every size, no faster than its launches, the roofline where a kernel is missing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooco_gym.errors import UserError
from ooco_gym.perf import (
    CostTable,
    Deployment,
    cost_table,
    list_chips,
    load_chip,
    mixed_latency_ps,
)
from ooco_gym.perf.command import describe_iteration
from ooco_gym.perf.kernels import prefill_attention
from tests.perf.perf_chips import KERNELS, decode_s, deploy, prefill_s

FORMS = [deploy("ooco"), deploy("ooco_xllm"), deploy("extended"), deploy("measured"),
         deploy("extended", model="qwen2_5_72b", tp=4), deploy("ooco", model="qwen2_5_72b", tp=4),
         deploy("extended", model="opt_13b")]
SIZES = st.lists(st.integers(1, 40_000), min_size=2, max_size=12).map(sorted)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(FORMS), SIZES)
def test_dense_operators_are_positive_and_never_fall_with_tokens(deployment, tokens):
    sizes = np.array(tokens, dtype=np.float64)
    for cost in [*deployment.form.dense(deployment.shard, sizes), *deployment.form.head(deployment.shard, sizes)]:
        assert cost.seconds.shape == cost.compute_bound.shape == sizes.shape
        assert np.isfinite(cost.seconds).all() and (cost.seconds > 0).all()
        assert (np.diff(cost.seconds) >= -1e-12).all(), cost.name


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(FORMS), st.integers(1, 512), SIZES)
def test_decode_attention_never_falls_with_context_or_batch(deployment, batch, contexts):
    attention = deployment.form.attention(deployment.shard, "decode")
    sizes = np.array(contexts, dtype=np.float64)
    taken = decode_s(attention, batch, sizes)
    assert np.isfinite(taken).all() and (taken > 0).all()
    assert (np.diff(taken) >= 0).all()
    assert (decode_s(attention, batch + 1, sizes) >= taken).all()


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(FORMS), st.integers(1, 9000), st.integers(0, 60_000), st.integers(1, 500))
def test_prefill_attention_never_falls_with_tokens_or_context(deployment, q, earlier, more):
    attention = deployment.form.attention(deployment.shard, "prefill")
    taken = prefill_s(attention, q, q + earlier)
    assert 0 < taken < np.inf
    assert taken <= prefill_s(attention, q + more, q + more + earlier) * (1 + 1e-12)
    assert taken <= prefill_s(attention, q, q + earlier + more) * (1 + 1e-12)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 20_000), st.sampled_from([1, 2, 4, 8]))
def test_nothing_is_faster_than_its_launches_and_roofs(tokens, tp):
    deployment = deploy("extended", tp=tp)
    model, size = deployment.model, np.array(float(tokens))
    costs = {cost.name: float(cost.seconds) for cost in deployment.form.dense(deployment.shard, size)}
    gemm, elementwise, link = KERNELS["gemm"], KERNELS["elementwise"], KERNELS["allreduce"]
    for name in ("qkv", "o", "gate_up", "down"):
        assert costs[name] > model.layers * gemm["launch_s"]
    work = 2 * tokens * model.hidden * 2 * model.intermediate / tp * model.layers
    assert costs["gate_up"] > model.layers * gemm["launch_s"] + work / gemm["flops_per_s"]
    assert costs["norm"] > (2 * model.layers + 1) * elementwise["launch_s"]
    assert costs["rotary"] > model.layers * elementwise["launch_s"] < costs["activation"]
    assert costs["embedding"] > elementwise["launch_s"]
    if tp > 1:
        assert costs["all_reduce"] > (2 * model.layers + 1) * (link["latency_s"] + (tp - 1) * link["rank_latency_s"])
    for phase in ("prefill", "decode"):
        launch = KERNELS[f"{phase}_attention"]["launch_s"]
        one = deployment.form.attention(deployment.shard, phase).seconds(*np.ones((4, 1)))
        assert one[0] > model.layers * launch


@pytest.mark.parametrize("tp", [1, 4])
def test_missing_kernels_take_the_rooflines_time(tp):
    """An empty section leaves the paper's form, element-wise operators and one all-reduce more besides."""
    bare, ooco = deploy("extended", tp=tp, extended={}), deploy("ooco", tp=tp)
    tokens = np.array([1.0, 300.0, 5000.0])
    ours, theirs = ({cost.name: cost.seconds for cost in one.form.dense(one.shard, tokens)} for one in (bare, ooco))
    for name in ("qkv", "o", "down"):
        np.testing.assert_allclose(ours[name], theirs[name])
    if tp > 1:
        np.testing.assert_allclose(ours["all_reduce"], theirs["all_reduce"] * (2 * 32 + 1) / (2 * 32))
    np.testing.assert_allclose(bare.form.head(bare.shard, tokens)[0].seconds,
                               ooco.form.head(ooco.shard, tokens)[0].seconds)
    sums = np.array([[1e6], [100.0], [1e5], [8.0]])
    for phase in ("prefill", "decode"):
        a, b = (one.form.attention(one.shard, phase).seconds(*sums) for one in (bare, ooco))
        assert a == pytest.approx(b)
        assert bare.form.overhead_s(bare.shard, phase) == 0


def test_a_chip_without_kernels_is_named_with_what_to_do():
    with pytest.raises(UserError) as error:
        cost_table(deploy("extended", extended=None), 8, 8)
    assert "chip 'h200_kernels' has no section 'extended'" in str(error.value)
    assert "ooco-gym calibrate" in str(error.value)
    for name in list_chips():
        assert (f" {name}" in str(error.value)) == (load_chip(name).extended is not None)


SHIPPED = [name for name in list_chips() if load_chip(name).extended]
H100 = load_chip("h100")
MEASURED = json.loads((Path(__file__).parents[2] / "results" / "sim_to_real_gpu.json").read_text(encoding="utf-8"))


def test_chunks_behind_long_contexts_take_what_they_took_in_an_engine():
    """Iterations of vLLM on an H100; small ones wait for the host, and have some of each other's time."""
    table = cost_table(Deployment.from_config({"chip": "h100", "model": "llama_3_1_8b", "timing": "extended"}))
    chunks = [one for one in MEASURED["measured"]["long_prompts"]["chunks"] if one["before"] >= 65_536]
    found = {(one["before"], one["tokens"]): mixed_latency_ps(table, [[one["tokens"]]], [[one["before"]]], [0], [0])[0]
             / 1e9 / one["ms"] for one in chunks}
    large = [ratio for (_, tokens), ratio in found.items() if tokens >= 2048]
    assert len(large) >= 8
    assert min(large) > 0.86 and max(large) < 0.95
    for tokens in (64, 256, 512):
        assert 0.85 < found[104_000 + {64: 16, 256: 80, 512: 336}[tokens], tokens] < 1.2


def test_a_context_is_split_the_less_the_more_rows_there_are():
    whole = prefill_attention(replace(H100.extended.prefill_attention, split_rows=0.0), 32, 8, 128)
    split = prefill_attention(H100.extended.prefill_attention, 32, 8, 128)
    shares = []
    for q in (16, 64, 256, 528, 2048):
        sums = split.features(np.array([q]), np.array([60_000]))
        shares.append(float(split.seconds(*sums) / whole.seconds(*sums)))
    assert shares == sorted(shares)
    assert shares[0] < 0.25 and shares[-2:] == [1.0, 1.0]


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_kernels_give_a_sane_table(name):
    """No faster than the datasheet's peak, within a factor of three of the paper's form, saturating near it."""
    deployment, paper = (Deployment.from_config({"chip": name, "model": "llama_3_1_8b", "timing": timing})
                         for timing in ("extended", "ooco"))
    batches: list[dict[str, Any]] = [{"decode": [1000] * 64}, {"prefill": [(2048, 2048)]}]
    for batch in batches:
        report, other = describe_iteration(deployment, **batch), describe_iteration(paper, **batch)
        assert other.latency_s / 3 < report.latency_s < 3 * other.latency_s
    flops = 2 * 2048 * (deployment.model.parameters - deployment.model.vocab * deployment.model.hidden * 2)
    assert describe_iteration(deployment, prefill=[(2048, 2048)]).latency_s > flops / deployment.chip.peak_flops_per_s
    assert 0.8 < deployment.bs_sat / paper.bs_sat < 1.4


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize(("model", "worst"), [("qwen2_5_7b", 0.02), ("llama_3_1_8b", 0.035), ("llama_2_7b", 0.09)])
def test_tables_of_shipped_kernels_never_fall_and_keep_to_the_form(name, model, worst):
    """Steps of up to 256 requests with as many tokens of context as memory holds, as docs/timing.md says."""
    deployment = Deployment.from_config({"chip": name, "model": model, "timing": "extended"})
    table = cost_table(deployment, 256, 16_384)
    assert (np.diff(table.prefill_ps.astype(np.float64)) >= -1e-3 * table.prefill_ps[:-1]).all()
    contexts = np.geomspace(16, 65_536, 40)
    errors = step_errors(deployment, table, contexts)
    errors = errors[np.arange(1, 257)[:, None] * contexts <= deployment.kv_tokens]
    assert errors.max() <= worst
    assert errors.mean() <= 0.01


def step_errors(deployment: Deployment, table: CostTable, contexts: np.ndarray) -> np.ndarray:
    """Relative errors of the table's decode steps against the form itself, by batch size (from 1) and mean context."""
    form, shard = deployment.form, deployment.shard
    batch = np.arange(1.0, len(table.decode_lines))
    total = batch[:, None] * contexts
    costs = [*form.dense(shard, batch), *form.head(shard, batch)]
    exact = np.sum([cost.seconds for cost in costs], axis=0)[:, None] + form.overhead_s(shard, "decode")
    exact = exact + form.attention(shard, "decode").seconds(total, batch[:, None], total, batch[:, None])
    lines = table.decode_lines[1:].astype(np.float64)
    taken = np.maximum(lines[:, :1] + lines[:, 1:2] * total, lines[:, 2:3] + lines[:, 3:] * total) / 1e12
    return np.abs(taken / exact - 1)


def test_the_page_names_the_chips_that_have_kernels():
    page = (Path(__file__).parents[2] / "docs" / "timing.md").read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if line.startswith("| `extended`"))
    assert [name for name in list_chips() if f"`{name}`" in row] == SHIPPED
