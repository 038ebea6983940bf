"""The engine's clock: host time of iterations, and when the engine schedules (docs/timing.md); a sentence on a run's
timing, with its measured error (docs/validity.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np

from ooco_gym.perf.deployment import Deployment
from ooco_gym.resources import load_yaml, names
from ooco_gym.schema import Model, Range

LONGEST_S = 60.0  # upper limit of an iteration's host time
HostTime = Annotated[float, Range(0, LONGEST_S, "seconds")]
VALIDITY = "validity"  # in conf: maps chips to forms to errors in percent; `make validity` writes it


@dataclass(frozen=True)
class EngineClock(Model):
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

    PLACE = "engine_clock"

    name: str = "none"
    decode_s: HostTime = 0.0
    prefill_s: HostTime = 0.0
    prefill_token_s: HostTime = 0.0
    sequence_s: HostTime = 0.0
    schedule_s: HostTime = 0.0
    async_scheduling: bool = False
    frontend_s: HostTime = 0.0
    frontend_token_s: HostTime = 0.0
    template_tokens: Annotated[int, Range(0, 100_000)] = 0
    source: str = ""

    @classmethod
    def load(cls, value: str | Mapping[str, Any] | None) -> EngineClock:
        """Loads a clock by name in conf/engine_clock, file, or mapping; None gives `none`."""
        if value is None:
            return NO_HOST_TIME
        raw = load_yaml("engine_clock", value)
        return cls.read({"name": "custom", **raw})

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
