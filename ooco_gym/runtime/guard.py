"""A policy that an engine can rely on: whatever it does, the engine gets an answer, from the rule if need be.

`Guarded(policy, rule).decide(observation, mask)` answers with what the policy says, or with what the rule says if the
observation is not finite or outside of what the policy was trained on, if the policy raises, answers what is no legal
action or value, or takes longer than its time budget. Each is counted (`metrics`) and logged.

In shadow mode the rule acts and the policy's answers are only compared with it. As a canary the policy takes a share of
the decisions, by the request's key (the same request always alike) or evenly by the number of the call.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from ooco_gym.errors import UserError, is_number, is_whole, whole_number
from ooco_gym.runtime.manifest import FEATURES, bounds_of

POLICY, RULE = "policy", "rule"
OUTSIDE, NOT_FINITE, RAISED, NONSENSE, BUDGET, STALLED, RESTING = REASONS = (
    "outside", "not_finite", "raised", "nonsense", "budget", "stalled", "resting")
BUCKETS_S = (5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 5e-2)
_LOG = logging.getLogger("ooco_gym.runtime")


# --- Calls with a time limit ----------------------------------------------------------------------------------------
class Late(TimeoutError):
    """The function has not answered in time."""


class Stalled(TimeoutError):
    """As many functions as may be late still are."""


class TimeLimit:
    """Calls functions, each in a thread of its own, and goes on without those that are late: Python cannot stop them.

    Args:
        most_late: so many functions may be late at a time; then no more are called.
    """

    def __init__(self, most_late: int = 4) -> None:
        self._most_late, self._lock = most_late, threading.Lock()
        self._late: list[threading.Thread] = []

    def call(self, function: Callable[[], Any], limit_s: float) -> Any:
        """What the function answers, or raises.

        Raises:
            Late: not within `limit_s`.
            Stalled: too many calls before were late, and still are.
        """
        answers: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()

        def run() -> None:
            try:
                answers.put((function(), None))
            except BaseException as error:  # handed to whoever called
                answers.put((None, error))

        if self._late:
            with self._lock:
                self._late = [thread for thread in self._late if thread.is_alive()]
            if len(self._late) >= self._most_late:
                raise Stalled
        thread = threading.Thread(target=run, name="ooco-gym-policy", daemon=True)
        thread.start()
        try:
            answer, error = answers.get(timeout=limit_s)
        except Empty:
            with self._lock:
                self._late.append(thread)
            raise Late from None
        if error is not None:
            raise error
        return answer


# --- Counters -------------------------------------------------------------------------------------------------------
class Metrics:
    """Counters of a guarded policy, for Prometheus: `registry` has them, for an exporter of your own."""

    def __init__(self, policy: str) -> None:
        from prometheus_client import CollectorRegistry, Counter, Histogram

        self.registry, self._policy = CollectorRegistry(), policy
        self._counters = {name: Counter(f"ooco_gym_policy_{name}", text, ["policy", label], registry=self.registry)
                          for name, label, text in (
            ("decisions", "source", "Decisions, by whose answer was acted on."),
            ("fallbacks", "reason", "Decisions in which the rule stood in for the policy, by why."),
            ("shadow", "agrees", "Decisions that the policy took in the shadow of the rule, by whether both agree."))}
        self.took = Histogram("ooco_gym_policy_decision_seconds", "What the policy took to answer, seconds.",
                              ["policy"], buckets=BUCKETS_S, registry=self.registry).labels(policy).observe

    def add(self, name: str, value: str) -> None:
        """Counts one more of `decisions`, `fallbacks` or `shadow` with this value of its label."""
        self._counters[name].labels(self._policy, value).inc()

    def counts(self) -> dict[str, dict[str, int]]:
        """The counters by name, then by the value of their label."""
        return {name: {sample.labels[label]: int(sample.value) for family in counter.collect()
                       for sample in family.samples if sample.name.endswith("_total")
                       for label in sample.labels if label != "policy"}
                for name, counter in self._counters.items()}

    def text(self) -> str:
        """All of it, as a scrape of Prometheus reads it."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry).decode()


# --- The guard ------------------------------------------------------------------------------------------------------
class Guarded:
    """A policy with a rule behind it. Many threads may ask at a time.

    Args:
        policy: what `Policy.load` gives, or anything with `decide(observation, mask)` and a `manifest`.
        rule: what decides in its place: called with (observation, mask), answers what the policy would.
        budget_s: seconds that the policy may take; None: as long as it likes.
        interrupt: whether to leave a policy that is late alone in a thread of its own, which costs tens of
            microseconds a decision; else it is waited for, and what it answers late is not used.
        shadow: the rule acts, and the policy is only compared with it.
        share: share of the decisions that the policy takes, from 0 to 1; the rule takes the others.
        outside: what becomes of an observation outside of what the policy was trained on: `rule`, or `policy` takes it.
        margin: by how much of its range in training a feature may be outside of it.
        rest_after: after so many failures in a row the policy is not asked for `rest_s` seconds; 0: always asked.
        rest_s: see there.
        on_decision: called after each decision with what was decided and why: `call`, `key`, `source`, `reason`,
            `answer`, and in shadow mode `policy` and `agrees`.
        clock: seconds, for tests.

    Attributes:
        metrics: the counters; `metrics.text()` is what Prometheus scrapes.
        policy, rule: as given.

    Raises:
        UserError: an argument is out of its range.
    """

    def __init__(
        self, policy: Any, rule: Callable[[Any, Any], Any], *, budget_s: float | None = None, interrupt: bool = True,
        shadow: bool = False, share: float = 1.0, outside: str = RULE, margin: float = 0.05, rest_after: int = 50,
        rest_s: float = 10.0, on_decision: Callable[[Mapping[str, Any]], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        for name, value, fits, expected in (
                ("budget_s", budget_s, budget_s is None or (is_number(budget_s) and budget_s > 0),
                 "a number of seconds above 0, or None"),
                ("share", share, is_number(share) and 0 <= share <= 1, "a number from 0 to 1"),
                ("outside", outside, outside in (POLICY, RULE), f"'{RULE}' or '{POLICY}'"),
                ("margin", margin, is_number(margin) and margin >= 0, "a number of at least 0"),
                ("rest_s", rest_s, is_number(rest_s) and rest_s >= 0, "a number of at least 0")):
            if not fits:
                raise UserError(f"{name}={value!r} must be {expected}")
        self.policy, self.rule = policy, rule
        manifest = getattr(policy, "manifest", None) or {}
        self.metrics = Metrics(str(manifest.get("name") or "policy"))
        self._budget, self._shadow, self._share = budget_s, shadow, share
        self._limit = TimeLimit() if budget_s is not None and interrupt else None
        self._rest_after, self._rest_s = whole_number("rest_after", rest_after), rest_s
        self._on_decision, self._clock = on_decision, clock
        self._calls, self._lock = itertools.count(), threading.Lock()
        self._failures, self._rests_until = 0, -math.inf
        self._said: set[str] = set()
        inputs = manifest.get("inputs") or {}
        self._values = {one["name"]: (one["low"], one["high"]) for one in manifest.get("parameters") or ()}
        self._levels = np.array([len(part["levels"]) for part in manifest.get("parts") or ()])
        self._actions = len(manifest.get("actions") or ())
        self._fixed = self._actions - inputs["candidates"]["shape"][0] if "candidates" in inputs else 0
        self._ranges = {key: bounds_of(inputs[key]["features"], margin) if outside == RULE else None
                        for key in FEATURES if key in inputs and "features" in inputs[key]}

    def decide(self, observation: Any, mask: Any = None, key: Any = None) -> Any:
        """The answer to act on.

        Args:
            observation: what the policy takes, and the rule.
            mask: legality of the actions, where the policy is of kind `candidates`; None: the observation's own.
            key: what the canary's share goes by, such as a request's id; None: the number of the call.

        Raises:
            Exception: only what the rule itself raises.
        """
        call, answer, reason = next(self._calls), None, None
        asked = self._shadow or self._takes(call, key)
        if asked:
            answer, reason = self._ask(observation, mask)
        said: dict[str, Any] = {"call": call, "key": key, "source": RULE, "reason": reason}
        if not asked or reason is not None:
            said["answer"] = self.rule(observation, mask)
        elif self._shadow:
            acted = self.rule(observation, mask)
            said |= {"answer": acted, "policy": answer, "agrees": _same(answer, acted)}
            self.metrics.add("shadow", "yes" if said["agrees"] else "no")
        else:
            said |= {"answer": answer, "source": POLICY}
        self.metrics.add("decisions", said["source"])
        if self._on_decision is not None:
            try:
                self._on_decision(said)
            except Exception:  # a log that fails must not stop an engine
                self._say("on_decision", "what is called after each decision raises", exc_info=True)
        return said["answer"]

    def _takes(self, call: int, key: Any) -> bool:
        """Whether a decision falls into the canary's share."""
        if key is not None:
            drawn = hashlib.blake2b(str(key).encode("utf-8", "surrogatepass"), digest_size=4).digest()
            return int.from_bytes(drawn, "big") < self._share * 2**32
        return math.floor((call + 1) * self._share) > math.floor(call * self._share)

    def _ask(self, observation: Any, mask: Any) -> tuple[Any, str | None]:
        """(The policy's answer, None), or (None, why there is none)."""
        begun = self._clock()
        if begun < self._rests_until:
            return None, self._failed(RESTING)
        try:
            reason = self._problem(observation, mask)
            if reason is not None:
                return None, self._failed(reason)
            if self._limit is not None and self._budget is not None:
                answer = self._limit.call(lambda: self.policy.decide(observation, mask), self._budget)
            else:
                answer = self.policy.decide(observation, mask)
            took = self._clock() - begun
            self.metrics.took(took)
            if self._budget is not None and took > self._budget:
                return None, self._failed(BUDGET)
            if not self._allowed(answer, observation, mask):
                return None, self._failed(NONSENSE, f": {str(answer)[:80]}")
        except Late:
            return None, self._failed(BUDGET)
        except Stalled:
            return None, self._failed(STALLED)
        except Exception as error:  # whatever it is: the engine must go on
            return None, self._failed(RAISED, f": {' '.join(str(error).split())[:200]}")
        self._failures = 0
        return answer, None

    def _problem(self, observation: Any, mask: Any) -> str | None:
        """`not_finite`, `outside`, or None where there is nothing wrong with an observation."""
        given = observation if isinstance(observation, Mapping) or not self._values else {"cluster": observation}
        for key, bounds in self._ranges.items():
            if key not in given:
                continue  # the policy says what it misses
            values = np.asarray(given[key], np.float64)
            if bounds is not None and key == "candidates":
                values = values.reshape(-1, len(bounds[0]))
                legal = mask if mask is not None else given.get("action_mask")
                if legal is not None and not len(self._levels):  # what stands in the other places means nothing
                    values = values[np.asarray(legal)[self._fixed :] != 0]
            if not math.isfinite(values.sum()):
                return NOT_FINITE
            if bounds is not None and not ((values >= bounds[0]) & (values <= bounds[1])).all():
                return OUTSIDE
        return None

    def _allowed(self, answer: Any, observation: Any, mask: Any) -> bool:
        """Whether an answer is a legal action, a vector of levels, or a value within bounds of each parameter."""
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
        """Counts and logs a failure, and lets a policy rest that fails again and again."""
        self.metrics.add("fallbacks", reason)
        if reason not in (RESTING, OUTSIDE, NOT_FINITE):  # the policy is not at fault
            with self._lock:
                self._failures += 1
                rests = 0 < self._rest_after <= self._failures
                if rests:
                    self._failures, self._rests_until = 0, self._clock() + self._rest_s
            if rests:
                _LOG.warning("the policy failed %d times in a row (last: %s) and rests for %g s; the rule decides",
                             self._rest_after, reason, self._rest_s)
        self._say(reason, f"the rule decides in the policy's place ({reason}{detail})")
        return reason

    def _say(self, what: str, text: str, **more: Any) -> None:
        """A warning the first time, what is for debugging later: an engine decides thousands of times a second."""
        _LOG.log(logging.DEBUG if what in self._said else logging.WARNING, "%s", text, **more)
        self._said.add(what)


def _same(one: Any, other: Any) -> bool:
    """Whether two answers are the same, values of parameters within rounding."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(
            math.isclose(one[key], other[key], rel_tol=1e-6, abs_tol=1e-9) for key in one)
    return bool(np.array_equal(np.asarray(one), np.asarray(other)))
