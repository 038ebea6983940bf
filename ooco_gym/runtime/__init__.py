"""Runs an exported policy anywhere: numpy and onnxruntime, no torch.

`Policy.load(folder).decide(observation, mask)` answers with the action that the trained network prefers. Importing
this package costs nothing; onnxruntime is imported when a policy is loaded.
"""

from ooco_gym.runtime.bundle import MANIFEST_FILE, MODEL_FILE, SCHEMA, read_manifest
from ooco_gym.runtime.policy import Policy

__all__ = ["MANIFEST_FILE", "MODEL_FILE", "SCHEMA", "Policy", "read_manifest"]
