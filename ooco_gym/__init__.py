"""ooco-gym: a reinforcement-learning research gym for co-locating online and offline LLM requests.

Importing it registers the environments with Gymnasium, if installed. All else is imported at first
use, so an engine that needs only `ooco_gym.runtime` loads no simulator.
"""

from __future__ import annotations

import signal
import sys
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from ooco_gym.beside import BesideFinder, load
from ooco_gym.errors import UserError
from ooco_gym.version import __version__

COMMAND_LINE = sys.orig_argv[1:3] == ["-m", "ooco_gym"] or sys.argv[0].endswith("/ooco-gym")
if COMMAND_LINE and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until `cli.main`: Ctrl-C during imports would print a traceback

if TYPE_CHECKING:
    from agents.evaluation.evaluate import evaluate
    from ooco_gym.cluster import Cluster
    from ooco_gym.envs.features import candidate_table
    from ooco_gym.envs.rule_agent import make_agent
    from ooco_gym.policy import get_policy, list_policies
    from ooco_gym.protocol import Slo
    from ooco_gym.scenario import Scenario
    from ooco_gym.simulation import Run, Simulation, simulate
    from ooco_gym.zoo import load_policy

__all__ = ["Cluster", "Run", "Scenario", "Simulation", "Slo", "UserError", "__version__", "candidate_table",
           "evaluate", "get_policy", "list_policies", "load_policy", "make_agent", "simulate"]

# Maps names to their module of this package.
_LATER = {"Cluster": "cluster", "Scenario": "scenario", "Slo": "protocol", "simulate": "simulation",
          "Simulation": "simulation", "Run": "simulation", "get_policy": "policy", "make_agent": "envs.rule_agent",
          "candidate_table": "envs.features", "list_policies": "policy", "load_policy": "zoo"}
_MODULES = ("cluster", "envs", "scenario", "workload", "perf", "peak", "report", "files", "resources")


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    if name == "evaluate":  # in a layer above this package, in the module of this command
        (command,) = entry_points(group="ooco_gym.commands", name=name)
        return getattr(load(command.module), name)
    if name in _MODULES:
        return import_module(f"ooco_gym.{name}")
    raise AttributeError(f"module 'ooco_gym' has no attribute '{name}'")


sys.meta_path.append(BesideFinder())
try:
    import ooco_gym.envs  # noqa: F401 - registers the environments
except ModuleNotFoundError as missing:  # an engine that runs `ooco_gym.runtime` needs no Gymnasium
    if missing.name != "gymnasium":
        raise
