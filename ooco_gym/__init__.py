"""ooco-gym: a reinforcement-learning research gym for co-locating online and offline LLM requests.

All of it is imported at its first use, so that `import ooco_gym` is quick, and an engine that wants `ooco_gym.runtime`
alone loads nothing else. Environments are registered as soon as both this package and Gymnasium are imported.
"""

from __future__ import annotations

import sys
from importlib import import_module, util
from typing import TYPE_CHECKING, Any

from ooco_gym.errors import UserError
from ooco_gym.version import __version__

if TYPE_CHECKING:
    from agents.evaluation.evaluate import evaluate
    from ooco_gym.cluster import Cluster
    from ooco_gym.conditions import Slo
    from ooco_gym.envs.features import candidate_table
    from ooco_gym.envs.rule_agent import make_agent
    from ooco_gym.policy import get_policy
    from ooco_gym.scenario import Scenario
    from ooco_gym.simulation import Run, Simulation, simulate
    from ooco_gym.zoo import list_policies, load_policy

__all__ = ["Cluster", "Run", "Scenario", "Simulation", "Slo", "UserError", "__version__", "candidate_table",
           "evaluate", "get_policy", "list_policies", "load_policy", "make_agent", "simulate"]

_LATER = {"evaluate": "agents.evaluation.evaluate",
          "Cluster": "ooco_gym.cluster", "Scenario": "ooco_gym.scenario", "Slo": "ooco_gym.conditions",
          "simulate": "ooco_gym.simulation", "Simulation": "ooco_gym.simulation", "Run": "ooco_gym.simulation",
          "get_policy": "ooco_gym.policy", "make_agent": "ooco_gym.envs.rule_agent",
          "candidate_table": "ooco_gym.envs.features",
          "list_policies": "ooco_gym.zoo", "load_policy": "ooco_gym.zoo"}
_MODULES = ("cluster", "envs", "scenario", "workload", "perf", "peak", "report", "files", "resources")


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    if name in _MODULES:
        return import_module(f"ooco_gym.{name}")
    raise AttributeError(f"module 'ooco_gym' has no attribute '{name}'")


class _AfterGymnasium:
    """Registers the environments right after Gymnasium has been imported: it has no plug-ins that it looks for itself.
    """

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        """Finds Gymnasium as others do, and has its loader register ours behind it; all else is not found here."""
        if fullname != "gymnasium" or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_register(module: Any) -> None:
                load(module)
                import_module("ooco_gym.envs")  # which registers them

            spec.loader.exec_module = load_and_register  # type: ignore[method-assign]
        return spec


if sys.modules.get("gymnasium") is not None:
    import_module("ooco_gym.envs")
else:
    sys.meta_path.insert(0, _AfterGymnasium())
