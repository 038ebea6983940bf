"""The chain from measured iterations to a simulation, on an engine whose times are a formula: it must come out even."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from ooco_gym.calibrate.chain import close
from ooco_gym.calibrate.iterations import doubts, errors, fit_iterations, held_out, read_iterations
from ooco_gym.calibrate.measure import measure
from ooco_gym.errors import UserError
from ooco_gym.perf.engine_clock import EngineClock
from tests.calibrate.test_measure import plan
from tests.html_pages import Page

MODEL = {"num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
         "head_dim": 32, "intermediate_size": 256, "vocab_size": 1000}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A measurement of the fake engine, which tells no model of its own."""
    out = tmp_path_factory.mktemp("measured")
    measure(plan(), out)
    facts = json.loads((out / "engine.json").read_text())
    (out / "engine.json").write_text(json.dumps({**facts, "model_config": MODEL, "dtype": "float32"}))
    return out


def test_a_formula_is_found_again(measured: Path) -> None:
    rows = read_iterations(measured / "iterations.parquet")
    model = fit_iterations(rows)
    found, terms = errors(model, rows), model.terms
    assert found["worst"] < 0.01 and abs(found["bias"]) < 0.01 and held_out(rows)["worst"] < 0.01
    assert terms.work == pytest.approx(0.05e-6, rel=1e-3) and terms.decode_context == pytest.approx(0.5e-6, rel=1e-3)
    assert terms.step == pytest.approx(1020e-6, rel=1e-3)            # no iteration is without a token
    for load in ("light", "half", "saturated"):
        assert errors(model, read_iterations(measured / "serve" / load / "iterations.parquet"))["worst"] < 0.05


def test_the_chain_comes_out_even(measured: Path, tmp_path: Path) -> None:
    found = close(measured, tmp_path)
    # What is left is the table's interpolation; where requests arrive beside an iteration's end, a median may jump.
    assert found["closed"] and found["worst_median_error"] < 4.0
    for load in found["loads"].values():
        assert all(abs(load[f"{name}_mean_error"]) < 1.0 for name in ("ttft", "tpot", "e2e"))
        assert load["iterations_simulated"] == pytest.approx(load["iterations_real"], rel=0.005)
    page = Page(tmp_path / "chain.html")
    assert "half" in page.text and "TTFT of each request (s): simulated over recorded" in page.text
    saturated = found["loads"]["saturated"]
    assert saturated["ttft_median_ms_real"] > 5 * found["loads"]["light"]["ttft_median_ms_real"]


def test_a_poor_fit_is_said_in_one_sentence(measured: Path, tmp_path: Path) -> None:
    rows = read_iterations(measured / "iterations.parquet")
    assert doubts(errors(fit_iterations(rows), rows)) == []
    late = {**rows, "time_us": rows["time_us"] * np.where(np.arange(len(rows["time_us"])) % 2, 1.9, 1.0)}
    said = doubts(errors(fit_iterations(late), late))
    assert len(said) == 1 and said[0].startswith("fitted iterations have a MAPE of ") and "measure again" in said[0]
    assert doubts({"mape": 14.0, "bias": -10.5}) and doubts({"mape": 15.5, "bias": 0.0})
    assert not doubts({"mape": 14.9, "bias": -9.9})


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

    from ooco_gym.calibrate import main as calibrate

    with pytest.raises(UserError, match=r"'chian' \(did you mean 'chain'\?\)"):
        calibrate(OmegaConf.create({"action": "chian"}))
    keys = {"action": "chain", "measured": str(measured), "chip": None, "timing": "measured", "engine_clock": None}
    found = calibrate(OmegaConf.create({**keys, "out": str(tmp_path / "own")}))
    assert found["schema"] == "ooco-gym/engine_chain/1" and found["closed"]
    assert "saturated" in capsys.readouterr().out
    again = calibrate(OmegaConf.create({**keys, "chip": found["chip"], "out": str(tmp_path / "given")}))
    assert again["chip"] == found["chip"] and again["worst_median_error"] == found["worst_median_error"]
    other = calibrate(OmegaConf.create({
        **keys, "chip": "a100_80g", "timing": "ooco", "out": str(tmp_path / "other")}))
    assert not other["closed"]                                      # a GPU is no match for the fake engine
    hosted = calibrate(OmegaConf.create({**keys, "chip": "a100_80g", "timing": "ooco", "engine_clock": "fit",
                                         "out": str(tmp_path / "hosted")}))
    assert "host time on top of a100_80g" in capsys.readouterr().out
    clock = EngineClock.load(str(tmp_path / "hosted" / "clock.yaml"))
    assert clock.decode_s > 5e-4 and "fake 1.0, synchronous" in clock.source
    assert hosted["clock"]["decode_s"] == clock.decode_s and hosted["worst_median_error"] < other["worst_median_error"]
    assert abs(hosted["fit_errors"]["bias"]) < 5.0 < abs(other["fit_errors"]["bias"])
    with pytest.raises(UserError, match="engine_clock=fit: the chain fits whole iterations"):
        calibrate(OmegaConf.create({**keys, "engine_clock": "fit", "out": str(tmp_path / "none")}))
