"""What an episode is made of: scenario, partner, window, reward; read from `conf/env` and `conf/reward`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooco_gym.envs.stepping import PARTS
from ooco_gym.errors import UserError, check_keys, nearest
from ooco_gym.resources import load_yaml
from ooco_gym.scenario import DAY_S, Scenario

DRAIN_S = 120.0  # most that is played after a window, to see its online requests through


@dataclass(frozen=True)
class EpisodeConfig:
    """Conditions of an environment's episodes.

    Attributes:
        scenario: the load and the cluster; seed and time of day change from window to window.
        partner: policy that takes all other decisions.
        window_s, warmup_s: lengths, in seconds.
        candidates: how many are offered at a decision (K).
        weights: float64[5], of the reward's parts (service, waiting, ttft, tpot, waste).
    """

    scenario: Scenario
    partner: str
    window_s: float
    warmup_s: float
    candidates: int
    weights: np.ndarray

    def window(self, seed: int, number: int) -> Scenario:
        """The scenario of window `number` of `seed`: both key the time of day, the arrivals and the lengths."""
        key = np.random.SeedSequence([seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF, number & 0xFFFFFFFF])
        first, second = (int(word) for word in key.generate_state(2))
        slots = int(DAY_S // self.window_s)
        start_s = DAY_S + (first % max(1, slots)) * self.window_s  # a day later: room for the warm-up before midnight
        return self.scenario.with_(seed=second, start_s=start_s, duration_s=self.window_s, warmup_s=self.warmup_s,
                                   drain_s=DRAIN_S)


def episode_config(scenario: Any, partner: str | None, window_s: float | None, warmup_s: float | None,
                   candidates: int | None, reward: Any, default: str = "gating") -> EpisodeConfig:
    """Completes an environment's arguments from its default scenario.

    Args:
        scenario: None, a name in `conf/env`, a YAML path, a mapping of scenario fields, or a `Scenario`.
        partner, window_s, warmup_s, candidates, reward: None takes the default's.
        default: name in `conf/env`.

    Raises:
        UserError: unknown names or keys, or figures out of range.
    """
    base = load_yaml("env", default if not isinstance(scenario, str) else scenario)
    fields = dict(base.get("scenario") or {})
    if isinstance(scenario, Mapping):
        check_keys("env scenario", scenario, Scenario.__dataclass_fields__)
        if scenario.get("online_rate") is not None:
            fields.pop("rate_scale", None)
        fields.update(scenario)
    chosen = scenario if isinstance(scenario, Scenario) else Scenario.from_config(fields)
    size = int(candidates if candidates is not None else base.get("candidates", 8))
    if not 1 <= size <= 64:
        raise UserError(f"candidates={size} must be from 1 to 64")
    window = float(window_s if window_s is not None else base.get("window_s", 1800.0))
    warmup = float(warmup_s if warmup_s is not None else base.get("warmup_s", 300.0))
    if not 0 < window <= DAY_S or not 0 <= warmup <= DAY_S:
        raise UserError(f"window_s={window:g} and warmup_s={warmup:g} must be positive and at most a day")
    return EpisodeConfig(chosen, str(partner or base.get("partner", "ooco")), window, warmup, size,
                         reward_weights(reward if reward is not None else base.get("reward", "penalty")))


def reward_weights(value: Any) -> np.ndarray:
    """Reads the weights of the reward's parts: a name in `conf/reward`, a YAML path or a mapping.

    Raises:
        UserError: an unknown part, a missing one, or a negative weight.
    """
    raw = dict(value) if isinstance(value, Mapping) else load_yaml("reward", value)
    raw.pop("name", None)
    for key, weight in raw.items():
        if key not in PARTS:
            raise UserError(f"reward: unknown part '{key}'{nearest(str(key), PARTS)}; parts are {', '.join(PARTS)}")
        if not isinstance(weight, (int, float)) or weight < 0:
            raise UserError(f"reward.{key}={weight!r} must be a number of at least 0")
    return np.array([float(raw.get(part, 0.0)) for part in PARTS])
