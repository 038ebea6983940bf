"""Our schedulers inside vLLM: `vllm serve MODEL --scheduler-cls ooco_gym.runtime.vllm.OocoScheduler` (docs/vllm.md).

They are imported on first use, because the rest of the package needs neither vLLM nor the simulator.
"""

from importlib import import_module
from typing import Any

from ooco_gym.errors import UserError


def __getattr__(name: str) -> Any:
    if name not in ("OocoAsyncScheduler", "OocoScheduler", "check_version"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module("ooco_gym.vllm.scheduler"), name)
    except ImportError as error:
        raise UserError(f"ooco_gym.runtime.vllm needs a vLLM with the V1 engine in this Python ({error}); it is meant "
                        "for the environment that serves: install ooco-gym there") from error
