"""What an episode is made of: scenario, partner, window, reward; read from `conf/env` and `conf/reward`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ooco_gym.envs.reward import PARTS
from ooco_gym.errors import UserError, check_keys, nearest, unknown
from ooco_gym.resources import load_yaml
from ooco_gym.scenario import DAY_S, Scenario

DRAIN_S = 120.0  # most that is played after a window, to see its online requests through
_KEYS = ("id", "name", "description", "scenario", "partner", "window_s", "warmup_s", "candidates", "reward",
         "interval_s", "levels", "controls", "vary", "shifts", "splits")


@dataclass(frozen=True)
class EpisodeConfig:
    """Conditions of an environment's episodes.

    Attributes:
        scenario: the load and the cluster; seed and time of day change from window to window.
        partner: policy that takes all other decisions, as `policy_of` takes it.
        window_s, warmup_s: lengths, in seconds.
        candidates: how many are offered at a decision (K).
        weights: float64[parts], of the reward's parts.
        interval_s: from one decision by the clock to the next, in seconds.
        levels: shares of the TPOT SLO to which steps may be packed.
        controls: parameters of the partner that may be turned, and the size of a step of each.
        vary: scenario fields drawn anew for each window: `[low, high]`, or a list of choices.
    """

    scenario: Scenario
    partner: Any
    window_s: float
    warmup_s: float
    candidates: int
    weights: np.ndarray
    interval_s: float = 1.0
    levels: tuple[float, ...] = ()
    controls: Mapping[str, Any] = field(default_factory=dict)
    vary: Mapping[str, Any] = field(default_factory=dict)

    def window(self, seed: int, number: int) -> Scenario:
        """The scenario of window `number` of `seed`: both key time of day, arrivals, lengths, what varies."""
        key = np.random.SeedSequence([seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF, number & 0xFFFFFFFF])
        first, second = (int(word) for word in key.generate_state(2))
        slots = int(DAY_S // self.window_s)
        start_s = DAY_S + (first % max(1, slots)) * self.window_s  # a day later: room for the warm-up before midnight
        changes: dict[str, Any] = {}
        if self.vary:
            random = np.random.default_rng(key.spawn(1)[0])
            changes = _merged(self.scenario, {name: _drawn(random, values) for name, values in self.vary.items()})
        return self.scenario.with_(seed=second, start_s=start_s, duration_s=self.window_s, warmup_s=self.warmup_s,
                                   drain_s=DRAIN_S, **changes)


def episode_config(default: str, *, scenario: Any = None, partner: Any = None, window_s: float | None = None,
                   warmup_s: float | None = None, candidates: int | None = None, reward: Any = None,
                   interval_s: float | None = None, workload: str | None = None, cluster: str | None = None,
                   shift: str | None = None, most_candidates: int = 64, **parts: Any) -> EpisodeConfig:
    """Completes an environment's arguments from its default scenario.

    Args:
        default: name in `conf/env`.
        scenario: None, a name in `conf/env`, a YAML path, a mapping of scenario fields, or a `Scenario`.
        partner: a policy's name (`ooco`, `hygen:latency_budget_s=0.045`), or a mapping with `name` and parameters.
        window_s, warmup_s, candidates, reward, interval_s: as `partner`, None takes the default's.
        workload, cluster: in short for these fields of the scenario.
        shift: name of one of the default's distribution shifts.
        most_candidates: more than the environment can offer are cut to this.
        **parts: `levels`, `controls`, `vary`, `shifts` instead of the default's.

    Raises:
        UserError: unknown names or keys, or figures out of range.
    """
    base = load_yaml("env", default if not isinstance(scenario, str) else scenario)
    base.update({key: value for key, value in parts.items() if value is not None})
    check_keys("env", base, _KEYS)
    chosen = _scenario(base, scenario, {"workload": workload, "cluster": cluster}, shift)
    size = min(most_candidates, int(candidates if candidates is not None else base.get("candidates", 8)))
    if not 1 <= size <= 64:
        raise UserError(f"candidates={size} must be from 1 to 64")
    window = float(window_s if window_s is not None else base.get("window_s", 1800.0))
    warmup = float(warmup_s if warmup_s is not None else base.get("warmup_s", 300.0))
    if not 0 < window <= DAY_S or not 0 <= warmup <= DAY_S:
        raise UserError(f"window_s={window:g} and warmup_s={warmup:g} must be positive and at most a day")
    interval = float(interval_s if interval_s is not None else base.get("interval_s", 1.0))
    if not 0.001 <= interval <= DAY_S:
        raise UserError(f"interval_s={interval:g} must be from 0.001 to a day")
    vary = dict(base.get("vary") or {})
    for name, values in vary.items():
        if not isinstance(values, (list, tuple)) or not values:
            raise UserError(f"vary.{name}={values!r} must be [low, high] or a list of choices")
    return EpisodeConfig(chosen, partner if partner is not None else base.get("partner", "ooco"), window, warmup, size,
                         reward_weights(reward if reward is not None else base.get("reward", "penalty")), interval,
                         tuple(float(level) for level in base.get("levels") or ()), dict(base.get("controls") or {}),
                         vary)


def _scenario(base: Mapping[str, Any], given: Any, short: Mapping[str, Any], shift: str | None) -> Scenario:
    fields = dict(base.get("scenario") or {})
    if isinstance(given, Mapping):
        check_keys("env scenario", given, Scenario.__dataclass_fields__)
        if given.get("online_rate") is not None:
            fields.pop("rate_scale", None)
        fields.update(given)
    chosen = given if isinstance(given, Scenario) else Scenario.from_config(fields)
    changes = {key: value for key, value in short.items() if value is not None}
    if shift is not None:
        shifts = base.get("shifts") or {}
        if shift not in shifts:
            raise unknown("shift", shift, shifts)
        changes.update(_merged(chosen, shifts[shift]))
    return chosen.with_(**changes) if changes else chosen


def _merged(scenario: Scenario, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes of scenario fields, where a mapping (`offline: {rate: 2}`, or `offline.rate: 2`) changes a part of one.

    Raises:
        UserError: no field of that name.
    """
    merged: dict[str, Any] = {}
    for key, value in changes.items():
        name, _, part = key.partition(".")
        check_keys("scenario", {name: value}, Scenario.__dataclass_fields__)
        given = {part: value} if part else value
        old = merged.get(name, getattr(scenario, name))
        merged[name] = {**old, **given} if isinstance(given, Mapping) and isinstance(old, Mapping) else given
    return merged


def _drawn(random: np.random.Generator, values: Any) -> Any:
    """A value: uniform between two numbers, or one of a list."""
    if len(values) == 2 and all(isinstance(value, float) for value in values):
        return float(random.uniform(values[0], values[1]))
    return values[int(random.integers(len(values)))]


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
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 <= weight < 1e9:
            raise UserError(f"reward.{key}={weight!r} must be a number of at least 0")
    return np.array([float(raw.get(part, 0.0)) for part in PARTS])
