"""One training run that several tests read; what needs an extra is left out without it."""

from importlib.util import find_spec

import pytest

# Without the extras train and export there is nothing to learn with; evaluating heuristics is tested all the same.
_needs = {"test_agent_export.py": "onnxruntime", "test_agent_tracking.py": "wandb", **dict.fromkeys(
    (f"test_agent_{name}.py" for name in ("train", "limits", "networks", "vector", "resume", "lagrangian")),
    "sb3_contrib")}
collect_ignore = [name for name, package in _needs.items() if find_spec(package) is None]


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory):
    """A run of 300 decisions on the double, and its summary."""
    pytest.importorskip("sb3_contrib")
    from agents.learning.train import main
    from ooco_gym.files import write_json
    from tests.agents.gating_double import train_config

    folder = tmp_path_factory.mktemp("run")
    write_json(folder / "summary.json", main(train_config(folder)))
    return folder


@pytest.fixture(scope="session")
def tracked(tmp_path_factory):
    """A run on short windows of the gate, tracked by W&B offline: (folder, what its log holds)."""
    pytest.importorskip("sb3_contrib")
    pytest.importorskip("wandb")
    from agents.learning.train import main
    from tests.agents.gating_double import real_config
    from tests.agents.wandb_log import offline_run

    out = tmp_path_factory.mktemp("tracked") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("WANDB_CACHE_DIR", str(out.parent / "cache"))
        patch.chdir(out.parent)
        main(real_config(out, logger={"name": "wandb", "project": "tests", "tags": ["t"]}))
    return out, offline_run(out)
