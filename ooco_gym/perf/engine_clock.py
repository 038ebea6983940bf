"""The engine's clock: host time of iterations, and when the engine schedules (docs/timing.md); a sentence on a run's
timing, with its measured error (docs/validity.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from ooco_gym.errors import UserError, check_keys, is_number, whole_number
from ooco_gym.perf.deployment import Deployment
from ooco_gym.resources import load_yaml, names

LONGEST_S = 60.0  # upper limit of an iteration's host time
MOST_TEMPLATE_TOKENS = 100_000
VALIDITY = "validity"  # in conf: maps chips to forms to errors in percent; `make validity` writes it


@dataclass(frozen=True)
class EngineClock:
    """Host times of an engine. With all 0 and synchronous scheduling only the chip's time counts,
    as in OOCO.

    With asynchronous scheduling an iteration of a mixed instance is composed while the previous one
    runs, as in vLLM (`step_with_batch_queue`). Arrivals meanwhile wait for the iteration after it,
    and tokens not known yet are assumed to come. Rules whose engine cannot do this schedule
    synchronously (`Policy`).

    Attributes:
        name: name of the preset.
        decode_s: per iteration of only decodes, whose launches are one CUDA graph, in seconds.
        prefill_s: per iteration with prompts, whose kernels are launched one by one or in pieces.
        prefill_token_s: per token of such an iteration: kernels that a compiled graph would fuse.
        sequence_s: per sequence of any iteration: scheduling, sampling and detokenising that is not
            hidden.
        schedule_s: composing an iteration; asynchronous scheduling hides it behind longer
            iterations.
        async_scheduling: whether an iteration is composed while the previous one runs.
        frontend_s: time from a request's arrival to the engine's queue plus from a token to its
            client, in seconds.
        frontend_token_s: the same per token of the prompt.
        template_tokens: tokens that the chat template adds to each prompt.
        source: hardware and engine of the measurement.

    Raises:
        UserError: an unknown key, or an invalid value.
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
        """Loads a clock by name in conf/engine_clock, file, or mapping; None gives `none`."""
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
        """Front-end time of requests by prompt tokens, in ps: int64[n]."""
        seconds = self.frontend_s + self.frontend_token_s * prompt_tokens.astype(np.float64)
        return np.rint(1e12 * seconds).astype(np.int64)


NO_HOST_TIME = EngineClock()


def clock_line(deployments: Iterable[Deployment], clock: EngineClock, served: bool = True) -> str:
    """Returns a sentence that names the timing form and the engine's clock, and their error on each
    chip: for iterations and, with `served`, for engines."""
    measured, found = load_yaml("", VALIDITY), list(deployments)
    forms = " and ".join(dict.fromkeys(one.timing for one in found))
    preset = _preset(clock)
    chips = dict.fromkeys(f"{one.chip.name}: {_errors(one, preset, measured, served)}" for one in found)
    return f"clock: timing={forms}, engine clock {clock.name}; {'; '.join(chips)} (docs/validity.md)"


def _preset(clock: EngineClock) -> str:
    """Name of the preset with a clock's numbers, under any name; '' if there is none."""
    for name in names("engine_clock"):
        if replace(EngineClock.load(name), name=clock.name, source=clock.source) == clock:
            return name
    return ""


def _errors(deployment: Deployment, clock: str, measured: Mapping[str, Any], quoted: bool) -> str:
    chip, form = deployment.chip, deployment.timing
    known = measured.get(chip.name, {}).get(form, {})
    alone = (f"iterations {known['iterations']:.1f} % off on average" if "iterations" in known else
             chip.sources.get(f"error.{form}") or "not validated on measured iterations")
    if not quoted:
        return alone
    served = next((one for one in known.get("served", ()) if one["clock"] == clock), None)
    if served is None:
        return f"{alone}, not validated on an engine with this clock"
    ends = ", ".join(f"{name} {served[key]:+.0f} %" for name, key in (("TTFT", "ttft"), ("TPOT", "tpot")))
    return f"{alone}, replay of {served['engine']} {ends}".replace(" -", " −")
