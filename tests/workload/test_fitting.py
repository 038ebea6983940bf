"""`ooco-gym workload`: what is fitted comes back, pages are drawn."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ooco_gym.cli import main
from ooco_gym.errors import UserError
from ooco_gym.workload import Trace, generate, generate_lengths, load_spec, read_trace, write_trace
from ooco_gym.workload.arrivals import Arrivals, Bursts, OrnsteinUhlenbeck
from ooco_gym.workload.describe import DISPERSION_S, dispersion, ks
from ooco_gym.workload.fitting import expected_dispersion, fit, fit_processes, likeness, play_arrivals
from tests.html_pages import Page

FLAT = (1.0,) * 24
LENGTHS = {"prompt": {"quantiles": [0, 0.5, 1], "tokens": [1, 300, 4000]},
           "output": {"weights": [0.5, 0.5], "mu": [2.0, 6.0], "sigma": [0.3, 0.5], "clip": [1, 9000]}}
BURSTY = {"name": "typing", "mean_rate_per_s": 10.0, "bursts": {"factor": 6.0, "on_s": 5.0, "off_s": 40.0},
              "ou": [{"sigma": 0.15, "tau_s": 300.0}], "lengths": LENGTHS}
SWINGING = {"name": "swinging", "mean_rate_per_s": 10.0, "lengths": LENGTHS,
            "ou": [{"sigma": 0.3, "tau_s": 20.0}, {"sigma": 0.2, "tau_s": 400.0}]}
STEADY = {"name": "steady", "mean_rate_per_s": 5.0, "lengths": LENGTHS}


@pytest.mark.parametrize("ou", [(), (OrnsteinUhlenbeck(0.3, 20.0),),
                                (OrnsteinUhlenbeck(0.2, 1.0), OrnsteinUhlenbeck(0.25, 200.0))])
def test_the_closed_form_is_what_the_generator_does(ou: tuple[OrnsteinUhlenbeck, ...]) -> None:
    span_s, window_s = 3600.0, np.array([1.0, 5.0, 30.0, 120.0])
    windows = (span_s // window_s).astype(int)
    runs = [play_arrivals(Arrivals(6.0, FLAT, ou), 0.0, span_s, seed) for seed in range(40)]
    found = np.mean([[dispersion(run, float(x), span_s - run[0]) for x in window_s] for run in runs], axis=0)
    assert found == pytest.approx(expected_dispersion(6.0, ou, window_s, windows), rel=0.12)


@settings(deadline=None, max_examples=15)
@given(st.floats(0.1, 0.5), st.floats(1.0, 500.0), st.floats(2.0, 50.0))
def test_a_process_is_found_from_its_dispersion(sigma: float, tau_s: float, rate: float) -> None:
    window_s = np.array(DISPERSION_S)
    windows = (7200 // window_s).astype(int)
    wanted = expected_dispersion(rate, [OrnsteinUhlenbeck(sigma, tau_s)], window_s, windows)
    found = expected_dispersion(rate, fit_processes(rate, window_s, windows, wanted), window_s, windows)
    assert np.all(np.abs(np.log(found / wanted)) < 4 * np.sqrt(2 / windows) + 0.1)


@pytest.mark.parametrize(("spec", "processes"), [(BURSTY, True), (SWINGING, True), (STEADY, False)])
def test_a_fit_is_alike(spec: dict[str, Any], processes: bool) -> None:
    trace = generate(spec, duration_s=3600, seed=5)
    fitted = fit(trace, name="again", source="a test")
    assert bool(fitted.spec["ou"]) == processes
    assert fitted.report["arrivals"]["ks_gaps"] < (0.12 if spec is BURSTY else 0.045)
    assert fitted.report["lengths"]["prompt"]["ks"] < 0.02 and fitted.report["lengths"]["output"]["ks"] < 0.02
    again = load_spec(fitted.spec)
    assert again.arrivals.mean_rate_per_s == pytest.approx(trace.mean_rate, rel=1e-3)
    json.dumps(fitted.report, allow_nan=False)
    for item in fitted.report["arrivals"]["dispersion"].values():
        assert 0.6 < item["ratio"] < 1.6


def test_a_tide_comes_back() -> None:
    tide = [1.0 + 0.8 * np.sin(2 * np.pi * (hour - 6) / 24) for hour in range(24)]
    trace = generate({"name": "day", "mean_rate_per_s": 1.0, "tide": tide, "lengths": LENGTHS},
                     start_s=3600, duration_s=2 * 86_400, seed=2)
    fitted = fit(trace, name="again", source="a test")
    found = np.array(fitted.spec["tide"])
    assert found == pytest.approx(np.array(tide) / np.mean(tide), abs=0.12)
    assert fitted.spec["mean_rate_per_s"] == pytest.approx(1.0, rel=0.02)
    assert "midnight" in fitted.spec["assumed"]


def test_a_tide_of_part_of_a_day_names_the_missing_hours() -> None:
    trace = generate(STEADY, start_s=0.0, duration_s=21 * 3600, seed=2, rate_scale=0.05)
    fitted = fit(trace, name="again", source="a test")
    assert "hours 21, 22, 23 are not in the trace" in fitted.spec["assumed"]
    assert fitted.spec["mean_rate_per_s"] == pytest.approx(0.25, rel=0.05)


def test_a_generator_is_like_itself_and_unlike_others() -> None:
    times = play_arrivals(Arrivals(20.0, FLAT), 0.0, 2000.0, 1)
    own = likeness(Arrivals(20.0, FLAT), times, 1)
    other = likeness(Arrivals(20.0, FLAT, (), Bursts(5.0, 2.0, 10.0)), times, 1)
    assert own["ks_gaps"] < 0.01 and other["ks_gaps"] > 0.1
    assert all(item["ratio"] == pytest.approx(1.0, abs=0.5) for item in own["dispersion"].values())


def test_what_the_generator_cannot_do_is_said() -> None:
    batches = np.repeat(np.sort(np.random.default_rng(1).uniform(0, 3000.0, 300)), 5)
    fitted = fit(Trace(batches, np.full(1500, 9), np.full(1500, 9)), name="x", source="y")
    notes = " ".join(fitted.report["notes"])
    assert "80.1 % of the requests arrive at the same instant" in notes and "not at regular intervals" in notes
    assert "gaps differ from the trace's" in notes
    assert "dispersion differs by more than 10 %" in notes and fitted.spec["lengths"]["prompt"]["mean"] == 9


@pytest.mark.parametrize(("trace", "said"), [
    (Trace(np.arange(50.0), np.ones(50), np.ones(50), name="few"), "holds 50 requests: a fit needs 200"),
    (Trace(np.ones(500), np.ones(500), np.ones(500)), "all requests arrive at the same time")])
def test_what_cannot_be_fitted(trace: Trace, said: str) -> None:
    with pytest.raises(UserError, match=said):
        fit(trace, name="x", source="y")


def run(folder: Path, *words: str) -> dict[str, Any]:
    assert main(["workload", *words, f"out={folder / 'out'}"]) == 0
    return json.loads((folder / "out" / "summary.json").read_text())


def test_fit_show_and_simulate(tmp_path: Path) -> None:
    path = tmp_path / "mine.parquet"
    write_trace(generate(STEADY, duration_s=900, seed=3), path)
    summary = run(tmp_path, "fit", str(path))
    made = tmp_path / "out" / "mine_fit.yaml"
    assert summary["to"] == str(made)
    written = yaml.safe_load(made.read_text())
    assert written == summary["workload"] and "SHA-256" in written["source"]
    shown = run(tmp_path, "show", str(made), "duration_s=600", "start_s=0")
    assert shown["rate_per_s"] == pytest.approx(5.0, rel=0.1)
    assert main(["simulate", f"workload={made}", "--cfg", "job"]) == 0
    assert run(tmp_path, "show", f"0.5*{made}+sharegpt", "duration_s=600", "start_s=0")["rate_per_s"] == pytest.approx(
        3.5, rel=0.15)
    assert run(tmp_path, "show", str(path))["requests"] == summary["requests"]


def test_list_names_what_is_embedded(tmp_path: Path) -> None:
    found = run(tmp_path)["workloads"]
    assert {"ooc", "azure_conv", "azure_code", "sharegpt", "lmsys", "mooncake", "doc_qa", "few_shot"} <= set(found)
    for name, item in found.items():
        assert all(item[key] for key in ("description", "source", "measured", "assumed")), name


def test_a_page_says_what_is_measured_and_what_assumed(tmp_path: Path) -> None:
    run(tmp_path, "show", "lmsys+0.5*mooncake", "start_s=0", "duration_s=600")
    page = Page(tmp_path / "out" / "workload.html")
    assert "lmsys, measured: quantiles of outputs" in page.text and "mooncake, assumed: no tide" in page.text
    assert page.texts["figcaption"].count("Prompt tokens") == 1


@pytest.mark.parametrize(("words", "said"), [
    (["fitt", "x"], "did you mean 'fit'?"), (["fit"], "needs a trace file"), (["show"], "needs a workload's name"),
    (["show", "oooc"], "did you mean 'ooc'?"), (["fit", "no.csv"], "'no.csv' does not exist"),
    (["fit", "{trace}", "name=ooc"], "taken by an embedded workload"),
    (["fit", "{trace}", "to=x.json"], "ending .yaml"),
    (["show", "ooc", "duration_s=0"], "no request")])
def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    trace = tmp_path / "t.csv"
    write_trace(generate(STEADY, duration_s=120, seed=3), trace)
    given = [word.format(trace=trace) for word in words]
    assert main(["workload", *given, f"out={tmp_path / 'out'}"]) == 2
    message = capsys.readouterr().err
    assert said in message and message.count("\n") == 1


@pytest.mark.data
def test_acceptance_on_azure_conv_2023(tmp_path: Path) -> None:
    folder = os.environ.get("OOCO_GYM_DATA")
    if not folder or not (Path(folder) / "traces" / "azure_conv_2023.parquet").is_file():
        pytest.skip("OOCO_GYM_DATA does not name a folder that holds traces/azure_conv_2023.parquet")
    summary = run(tmp_path, "fit", "azure_conv_2023")
    assert set(summary["arrivals"]["dispersion"]) == {f"{window:g}" for window in DISPERSION_S}
    assert all(abs(item["ratio"] - 1) <= 0.10 for item in summary["arrivals"]["dispersion"].values())
    assert summary["arrivals"]["ks_gaps"] <= 0.03
    assert max(summary["lengths"][side]["ks"] for side in ("prompt", "output")) <= 0.03


@pytest.mark.data
@pytest.mark.parametrize(("name", "file"), [
    ("mooncake", "mooncake_conversation_dev"), ("azure_conv_2023", "azure_conv_2023")])
def test_embedded_workloads_are_like_the_data_they_were_fitted_to(name: str, file: str) -> None:
    folder = os.environ.get("OOCO_GYM_DATA")
    path = Path(folder or "") / "traces" / f"{file}.parquet"
    if not folder or not path.is_file():
        pytest.skip(f"OOCO_GYM_DATA does not name a folder that holds traces/{path.name}")
    trace = read_trace(path)
    drawn = generate_lengths(name, 200_000, seed=3)
    for measured, tokens in zip((trace.prompt_tokens, trace.output_tokens), drawn, strict=True):
        assert ks(tokens, measured) <= 0.03
    runs = [generate(name, duration_s=float(trace.arrival_s[-1]), seed=seed).arrival_s for seed in range(20)]
    assert ks(np.concatenate([np.diff(run) for run in runs]), np.diff(trace.arrival_s)) <= 0.03
    for window_s in (1.0, 10.0, 120.0):
        found = np.mean([dispersion(run, window_s) for run in runs])
        assert found == pytest.approx(dispersion(trace.arrival_s, window_s), rel=0.2)
