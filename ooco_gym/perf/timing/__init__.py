"""Timing forms: how long an operator takes, as a function of its shape.

A form is one file of this package: a module `<name>.py` with a class `Form` derived from `TimingForm`. It is found by
its module's name, which is what `timing=<name>` selects; nothing else has to be touched.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from ooco_gym.errors import unknown
from ooco_gym.perf.attention import Attention
from ooco_gym.perf.timing._base import (
    MeasuredAttention,
    MixedKernel,
    OperatorCost,
    Phase,
    Shard,
    TimingForm,
    linears,
)

__all__ = ["Attention", "MeasuredAttention", "MixedKernel", "OperatorCost", "Phase", "Shard", "TimingForm", "linears",
           "list_timings", "timing_form"]


def list_timings() -> list[str]:
    """Names of all timing forms."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


@cache
def timing_form(name: str) -> TimingForm:
    """Returns the timing form called `name`.

    Raises:
        UserError: there is no such form.
    """
    if name not in list_timings():
        raise unknown("timing", name, list_timings())
    return importlib.import_module(f"{__name__}.{name}").Form()
