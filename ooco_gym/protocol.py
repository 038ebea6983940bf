"""The protocol (docs/protocol.md): parameters of comparisons, and those of a scenario that it sets:
SLO, latency predictor, warm-up, drain and violation budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from ooco_gym.errors import UserError
from ooco_gym.resources import load_yaml
from ooco_gym.schema import Model, Range

COMMAND_PART = "capacity"  # key of a protocol with that command's settings
_COMPARISONS = load_yaml("", "comparisons")

VIOLATION_BUDGET: float = load_yaml("protocol", "default")["violation_budget"]
"""Share of online requests that may violate their SLO."""
WINDOW_S: float = _COMPARISONS["window_s"]
"""Measured window, in seconds."""
SEEDS: int = _COMPARISONS["seeds"]
"""The fewest paired seeds."""
KEPT_UP: float = _COMPARISONS["kept_up"]
"""Smallest completed share of offline requests arriving in the second half, at a sustained rate."""
KEPT_UP_SERVICE: float = _COMPARISONS["kept_up_service"]
"""Smallest such share by reference GPU time."""
KEPT_UP_ONE_RUN: float = _COMPARISONS["kept_up_one_run"]
"""Smallest such share of a single run, below which its backlog counts as growing."""
MOST_TOKENS = 2**31 - 1  # limit of a request
BASELINE = "vllm_priority"
"""The default policy that others are compared with, if it is among them."""


def baseline_among(policies: Sequence[str]) -> str:
    """The default policy that others are compared with: vLLM's if among them, else the first."""
    return BASELINE if BASELINE in policies else policies[0]


@dataclass(frozen=True)
class Slo(Model):
    """The SLO of online requests (docs/protocol.md, online quality). Times in seconds."""

    PLACE = "slo"

    ttft_s: Annotated[float, Range(0, 1e6, "seconds", above=True)]
    tpot_s: Annotated[float, Range(0, 1e6, "seconds", above=True)]
    tpot_min_tokens: Annotated[int, Range(2, MOST_TOKENS)] = 16
    tpot_from: Literal["first_token", "first_decode"] = "first_token"
    gap_s: Annotated[float, Range(0, 1e6, "seconds", above=True)] | None = None
    name: str = "custom"


@dataclass(frozen=True)
class Predictor(Model):
    """Latency predictor of policies: the true latency times `factor`, with a relative spread of
    `noise`. A scenario names `exact`, or has a mapping such as `{name: biased, factor: 1.05, noise: 0.02}`."""

    PLACE = "predictor"

    name: Literal["exact", "biased"] = "exact"
    factor: Annotated[float, Range(0.01, 100)] = 1.0
    noise: Annotated[float, Range(0, 1)] = 0.0

    @classmethod
    def load(cls, value: Any) -> Predictor:
        """Reads a name, or a mapping."""
        return cls.read({"name": value} if isinstance(value, str) else value)

    def validate(self, where: str) -> None:
        if self.name == "exact" and (self.factor, self.noise) != (1.0, 0.0):
            raise UserError("predictor.factor and predictor.noise need predictor.name=biased")


@dataclass(frozen=True)
class Protocol(Model):
    """Protocol of a run: warm-up, drain, violation budget (`conf/protocol`, docs/protocol.md). Times in seconds.

    Attributes:
        warmup_s: time before the measured window, with the same policy and load.
        drain_s: most time after the window (for a trace file, its last arrival) until counted
            requests have finished.
        violation_budget: share of online requests that may violate their SLO.
        gate_poll_s: time after which an idle gate that held is asked again.
        prior_output_tokens: output length that a policy assumes before any is observed.
        version: version of the protocol.
    """

    PLACE = "protocol"

    warmup_s: Annotated[float, Range(0)]
    drain_s: Annotated[float, Range(0)]
    violation_budget: Annotated[float, Range(0)]
    gate_poll_s: Annotated[float, Range(0)]
    prior_output_tokens: Annotated[int, Range(0)]
    version: Annotated[int, Range(0)] = 1

    @classmethod
    def load(cls, value: Any) -> Protocol:
        """Loads a protocol by name, YAML path or mapping."""
        return cls.read({key: one for key, one in protocol_values(value).items() if key != COMMAND_PART})


def protocol_values(value: Any) -> dict[str, Any]:
    """Values of a protocol: fields of `Protocol`, and under `capacity` that command's settings."""
    return load_yaml("protocol", value)
