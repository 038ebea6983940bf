"""Our schedulers inside vLLM: `vllm serve MODEL --scheduler-cls ooco_gym.runtime.vllm.OocoScheduler` (docs/vllm.md).

`OocoScheduler` is found when it is asked for, so that settings and decisions can be imported without vLLM.
"""

from __future__ import annotations

from typing import Any

from ooco_gym.errors import UserError

_FROM_SCHEDULER = ("OocoAsyncScheduler", "OocoScheduler", "check_version")


def __getattr__(name: str) -> Any:
    if name not in _FROM_SCHEDULER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from ooco_gym.runtime.vllm import scheduler
    except ImportError as error:
        raise UserError(f"ooco_gym.runtime.vllm needs a vLLM with the V1 engine in this Python ({error}); it is meant "
                        "for the environment that serves: install ooco-gym there") from error
    return getattr(scheduler, name)
