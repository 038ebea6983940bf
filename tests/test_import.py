"""Importing the package loads nothing heavy, and its environments are there whichever way round both are imported."""

import subprocess
import sys

import pytest

FOUND = "\nprint('ooco_gym/PrefillGate-v1' in gymnasium.registry)"


def said(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize("code", [
    "import ooco_gym\nimport gymnasium", "import gymnasium\nimport ooco_gym",
    "from ooco_gym.envs import ENVIRONMENTS\nimport gymnasium", "import ooco_gym.runtime\nimport gymnasium",
    "import ooco_gym\nfrom ooco_gym import Scenario\nimport gymnasium",
])
def test_environments_are_registered_in_any_order_of_imports(code):
    assert said(code + FOUND) == ["True"]


def test_an_engine_needs_no_gymnasium():
    assert said("import sys\nsys.modules['gymnasium'] = None\nimport ooco_gym.runtime\nprint('loaded')") == ["loaded"]


def test_the_runtime_loads_no_simulator():
    heavy = ("numba", "scipy", "pyarrow", "yaml", "plotly", "rich", "hydra", "torch", "onnxruntime")
    assert said(f"import sys, ooco_gym.runtime\nprint([one for one in {heavy} if one in sys.modules])") == ["[]"]


def test_names_of_the_package_are_found_when_they_are_asked_for():
    assert said("import ooco_gym\nprint(ooco_gym.Scenario.__name__, ooco_gym.envs.__name__, ooco_gym.Cluster.__name__)"
                ) == ["Scenario", "ooco_gym.envs", "Cluster"]
    assert said("import ooco_gym\nprint(hasattr(ooco_gym, 'nothing'))") == ["False"]


def test_a_run_of_one_seed_loads_what_it_needs_alone(tmp_path):
    """One seed has no interval to bootstrap, its page no plot of Plotly's, and what was compiled before no compiler."""
    run = f"main(['simulate', 'duration_s=10', 'rate_scale=0.01', {f'out={tmp_path}'!r}])"
    heavy = ("scipy.stats", "scipy.special", "scipy.linalg", "plotly", "pyarrow.compute", "pyarrow.dataset", "pandas",
             "hydra_plugins", "torch", "numba.np.arraymath")
    code = f"import sys\nfrom ooco_gym.cli import main\nprint({run})\n"
    said(code)  # compiles what is not compiled yet
    assert said(f"{code}print([one for one in {heavy} if one in sys.modules])")[-2:] == ["0", "[]"]
