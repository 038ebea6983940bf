"""ooco-gym: a reinforcement-learning research gym for co-locating online and offline LLM requests.

The compiled simulator and everything that needs it are imported at their first use, so that `import ooco_gym` is quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ooco_gym.cluster import Cluster
from ooco_gym.envs import register_all
from ooco_gym.errors import UserError
from ooco_gym.scenario import Scenario, Slo
from ooco_gym.version import __version__

if TYPE_CHECKING:
    from agents.evaluation.evaluate import evaluate
    from ooco_gym.envs.features import candidate_table
    from ooco_gym.envs.rule_agent import make_agent
    from ooco_gym.policy import get_policy
    from ooco_gym.simulation import Run, Simulation, simulate
    from ooco_gym.zoo import list_policies, load_policy

__all__ = ["Cluster", "Run", "Scenario", "Simulation", "Slo", "UserError", "__version__", "candidate_table",
           "evaluate", "get_policy", "list_policies", "load_policy", "make_agent", "simulate"]

register_all()
_LATER = {"evaluate": "agents.evaluation.evaluate",
          "simulate": "ooco_gym.simulation", "Simulation": "ooco_gym.simulation", "Run": "ooco_gym.simulation",
          "get_policy": "ooco_gym.policy", "make_agent": "ooco_gym.envs.rule_agent",
          "candidate_table": "ooco_gym.envs.features",
          "list_policies": "ooco_gym.zoo", "load_policy": "ooco_gym.zoo"}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        from importlib import import_module

        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'ooco_gym' has no attribute '{name}'")
