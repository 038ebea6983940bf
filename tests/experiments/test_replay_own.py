"""`ooco-gym calibrate replay` of a card, model and degree of one's own, which no file of ours knows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet as pq
import pytest
import yaml

from ooco_gym.cli import main
from ooco_gym.perf import kernels
from ooco_gym.perf.model import ModelSpec, load_model
from ooco_gym.perf.timing.extended import elementwise, fused_linears

MODEL = {"name": "mine", "layers": 4, "hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128,
         "intermediate": 11008, "vocab": 32000, "qk_norm": True}
ENGINE = {"engine": "vLLM", "model": "acme/Mine-2B", "gpu": "Acme 9000", "tensor_parallel": 2,
          "num_gpu_blocks": 4000, "block_tokens": 16, "max_num_seqs": 32, "max_num_batched_tokens": 512}
SHEET = ["chip.memory_bytes=96e9", "chip.peak_flops_per_s=400e12", "chip.peak_memory_bytes_per_s=1.8e12",
         "chip.peak_link_bytes_per_s=64e9"]
GEMM = kernels.GemmParameters(250e12, 1.6e12, 5e-6, 2.5)
PREFILL = kernels.PrefillAttentionParameters(150e12, 1.5e12, 8e-6, 2.0)
DECODE = kernels.DecodeAttentionParameters(80e12, 1.4e12, 12e-6, 2.0, request_head_s=3e-8)
NAMES = {"norm": "layernorm", "activation": "act_fn", "rotary": "rotary_emb", "embedding": "embedding",
         "qk_norm": "qk_norm"}
CONTEXTS = (64, 256, 1024, 2048)
TOKENS = (1, 4, 16, 32, 64, 128, 200, 256, 384, 512, 1024)


def tables(folder: Path, model: ModelSpec, tp: int, chunks: Sequence[int] = (16, 64, 128, 256, 512),
           prefixes: Sequence[int] = (0, 256, 1024), batches: Sequence[int] = (1, 4, 16, 32)) -> None:
    """Kernel times of one chip of `tp`, in the layout of LLMServingSim's profiles."""
    dense = [(name, tokens, kernels.gemm_s(GEMM, tokens, linear.d_in, linear.d_out))
             for name, linear in zip(("qkv_proj", "o_proj", "gate_up_proj", "down_proj"), fused_linears(model, tp),
                                     strict=True) for tokens in TOKENS]
    dense += [(NAMES[one.name], tokens, 2e-6 + one.token_bytes * tokens / 2e12)
              for one in elementwise(model, tp) for tokens in TOKENS]
    heads = (model.heads // tp, model.kv_heads // tp, model.head_dim)
    prefill, decode = kernels.prefill_attention(PREFILL, *heads), kernels.decode_attention(DECODE, *heads)
    attention = [(q, kv, 0, 0, prefill.seconds(*prefill.features(np.array([q]), np.array([q + kv]))))
                 for q in chunks for kv in prefixes]
    attention += [(0, 0, batch, context, decode.seconds(*map(np.asarray, (
        batch * context, batch, batch * context, batch)))) for batch in batches for context in CONTEXTS]
    head = [("lm_head", batch, kernels.gemm_s(GEMM, batch, model.hidden, model.vocab // tp)) for batch in TOKENS]
    write(folder / "dense.csv", ("layer", "tokens"), dense)
    write(folder / "per_sequence.csv", ("layer", "sequences"), head)
    write(folder / "attention.csv", ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode"), attention)


def write(path: Path, names: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    lines = [",".join((*names, "time_us"))]
    lines += [",".join((*map(str, row[:-1]), f"{1e6 * float(np.ravel(row[-1])[0]):.4f}")) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded run, its kernel times and its model."""
    folder = tmp_path_factory.mktemp("own") / "run"
    folder.mkdir()
    (folder.parent / "mine.yaml").write_text(yaml.safe_dump(MODEL))
    tables(folder, load_model(MODEL), 2)
    draws = np.random.Generator(np.random.Philox(2))
    arrival_s = np.sort(draws.uniform(0.0, 3.0, 40))
    rows = {"arrival_s": arrival_s, "prompt_tokens": draws.integers(20, 600, 40),
            "output_tokens": draws.integers(1, 100, 40), "first_token_s": arrival_s + 0.01,
            "last_token_s": arrival_s + 0.5}
    pq.write_table(pyarrow.table(rows), folder / "requests.parquet")
    (folder / "engine.json").write_text(json.dumps(ENGINE))
    return folder


@pytest.fixture(scope="module")
def replayed(folder: Path) -> Path:
    out = folder.parent / "out"
    model, fit = f"model={folder.parent / 'mine.yaml'}", out / "calibration"
    assert main(["calibrate", f"data={folder}", "device=Acme 9000", model, "tp=2", *SHEET, f"out={fit}"]) == 0
    assert main(["calibrate", "replay", f"run={folder}", model, f"chip={fit / 'chip.yaml'}", f"out={out}"]) == 0
    return out


def test_tables_count_for_the_model_and_degree_that_were_served(replayed: Path) -> None:
    table = pq.read_table(replayed / "calibration" / "tables.parquet")
    rows = {name: np.array(table[name].to_pylist()) for name in ("op", "tp", "d_in", "d_out", "h_q", "model")}
    qkv = rows["op"] == "gemm:qkv_proj"
    assert set(rows["tp"]) == {2.0} and set(rows["model"]) == {"mine"}
    assert set(rows["d_out"][qkv]) == {(16 + 2 * 4) * 128.0}
    assert set(rows["h_q"][rows["op"] == "attn_decode"]) == {16.0}
    found = json.loads((replayed / "calibration" / "summary.json").read_text())
    assert not any("no whole layer" in text for text in found["not_fitted"]) and "mine tp2" in (
        found["iterations"])
    chip = yaml.safe_load((replayed / "calibration" / "chip.yaml").read_text())
    assert "iterations composed of measured operators" in chip["sources"]["gemm_flops_per_s"]


def test_summary_says_degree_percentiles_and_what_was_not_measured(replayed: Path) -> None:
    summary = json.loads((replayed / "summary.json").read_text())
    assert summary["tp"] == 2 and summary["model"].endswith("mine.yaml")
    for form in ("measured", "extended", "ooco"):
        for key in ("ttft", "tpot", "e2e"):
            real, ours = (summary["results"][form][f"{key}_p99_ms_{which}"] for which in ("real", "simulated"))
            assert summary["results"][form][f"{key}_p99_error"] == pytest.approx(100 * (ours / real - 1))
    assert any("all_reduce" in text or "all-reduce" in text for text in summary["notes"])
    calibration = json.loads((replayed / "calibration" / "summary.json").read_text())
    assert {one["operation"] for one in calibration["errors"]} >= {"gemm", "attn_decode"}


@pytest.mark.parametrize(("words", "message"), [
    ([], "names the model 'acme/Mine-2B', which is none of"),
    (["model=mine.yaml"], "names no known chip ('gpu'); give chip=NAME or chip=FILE.yaml"),
    (["model=mine.yaml", "chip=mi300x", "timings=[measured]"], "has no tables of measured operators"),
    (["model=mine.yaml", "tp=0"], "tp=0 must be a whole number of at least 1"),
    (["model=other.yaml", "chip=h200"], "other.yaml"),
    (["model=mine.yaml", "chip=h200", "timings=[measrued]"], "did you mean 'measured'"),
])
def test_what_is_missing_is_said_with_words_that_work(folder: Path, monkeypatch: pytest.MonkeyPatch,
                                                      capsys: pytest.CaptureFixture[str], words: list[str],
                                                      message: str) -> None:
    monkeypatch.chdir(folder.parent)
    assert main(["calibrate", "replay", "run=run", *words, "out=bad"]) == 2
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error
