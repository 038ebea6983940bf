"""The validity page's table: what is committed, and the three parts of it on made-up measurements."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from docs.generators import published, validity
from ooco_gym.perf import kernels, load_chip, load_model
from ooco_gym.perf.timing.extended import fused_linears

SYSTEMS = {"h100_sxm": "h100", "h200_sxm": "h200"}
TOKENS = (16, 64, 256, 1024)


def test_the_committed_table_is_what_its_figures_say():
    assert (validity.ROOT / validity.PAGE).read_text(encoding="utf-8") == validity.written(validity.ROOT)
    figures = validity.read_figures(validity.ROOT)
    assert (validity.ROOT / validity.CLOCKS).read_text(encoding="utf-8") == validity.clocks(figures)
    assert set(figures) == {*validity.PARTS, published.NAME}
    assert {card.chip for card in validity.JUDGED_UNSEEN} == set(figures["unseen"])
    assert {card.chip for card in validity.CARDS} == set(figures["left_out"])


def test_iterations_of_unseen_architectures_are_as_near_as_wanted():
    for name, row in validity.read_figures(validity.ROOT)["unseen"].items():
        for form, most in validity.MOST_PERCENT.items():
            assert row["forms"][form]["mape"] <= most, (name, form)


def write(path, op, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"framework": "vLLM", "version": "0.24.0", "device": "made", "op_name": op, "kernel_source": "made", **row}
            for row in rows]
    pq.write_table(pa.table({name: [row[name] for row in rows] for name in rows[0]}), path)


def gemm_rows(chip, models):
    shapes = {(one.d_in, one.d_out) for model in models for one in fused_linears(model, 1)}
    return [{"gemm_dtype": "bfloat16", "m": m, "n": n, "k": k,
             "latency": 1e3 * float(kernels.gemm_s(chip.extended.gemm, m, k, n))} for k, n in shapes for m in TOKENS]


def decode_rows(chip, models):
    rows = []
    for heads in {(model.heads, model.kv_heads, model.head_dim) for model in models}:
        form = kernels.decode_attention(chip.extended.decode_attention, *heads)
        for batch in TOKENS[:3]:
            for context in (64, 512, 4096):
                total, requests = np.array([batch * context]), np.array([batch])
                rows.append({"attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "batch_size": batch,
                             "isl": context, "num_heads": heads[0], "num_key_value_heads": heads[1],
                             "head_dim": heads[2], "step": 0,
                             "latency": 1e3 * float(form.seconds(total, requests, total, requests)[0])})
    return rows


@pytest.fixture
def tables(tmp_path):
    """Tables of two chips, in aiconfigurator's layout, whose times are those of the shipped chips' kernels."""
    folder, models = tmp_path / "tables", [load_model("llama_3_1_8b"), load_model("qwen2_5_72b")]
    for system, name in SYSTEMS.items():
        chip = load_chip(name)
        write(folder / system / "gemm" / "vllm" / "0.24.0" / "gemm_perf.parquet", "gemm", gemm_rows(chip, models))
        write(folder / system / "gemm" / "vllm" / "0.9.0" / "gemm_perf.parquet", "gemm",
              [row | {"latency": 9 * row["latency"]} for row in gemm_rows(chip, models)])
        (folder / system / "gemm" / "vllm" / "0.30.0").mkdir()  # a version without tables of its own
        write(folder / system / "attention" / "vllm" / "0.24.0" / "generation_attention_perf.parquet",
              "generation_attention", decode_rows(chip, models))
    return folder


def test_chips_are_judged_by_the_newest_tables(tmp_path, tables, capsys):
    out = tmp_path / "out"
    words = [f"aiconfigurator={tables}", "workers=1", f"out={out}"]
    assert validity.main([*words, f"data={tmp_path}"]) == 0
    said = capsys.readouterr().out
    assert "unseen: measured h100" in said and "left_out: measured h100, h200" in said and "replayed: no data" in said
    figures = validity.read_figures(out)
    assert figures["unseen"]["h100"]["forms"]["extended"]["mape"] < 5
    for name in SYSTEMS.values():  # the newest version's tables, made of the chip's own kernels: nothing is off
        row = figures["left_out"][name]["forms"]["extended"]
        assert row["own"]["worst"] < 0.1 and 0.5 < row["near"]["mape"] < 40 and row["others"] == []
    page = (out / validity.PAGE).read_text(encoding="utf-8")
    assert "| H100 | H200 | " in page and "| H200 | H100 | " in page and str(tmp_path) not in page


def test_what_is_not_measured_keeps_its_last_figures_and_the_text_around_the_table(tmp_path, monkeypatch):
    monkeypatch.delenv("OOCO_GYM_DATA", raising=False)
    files = (validity.FIGURES, validity.PAGE, validity.CLOCKS)
    for name in files[:2]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((validity.ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    assert validity.main([f"out={tmp_path}"]) == 0
    for name in files:
        assert (tmp_path / name).read_text(encoding="utf-8") == (validity.ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(("words", "message"), [(["dat=x"], "did you mean 'data'"), (["data=/nowhere"], "/nowhere"),
                                                (["workers=0"], "workers"), (["workers=few"], "workers")])
def test_mistakes_are_named(words, message, tmp_path, capsys):
    assert validity.main([*words, f"out={tmp_path}"]) == 2
    assert message in capsys.readouterr().err
