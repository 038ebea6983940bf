"""An exported policy needs the extra export to be tested."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("onnx") and find_spec("onnxruntime") else [
    "test_runtime_policy.py", "test_damaged_bundles.py"]
