"""Lets the tests import the environment that stands in for the gate, also in worker processes; trains one policy."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
# Without the extras train and export there is nothing to learn with; evaluating heuristics is tested all the same.
_needs = {"test_agent_export.py": "onnxruntime", "test_agent_train.py": "sb3_contrib",
          "test_agent_networks.py": "sb3_contrib", "test_agent_loggers.py": "sb3_contrib",
          "test_agent_vector.py": "sb3_contrib", "test_agent_tracking.py": "wandb",
          "test_agent_dashboard.py": "wandb_workspaces", "test_agent_explain.py": "sklearn"}
collect_ignore = [name for name, package in _needs.items() if find_spec(package) is None]


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory):
    """A run of 300 decisions on the double, and its summary."""
    pytest.importorskip("sb3_contrib")
    from gating_double import train_config

    from agents.train import main
    from ooco_gym.files import write_json

    folder = tmp_path_factory.mktemp("run")
    write_json(folder / "summary.json", main(train_config(folder)))
    return folder
