"""The command as a user runs it: from a file to a chip that loads, and mistakes in one sentence."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from ooco_gym.calibrate import chip as chips
from ooco_gym.calibrate.rows import COLUMNS, Rows
from ooco_gym.calibrate.sources import Context, read
from ooco_gym.cli import main
from ooco_gym.perf.chip import load_chip
from ooco_gym.perf.deployment import Deployment
from ooco_gym.perf.model import load_model
from ooco_gym.perf.table import cost_table, decode_latency_ps
from tests.calibrate import synthetic

SHEET = ["chip.memory_bytes=80e9", "chip.peak_flops_per_s=312e12", "chip.peak_memory_bytes_per_s=2.039e12",
         "chip.peak_link_bytes_per_s=300e9"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    measurements = synthetic.rows()
    measurements[5]["time_us"] = -1.0
    data = synthetic.write(folder / "rows.csv", measurements)
    assert main(["calibrate", f"data={data}", *SHEET, f"out={folder / 'out'}"]) == 0
    return folder / "out"


def test_summary_has_errors_by_operator_and_form(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    mape = {(one["operation"], one["form"]): one["mape"] for one in summary["errors"]}
    assert all(mape[op, "extended"] < 4 for op in ("gemm", "attn_prefill", "attn_decode", "all_reduce", "iterations"))
    assert mape["iterations", "ooco"] < 12 and {one["verdict"] for one in summary["errors"]} <= {"good", "fair"}
    wrong = [item for item in summary["excluded"] if not item["reason"].startswith(("keys read", "fewer", "weights"))]
    assert [(item["rows"], item["first"]) for item in wrong] == [(1, ["rows.csv, row 7"])]
    assert summary["device"] == "testchip" and len(summary["sha256"]["rows.csv"]) == 64
    assert any(text.startswith("elementwise") for text in summary["not_fitted"])


def test_the_chip_loads_and_serves_every_form(run: Path) -> None:
    chip = load_chip(run / "chip.yaml")
    assert chip.name == "testchip" and chip.extended is not None and chip.extended.gemm is not None
    assert chip.validity is not None and chip.validity.max_batch == 64 and chip.validity.tp == (1, 2, 4, 8)
    model = load_model("llama_3_1_8b")
    steps = [decode_latency_ps(cost_table(Deployment(chip, model, timing=form), 64, 512), 64, 64 * 1024)
             for form in ("ooco", "extended", "measured")]
    assert max(steps) < 1.3 * min(steps)
    assert "SHA-256" in chip.sources["data"] and "MAPE" in chip.sources["gemm_flops_per_s"]
    assert "as given" in chip.sources["datasheet"]


def test_tables_have_the_schema(run: Path) -> None:
    table = pq.read_table(run / "tables.parquet")
    assert table.column_names == list(COLUMNS) and table.num_rows > 100
    again = Rows.join(read(run / "tables.parquet", Context()).rows)
    rows = json.loads((run / "summary.json").read_text())["rows"]
    assert {op: len(again.of_kind(op)) for op in rows} == rows


@pytest.mark.parametrize("words, message", [
    ([], "needs data=FILE"),
    (["data=missing.csv"], "'missing.csv' does not exist"),
    (["data=rows.csv"], "device 'testchip' is no known chip, so chip.memory_bytes is needed"),
    (["data=rows.csv", "base=a100_80g", "seed=-1"], "seed=-1 must be a whole number of at least 0"),
    (["refit"], "unknown action of ooco-gym calibrate 'refit'"),
])
def test_mistakes_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
                                   words: list[str], message: str) -> None:
    synthetic.write(tmp_path / "rows.csv", synthetic.rows()[:40])
    monkeypatch.chdir(tmp_path)
    assert main(["calibrate", *words, "out=run"]) == 2
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error


def test_few_operators_are_enough_and_missing_ones_are_named(tmp_path: Path) -> None:
    gemms = [row for row in synthetic.rows() if row["op"] == "gemm"]
    data = synthetic.write(tmp_path / "rows.csv", gemms)
    assert main(["calibrate", f"data={data}", "base=a100_80g", "name=mine", f"out={tmp_path / 'out'}"]) == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert [one["operation"] for one in summary["errors"]] == ["gemm"]
    chip = load_chip(tmp_path / "out" / "chip.yaml")
    assert chip.name == "mine" and chip.extended is not None and chip.extended.decode_attention is None
    assert "not measured" in chip.sources["attention_memory_bytes_per_s"]
    assert any(text.startswith("ooco: ") and "timing=extended" in text for text in summary["not_fitted"])
    assert chip.gemm_flops_per_s == load_chip("a100_80g").gemm_flops_per_s


def test_several_devices_must_be_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measurements = [row | ({"device": "links"} if row["op"] == "all_reduce" else {}) for row in synthetic.rows()]
    data = synthetic.write(tmp_path / "rows.csv", measurements)
    assert main(["calibrate", f"data={data}", "base=a100_80g", f"out={tmp_path / 'a'}"]) == 2
    assert "the data are of 2 devices; choose one with device=NAME" in capsys.readouterr().err
    assert main(["calibrate", f"data={data}", "device=links", "base=a100_80g", f"out={tmp_path / 'b'}"]) == 0
    summary = json.loads((tmp_path / "b" / "summary.json").read_text())
    assert summary["rows"]["gemm"] == 0 and "left out, of other devices: testchip" in summary["notes"]


def test_a_chip_s_name_finds_its_device_and_shared_data_are_found_by_name(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measurements = [row | {"device": "h200_sxm"} for row in synthetic.rows() if row["op"] == "all_reduce"]
    (tmp_path / "tables").mkdir()
    synthetic.write(tmp_path / "tables" / "rows.csv", measurements)
    monkeypatch.setenv("OOCO_GYM_DATA", str(tmp_path))
    assert main(["calibrate", "data=tables", "device=h200", f"out={tmp_path / 'out'}"]) == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["device"] == summary["base"] == "h200"
    assert any("device 'h200' is 'h200_sxm' in the data" in note for note in summary["notes"])


@pytest.mark.parametrize("device, name", [("a100_sxm", "a100_80g"), ("vidur_a40", "a40"), ("h200_sxm", "h200"),
                                          ("NVIDIA H100", "h100"),
                                          ("RTX 4090", "rtx4090"), ("tpu_v5", "")])
def test_devices_of_public_tables_are_known_chips(device: str, name: str) -> None:
    assert chips.chip_named(device) == name


def _shared(name: str) -> Path:
    folder = os.environ.get("OOCO_GYM_DATA")
    if not folder or not (Path(folder) / name).exists():
        pytest.skip(f"OOCO_GYM_DATA does not name a folder that holds {name}")
    return Path(folder) / name


@pytest.mark.data
def test_a_real_run_s_kernel_tables_make_a_chip(tmp_path: Path) -> None:
    data = _shared("runs/rtx4090_llama31_8b")
    assert main(["calibrate", f"data={data}", "device=rtx4090", f"out={tmp_path}"]) == 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    mape = {(one["operation"], one["form"]): one["mape"] for one in summary["errors"]}
    assert mape["iterations", "ooco"] < 7 and mape["iterations", "extended"] < 4.5
    assert {"gemm", "attn_prefill", "attn_decode", "elementwise", "sampler"} <= {operation for operation, _ in mape}


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize("device, decode", [("a100_sxm", 15.0), ("h200_sxm", 9.0)])
def test_published_tables_are_met_as_promised(tmp_path: Path, device: str, decode: float) -> None:
    data = _shared("profiles")
    assert main(["calibrate", f"data={data}", f"device={device}", f"out={tmp_path}"]) == 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    limits = {"gemm": 7.0, "attn_prefill": 7.5, "attn_decode": decode, "all_reduce": 10.0, "iterations": 4.0}
    mape = {(one["operation"], one["form"]): one["mape"] for one in summary["errors"]}
    assert all(mape[op, "extended"] <= limit for op, limit in limits.items()) and mape["iterations", "ooco"] <= 6.5
