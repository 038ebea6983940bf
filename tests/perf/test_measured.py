"""`timing=measured`: what was measured comes out, the roofline goes on where nothing was, and says so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooco_gym.errors import UserError
from ooco_gym.perf import Deployment, cost_table, decode_latency_ps, load_model, prefill_latency_ps
from ooco_gym.perf.command import describe_iteration, prefill_saturation
from ooco_gym.perf.kernels import gemm_s
from ooco_gym.perf.measurements import MeasuredCurve, Surface
from ooco_gym.perf.timing.measured import unmeasured
from tests.perf.perf_chips import decode_s, deploy, measured_rows, prefill_s, write_tables

MODEL = load_model("llama_3_1_8b")
LAYERS = MODEL.layers


@pytest.fixture
def tables(tmp_path: Path) -> str:
    return write_tables(tmp_path / "tables.parquet", measured_rows(MODEL))


def dense_us(deployment: Deployment, tokens: float) -> dict[str, float]:
    costs = deployment.form.dense(deployment.shard, np.array([tokens]))
    return {cost.name: 1e6 * float(cost.seconds[0]) for cost in costs}


def test_measured_sizes_come_out_and_sizes_between_lie_between(tables):
    deployment = deploy("measured", tables=tables)
    assert unmeasured(deployment.shard) == []
    for tokens in (1, 8, 64, 512, 36, 300):
        times = dense_us(deployment, tokens)
        for name in ("qkv", "o", "gate_up", "down"):
            assert times[name] == pytest.approx(LAYERS * (20 + 0.3 * tokens))
        assert times["norm"] == pytest.approx((2 * LAYERS + 1) * (2 + 0.01 * tokens))
        assert times["rotary"] == times["activation"] == pytest.approx(LAYERS * (2 + 0.01 * tokens))
        assert times["embedding"] == pytest.approx(2 + 0.01 * tokens)
        head = {cost.name: 1e6 * float(cost.seconds[0])
                for cost in deployment.form.head(deployment.shard, np.array([float(tokens)]))}
        assert head == pytest.approx({"lm_head": 900 + tokens, "sampler": 2 + 0.01 * tokens})


def test_beyond_the_measured_sizes_the_roofline_goes_on(tables):
    deployment, roofline = deploy("measured", tables=tables), deploy("extended")
    ours, theirs = ([dense_us(one, tokens) for tokens in (512, 4096)] for one in (deployment, roofline))
    for name in ("qkv", "down", "norm", "activation"):
        assert ours[1][name] / ours[0][name] == pytest.approx(theirs[1][name] / theirs[0][name])
    attention = deployment.form.measured_attention(deployment.shard)
    assert attention is not None
    near, far = attention.decode_s(np.array([32.0, 256.0]), np.array([4096.0, 16_384.0]))
    roof = roofline.form.attention(roofline.shard, "decode")
    assert far / near == pytest.approx(decode_s(roof, 256, 16_384) / decode_s(roof, 32, 4096))


def test_what_was_not_measured_takes_the_rooflines_time_and_is_said(tmp_path):
    rows = [row for row in measured_rows(MODEL) if row["op"] not in ("gemm:down", "attn_prefill", "elt:act_fn")]
    partial = deploy("measured", tables=write_tables(tmp_path / "some.parquet", rows))
    assert unmeasured(partial.shard) == ["down", "activation", "prefill attention"]
    roofline = deploy("extended")
    ours, theirs = dense_us(partial, 100), dense_us(roofline, 100)
    assert ours["down"] == pytest.approx(theirs["down"])
    assert ours["activation"] == pytest.approx(theirs["activation"])
    attention = partial.form.measured_attention(partial.shard)
    assert attention is not None
    roof = roofline.form.attention(roofline.shard, "prefill")
    expected = [prefill_s(roof, q, kv) for q, kv in ((100, 100), (300, 5000))]
    np.testing.assert_allclose(attention.prefill_s(np.array([100.0, 300.0]), np.array([100.0, 5000.0])), expected)


@pytest.mark.parametrize(("extended", "stand_in"), [(None, "ooco"), ({}, "extended")])
def test_a_chip_without_tables_is_timed_by_its_roofline(extended, stand_in):
    ours, theirs = (deploy(timing, extended=extended) for timing in ("measured", stand_in))
    assert unmeasured(ours.shard) == ["all operators"]
    batches: list[dict[str, Any]] = [{"decode": [1000] * 32}, {"prefill": [(700, 900)]}]
    for batch in batches:
        assert describe_iteration(ours, **batch).latency_s == describe_iteration(theirs, **batch).latency_s
    assert ours.bs_sat == theirs.bs_sat


def test_widths_between_measured_ones_take_their_ratio_to_the_roofline(tmp_path):
    """The four layers around one are all 1.5 times slower than the roofline, so it is as well."""
    roofline = deploy("extended")
    gemm = roofline.chip.extended.gemm  # pyright: ignore[reportOptionalMemberAccess]
    rows = [{"op": "gemm", "n_tokens": n, "d_in": k, "d_out": m,
             "time_us": 1.5e6 * float(gemm_s(gemm, n, k, m))}  # pyright: ignore[reportArgumentType]
            for n in (1, 16, 256, 4096) for k in (3072, 16_384) for m in (3072, 32_768)]
    deployment = deploy("measured", tables=write_tables(tmp_path / "grid.parquet", rows))
    assert not {"qkv", "o", "gate_up", "down"} & set(unmeasured(deployment.shard))
    assert "lm_head" in unmeasured(deployment.shard)  # 128,256 columns: beyond the grid
    ours, theirs = dense_us(deployment, 256), dense_us(roofline, 256)
    for name in ("qkv", "o", "gate_up", "down"):
        assert ours[name] == pytest.approx(1.5 * theirs[name])


def test_the_fastest_all_reduce_of_a_size_counts(tmp_path):
    rows: list[dict[str, Any]] = [
        {"op": "all_reduce", "n_gpus": 4, "bytes": size, "kernel": kernel, "time_us": time}
        for size, kernel, time in ((8192, "custom", 5), (8192, "nccl", 12), (8_388_608, "custom", 90),
                                   (8_388_608, "nccl", 60))]
    deployment = deploy("measured", tp=4, tables=write_tables(tmp_path / "links.parquet", rows))
    assert dense_us(deployment, 1)["all_reduce"] == pytest.approx(65 * 5)
    assert dense_us(deployment, 1024)["all_reduce"] == pytest.approx(65 * 60)


def test_the_cost_table_holds_the_measurements(tables):
    """One prompt at a time: within 3 % of the sum of what was measured; decode, two lines a batch: within 7 %."""
    deployment = deploy("measured", tables=tables)
    table = cost_table(deployment, 64, 4096)
    for batch, context in ((1, 300), (4, 256), (32, 1000)):
        expected = describe_iteration(deployment, decode=[context] * batch).latency_s
        assert decode_latency_ps(table, batch, batch * context) / 1e12 == pytest.approx(expected, rel=0.07)
    for prompt in ((256, 256), (300, 5000), (2048, 2560)):
        expected = describe_iteration(deployment, prefill=[prompt]).latency_s
        assert prefill_latency_ps(table, [prompt]) / 1e12 == pytest.approx(expected, rel=0.03)
    assert prefill_saturation(deployment) is not None


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_curves_never_fall_where_the_data_do_not(data):
    sizes = np.array(sorted(data.draw(st.sets(st.integers(1, 5000), min_size=2, max_size=8))), dtype=np.float64)
    times = np.cumsum(data.draw(st.lists(st.floats(1e-6, 1.0), min_size=len(sizes), max_size=len(sizes))))
    curve, power = MeasuredCurve(sizes, times), data.draw(st.booleans())
    wanted = np.array(sorted(data.draw(st.lists(st.integers(1, 20_000), min_size=2, max_size=20))), dtype=np.float64)

    def roof(at: np.ndarray) -> np.ndarray:
        return 1e-5 + 1e-8 * at

    taken = curve.seconds(wanted, roof)
    assert (np.diff(taken) >= -1e-12).all() and (taken > 0).all()
    np.testing.assert_allclose(curve.seconds(sizes, roof), times)
    surface = Surface({2.0: curve, 16.0: MeasuredCurve(sizes, 3 * times)}, power)
    outer = np.geomspace(1, 100, 15)
    across = surface.seconds(outer, np.full(15, wanted[0]), lambda a, b: 1e-5 + 1e-8 * a * b)
    assert (np.diff(across) >= -1e-12).all() and np.isfinite(across).all()
    np.testing.assert_allclose(surface.seconds(np.full(len(sizes), 16.0), sizes, lambda a, b: a + b), 3 * times)


@pytest.mark.parametrize(("rows", "message"), [
    ([{"operator": "gemm", "time_us": 1.0}], "column 'op' is missing; found: operator, time_us"),
    ([{"op": "gemm", "time_us": 1.0}, {"op": "gemm", "time_us": -2.0}], "row 2: time_us must be positive, got -2"),
    ([{"op": "gemm", "time_us": "fast"}], "column 'time_us' must hold numbers"),
])
def test_bad_tables_are_named(tmp_path, rows, message):
    path = write_tables(tmp_path / "bad.parquet", rows)
    with pytest.raises(UserError, match=re.escape(message)) as error:
        cost_table(deploy("measured", tables=path), 8, 8)
    assert "chip 'h200_kernels': tables '" in str(error.value)


def test_missing_folder_and_broken_tables_are_named(tmp_path):
    with pytest.raises(UserError, match="does not exist; expected a Parquet file"):
        cost_table(deploy("measured", tables=str(tmp_path / "none.parquet")), 8, 8)
    with pytest.raises(UserError, match="is a folder; expected a Parquet file of measured operators: ooco-gym calib"):
        cost_table(deploy("measured", tables=str(tmp_path)), 8, 8)
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(UserError, match="cannot be read as Parquet"):
        cost_table(deploy("measured", tables=str(tmp_path / "torn.parquet")), 8, 8)
