"""What `make validity` measures, on made-up measurements and on a tiny run that was published."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from docs.generators import published, validity, validity_page
from docs.generators.pages import ROOT
from ooco_gym.errors import UserError
from ooco_gym.perf import kernels, load_chip, load_model
from ooco_gym.perf.timing.extended import fused_linears

SYSTEMS = {"h100_sxm": "h100", "h200_sxm": "h200"}
TOKENS = (16, 64, 256, 1024)
CASE = """
tiny:
  title: a tiny run
  url: https://example.org
  text: Nothing.
  seen: "no"
  load: {chip: h100, tp: 1, requests_a_client: 2, spread: [0.5, 1.0], prompt: 64, output: 8}
  command: |-
    policy=vllm_fcfs policy.max_num_seqs=$clients workload.path=$trace workload.sessions=closed
    cluster=mixed_h100_8b "cluster.mixed=[{chip: $chip, tp: $tp}]" drain_s=60
  columns: [clients, tpot_ms, ttft_ms, preemptions]
  rows: [[2, 10, 5, 0], [3, 10, null, 0]]
"""


def test_what_is_on_record_is_all_that_is_measured_and_as_near_as_wanted():
    figures = validity_page.read_figures(ROOT)
    assert set(figures) == {*validity.PARTS, "published"}
    assert {card.chip for card in validity.JUDGED_UNSEEN} == set(figures["unseen"])
    assert {card.chip for card in validity.CARDS} == set(figures["left_out"])
    for name, row in figures["unseen"].items():
        for form in ("ooco", "extended"):
            assert row["forms"][form]["mape"] <= validity_page.TARGETS[form], (name, form)
    for name, source in published.sources().items():
        assert len(figures["published"][name]) == len(source["rows"])


# --- Chips by their tables --------------------------------------------------------------------------------------------
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


def test_chips_are_judged_by_the_newest_tables_and_the_rest_keeps_its_figures(tmp_path, tables, capsys):
    out = tmp_path / "out"
    for name, text in ((validity_page.FIGURES, json.dumps({"kept": {"h100": 1}})),
                       (validity_page.PAGE, f"before\n{validity_page.BEGIN}\n<!-- end of results -->\nafter\n")):
        (out / name).parent.mkdir(parents=True)
        (out / name).write_text(text)
    with pytest.raises(SystemExit):
        validity.main(["--data", "/nowhere"])
    validity.main(["--aiconfigurator", str(tables), "--workers", "1", "--out", str(out), "--data", str(tmp_path)])
    said = capsys.readouterr()
    assert "'/nowhere' does not exist" in said.err and "replayed: no data" in said.out
    figures = validity_page.read_figures(out)
    assert figures["kept"] == {"h100": 1} and figures["replayed"] == {}
    assert figures["unseen"]["h100"]["forms"]["extended"]["mape"] < 5
    for name in SYSTEMS.values():  # the newest version's tables, made of the chip's own kernels: nothing is off
        row = figures["left_out"][name]["forms"]["extended"]
        assert row["own"]["worst"] < 0.1 and 0.5 < row["near"]["mape"] < 40 and row["others"] == []
    page = (out / validity_page.PAGE).read_text(encoding="utf-8")
    assert page.startswith("before\n") and page.endswith("\nafter\n")
    assert "| H100 | H200 | " in page and "| H200 | H100 | " in page and str(tmp_path) not in page


# --- Runs that others published ---------------------------------------------------------------------------------------
@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A file of one source in place of the repository's, in a folder of one's own."""
    path = tmp_path / "published.yaml"
    path.write_text(CASE, encoding="utf-8")
    monkeypatch.setattr(published, "sources", lambda read=published.sources: read(path))
    monkeypatch.setattr(validity_page, "CASES", path)
    monkeypatch.chdir(tmp_path)
    return path


def test_a_tiny_source_is_played_and_written(tmp_path, tiny):
    published.measure(tmp_path, 1)
    found = validity_page.read_figures(tmp_path)["published"]["tiny"]
    assert [one["tpot_ms"][0] for one in found] == [10, 10] and all(one["tpot_ms"][1] > 0 for one in found)
    assert found[1]["ttft_ms"][0] is None and [one["preemptions"] for one in found] == [[0, 0], [0, 0]]
    error = 100 * abs(found[0]["ttft_ms"][1] / 5 - 1)
    page = (tmp_path / validity_page.PAGE).read_text(encoding="utf-8")
    assert "| `tiny` | h100 | 2 | – | " in page and f"| {error:.1f} % (" in page
    assert "2 published runs" in (tmp_path / validity_page.CLOCKS).read_text(encoding="utf-8")


def test_one_row_prints_the_command_that_gives_its_figures(tiny, capsys):
    published.play_row("tiny", "0")
    trace = "outputs/published/tiny_0/trace.parquet"
    said = capsys.readouterr().out
    assert f"ooco-gym simulate policy=vllm_fcfs policy.max_num_seqs=2 workload.path={trace}" in said
    assert "TPOT, ms: measured 10, simulated " in said
    with pytest.raises(UserError, match="unknown row 'tiny 2'"):
        published.play_row("tiny", "2")
    tiny.write_text(CASE.replace("[2, 10, 5, 0]", "[2, 10, 5]"), encoding="utf-8")
    with pytest.raises(UserError, match=r"published.yaml: tiny: row \[2, 10, 5\] has 3 fields, expected 4: clients"):
        published.play_row("tiny", "0")


def test_a_source_whose_file_is_not_at_hand_says_so(monkeypatch):
    monkeypatch.delenv("LLMSERVINGSIM", raising=False)
    with pytest.raises(UserError, match="LLMSERVINGSIM must name a folder"):
        published.play_row("llmservingsim", "0")


def test_clients_wait_for_their_answers_and_prompts_come_again():
    closed = published.trace_of({"clients": 2, "requests": 5, "spread": [0.5, 1.0], "prompt": 100, "output": 10}, 0)
    assert closed is not None and closed.session is not None and closed.think_s is not None
    assert closed.session.tolist() == [0, 1, 0, 1, 0] and np.isnan(closed.think_s[:2]).all()
    assert closed.prompt_tokens.min() >= 50 and closed.prompt_tokens.max() <= 100
    row = {"rate": 2, "duration_s": 3, "prompts": [2, 2], "head": 16, "prompt": 40, "output": 1}
    again = published.trace_of(row, 0)
    assert again is not None and again.prefix_hashes is not None
    assert again.arrival_s.tolist() == [0, 0.5, 1, 1.5, 2, 2.5]
    hashes = again.prefix_hashes[1].reshape(6, 3)
    assert (hashes[4] == hashes[0]).all() and hashes[0, 0] == hashes[1, 0] != hashes[2, 0]
    assert len(np.unique(hashes[:4, 1:])) == 8


def test_bursts_are_those_that_the_source_drew():
    counts = [len(published._bursts(rate, seed)) for rate in (1.0, 2.0) for seed in range(5)]
    assert counts == [22, 32, 21, 25, 28, 41, 47, 37, 43, 50]  # as its output says
