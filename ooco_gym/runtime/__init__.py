"""Runtime for serving engines: needs numpy, and onnxruntime for ONNX policies; neither torch nor the simulator.

`Policy.load(folder).decide(observation, mask)` returns a trained network's action (`bundle`); `features` has the tables
of its inputs. The scheduler inside vLLM, which runs the simulator's rules, is in `ooco_gym.vllm`.
"""

from ooco_gym.runtime.bundle import ParameterPolicy, Policy
from ooco_gym.runtime.manifest import (
    ARRAYS_FILE,
    INPUTS,
    MANIFEST_FILE,
    MODEL_FILE,
    REFERENCE_FILE,
    SCHEMA,
    SCHEMA_FILE,
    read_manifest,
)
from ooco_gym.runtime.writing import write_bundle, write_parameters_bundle

__all__ = ["ARRAYS_FILE", "INPUTS", "MANIFEST_FILE", "MODEL_FILE", "REFERENCE_FILE", "SCHEMA", "SCHEMA_FILE",
           "ParameterPolicy", "Policy", "read_manifest", "write_bundle", "write_parameters_bundle"]
