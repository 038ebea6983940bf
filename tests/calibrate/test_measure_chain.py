"""The chain from measured iterations to a simulation, on an engine whose times are a formula: it must come out even."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_measure import plan

from experiments.common.replay import compare, served
from experiments.studies.engine_chain import (
    close,
    errors,
    fit_iterations,
    held_out,
    model_of,
    read_iterations,
    write_chip,
)
from ooco_gym.calibrate.measure import measure
from ooco_gym.errors import UserError
from ooco_gym.perf import Deployment, cost_table, decode_latency_ps, prefill_latency_ps

MODEL = {"num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
         "head_dim": 32, "intermediate_size": 256, "vocab_size": 1000}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A measurement of the fake engine, which takes no time to take in a request and tells no model of its own."""
    out = tmp_path_factory.mktemp("measured")
    shipped = plan()
    measure(plan(settings={**shipped["settings"], "admission_us": 0.0}), out)
    facts = json.loads((out / "engine.json").read_text())
    (out / "engine.json").write_text(json.dumps({**facts, "model_config": MODEL, "dtype": "float32"}))
    return out


def test_a_formula_is_found_again(measured: Path) -> None:
    rows = read_iterations(measured / "iterations.parquet")
    model = fit_iterations(rows)
    found = errors(model, rows)
    assert found["worst"] < 0.01 and abs(found["bias"]) < 0.01 and held_out(rows)["worst"] < 0.01
    assert model.work == pytest.approx(0.05, rel=1e-3) and model.decode_context == pytest.approx(0.5, rel=1e-3)
    assert model.step == pytest.approx(1020.0, rel=1e-3)            # no iteration is without a token
    for load in ("light", "half", "saturated"):
        assert errors(model, read_iterations(measured / "serve" / load / "iterations.parquet"))["worst"] < 0.05


def test_the_chain_comes_out_even(measured: Path, tmp_path: Path) -> None:
    found = close(measured, tmp_path)
    # What is left is the table's interpolation; where requests arrive beside an iteration's end, a median may jump.
    assert found["closed"] and found["worst_median_error"] < 4.0
    for load in found["loads"].values():
        assert all(abs(load[f"{name}_mean_error"]) < 1.0 for name in ("ttft", "tpot", "e2e"))
        assert load["iterations_simulated"] == pytest.approx(load["iterations_real"], rel=0.005)
    page = (tmp_path / "chain.html").read_text()
    assert "half: TTFT (ms)" in page and "simulated" in page
    saturated = found["loads"]["saturated"]
    assert saturated["ttft_median_ms_real"] > 5 * found["loads"]["light"]["ttft_median_ms_real"]


def test_a_wrong_fit_shows(measured: Path, tmp_path: Path) -> None:
    """The comparison is one: an engine that was twice as slow while it was fitted is not within 15 %."""
    import pyarrow.parquet as pq

    copy = tmp_path / "copy"
    shutil.copytree(measured, copy)
    table = pq.read_table(copy / "iterations.parquet")
    slow = table.set_column(table.column_names.index("time_us"), "time_us", [2.0 * table["time_us"].to_numpy()])
    pq.write_table(slow, copy / "iterations.parquet")
    found = close(copy, tmp_path / "out")
    assert not found["closed"] and found["loads"]["light"]["tpot_median_error"] > 80.0


def test_the_chip_takes_as_long_as_the_fit(measured: Path, tmp_path: Path) -> None:
    rows = read_iterations(measured / "iterations.parquet")
    fitted = fit_iterations(rows)
    engine: dict[str, Any] = json.loads((measured / "engine.json").read_text())
    chip = write_chip(tmp_path, fitted, engine, model_of(engine))
    table = cost_table(Deployment.from_config({"chip": str(chip), "model": model_of(engine), "timing": "measured"}),
                       max_batch=8, max_prefill_tokens=128)

    def predicted_us(**sums: float) -> float:
        names = ("tokens", "n_decode", "sequences_sampled", "n_prefill", "prefill_work", "prefill_context_sum",
                 "decode_context_sum")
        return float(fitted.time_us({name: np.array([sums.get(name, 0.0)]) for name in names})[0])

    for batch, context in ((1, 40), (3, 100), (8, 400)):
        expected = predicted_us(tokens=batch, n_decode=batch, sequences_sampled=batch,
                                decode_context_sum=batch * context)
        assert 1e-6 * decode_latency_ps(table, batch, batch * context) == pytest.approx(expected, rel=0.01)
    for prompts in ([(64, 64)], [(20, 20), (30, 30)], [(100, 400)]):
        q, kv = (np.array(part) for part in zip(*prompts, strict=True))
        expected = predicted_us(tokens=q.sum(), sequences_sampled=len(q), n_prefill=len(q),
                                prefill_work=(q * kv).sum(), prefill_context_sum=kv.sum())
        assert 1e-6 * prefill_latency_ps(table, prompts) == pytest.approx(expected, rel=0.03)


@settings(deadline=None, max_examples=25)
@given(noise=st.floats(0.0, 0.3), seed=st.integers(0, 1000))
def test_noise_does_not_bias_the_fit(measured: Path, noise: float, seed: int) -> None:
    """The sum of all times is met although times scatter: what is fitted is a mean."""
    rows = read_iterations(measured / "iterations.parquet")
    draws = np.random.Generator(np.random.Philox(seed))
    rows["time_us"] = rows["time_us"] * draws.uniform(1 - noise, 1 + noise, len(rows["time_us"]))
    assert abs(errors(fit_iterations(rows), rows)["bias"]) < 2.0


def test_disturbed_iterations_are_left_out(measured: Path) -> None:
    rows = read_iterations(measured / "iterations.parquet")
    rows["time_us"] = rows["time_us"].copy()
    rows["time_us"][::100] *= 20.0
    clean = read_iterations(measured / "iterations.parquet")
    assert errors(fit_iterations(rows), clean)["mape"] < 0.5


def test_errors_are_signed_and_of_both_averages() -> None:
    real = served(np.zeros(3), np.array([1.0, 2.0, 6.0]), np.array([2.0, 4.0, 6.0]), np.array([2, 3, 1]))
    assert list(real.tpot_s) == [1.0, 1.0]                   # a single token has no TPOT
    ours = served(np.zeros(3), np.array([1.1, 2.2, 6.6]), np.array([2.0, 4.0, 6.6]), np.array([2, 3, 1]))
    found = compare(real, ours)
    assert found["ttft_median_error"] == pytest.approx(10.0) and found["ttft_mean_error"] == pytest.approx(10.0)
    assert found["tpot_median_error"] == pytest.approx(-10.0)
    assert found["ttft_median_ms_real"] == pytest.approx(2000.0)


def test_what_is_no_measurement_is_one_sentence(tmp_path: Path, measured: Path) -> None:
    with pytest.raises(UserError, match="holds no measurement: expected engine.json"):
        close(tmp_path, tmp_path / "out")
    copy = tmp_path / "copy"
    shutil.copytree(measured, copy)
    (copy / "serve" / "half" / "requests.parquet").unlink()
    with pytest.raises(UserError, match=r"half/requests\.parquet' does not exist"):
        close(copy, tmp_path / "out")
    facts = json.loads((copy / "engine.json").read_text())
    (copy / "engine.json").write_text(json.dumps({**facts, "model_config": {}}))
    with pytest.raises(UserError, match="model_config has no 'num_hidden_layers'"):
        close(copy, tmp_path / "out")


def test_the_command_names_what_it_knows(tmp_path: Path, capsys: pytest.CaptureFixture[str], measured: Path) -> None:
    from omegaconf import OmegaConf

    from experiments.studies import main as experiment

    with pytest.raises(UserError, match=r"unknown experiment 'engine_chian' \(did you mean 'engine_chain'\?\)"):
        experiment(OmegaConf.create({"name": "engine_chian"}))
    keys = {"name": "engine_chain", "measured": str(measured), "chip": None, "timing": "measured"}
    found = experiment(OmegaConf.create({**keys, "out": str(tmp_path / "own")}))
    assert found["schema"] == "ooco-gym/engine_chain/1" and found["closed"]
    assert "saturated" in capsys.readouterr().out
    again = experiment(OmegaConf.create({**keys, "chip": found["chip"], "out": str(tmp_path / "given")}))
    assert again["chip"] == found["chip"] and again["worst_median_error"] == found["worst_median_error"]
    other = experiment(OmegaConf.create({
        **keys, "chip": "a100_80g", "timing": "ooco", "out": str(tmp_path / "other")}))
    assert not other["closed"]                                      # a GPU is no match for the fake engine
