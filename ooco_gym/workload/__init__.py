"""Requests and their arrivals: traces, readers, generators, scaling; independent of the cluster.

Times are in seconds, rates in requests per second, lengths in tokens. See docs/traces.md and
docs/workloads.md.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ooco_gym.workload.classes import RequestClass, parse_classes
from ooco_gym.workload.generate import WorkloadSpec, generate, generate_lengths, list_workloads, load_spec
from ooco_gym.workload.load import Workload, load_workload, of_trace, resolve_workload, workload_mean_rate
from ooco_gym.workload.mix import from_file, parse_workload, split_workload
from ooco_gym.workload.offline import (
    OfflineLoad,
    offline_trace,
    parse_offline,
    with_dataset,
)
from ooco_gym.workload.predicted import LengthPredictor
from ooco_gym.workload.sessions import Think, Turns, close_sessions
from ooco_gym.workload.sharing import sharing_ratio
from ooco_gym.workload.trace import Trace, merge
from ooco_gym.workload.transforms import scale

if TYPE_CHECKING:
    from ooco_gym.workload.trace_file import TraceFile, list_formats, open_trace, read_trace
    from ooco_gym.workload.writing import write_trace

__all__ = [
    "LengthPredictor", "OfflineLoad", "RequestClass", "Think", "Trace", "TraceFile", "Turns",
    "Workload", "WorkloadSpec", "close_sessions", "from_file", "generate", "generate_lengths", "list_formats",
    "list_workloads", "load_spec", "load_workload", "merge", "of_trace", "offline_trace", "open_trace", "parse_classes",
    "parse_offline", "parse_workload", "read_trace", "resolve_workload", "scale", "sharing_ratio", "split_workload",
    "with_dataset", "workload_mean_rate", "write_trace",
]

_FILES = {**dict.fromkeys(("TraceFile", "list_formats", "open_trace", "read_trace"), "trace_file"),
          "write_trace": "writing"}  # imported on first use: most simulations read no file


def __getattr__(name: str) -> Any:
    if name in _FILES:
        return getattr(import_module(f"{__name__}.{_FILES[name]}"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
