"""The page's generator on a small made-up data folder, and without data."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from experiments.validity import causes, engines, load, operators
from experiments.validity.__main__ import main
from experiments.validity.section import Context, Missing
from ooco_gym.perf.specs import load_chip

COLUMNS = ("device", "model", "tp", "op", "n_tokens", "batch", "context_len", "q_len", "prefix", "d_in", "d_out", "h_q",
           "h_kv", "d_h", "n_gpus", "bytes", "kernel", "time_us", "source")
SHAPES = ((4096, 4096), (4096, 11008), (8192, 4096), (5120, 5120), (3584, 18944), (4096, 6144))
QUICK = "generators,curves,tides,switches,bad_rows,engine"


def gemm(device, source, slower=1.0):
    """Linear layers whose times are a roofline's, with a launch; one size takes another, faster kernel."""
    rows = []
    for d_in, d_out in SHAPES:
        for tokens in (1, 16, 64, 256, 257, 1024, 4096):
            flops, moved = 2 * tokens * d_in * d_out, 2 * (tokens * (d_in + d_out) + d_in * d_out)
            seconds = slower * (5e-6 + flops / 100e12 + moved / 0.5e12) * (0.8 if tokens == 257 else 1.0)
            rows.append({"device": device, "model": "m", "op": "gemm", "n_tokens": tokens, "d_in": d_in,
                         "d_out": d_out, "kernel": "", "time_us": 1e6 * seconds, "source": source})
    return rows


def write_table(path, rows, columns=COLUMNS):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({name: [row.get(name) for row in rows] for name in columns}), path)


@pytest.fixture
def data(tmp_path):
    """Profiles of four chips, traces of a few hundred requests, curves of a week by the hour."""
    folder, draws = tmp_path / "data", np.random.default_rng(5)
    rows = [row for device in ("a100_sxm", "h200_sxm", "vidur_h100", "vidur_a40") for row in gemm(device, "made/1.0")]
    write_table(folder / "profiles" / "calibration.parquet", rows)
    for name in ("azure_conv_2023", "mooncake_conversation_dev", "sharegpt_8k_lengths",
                 "lmsys_vicuna13b_output_lengths"):
        n = 400
        arrivals = np.cumsum(draws.exponential(0.5, n)) if "conv" in name else np.full(n, np.nan)
        columns = {"arrival_s": arrivals, "prompt_tokens": draws.integers(1, 4000, n).astype(np.int32),
                   "output_tokens": draws.integers(1, 500, n).astype(np.int32)}
        if name.startswith("lmsys"):
            columns.pop("prompt_tokens")
        (folder / "traces").mkdir(exist_ok=True)
        pq.write_table(pa.table(columns), folder / "traces" / f"{name}.parquet")
    for service in ("conv", "code"):
        lines = [f"{t},{20 + 10 * np.sin(t / 86400 * 2 * np.pi):.3f},1000,2000" for t in range(1800, 604800, 1800)]
        base = folder / "traces" / f"azure_2024_{service}"
        base.with_name(f"{base.name}_rate_digitised.csv").write_text("\n".join(["t_s,rate_rps,lo_rpm,hi_rpm", *lines]))
        for side in ("prompt", "output"):
            lines = [f"{t},{100 * (1 - np.exp(-t / 900)) - 0.3:.2f},{100 * (1 - np.exp(-t / 900)) + 0.3:.2f},"
                     f"{100 * (1 - np.exp(-t / 900)):.2f}" for t in range(0, 8000, 20)]
            base.with_name(f"{base.name}_{side}_cdf_digitised.csv").write_text(
                "\n".join(["tokens,F_lo,F_hi,F_mid", *lines]))
    return folder


@pytest.fixture
def servegen(tmp_path):
    folder = tmp_path / "servegen"
    for kind in ("m-large", "m-mid", "m-small"):
        chunk = folder / "data" / "language" / kind
        chunk.mkdir(parents=True)
        for client in range(2):
            lines = [f"{600 * step},{1.5 + client + np.sin(step / 144 * 2 * np.pi):.4f},1,Gamma,1,1"
                     for step in range(2016)]
            (chunk / f"chunk-{client}-trace.csv").write_text("\n".join(lines))
    return folder


@pytest.fixture
def chain(tmp_path):
    """What a run of the engine chain leaves."""
    folder, load = tmp_path / "chain", {"requests": 50, "iterations_real": 400, "iterations_simulated": 390}
    for key, real, ours in (("ttft", 10.0, 11.0), ("tpot", 2.0, 1.9)):
        load |= {f"{key}_median_ms_real": real, f"{key}_median_ms_simulated": ours,
                 f"{key}_median_error": 100 * (ours / real - 1), f"{key}_mean_error": 0.0}
    folder.mkdir()
    (folder / "summary.json").write_text(json.dumps({
        "schema": "ooco-gym/engine_chain/1", "held_out_passes": {"mape": 8.0}, "worst_median_error": 10.0,
        "engine": {"engine": "vLLM 0.0", "model": "random", "device": "cpu", "cpu": "a processor", "threads": 1},
        "loads": {"light": load, "half": load}, "measured": str(folder / "measured")}))
    return folder


def record(out, name):
    return json.loads((out.parent / "results" / "validity" / f"{name}.json").read_text(encoding="utf-8"))


def test_a_run_on_made_up_data(tmp_path, data, servegen, chain, monkeypatch, capsys):
    out = tmp_path / "docs"
    monkeypatch.setattr(load, "DAY_RUNS", 1)
    monkeypatch.setattr(load, "MOST_SEEDS", 4)
    words = [f"data={data}", f"out={out}", f"servegen={servegen}", f"chain={chain}", f"only={QUICK}"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert said.count("measured in") == len(QUICK.split(",")) and f"written: {out / 'validity.md'}" in said
    switches = record(out, "switches")["figures"]["devices"]
    assert [item["title"] for item in switches] == ["A100 80 GB", "H200", "H100"]
    assert all(item["worst"]["to"] == 257 and item["worst_percent"] == pytest.approx(-20, abs=1) for item in switches)
    assert all(item["r2"] == pytest.approx(1.0) for item in record(out, "tides")["figures"]["weeks"].values())
    conv, mooncake, sharegpt, lmsys = record(out, "generators")["figures"]["workloads"]
    assert conv["arrivals"]["ks_gaps"] > 0.1 and mooncake["requests"] == 400
    assert sharegpt["arrivals"] is None and lmsys["lengths"]["prompt"] is None
    text = (out / "validity.md").read_text(encoding="utf-8")
    assert "| light | 50 | 10.00 / 11.00 | +10.0 % |" in text and str(tmp_path) not in text
    assert "*Not measured yet: `only=chips` measures it.*" in text
    for name in ("generators", "curves", "tides"):
        assert f"({'validity'}/{name}.svg)" in text and (out / "validity" / f"{name}.svg").is_file()
    first = text
    assert main([f"out={out}", "only=none"]) == 0
    assert (out / "validity.md").read_text(encoding="utf-8") == first


def test_without_data_figures_are_kept_and_it_is_said(tmp_path, data, chain, monkeypatch, capsys):
    monkeypatch.delenv("OOCO_GYM_DATA", raising=False)
    out = tmp_path / "docs"
    assert main([f"data={data}", f"out={out}", "only=switches"]) == 0
    before = record(out, "switches")
    assert main([f"out={out}", "only=switches,engine"]) == 0
    said = capsys.readouterr().out
    assert "switches: kept, no data folder was given" in said and "engine: nothing to show" in said
    after = record(out, "switches")
    assert after["figures"] == before["figures"] and after["run"] == before["run"]
    assert "OOCO_GYM_DATA" in after["kept"]["reason"]
    text = (out / "validity.md").read_text(encoding="utf-8")
    assert "Kept in the run of" in text and "*No figures yet: no folder was given by `chain=`.*" in text
    assert main([f"data={data}", f"out={out}", f"chain={chain}", "only=switches,engine"]) == 0
    assert record(out, "switches")["kept"] is None and record(out, "engine")["figures"]["worst"] == 10.0


def test_chips_of_made_up_data(data, monkeypatch):
    cases = [case for case in operators.CASES if case.title in ("A40", "RTX 4090")]
    monkeypatch.setattr(operators, "CASES", cases)
    context = Context(data)
    figures = operators.measure_chips(context)
    (a40,) = figures["chips"]
    assert a40["title"] == "A40" and a40["sources"] == {"gemm": {"made/1.0": 42}}
    assert set(a40["shapes"]["gemm"]) == {"ooco", "extended"}
    assert a40["shapes"]["gemm"]["extended"]["rows"] == 42 and a40["shapes"]["gemm"]["extended"]["mape"] < 15
    assert set(context.used) == {"profiles/calibration.parquet"} and len(context.used.popitem()[1]) == 64
    text = operators.write_chips(figures)
    assert "A40: prefill attention, decode attention and all-reduce not measured" in text
    assert "*No chip's operators make up whole iterations.*" in text


def test_what_is_missing_is_named(tmp_path, data):
    (data / "profiles" / "calibration.parquet").unlink()
    with pytest.raises(Missing, match="A100, H100, H200, A40 or RTX 4090"):
        operators.measure_chips(Context(data))
    with pytest.raises(Missing, match="the data folder has no `traces/none.csv`"):
        Context(data).file("traces/none.csv")
    (tmp_path / "summary.json").write_text('{"schema": "ooco-gym/simulate/1"}')
    with pytest.raises(Missing, match="holds no run"):
        engines.measure_engine(Context(data, {"chain": [tmp_path]}))


@pytest.mark.parametrize(("words", "message"), [
    (["only=chipz"], "did you mean 'chips'"), (["dat=x"], "did you mean 'data'"), (["chips"], "no KEY=VALUE"),
    (["data=/nowhere/at/all"], "is no folder"), (["workers=0"], "workers=0"),
    (["chain=/nowhere/at/all"], "'/nowhere/at/all' is no folder")])
def test_mistakes_are_named(words, message, tmp_path, capsys):
    assert main([*words, f"out={tmp_path}"]) == 2
    assert message in capsys.readouterr().err


def test_a_malformed_curve_is_named(tmp_path, data, capsys):
    path = data / "traces" / "azure_2024_conv_rate_digitised.csv"
    path.write_text("t_s,rate_rps,lo_rpm,hi_rpm\n0,1,2,3\n1,x,2,3\n")
    assert main([f"data={data}", f"out={tmp_path / 'docs'}", "only=curves"]) == 2
    assert "azure_2024_conv_rate_digitised.csv', line 3" in capsys.readouterr().err


@pytest.fixture
def mixed(tmp_path):
    """Kernels as the recorded run has them: a chunk and decodes take less than, as much as, or twice the sum."""
    rows = [{"prefill_chunk": new, "kv_prefill": 0, "n_decode": batch, "kv_decode": length,
             "time_us": (new / 2 + batch * length / 500) * (1 if not new or not batch else factor)}
            for new in (0, 16, 256) for batch, factor in ((0, 1), (2, 0.8), (32, 1), (128, 2))
            for length in ((16, 256, 1024) if batch else (0,)) if new or batch]
    write_table(tmp_path / causes.RUN / "attention.parquet", rows, tuple(rows[0]))
    (tmp_path / causes.RUN / "engine.json").write_text('{"model": "llama_3_1_8b"}')
    return tmp_path


def test_mixed_kernels_by_their_sum_and_by_a_fit(mixed):
    context = Context(mixed)
    figures = causes.measure_mixed(context)
    few, some, many = figures["groups"]
    assert [group["batches"] for group in (few, some, many, figures["all"])] == [6, 6, 6, 18]
    assert few["sum"]["median"] == pytest.approx(25) and many["sum"]["median"] == pytest.approx(-50)
    assert some["sum"]["mape"] == pytest.approx(0, abs=1e-9)
    assert figures["all"]["kernel"]["mape"] > 0 and {Path(name).name for name in context.used} == {
        "attention.parquet", "engine.json"}
    assert "| 64–256 | 6 | −50 % | −50 % to −50 % | 50.0 % |" in causes.write_mixed(figures)


def test_a_cause_is_switched_off_in_a_chip_of_its_own(tmp_path):
    chip = tmp_path / "chip.yaml"
    chip.write_text(yaml.safe_dump({"extends": "rtx4090"}))
    assert causes._without(str(chip), []) == str(chip)
    for kernels in (["skew"], ["mixed_attention"], causes.KERNELS):
        found, whole = load_chip(causes._without(str(chip), kernels)).extended, load_chip("rtx4090").extended
        assert found is not None and whole is not None
        assert all((getattr(found, name) is None) == (name in kernels) for name in causes.KERNELS)
        assert whole.mixed_attention is not None and found.gemm == whole.gemm
