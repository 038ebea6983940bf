"""The protocol (docs/protocol.md): parameters of comparisons, and those of a scenario that it sets:
SLO, latency predictor, warm-up, drain and violation budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ooco_gym.errors import UserError, check_keys, is_number
from ooco_gym.resources import load_yaml

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
class Slo:
    """The SLO of online requests (docs/protocol.md, online quality). Times in seconds."""

    ttft_s: float
    tpot_s: float
    tpot_min_tokens: int = 16
    tpot_from: str = "first_token"
    gap_s: float | None = None
    name: str = "custom"

    def __post_init__(self) -> None:
        for key in ("ttft_s", "tpot_s"):
            if not is_number(getattr(self, key)) or not 0 < getattr(self, key) < 1e6:
                raise UserError(f"slo.{key}={getattr(self, key)!r} must be a positive number of seconds")
        if self.tpot_from not in ("first_token", "first_decode"):
            raise UserError(f"slo.tpot_from='{self.tpot_from}' must be first_token or first_decode")
        if self.gap_s is not None and not (is_number(self.gap_s) and 0 < self.gap_s < 1e6):
            raise UserError(f"slo.gap_s={self.gap_s!r} must be a positive number of seconds, or null")
        if not is_number(self.tpot_min_tokens) or not 2 <= self.tpot_min_tokens <= MOST_TOKENS:
            raise UserError(f"slo.tpot_min_tokens={self.tpot_min_tokens!r} must be a number from 2 to {MOST_TOKENS}")


@dataclass(frozen=True)
class Predictor:
    """Latency predictor of policies: the true latency times `factor`, with a relative spread of
    `noise`."""

    name: str = "exact"
    factor: float = 1.0
    noise: float = 0.0

    @classmethod
    def load(cls, value: Any) -> Predictor:
        """Reads `exact`, or a mapping such as `{name: biased, factor: 1.05, noise: 0.02}`."""
        if not isinstance(value, (str, Mapping)):
            raise UserError(f"predictor={value!r} must be exact, or a mapping such as {{name: biased, factor: 1.05}}")
        raw: dict[str, Any] = {"name": value} if isinstance(value, str) else dict(value)
        check_keys("predictor", raw, cls.__dataclass_fields__)
        predictor = cls(**raw)
        if predictor.name not in ("exact", "biased"):
            raise UserError(f"predictor.name='{predictor.name}' must be exact or biased")
        if predictor.name == "exact" and (predictor.factor, predictor.noise) != (1.0, 0.0):
            raise UserError("predictor.factor and predictor.noise need predictor.name=biased")
        if not (is_number(predictor.factor) and is_number(predictor.noise)):
            raise UserError(f"predictor: factor={predictor.factor!r} and noise={predictor.noise!r} must be numbers")
        if not 0.01 <= predictor.factor <= 100 or not 0 <= predictor.noise <= 1:
            raise UserError("predictor: factor must be from 0.01 to 100 and noise from 0 to 1")
        return predictor


@dataclass(frozen=True)
class Protocol:
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

    warmup_s: float
    drain_s: float
    violation_budget: float
    gate_poll_s: float
    prior_output_tokens: float
    version: int = 1

    @classmethod
    def load(cls, value: Any) -> Protocol:
        """Loads a protocol by name, YAML path or mapping.

        Raises:
            UserError: an unknown or missing key.
        """
        raw = {key: one for key, one in protocol_values(value).items() if key != COMMAND_PART}
        check_keys("protocol", raw, cls.__dataclass_fields__)
        for key in cls.__dataclass_fields__:
            if key not in raw and key != "version":
                raise UserError(f"protocol: key '{key}' is missing")
            if not is_number(raw.get(key, 1)) or raw.get(key, 1) < 0:
                raise UserError(f"protocol: {key}={raw[key]!r} must be a number of at least 0")
        return cls(**raw)


def protocol_values(value: Any) -> dict[str, Any]:
    """Values of a protocol: fields of `Protocol`, and under `capacity` that command's settings."""
    return dict(value) if isinstance(value, Mapping) else load_yaml("protocol", value)
