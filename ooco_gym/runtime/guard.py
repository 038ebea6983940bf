"""A policy that an engine can rely on: if it fails, a rule decides instead.

`Guarded(policy, rule).decide(observation, mask)` returns the policy's action. It returns the rule's
if the observation is not finite or outside of the training range, or if the policy raises, returns
an illegal action or value, or exceeds its time budget. Fallbacks are counted (`metrics`) and
logged. In shadow mode the rule always decides, and the policy's actions are only compared with it.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ooco_gym.errors import UserError, is_number, is_whole
from ooco_gym.runtime.manifest import FEATURES, bounds_of

POLICY, RULE = "policy", "rule"
OUTSIDE, NOT_FINITE, RAISED, NONSENSE, BUDGET, RESTING = REASONS = (
    "outside", "not_finite", "raised", "nonsense", "budget", "resting")
MOST_IN_A_ROW, REST_S = 50, 10.0  # failures in a row, and seconds without the policy after them
BUCKETS_S = (5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 5e-2)
_LOG = logging.getLogger("ooco_gym.runtime")


class Metrics:
    """Prometheus counters of a guarded policy; `registry` holds them for your own exporter."""

    def __init__(self, policy: str) -> None:
        from prometheus_client import CollectorRegistry, Counter, Histogram

        self.registry, self._policy = CollectorRegistry(), policy
        self._counters = {name: Counter(f"ooco_gym_policy_{name}", text, ["policy", label], registry=self.registry)
                          for name, label, text in (
            ("decisions", "source", "Decisions, by the source of the executed action."),
            ("fallbacks", "reason", "Decisions in which the rule replaced the policy, by reason."),
            ("shadow", "agrees", "Shadow decisions of the policy, by agreement with the rule."))}
        self.took = Histogram("ooco_gym_policy_decision_seconds", "Latency of the policy's decisions, seconds.",
                              ["policy"], buckets=BUCKETS_S, registry=self.registry).labels(policy).observe

    def add(self, name: str, value: str) -> None:
        """Increments `decisions`, `fallbacks` or `shadow` for a value of its label."""
        self._counters[name].labels(self._policy, value).inc()

    def counts(self) -> dict[str, dict[str, int]]:
        """Returns the counters by name, then by label value."""
        counts: dict[str, dict[str, int]] = {}
        for name, counter in self._counters.items():
            counts[name] = {}
            for sample in next(iter(counter.collect())).samples:
                if sample.name.endswith("_total"):
                    (value,) = (sample.labels[label] for label in sample.labels if label != "policy")
                    counts[name][value] = int(sample.value)
        return counts

    def text(self) -> str:
        """Returns all metrics in Prometheus's text format."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry).decode()


class Guarded:
    """A policy with a rule as fallback; thread-safe.

    Args:
        policy: a result of `Policy.load`, or anything with `decide(observation, mask)` and a
            `manifest`.
        rule: the fallback, called with (observation, mask); returns what the policy would.
        budget_s: the policy's time limit in seconds; later actions are not used; None: no limit.
        shadow: the rule decides, and the policy is only compared with it.

    Attributes:
        metrics: the counters; Prometheus scrapes `metrics.text()`.
        policy, rule: as given.

    Raises:
        UserError: the budget is no positive number.
    """

    def __init__(self, policy: Any, rule: Callable[[Any, Any], Any], *, budget_s: float | None = None,
                 shadow: bool = False) -> None:
        if budget_s is not None and not (is_number(budget_s) and budget_s > 0):
            raise UserError(f"budget_s={budget_s!r} must be a number of seconds above 0, or None")
        self.policy, self.rule = policy, rule
        manifest = getattr(policy, "manifest", None) or {}
        self.metrics = Metrics(str(manifest.get("name") or "policy"))
        self._budget, self._shadow, self._lock = budget_s, shadow, threading.Lock()
        self._failures, self._rests_until = 0, -math.inf
        self._said: set[str] = set()
        inputs = manifest.get("inputs") or {}
        self._values = {one["name"]: (one["low"], one["high"]) for one in manifest.get("parameters") or ()}
        self._levels = np.array([len(part["levels"]) for part in manifest.get("parts") or ()])
        self._actions = len(manifest.get("actions") or ())
        self._fixed = self._actions - inputs["candidates"]["shape"][0] if "candidates" in inputs else 0
        self._ranges = {key: bounds_of(inputs[key]["features"]) for key in FEATURES
                        if key in inputs and "features" in inputs[key]}

    def decide(self, observation: Any, mask: Any = None) -> Any:
        """Returns the action to take.

        Args:
            observation: input of policy and rule.
            mask: legality of the actions of a policy of kind `candidates`; None: the observation's
                own.

        Raises:
            Exception: only what the rule itself raises.
        """
        answer, reason = self._ask(observation, mask)
        source = POLICY if reason is None and not self._shadow else RULE
        self.metrics.add("decisions", source)
        if source == POLICY:
            return answer
        acted = self.rule(observation, mask)
        if reason is None:
            self.metrics.add("shadow", "yes" if _same(answer, acted) else "no")
        return acted

    def _ask(self, observation: Any, mask: Any) -> tuple[Any, str | None]:
        """Returns (the policy's action, None), or (None, reason of the failure)."""
        begun = time.perf_counter()
        if begun < self._rests_until:
            return None, self._failed(RESTING)
        try:
            reason = self._problem(observation, mask)
            if reason is not None:
                return None, self._failed(reason)
            answer = self.policy.decide(observation, mask)
            took = time.perf_counter() - begun
            self.metrics.took(took)
            if self._budget is not None and took > self._budget:
                return None, self._failed(BUDGET)
            if not self._allowed(answer, observation, mask):
                return None, self._failed(NONSENSE, f": {str(answer)[:80]}")
        except (Exception, SystemExit) as error:  # the engine must go on
            return None, self._failed(RAISED, f": {' '.join(str(error).split())[:200]}")
        self._failures = 0
        return answer, None

    def _problem(self, observation: Any, mask: Any) -> str | None:
        """Returns `not_finite`, `outside`, or None if the observation is fine."""
        given = observation if isinstance(observation, Mapping) or not self._values else {"cluster": observation}
        for key, (low, high) in self._ranges.items():
            if key not in given:
                continue  # the policy reports missing parts
            values = np.asarray(given[key], np.float64)
            if key == "candidates":
                values = values.reshape(-1, len(low))
                legal = mask if mask is not None else given.get("action_mask")
                if legal is not None and not len(self._levels):  # ignores padding
                    values = values[np.asarray(legal)[self._fixed :] != 0]
            if not math.isfinite(values.sum()):
                return NOT_FINITE
            if not ((values >= low) & (values <= high)).all():
                return OUTSIDE
        return None

    def _allowed(self, answer: Any, observation: Any, mask: Any) -> bool:
        """Returns whether an answer is a legal action, a vector of levels, or values within bounds."""
        if self._values:
            return isinstance(answer, Mapping) and answer.keys() == self._values.keys() and all(
                low <= answer[name] <= high for name, (low, high) in self._values.items())
        if len(self._levels):
            levels = np.asarray(answer)
            return levels.shape == self._levels.shape and levels.dtype.kind == "i" and bool(
                ((levels >= 0) & (levels < self._levels)).all())
        if not self._actions:
            return True
        legal = mask if mask is not None else observation.get("action_mask")
        return is_whole(answer) and 0 <= answer < self._actions and (
            legal is None or bool(np.asarray(legal)[answer]))

    def _failed(self, reason: str, detail: str = "") -> str:
        """Counts a failure, logs the first of its kind, and suspends a policy that fails repeatedly."""
        self.metrics.add("fallbacks", reason)
        if reason not in (RESTING, OUTSIDE, NOT_FINITE):  # the policy is not at fault
            with self._lock:
                self._failures += 1
                rests = self._failures >= MOST_IN_A_ROW
                if rests:
                    self._failures, self._rests_until = 0, time.perf_counter() + REST_S
            if rests:
                _LOG.warning("the policy failed %d times in a row (last: %s) and pauses for %g s; the rule decides",
                             MOST_IN_A_ROW, reason, REST_S)
        # An engine decides thousands of times per second, so only the first warning of a kind is not for debugging.
        _LOG.log(logging.DEBUG if reason in self._said else logging.WARNING, "the rule decides in the policy's place "
                 "(%s%s)", reason, detail)
        self._said.add(reason)
        return reason


def _same(one: Any, other: Any) -> bool:
    """Returns whether two answers are equal, parameters' values within rounding."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(
            math.isclose(one[key], other[key], rel_tol=1e-6, abs_tol=1e-9) for key in one)
    return bool(np.array_equal(np.asarray(one), np.asarray(other)))
