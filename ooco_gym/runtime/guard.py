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
from functools import partial
from typing import Any

from ooco_gym.errors import UserError, is_number, whole_number
from ooco_gym.runtime.limits import NOT_FINITE, OUTSIDE, Answers, Limits
from ooco_gym.runtime.metrics import Metrics
from ooco_gym.runtime.workers import Late, Stalled, Workers

POLICY, RULE = "policy", "rule"
RAISED, NONSENSE, BUDGET, STALLED, RESTING = "raised", "nonsense", "budget", "stalled", "resting"
REASONS = (OUTSIDE, NOT_FINITE, RAISED, NONSENSE, BUDGET, STALLED, RESTING)
_LOG = logging.getLogger("ooco_gym.runtime")

Rule = Callable[[Any, Any], Any]


class Guarded:
    """A policy with a rule behind it. Many threads may ask at a time.

    Args:
        policy: what `Policy.load` gives, or anything with `decide(observation, mask)` and a `manifest`.
        rule: what decides in its place: called with (observation, mask), answers what the policy would.
        budget_s: seconds that the policy may take; None: as long as it likes.
        interrupt: whether to leave a policy that is late alone in a thread of its own, which costs tens of microseconds
            a decision; else it is waited for, and what it answers late is not used.
        shadow: the rule acts, and the policy is only compared with it.
        share: share of the decisions that the policy takes, from 0 to 1; the rule takes the others.
        outside: what becomes of an observation outside of what the policy was trained on: `rule`, or `policy` takes it.
        margin: by how much of its range in training a feature may be outside of it.
        rest_after: after so many failures in a row the policy is not asked for `rest_s` seconds; 0: always asked.
        rest_s: see there.
        on_decision: called after each decision with what was decided and why: `call`, `key`, `source`, `reason`,
            `answer`, and in shadow mode `policy` and `agrees`.
        metrics: counters to add to; None: new ones.
        clock: seconds, for tests.

    Attributes:
        metrics: the counters; `metrics.text()` is what Prometheus scrapes.
        policy, rule: as given.

    Raises:
        UserError: an argument is out of its range.
    """

    def __init__(
        self, policy: Any, rule: Rule, *, budget_s: float | None = None, interrupt: bool = True, shadow: bool = False,
        share: float = 1.0, outside: str = RULE, margin: float = 0.05, rest_after: int = 50, rest_s: float = 10.0,
        on_decision: Callable[[Mapping[str, Any]], None] | None = None, metrics: Metrics | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        _check(budget_s, share, outside, margin, rest_s)
        self.policy, self.rule = policy, rule
        manifest = getattr(policy, "manifest", None) or {}
        self.metrics = metrics or Metrics(str(manifest.get("name") or "policy"))
        self._budget, self._shadow, self._share = budget_s, shadow, share
        self._workers = Workers() if budget_s is not None and interrupt else None
        self._limits, self._answers = Limits(manifest, margin, outside == RULE), Answers(manifest)
        self._rest_after, self._rest_s = whole_number("rest_after", rest_after), rest_s
        self._on_decision, self._clock = on_decision, clock
        self._calls, self._lock = itertools.count(), threading.Lock()
        self._failures, self._rests_until = 0, -math.inf
        self._said: set[str] = set()

    def decide(self, observation: Any, mask: Any = None, key: Any = None) -> Any:
        """The answer to act on.

        Args:
            observation: what the policy takes, and the rule.
            mask: legality of the actions, where the policy is of kind `candidates`; None: the observation's own.
            key: what the canary's share goes by, such as a request's id; None: the number of the call.

        Raises:
            Exception: only what the rule itself raises.
        """
        call = next(self._calls)
        if not self._shadow and not self._takes(call, key):
            return self._by_rule(call, key, observation, mask, None)
        answer, reason = self._ask(observation, mask)
        if reason is not None:
            return self._by_rule(call, key, observation, mask, reason)
        if self._shadow:
            return self._in_shadow(call, key, observation, mask, answer)
        self.metrics.add("decisions_total", "source", POLICY)
        self._tell(call, key, POLICY, None, answer)
        return answer

    def close(self) -> None:
        """Ends the threads that wait for work."""
        if self._workers is not None:
            self._workers.close()

    # --- Whose turn it is ---------------------------------------------------------------------------------------------
    def _takes(self, call: int, key: Any) -> bool:
        """Whether a decision falls into the canary's share."""
        if self._share >= 1.0 or self._share <= 0.0:
            return self._share >= 1.0
        if key is not None:
            drawn = hashlib.blake2b(str(key).encode("utf-8", "surrogatepass"), digest_size=4).digest()
            return int.from_bytes(drawn, "big") < self._share * 2**32
        return math.floor((call + 1) * self._share) > math.floor(call * self._share)

    def _by_rule(self, call: int, key: Any, observation: Any, mask: Any, reason: str | None) -> Any:
        answer = self.rule(observation, mask)
        self.metrics.add("decisions_total", "source", RULE)
        self._tell(call, key, RULE, reason, answer)
        return answer

    def _in_shadow(self, call: int, key: Any, observation: Any, mask: Any, answer: Any) -> Any:
        acted = self.rule(observation, mask)
        agrees = self._answers.same(answer, acted)
        self.metrics.add("shadow_total", "agrees", "yes" if agrees else "no")
        self.metrics.add("decisions_total", "source", RULE)
        self._tell(call, key, RULE, None, acted, policy=answer, agrees=agrees)
        return acted

    def _tell(self, call: int, key: Any, source: str, reason: str | None, answer: Any, **more: Any) -> None:
        if self._on_decision is not None:
            try:
                self._on_decision({"call": call, "key": key, "source": source, "reason": reason, "answer": answer,
                                   **more})
            except Exception:  # a log that fails must not stop an engine
                self._say("on_decision", "what is called after each decision raises", exc_info=True)

    # --- Asking the policy --------------------------------------------------------------------------------------------
    def _ask(self, observation: Any, mask: Any) -> tuple[Any, str | None]:
        """(The policy's answer, None), or (None, why there is none)."""
        begun = self._clock()
        if begun < self._rests_until:
            return None, self._failed(RESTING)
        try:
            reason = self._limits.problem(observation, mask)
            if reason is not None:
                return None, self._failed(reason, counts=False)
            answer = self._answer(partial(self.policy.decide, observation, mask))
            took = self._clock() - begun
            self.metrics.took(took)
            if self._budget is not None and took > self._budget:
                return None, self._failed(BUDGET)
            if not self._answers.allowed(answer, observation, mask):
                return None, self._failed(NONSENSE, answer=answer)
        except Late:
            return None, self._failed(BUDGET)
        except Stalled:
            return None, self._failed(STALLED)
        except Exception as error:  # whatever it is: the engine must go on
            return None, self._failed(RAISED, error=error)
        self._failures = 0
        return answer, None

    def _answer(self, asked: Callable[[], Any]) -> Any:
        if self._workers is None or self._budget is None:
            return asked()
        return self._workers.call(asked, self._budget)

    def _failed(self, reason: str, counts: bool = True, answer: Any = None, error: Exception | None = None) -> str:
        """Counts and logs a failure, and lets a policy rest that fails again and again."""
        self.metrics.add("fallbacks_total", "reason", reason)
        if reason != RESTING and counts:
            with self._lock:
                self._failures += 1
                rests = 0 < self._rest_after <= self._failures
                if rests:
                    self._failures, self._rests_until = 0, self._clock() + self._rest_s
            if rests:
                _LOG.warning("the policy failed %d times in a row (last: %s) and rests for %g s; the rule decides",
                             self._rest_after, reason, self._rest_s)
        what = f": {' '.join(str(error).split())[:200]}" if error is not None else (
            f": {str(answer)[:80]}" if reason == NONSENSE else "")
        self._say(reason, f"the rule decides in the policy's place ({reason}{what})")
        return reason

    def _say(self, what: str, text: str, **more: Any) -> None:
        """A warning the first time, what is for debugging later: an engine decides thousands of times a second."""
        _LOG.log(logging.DEBUG if what in self._said else logging.WARNING, "%s", text, **more)
        self._said.add(what)


def _check(budget_s: Any, share: Any, outside: Any, margin: Any, rest_s: Any) -> None:
    if budget_s is not None and (not is_number(budget_s) or budget_s <= 0):
        raise UserError(f"budget_s={budget_s!r} must be a number of seconds above 0, or None")
    if not is_number(share) or not 0 <= share <= 1:
        raise UserError(f"share={share!r} must be a number from 0 to 1")
    if outside not in (POLICY, RULE):
        raise UserError(f"outside={outside!r} must be '{RULE}' or '{POLICY}': who decides outside of the training")
    for name, value in (("margin", margin), ("rest_s", rest_s)):
        if not is_number(value) or value < 0:
            raise UserError(f"{name}={value!r} must be a number of at least 0")

