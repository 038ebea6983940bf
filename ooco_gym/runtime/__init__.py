"""What a serving engine needs of this project at run time: numpy, and onnxruntime for policies; no torch, no simulator.

`Policy.load(folder).decide(observation, mask)` answers with the action that a trained network prefers (`bundle`);
`batching_features.observe(engine)` writes what a policy of `Batching-v0` sees from plain descriptions of requests,
`admission_features.observe_entries(engine, iteration, requests)` what one of `Admission-v0` sees.
"""

from ooco_gym.runtime.bundle import ClusterStack, Memory, Policy
from ooco_gym.runtime.manifest import (
    INPUTS,
    MANIFEST_FILE,
    MODEL_FILE,
    READABLE,
    SCHEMA,
    file_digest,
    read_manifest,
)

__all__ = ["INPUTS", "MANIFEST_FILE", "MODEL_FILE", "READABLE", "SCHEMA", "ClusterStack", "Memory", "Policy",
           "file_digest", "read_manifest"]
