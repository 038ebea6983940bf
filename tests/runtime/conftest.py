"""An exported policy needs the extra export to be tested; tests share a bundle made by hand."""

import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
collect_ignore = [] if find_spec("onnx") and find_spec("onnxruntime") else [
    "test_runtime_policy.py", "test_damaged_bundles.py"]
sys.path[:0] = [str(Path(__file__).parent.parent / name) for name in ("sim", "envs")]
