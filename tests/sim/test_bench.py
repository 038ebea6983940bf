"""`ooco-gym bench` writes the figures that scripts read, and refuses what it does not know."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ooco_gym import envs, jobs
from ooco_gym.cli import main
from ooco_gym.commands import bench
from ooco_gym.commands.bench import FIGURES, measure_envs

INTERFACE = ("decode_iterations_per_s", "simulated_tokens_per_s", "day_wall_s", "fleet_wall_s", "fleet_peak_gb",
             "env_steps_per_s", "vector_decisions_per_s", "vector_ratio", "vector_all_cores_per_s",
             "vector_all_cores_ratio", "vector_threads", "warm_start_s", "cold_compile_s")


def test_figures_are_written_beside_their_targets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "only=[pure]", "repeats=1", f"out={tmp_path / 'b'}"]) == 0
    summary = json.loads((tmp_path / "b" / "summary.json").read_text())
    assert set(INTERFACE) <= set(summary)
    assert summary["schema"] == "ooco-gym/bench/2"
    assert summary["pure_decode_iterations_per_s"] > 0
    assert summary["values"] == {"pure_decode_iterations_per_s": [summary["pure_decode_iterations_per_s"]]}
    assert all(summary[name] is None for name in INTERFACE), "what was not measured is null"
    assert set(summary["targets"]) <= {figure.name for figure in FIGURES}
    assert summary["machine"]["cores"] >= 1
    shown = capsys.readouterr().out
    assert "pure_decode_iterations_per_s" in shown and "fleet_wall_s" not in shown


def test_a_vector_is_measured_on_one_core_and_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    gating = "ooco_gym/Gating-v0"
    monkeypatch.setattr(envs, "ENVIRONMENTS", {gating: envs.ENVIRONMENTS[gating]})
    monkeypatch.setattr(bench, "VECTOR_STEPS", 20)
    monkeypatch.setattr(jobs, "cores", lambda: 3)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    figures = measure_envs({"env_steps": 100})
    single, vector, everywhere = (figures[f"env/{gating}/{kind}"] for kind in ("single", "vector", "all_cores"))
    assert min(single, vector, everywhere) > 0 and figures["vector_threads"] == 3
    assert (figures["env_steps_per_s"], figures["vector_decisions_per_s"]) == (single, vector)
    assert figures["vector_all_cores_per_s"] == everywhere
    assert figures["vector_ratio"] == vector / single and figures["vector_all_cores_ratio"] == everywhere / single


@pytest.mark.parametrize("override,words", [("only=[dya]", ("dya", "day")), ("repeats=0", ("repeats",)),
                                            ("decisions=[oooc]", ("oooc", "ooco"))])
def test_mistakes_are_one_sentence(override: str, words: tuple[str, ...], tmp_path: Path,
                                   capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", override, f"out={tmp_path / 'b'}"]) == 2
    error = capsys.readouterr().err
    assert all(word in error for word in words)
    assert len(error.strip().splitlines()) == 1
