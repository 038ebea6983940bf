"""The engine's own clock: what its host takes beside what the chip computes, and when it schedules (docs/timing.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ooco_gym.errors import UserError, check_keys, is_number, whole_number
from ooco_gym.resources import load_yaml

LONGEST_S = 60.0  # of one iteration's host time
MOST_TEMPLATE_TOKENS = 100_000


@dataclass(frozen=True)
class EngineClock:
    """An engine's host: 0 everywhere and synchronous, the chip's time alone counts, as in OOCO.

    With asynchronous scheduling an iteration of a mixed instance is composed while the one before it runs, as in vLLM
    (`step_with_batch_queue`): what arrives meanwhile waits for the iteration after it, and a token that is not known
    yet is counted on. Rules of which the engine cannot do so keep to synchronous scheduling (`Policy`).

    Attributes:
        name: of the preset.
        decode_s: of an iteration of decodes alone, whose launches one CUDA graph holds, in seconds.
        prefill_s: of an iteration with prompts, whose kernels are launched one by one or in pieces.
        prefill_token_s: for each token of such an iteration: kernels that a compiled graph would have fused.
        sequence_s: for each sequence of any iteration: scheduling, sampling and detokenising what is not hidden.
        schedule_s: composing an iteration; with asynchronous scheduling it is hidden as far as an iteration lasts as
            long.
        async_scheduling: whether an iteration is composed while the one before it runs.
        frontend_s: from a request's arrival to the engine's queue and from a token to its client, in seconds.
        frontend_token_s: the same for each token of the prompt.
        template_tokens: tokens that the chat template adds to each prompt.
        source: what it was measured on, in words.

    Raises:
        UserError: a key that it has not, or a figure that is none.
    """

    name: str = "none"
    decode_s: float = 0.0
    prefill_s: float = 0.0
    prefill_token_s: float = 0.0
    sequence_s: float = 0.0
    schedule_s: float = 0.0
    async_scheduling: bool = False
    frontend_s: float = 0.0
    frontend_token_s: float = 0.0
    template_tokens: int = 0
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
        for key in ("name", "source"):
            if not isinstance(raw.get(key, ""), str):
                raise UserError(f"engine_clock: {key}={raw[key]!r} must be text")
        if not isinstance(raw.get("async_scheduling", False), bool):
            raise UserError(f"engine_clock: async_scheduling={raw['async_scheduling']!r} must be true or false")
        whole_number("engine_clock: template_tokens", raw.get("template_tokens", 0), 0, MOST_TEMPLATE_TOKENS)
        return cls(**{"name": "custom", **raw})

    @property
    def has_frontend(self) -> bool:
        """Whether the front end takes any time."""
        return self.frontend_s > 0 or self.frontend_token_s > 0

    def frontend_ps(self, prompt_tokens: np.ndarray) -> np.ndarray:
        """Front-end time of requests with so many prompt tokens, in ps: int64[n]."""
        seconds = self.frontend_s + self.frontend_token_s * prompt_tokens.astype(np.float64)
        return np.rint(1e12 * seconds).astype(np.int64)


NO_HOST_TIME = EngineClock()
