"""Counters of a guarded policy, and their text for Prometheus (its exposition format 0.0.4); nothing to install."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping

BUCKETS_S = (5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 5e-2)
_HELP = {"decisions_total": "Decisions, by whose answer was acted on.",
         "fallbacks_total": "Decisions in which the rule stood in for the policy, by why.",
         "shadow_total": "Decisions that the policy took in the shadow of the rule, by whether both agree.",
         "decision_seconds": "What the policy took to answer, seconds."}


class Metrics:
    """Counters that many threads may add to.

    Args:
        policy: the label `policy` of every line.
        prefix: what the names of the metrics begin with.
    """

    def __init__(self, policy: str = "policy", prefix: str = "ooco_gym_policy") -> None:
        self._policy, self._prefix, self._lock = policy, prefix, threading.Lock()
        self._counts: dict[tuple[str, str, str], int] = {}
        self._buckets, self._sum, self._number = [0] * (len(BUCKETS_S) + 1), 0.0, 0

    def add(self, name: str, label: str, value: str) -> None:
        """Counts one more of `name{label="value"}`."""
        key = (name, label, value)
        with self._lock:
            self._counts[key] = self._counts.get(key, 0) + 1

    def took(self, seconds: float) -> None:
        """The policy has answered, after so long."""
        with self._lock:
            self._buckets[bisect_left(BUCKETS_S, seconds)] += 1
            self._sum += seconds
            self._number += 1

    def count(self, name: str, value: str) -> int:
        """How many of `name` with this value of its label."""
        with self._lock:
            return sum(number for (one, _, label), number in self._counts.items() if (one, label) == (name, value))

    def counts(self) -> dict[str, dict[str, int]]:
        """All counters: by name, then by the value of their label."""
        found: dict[str, dict[str, int]] = {}
        with self._lock:
            for (name, _, value), number in sorted(self._counts.items()):
                found.setdefault(name, {})[value] = number
        return found

    def mean_s(self) -> float:
        """Mean time of the policy's answers, seconds; 0 before the first."""
        with self._lock:
            return self._sum / self._number if self._number else 0.0

    def text(self) -> str:
        """All of it, as a scrape of Prometheus reads it."""
        return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        with self._lock:
            counts, buckets = dict(self._counts), list(self._buckets)
            total, number = self._sum, self._number
        for name in ("decisions_total", "fallbacks_total", "shadow_total"):
            yield from self._head(name, "counter")
            for (one, label, value), count in sorted(counts.items()):
                if one == name:
                    yield f"{self._prefix}_{name}{self._labels({label: value})} {count}"
        yield from self._head("decision_seconds", "histogram")
        below = 0
        for bound, count in zip((*BUCKETS_S, float("inf")), buckets, strict=True):
            below += count
            shown = "+Inf" if bound == float("inf") else f"{bound:g}"
            yield f"{self._prefix}_decision_seconds_bucket{self._labels({'le': shown})} {below}"
        yield f"{self._prefix}_decision_seconds_sum{self._labels({})} {total:.9g}"
        yield f"{self._prefix}_decision_seconds_count{self._labels({})} {number}"

    def _head(self, name: str, kind: str) -> Iterator[str]:
        yield f"# HELP {self._prefix}_{name} {_HELP[name]}"
        yield f"# TYPE {self._prefix}_{name} {kind}"

    def _labels(self, labels: Mapping[str, str]) -> str:
        return "{" + ",".join(f'{key}="{_escaped(value)}"' for key, value in
                              {"policy": self._policy, **labels}.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
