"""The files of `examples` learn and compare, here for seconds."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "examples"


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_gate_is_learned_by_cma() -> None:
    pytest.importorskip("cmaes")
    served = example("cma_gate").main(generations=2, windows=4, held_out=4)
    assert list(served) == ["random gate", "OOCO", "slack", "memory_gate", "learned"]
    assert served["learned"] > 1.2 * served["OOCO"]


def test_a_network_clones_what_offline_data_hold() -> None:
    pytest.importorskip("minari")
    pytest.importorskip("torch")
    summary = example("offline_minari").main(windows=2, epochs=2, episodes=2)
    assert {row["policy"] for row in summary["results"]} == {"mine", "random actions", "ooco", "shortest"}


@pytest.mark.parametrize("name", ["ppo_sb3", "cleanrl_ppo"])
def test_networks_learn_and_are_compared(name: str) -> None:
    pytest.importorskip("sb3_contrib")
    summary = example(name).main(decisions=1024, episodes=2)
    assert {row["policy"] for row in summary["results"]} == {"mine", "random actions", "ooco", "slack"}


def test_the_notebook_of_the_first_hour_runs(tmp_path: Path) -> None:
    """Its cells as they are but for their sizes; what it prints is what it says."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(FOLDER / "first_hour.ipynb", 4)
    assert any("image/png" in output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", []))
    for cell in notebook.cells:
        cell.source = cell.source.replace("range(12)", "range(2)").replace("episodes=6", "episodes=2")
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute(cwd=str(tmp_path))
    texts = ["".join(output.get("text", "")) for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("times the untrained gate's offline service" in text for text in texts)
    assert any("learned " in text for text in texts)
