"""Leave one chip out, on made-up tables whose times are those of two shipped chips' kernels."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from experiments.validity import page, transfer
from experiments.validity.__main__ import main
from ooco_gym.perf import load_chip, load_model
from ooco_gym.perf.timing import kernels
from ooco_gym.perf.timing.extended import fused_linears

SYSTEMS = {"h100_sxm": "h100", "h200_sxm": "h200"}
TOKENS = (16, 64, 256, 1024)


def write(path, op, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"framework": "vLLM", "version": "0.24.0", "device": "made", "op_name": op, "kernel_source": "made", **row}
            for row in rows]
    pq.write_table(pa.table({name: [row[name] for row in rows] for name in rows[0]}), path)


def gemm_rows(chip, model):
    shapes = {(one.d_in, one.d_out) for one in fused_linears(model, 1)}
    return [{"gemm_dtype": "bfloat16", "m": m, "n": n, "k": k,
             "latency": 1e3 * float(kernels.gemm_s(chip.extended.gemm, m, k, n))} for k, n in shapes for m in TOKENS]


def decode_rows(chip, model):
    form = kernels.decode_attention(chip.extended.decode_attention, model.heads, model.kv_heads, model.head_dim)
    rows = []
    for batch in TOKENS[:3]:
        for context in (64, 512, 4096):
            total, requests = np.array([batch * context]), np.array([batch])
            rows.append({"attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "batch_size": batch, "isl": context,
                         "num_heads": model.heads, "num_key_value_heads": model.kv_heads, "head_dim": model.head_dim,
                         "step": 0, "latency": 1e3 * float(form.seconds(total, requests, total, requests)[0])})
    return rows


@pytest.fixture
def tables(tmp_path):
    folder, model = tmp_path / "data", load_model("llama_3_1_8b")
    for system, name in SYSTEMS.items():
        chip = load_chip(name)
        write(folder / system / "gemm" / "vllm" / "0.24.0" / "gemm_perf.parquet", "gemm", gemm_rows(chip, model))
        write(folder / system / "gemm" / "vllm" / "0.9.0" / "gemm_perf.parquet", "gemm",
              [row | {"latency": 9 * row["latency"]} for row in gemm_rows(chip, model)])
        write(folder / system / "attention" / "vllm" / "0.24.0" / "generation_attention_perf.parquet",
              "generation_attention", decode_rows(chip, model))
    return folder


def test_every_chip_is_judged_with_every_efficiency(tmp_path, tables, capsys):
    out = tmp_path / "docs"
    assert main([f"aiconfigurator={tables}", "only=transfer", f"out={out}", "workers=1"]) == 0
    assert "transfer: measured" in capsys.readouterr().out
    record = json.loads((tmp_path / "results" / "validity" / "transfer.json").read_text())
    assert set(record["data"]) == {"aiconfigurator/h100_sxm", "aiconfigurator/h200_sxm"}
    pairs = {(item["of"], item["on"]): item for item in record["figures"]["pairs"]}
    assert len(pairs) == 4
    for name in SYSTEMS.values():  # the newest version's tables, made of the chip's own kernels: nothing is off
        own = pairs[name, name]
        assert own["iterations"]["extended"]["worst"] < 0.1
        assert all(item["worst"] < 0.1 for item in own["operators"].values())
    other = pairs["h200", "h100"]
    assert 0.5 < other["iterations"]["extended"]["mape"] < 40
    assert {"gemm", "attn_decode"} == set(other["operators"])
    text = (out / "validity.md").read_text()
    assert "### Leave one chip out" in text and "| H100 | `extended` | 0 % (+0 %) | H200 |" in text


def test_without_tables_the_last_figures_stay(tmp_path, capsys):
    out = tmp_path / "docs"
    assert main(["only=transfer", f"out={out}"]) == 0
    assert "nothing to show, no folder was given by `aiconfigurator=`" in capsys.readouterr().out
    assert main([f"aiconfigurator={tmp_path}", "only=transfer", f"out={out}"]) == 0
    assert "tables of fewer than two of our chips" in capsys.readouterr().out


def test_every_card_is_a_shipped_chip_that_was_measured():
    names = [card.chip for card in transfer.CARDS]
    assert len(set(names)) == len(names)
    for card in transfer.CARDS:
        assert not load_chip(card.chip).like and card.nearest in names and card.nearest != card.chip
    assert "transfer" in page.SECTIONS
