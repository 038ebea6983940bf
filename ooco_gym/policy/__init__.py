"""How policies are written and found: the `Policy` bundle, its parameters and the registry.

Compiled rules are imported with the policy that needs them, so `import ooco_gym` stays quick.
"""

from ooco_gym.policy.policy import Param, Policy, slots
from ooco_gym.policy.registry import get_policy, is_policy, list_policies, policy_of, spelled, spelling_of, split_name

__all__ = ["Param", "Policy", "get_policy", "is_policy", "list_policies", "policy_of", "slots", "spelled",
           "spelling_of", "split_name"]
