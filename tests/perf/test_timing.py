"""The roofline: the engine's golden figures, tables against the slow reference, parallelism, extension."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooco_gym.perf import CostTable, Deployment, cost_table, decode_latency_ps, prefill_latency_ps, timing
from tests.perf.perf_reference import iteration_latency

CASES = [
    {"chip": "ascend_910c", "model": "qwen2_5_7b"},
    {"chip": "ascend_910c", "model": "qwen2_5_7b", "timing": "ooco_xllm", "tp": 2},
    {"chip": "ascend_910c", "model": "qwen2_5_72b", "tp": 4},
    {"chip": "ascend_910c", "model": "qwen2_5_72b", "tp": 4, "pp": 2, "timing": "ooco_xllm"},
    {"chip": "a100_80g", "model": "llama_3_70b", "tp": 4, "pp": 2, "timing": {"name": "ooco", "causal_factor": 0.5}},
    {"chip": "h100", "model": "opt_30b", "tp": 7},
    {"chip": "h200", "model": "llama_3_1_8b", "tp": 16},
    {"chip": "h200", "model": "llama_3_1_8b", "tp": 16, "timing": "ooco_xllm"},
]
MAX_BATCH, MAX_TOKENS = 64, 4096


def deploy(**values) -> Deployment:
    return Deployment.from_config(values)


TABLES: list[tuple[Deployment, CostTable]] = [
    (deploy(**case), cost_table(deploy(**case), MAX_BATCH, MAX_TOKENS)) for case in CASES]


@pytest.mark.parametrize(("model", "tp", "batch", "golden_ms"), [
    ("qwen2_5_7b", 1, {"prefill": [(1024, 1024)]}, 53.4),
    ("qwen2_5_7b", 1, {"prefill": [(4096, 4096)]}, 231.5),
    ("qwen2_5_7b", 1, {"decode": [2048] * 64}, 28.0),
    ("qwen2_5_7b", 1, {"decode": [2048] * 256}, 66.2),
    ("qwen2_5_72b", 4, {"prefill": [(1024, 1024)]}, 342.5),
    ("qwen2_5_72b", 4, {"decode": [2048] * 64}, 71.6),
])
def test_golden_figures_of_the_engine(model, tp, batch, golden_ms):
    """Computed by the engine's own performance model; ours must agree within 1 %."""
    deployment = deploy(chip="ascend_910c", model=model, tp=tp, timing="ooco_xllm")
    table = cost_table(deployment, 256, 8192)
    latency_ps = (prefill_latency_ps(table, batch["prefill"]) if "prefill" in batch
                  else decode_latency_ps(table, len(batch["decode"]), sum(batch["decode"])))
    assert latency_ps / 1e9 == pytest.approx(golden_ms, rel=0.01)
    assert 1e3 * iteration_latency(deployment, **batch) == pytest.approx(golden_ms, rel=0.01)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(CASES) - 1), st.lists(st.integers(1, 20_000), min_size=1, max_size=MAX_BATCH))
def test_decode_table_equals_the_reference(case, contexts):
    deployment, table = TABLES[case]
    expected_ps = 1e12 * iteration_latency(deployment, decode=contexts)
    rounding = 1 + len(contexts) + sum(contexts)
    assert abs(decode_latency_ps(table, len(contexts), sum(contexts)) - expected_ps) <= rounding + 1e-9 * expected_ps


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(CASES) - 1), st.data(),
       st.lists(st.tuples(st.integers(1, 1500), st.integers(0, 8000)), min_size=1, max_size=8))
def test_prefill_table_equals_the_reference(case, data, parts):
    deployment, table = TABLES[case]
    prompts = [(q, q + earlier) for q, earlier in parts]
    completed = data.draw(st.integers(0, len(prompts)))
    expected_ps = 1e12 * iteration_latency(deployment, prefill=prompts, completed=completed)
    beyond = max(0, sum(q for q, _ in prompts) - MAX_TOKENS)
    assert abs(prefill_latency_ps(table, prompts, completed) - expected_ps) <= 4 + beyond + 1e-9 * expected_ps


def test_table_shapes_and_types():
    deployment, table = TABLES[0]
    assert table.head_ps.shape == (MAX_BATCH + 1,)
    assert table.decode_lines.shape == table.attention_lines.shape == (MAX_BATCH + 1, 4)
    assert table.prefill_ps.shape == (MAX_TOKENS + 1,)
    for array in (table.decode_lines, table.attention_lines, table.head_ps, table.prefill_ps):
        assert array.dtype == np.int64
    assert not table.decode_lines[0].any()
    assert table.head_ps[0] == table.prefill_ps[0] == 0
    assert (np.diff(table.decode_lines, axis=0) >= 0).all()
    assert (np.diff(table.prefill_ps) >= 0).all()
    assert (table.layers, table.bs_sat, table.kv_blocks) == (28, 340, deployment.kv_blocks)
    assert table.kv_bytes_per_token == 57_344
    assert decode_latency_ps(table, 0, 0) == prefill_latency_ps(table, []) == 0


def test_overheads_count_by_iteration_and_by_layer():
    engine = deploy(chip="ascend_910c", model="qwen2_5_7b", timing="ooco_xllm")
    paper = deploy(chip="ascend_910c", model="qwen2_5_7b")
    prompt = [(250, 250)]
    added = iteration_latency(paper, prefill=prompt) - iteration_latency(engine, prefill=prompt)
    assert added == pytest.approx(18e-3)
    assert iteration_latency(paper, decode=[250]) == iteration_latency(engine, decode=[250])
    gpu = deploy(chip="h100", model="qwen2_5_7b")
    assert gpu.form.overhead_s(gpu.shard, "prefill") == pytest.approx(28 * gpu.chip.prefill_layer_overhead_s)
    assert gpu.form.overhead_s(gpu.shard, "decode") == pytest.approx(28 * gpu.chip.decode_layer_overhead_s)


def test_grouped_queries_read_fewer_keys():
    """The paper's Table 3 prints H_q / H_kv, which would make it 28 / 4 squared = 49 times more."""
    deployment = deploy(chip="ascend_910c", model="qwen2_5_7b")
    per_token_s = deployment.form.attention(deployment.shard, "decode").roofs_s[1, 2]
    assert per_token_s == pytest.approx(deployment.kv_bytes_per_token / deployment.chip.attention_memory_bytes_per_s)


def test_a_new_form_is_one_file(tmp_path, monkeypatch):
    (tmp_path / "twice.py").write_text(
        "from ooco_gym.perf.timing import ooco\n\n"
        "class Form(ooco.Form):\n"
        "    def attention(self, shard, phase):\n"
        "        attention = super().attention(shard, phase)\n"
        "        return attention._replace(roofs_s=2 * attention.roofs_s)\n")
    monkeypatch.setattr(timing, "__path__", [*timing.__path__, str(tmp_path)])
    try:
        assert "twice" in timing.list_timings()
        table = cost_table(deploy(chip="ascend_910c", model="qwen2_5_7b", timing="twice"), MAX_BATCH, MAX_TOKENS)
    finally:
        sys.modules.pop("ooco_gym.perf.timing.twice", None)
        timing.timing_form.cache_clear()
    np.testing.assert_allclose(table.attention_lines, 2 * TABLES[0][1].attention_lines, atol=1)
