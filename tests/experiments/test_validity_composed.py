"""Iterations composed of kernel tables: what is added up, and what is left out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments.validity import composed
from experiments.validity.__main__ import main
from ooco_gym.perf import load_model

LAYERS = ("act_fn", "down_proj", "embedding", "final_layernorm", "gate_up_proj", "layernorm", "o_proj", "qk_norm",
          "qkv_proj", "rotary_emb")
# prefill_chunk, kv_prefill, n_decode, kv_decode, time_us
KERNELS = ((0, 0, 4, 256, 10.0), (64, 128, 4, 256, 20.0), (64, 128, 4, 16, 20.0), (2048, 0, 4, 256, 90.0),
           (64, 0, 256, 16384, 900.0), (64, 0, 0, 0, 9.0))


def tables(folder: Path, tp: int) -> Path:
    (folder / f"tp{tp}").mkdir(parents=True)
    files = {"dense": [f"{layer},{tokens},{tokens}" for layer in LAYERS for tokens in (1, 2048)],
             "per_sequence": [f"lm_head,{n},{n}" for n in (1, 256)],
             "attention": [",".join(map(str, row)) for row in KERNELS]}
    for name, rows in files.items():
        (folder / f"tp{tp}" / f"{name}.csv").write_text("\n".join([name, *rows]) + "\n")
    return folder / f"tp{tp}"


def test_iterations_add_up_what_fits_the_memory_and_the_budget(tmp_path: Path) -> None:
    case = composed.Case(composed.PROFILES[1], 1, tables(tmp_path, 1))
    q, before, decodes, contexts, seconds = composed.Tables(case).iterations()
    assert np.array([q, before, decodes, contexts]).T.tolist() == [[0, 0, 4, 256], [64, 128, 4, 256]]
    layers = load_model("qwen3_32b").layers
    # Seven operators and two norms a layer, embedding and last norm once, the head for as many as make a token.
    assert 1e6 * seconds == pytest.approx([layers * (10 + 9 * 4) + 2 * 4 + 4, layers * (20 + 9 * 68) + 2 * 68 + 5])


def test_norms_copied_from_one_chip_are_not_judged(tmp_path: Path) -> None:
    tables(tmp_path, 1)
    two = composed.Tables(composed.Case(composed.PROFILES[1], 2, tables(tmp_path, 2)))
    layers = two.model.layers
    assert 1e6 * two.iterations()[-1][0] == pytest.approx(layers * 10 + (8 * layers + 2) * 4 + 4)


def test_without_tables_the_last_figures_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["only=composed", f"out={tmp_path / 'docs'}"]) == 0
    assert "nothing to show, no folder was given by `llmservingsim=`" in capsys.readouterr().out
    assert main([f"llmservingsim={tmp_path}", "only=composed", f"out={tmp_path / 'docs'}"]) == 0
    assert "has none of the profiles" in capsys.readouterr().out
