"""What the scheduler inside vLLM counts, and where it is seen.

The counters are made with `prometheus_client` in the process of vLLM's engine core. Where `$PROMETHEUS_MULTIPROC_DIR`
is set when the server starts, vLLM's own `/metrics` shows them beside its own; else `metrics_port` serves them by
themselves. Without either they go to the log, once a minute.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

LOG = logging.getLogger("vllm.ooco_gym")
_BUCKETS = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 1e-1)
_LOG_EVERY_S = 60.0
THIS_MACHINE = "127.0.0.1"  # the interface that no other machine reaches


class Watch:
    """Counters, and the sums behind them.

    Attributes:
        counts: plain numbers by name, for tests and the log: `decisions`, `stock`, `fallbacks:REASON`, `preemptions`,
            `parked`, `adjustments`.
    """

    def __init__(self, rule: str, port: int | None = None, address: str = THIS_MACHINE) -> None:
        self.counts: Counter[str] = Counter()
        self.seconds = self.predicted_s = self.actual_s = self.spent_s = self.error_s = 0.0
        self._logged_s = 0.0
        self._metrics = _metrics(rule, port, address)

    def decided(self, seconds: float) -> None:
        """A rule composed an iteration, and took so long."""
        self.counts["decisions"] += 1
        self.seconds += seconds
        self._add("decisions")
        self._observe("seconds", seconds)

    def stock(self) -> None:
        """vLLM's own schedule was used."""
        self.counts["stock"] += 1
        self._add("stock")

    def fell_back(self, reason: str, detail: str = "") -> None:
        """The rule could not be followed; the first of each kind is logged with its detail."""
        name = f"fallbacks:{reason}"
        self.counts[name] += 1
        if self.counts[name] == 1:
            LOG.warning("ooco-gym: the rule %s (%s); vLLM's own schedule stands in", reason, detail)
        if self._metrics:
            self._metrics["fallbacks"].labels(reason=reason).inc()

    def count(self, name: str, amount: int = 1) -> None:
        """More of something that is counted."""
        if amount:
            self.counts[name] += amount
            self._add(name, amount)

    def took(self, predicted_s: float, actual_s: float, spent_s: float) -> None:
        """An iteration is over: what was predicted, what it took, and how much slack it spent."""
        self.predicted_s += predicted_s
        self.actual_s += actual_s
        self.error_s += abs(predicted_s - actual_s)
        self.spent_s += spent_s
        self._add("predicted", predicted_s)
        self._add("actual", actual_s)
        self._add("error", abs(predicted_s - actual_s))
        self._add("slack", spent_s)

    def log(self, now_s: float) -> None:
        """Writes the counters to the log where the last time is a minute ago."""
        if now_s - self._logged_s < _LOG_EVERY_S:
            return
        first, self._logged_s = self._logged_s == 0.0, now_s
        if not first:
            LOG.info("ooco-gym: %s", self.describe())

    def describe(self) -> str:
        """The counters in one line."""
        made = max(1, self.counts["decisions"])
        error = 100.0 * self.error_s / self.actual_s if self.actual_s else 0.0
        found = ", ".join(f"{name} {count}" for name, count in sorted(self.counts.items()))
        return (f"{found}; {1e6 * self.seconds / made:.0f} us a decision; iterations predicted within {error:.0f} % on "
                "average")

    def _add(self, name: str, amount: float = 1.0) -> None:
        if name in self._metrics and amount > 0.0:
            self._metrics[name].inc(amount)

    def _observe(self, name: str, value: float) -> None:
        if self._metrics:
            self._metrics[name].observe(value)


_MADE: dict[str, Any] = {}


def _metrics(rule: str, port: int | None, address: str) -> dict[str, Any]:
    """The Prometheus metrics, made once in a process; none where prometheus_client is not installed."""
    try:
        from prometheus_client import Counter as Count  # pyright: ignore[reportMissingImports]
        from prometheus_client import Histogram, start_http_server  # pyright: ignore[reportMissingImports]
    except ImportError:
        return {}
    if not _MADE:
        for name, text in (
                ("decisions", "iterations composed by the rule"), ("stock", "iterations composed by vLLM itself"),
                ("preemptions", "requests that the rule preempted"), ("parked", "decodes that the rule left out"),
                ("rests", "times that a failing rule was left alone for a while"),
                ("adjustments", "changes of parameters by a learned policy")):
            _MADE[name] = Count(f"vllm:ooco_{name}", text)
        for name, text in (
                ("predicted", "predicted seconds of iterations"), ("actual", "seconds that these iterations took"),
                ("error", "sum of absolute differences between both"),
                ("slack", "seconds that iterations took beyond online decodes alone")):
            _MADE[name] = Count(f"vllm:ooco_{name}_seconds", text)
        _MADE["fallbacks"] = Count("vllm:ooco_fallbacks", "iterations in which vLLM's schedule stood in", ["reason"])
        _MADE["seconds"] = Histogram("vllm:ooco_decision_seconds", "time to compose an iteration", buckets=_BUCKETS)
    if port is not None and not _MADE.get("port"):
        try:
            start_http_server(port, address)
            _MADE["port"] = port
        except OSError as error:
            LOG.warning("ooco-gym: no metrics at %s:%d (%s)", address, port, error)
    LOG.info("ooco-gym: scheduling by the rule '%s'", rule)
    return _MADE
