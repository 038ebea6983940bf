"""The engine's own clock: what its host takes for an iteration beside what the chip computes (docs/timing.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ooco_gym.errors import UserError, check_keys, is_number
from ooco_gym.resources import load_yaml

LONGEST_S = 1.0  # of one iteration's host time


@dataclass(frozen=True)
class EngineClock:
    """Host time of an iteration, which the chip waits for; 0 everywhere: the chip's time alone, as in OOCO.

    Attributes:
        name: of the preset.
        decode_s: of an iteration of decodes alone, whose launches one CUDA graph holds, in seconds.
        prefill_s: of an iteration with prompts, whose kernels are launched one by one or in pieces.
        prefill_token_s: for each token of such an iteration: kernels that a compiled graph would have fused.
        sequence_s: for each sequence of any iteration: scheduling, sampling and detokenising what is not hidden.
        source: what it was measured on, in words.

    Raises:
        UserError: a key that it has not, or a figure that is none.
    """

    name: str = "none"
    decode_s: float = 0.0
    prefill_s: float = 0.0
    prefill_token_s: float = 0.0
    sequence_s: float = 0.0
    source: str = ""

    @classmethod
    def load(cls, value: str | Mapping[str, Any] | None) -> EngineClock:
        """Loads a clock by its name in conf/engine_clock, a file, or a mapping; None is `none`."""
        if value is None:
            return NO_HOST_TIME
        raw = dict(value) if isinstance(value, Mapping) else load_yaml("engine_clock", value)
        check_keys("engine_clock", raw, cls.__dataclass_fields__)
        for field in fields(cls):
            if field.type == "float" and field.name in raw:
                number = raw[field.name]
                if not is_number(number) or not 0 <= number <= LONGEST_S:
                    raise UserError(f"engine_clock: {field.name}={number!r} must be a number of seconds from 0 to "
                                    f"{LONGEST_S:g}")
        return cls(**{"name": "custom", **raw})


NO_HOST_TIME = EngineClock()
