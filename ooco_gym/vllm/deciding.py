"""Guards a rule inside vLLM: checks its plan for each iteration before it is applied, and counts what it does.

A rule never stops the server. If it raises, returns an invalid plan or stalls, vLLM schedules that iteration. After
`MOST_IN_A_ROW` failures the rule is suspended for `REST_S`. A learned policy (`Adjuster`) sets the rule's parameters at
intervals.

If `$PROMETHEUS_MULTIPROC_DIR` is set when the server starts, vLLM's own `/metrics` includes the counters; else
`metrics_port` serves them. They are also logged every minute.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import prometheus_client

from ooco_gym.errors import UserError
from ooco_gym.perf.terms import Terms
from ooco_gym.runtime.bundle import Policy
from ooco_gym.runtime.features import ENGINE, ArrivalRates, Blocks
from ooco_gym.runtime.rules import Engine, Plan, Rule
from ooco_gym.vllm.beliefs import Belief, Learned, Sums, prior_of
from ooco_gym.vllm.replica import Compiled, Replica
from ooco_gym.vllm.rules import RULES, make_rule
from ooco_gym.vllm.settings import LEARNED, STOCK, Settings

LOG = logging.getLogger("vllm.ooco_gym")
MOST_IN_A_ROW, REST_S = 10, 10.0
STALL_S = 1.0  # longest decision; later plans are dropped
INTERVAL_S = 1.0  # between decisions of a learned policy whose bundle has no interval
_BUCKETS = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 1e-1)
_LOG_EVERY_S = 60.0


# --- Counters -------------------------------------------------------------------------------------------------------
@cache
def _metrics() -> dict[str, Any]:
    """Returns the Prometheus metrics, created once per process."""
    made: dict[str, Any] = {name: prometheus_client.Counter(f"vllm:ooco_{name}", text) for name, text in (
        ("decisions", "iterations composed by the rule"), ("stock", "iterations composed by vLLM itself"),
        ("preemptions", "requests that the rule preempted"), ("parked", "decodes that the rule skipped"),
        ("rests", "pauses of a failing rule"),
        ("adjustments", "changes of parameters by a learned policy"),
        ("predicted_seconds", "predicted seconds of iterations"),
        ("actual_seconds", "seconds that these iterations took"),
        ("error_seconds", "sum of absolute differences between both"),
        ("slack_seconds", "seconds that iterations took beyond online decodes alone"))}
    made["fallbacks"] = prometheus_client.Counter(
        "vllm:ooco_fallbacks", "iterations in which vLLM's own schedule replaced the rule's", ["reason"])
    made["decision_seconds"] = prometheus_client.Histogram(
        "vllm:ooco_decision_seconds", "time to compose an iteration", buckets=_BUCKETS)
    return made


@cache
def _serve(port: int, address: str) -> None:
    try:
        prometheus_client.start_http_server(port, address)
    except OSError as error:
        LOG.warning("ooco-gym: no metrics at %s:%d (%s)", address, port, error)


class Watch:
    """Prometheus counters.

    Attributes:
        counts: the same as numbers by name, for tests and the log; `fallbacks:REASON` for each
            reason.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._metrics, self._logged_s = _metrics(), 0.0

    def count(self, name: str, amount: float = 1) -> None:
        if amount > 0:
            self.counts[name] += amount  # pyright: ignore[reportArgumentType]
            self._metrics[name].inc(amount)

    def decided(self, seconds: float) -> None:
        """Records an iteration composed by a rule, and the time this took."""
        self.count("decisions")
        self.counts["decision_seconds"] += seconds  # pyright: ignore[reportArgumentType]
        self._metrics["decision_seconds"].observe(seconds)

    def fell_back(self, reason: str, detail: str = "") -> None:
        """Records a fallback to vLLM's schedule; the first of each kind is logged with its detail."""
        name = f"fallbacks:{reason}"
        self.counts[name] += 1
        if self.counts[name] == 1:
            LOG.warning("ooco-gym: the rule %s (%s); vLLM's own schedule is used", reason, detail)
        self._metrics["fallbacks"].labels(reason=reason).inc()

    def took(self, predicted_s: float, actual_s: float, spent_s: float) -> None:
        """Records an iteration's predicted and actual latency, and the slack it used."""
        for name, seconds in (("predicted", predicted_s), ("actual", actual_s), ("slack", spent_s),
                              ("error", abs(predicted_s - actual_s))):
            self.count(f"{name}_seconds", seconds)

    def log(self, now_s: float) -> None:
        """Writes the counters to the log, at most once a minute."""
        if not 0.0 <= now_s - self._logged_s < _LOG_EVERY_S:     # the clock may be set back
            if self._logged_s:
                LOG.info("ooco-gym: %s", ", ".join(f"{name} {count:g}" for name, count in sorted(self.counts.items())))
            self._logged_s = now_s


# --- Latencies of iterations ----------------------------------------------------------------------------------------
class Iteration(NamedTuple):
    """An iteration in flight: the output that identifies it, its sums, when it was scheduled, its
    predicted latency, and how much of that latency uses up online decodes' slack."""

    output: Any
    sums: Sums
    scheduled_s: float
    predicted_s: float
    spent_s: float


class InFlight:
    """The iterations in flight (two with asynchronous scheduling): when the next begins, and how
    long each took.

    An iteration begins when it is scheduled, or when the previous one ends; it ends when the engine
    has its tokens. The wait for iterations in flight is predicted from the last observed end, so
    that prediction errors do not accumulate.

    Args:
        decider: its belief predicts, and learns from, latencies; its watch counts them.
    """

    def __init__(self, decider: Decider) -> None:
        self._decider = decider
        self._iterations: list[Iteration] = []
        self._ended_s = 0.0

    def begins(self, now_s: float) -> float:
        """Returns when an iteration begins that is scheduled now; times after `now_s` predate a clock set back."""
        end_s = min(self._ended_s, now_s)
        for iteration in self._iterations:
            end_s = max(end_s, min(iteration.scheduled_s, now_s)) + iteration.predicted_s
        return max(now_s, end_s)

    def record_in_flight(self, output: Any, sums: Sums, alone: Sums, now_s: float) -> None:
        """Records a scheduled iteration; `alone` are the sums of its online decodes by themselves."""
        belief = self._decider.belief
        predicted_s = belief.latency(sums)
        spent_s = max(0.0, predicted_s - belief.latency(alone)) if alone[0] else 0.0
        self._iterations.append(Iteration(output, sums, now_s, predicted_s, spent_s))

    def record_end(self, output: Any, now_s: float) -> None:
        """Records an iteration's end, and updates the belief with its latency."""
        place = next((place for place, iteration in enumerate(self._iterations) if iteration.output is output), None)
        if place is None:
            return
        ended, before_s, belief = self._iterations[place], self._ended_s, self._decider.belief
        del self._iterations[: place + 1]
        self._ended_s, took_s = now_s, now_s - max(ended.scheduled_s, before_s)
        self._decider.watch.took(ended.predicted_s, took_s, ended.spent_s)
        if isinstance(belief, Learned):
            belief.observe(ended.sums, took_s, follows=ended.scheduled_s < before_s)


# --- Decisions ------------------------------------------------------------------------------------------------------
class NonsenseError(ValueError):
    """A plan that cannot be applied."""


class Decider:
    """A rule with its belief, guarded.

    Attributes:
        rule: None: vLLM's own schedule.
        belief: predicts latencies of iterations.
        watch: counters.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.perf_counter) -> None:
        self.settings, self.clock = settings, clock
        self.belief = (Belief(Terms.load(settings.belief)) if settings.belief != LEARNED
                       else Learned(None if settings.prior is None else prior_of(settings.prior)))
        self.watch = Watch()
        if settings.metrics_port is not None:
            _serve(settings.metrics_port, settings.metrics_address)
        self.use(settings)

    def use(self, settings: Settings) -> None:
        """Switches to another rule and parameters.

        Raises:
            UserError: the rule cannot be found, or the bundle is invalid.
        """
        rule: Rule | None = None  # vLLM's own schedule
        if settings.rule in RULES:
            rule = make_rule(settings.rule, settings.values)
        elif settings.rule != STOCK:
            rule = _foreign(settings.rule, settings.values)
        learned = None
        if settings.bundle is not None and rule is not None:
            if not isinstance(rule, Compiled):
                raise UserError(f"bundle '{settings.bundle}' sets parameters of ooco-gym's rules, and "
                                f"'{settings.rule}' is not one; expected one of {', '.join(RULES)}")
            learned = Adjuster(settings, rule, self.watch)
        self.settings, self.rule, self.learned = settings, rule, learned
        self._failures, self._rest_until, self._asked = 0, 0.0, False
        LOG.info("ooco-gym: scheduling by the rule '%s'", settings.rule)

    def decide(self, describe: Callable[[], Engine], waits: Callable[[Any], bool]) -> Plan | None:
        """Returns the rule's plan for the next iteration; None: vLLM's own schedule.

        Args:
            describe: returns the engine as a rule sees it.
            waits: whether the engine has a waiting request of this id that may be scheduled.
        """
        began = self.clock()
        if self.rule is None or began < self._rest_until:
            return None
        try:
            engine = describe()
            running = {request.id: request for request in engine.running}
            if self.learned is not None:
                self.learned.look(engine, self.belief)
            plan = self.rule.compose(engine, self.belief)
            check(plan, engine, running, waits)
        except NonsenseError as error:
            return self._failed("answered nonsense", str(error))
        except (Exception, SystemExit) as error:
            return self._failed("raised", f"{type(error).__name__}: {error}")
        took_s = self.clock() - began
        self.watch.decided(took_s)
        if took_s > STALL_S and self._asked:  # the first call may load compiled code
            return self._failed("stalled", f"{took_s:.1f} s")
        self._failures, self._asked = 0, True
        return None if self.settings.shadow else plan

    def _failed(self, reason: str, detail: str) -> None:
        self.watch.fell_back(reason, detail)
        self._failures += 1
        if self._failures >= MOST_IN_A_ROW:
            self._failures, self._rest_until = 0, self.clock() + REST_S
            self.watch.count("rests")


def check(plan: Any, engine: Engine, running: Mapping[Any, Any], waits: Callable[[Any], bool]) -> None:
    """Checks that a plan can be applied.

    Raises:
        NonsenseError: it names requests that do not exist, or gives an illegal number of tokens.
    """
    if not isinstance(plan, Plan) or not isinstance(plan.tokens, dict):
        raise NonsenseError(f"a {type(plan).__name__} instead of a Plan")
    enters, lose, tokens = set(plan.admitted), set(plan.preempted), list(plan.tokens.values())
    left = running.keys() - lose
    for wrong, said in (
            (len(enters) < len(plan.admitted) or len(lose) < len(plan.preempted), "a request twice"),
            (not lose <= running.keys(), "preempts a request that does not run"),
            (enters & left, "admits a request that runs"),
            (not all(name in running or waits(name) for name in enters), "admits a request that does not wait"),
            (not enters <= plan.tokens.keys(), "admits a request without tokens"),
            (not plan.tokens.keys() <= enters | left, "tokens for a request that neither runs nor is admitted"),
            (not all(type(count) is int and count > 0 for count in tokens), f"{tokens[:8]} tokens"),
            (sum(tokens) > engine.max_num_batched_tokens, f"more than {engine.max_num_batched_tokens} tokens"),
            (len(left) + len(enters) > engine.max_num_seqs, f"more than {engine.max_num_seqs} requests"),
            (not tokens and not lose and (running or engine.online.peek() or engine.offline.peek()),
             "an empty plan although requests can run")):
        if wrong:
            raise NonsenseError(said)


def _foreign(name: str, values: Mapping[str, Any]) -> Rule:
    """Returns another package's rule: `module:attribute`, called with its parameters."""
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)(dict(values))
    except (Exception, SystemExit) as error:
        raise UserError(f"rule '{name}' cannot be made ({type(error).__name__}: {error}); expected module:attribute of "
                        "what is called with parameters and has compose(engine, belief)") from error


# --- A learned policy -------------------------------------------------------------------------------------------------
class Adjuster:
    """A learned policy that sets the rule's parameters at intervals, from the engine's features.

    If it fails, the rule returns to its initial parameters.

    Args:
        settings: the bundle, the rule's own parameters, the violation budget.
        rule: its `values` are set.
        watch: counts adjustments and failures.

    Raises:
        UserError: the bundle is invalid, or for another rule.
    """

    def __init__(self, settings: Settings, rule: Compiled, watch: Watch) -> None:
        policy = Policy.load(str(settings.bundle))
        names = getattr(policy, "names", ())
        if getattr(policy, "kind", None) != "parameters" or not names:
            raise UserError(f"bundle '{settings.bundle}' is of another kind; expected one that sets parameters "
                            "(kind 'parameters')")
        strange = [name for name in (*names, *policy.constants) if name not in rule.values]
        if strange:
            raise UserError(f"bundle '{settings.bundle}' sets '{strange[0]}', which the rule '{settings.rule}' does "
                            f"not have; expected one for {settings.rule}")
        for ends in (policy.low.tolist(), policy.high.tolist()):
            rule.check({**policy.constants, **dict(zip(names, ends, strict=True))})
        if policy.features != [one.name for one in ENGINE]:
            raise UserError(f"bundle '{settings.bundle}' needs features that an engine does not have "
                            "(ooco_gym/runtime/features.json)")
        # Parameters of its training, unless the server's settings override them.
        rule.set({name: value for name, value in policy.constants.items() if name not in settings.values})
        self._policy, self._rule, self._watch = policy, rule, watch
        self._own, self._replica = dict(rule.values), Replica()
        self._every_s = float(policy.interval_s or INTERVAL_S)
        self._next_s, self._budget = 0.0, settings.violation_budget
        self._rates: ArrivalRates | None = None
        self._blocks = Blocks()

    def arrived(self, now_s: float) -> None:
        self._kept(now_s).arrived(now_s)
        self._blocks.arrived(now_s)

    def missed(self, now_s: float) -> None:
        """Records an online request's first SLO violation."""
        self._blocks.missed(now_s)

    def look(self, engine: Engine, belief: Belief) -> None:
        """Sets the rule's parameters if the interval is over."""
        if 0.0 < self._next_s - engine.now_s <= self._every_s:
            return
        self._next_s = engine.now_s + self._every_s
        try:
            self._rule.adjust(self._policy.decide(self.observe(engine, belief)))
        except (Exception, SystemExit) as error:
            self._watch.fell_back("could not be adjusted", f"{type(error).__name__}: {error}")
            self._rule.set(self._own)
            return
        self._watch.count("adjustments")

    def observe(self, engine: Engine, belief: Belief) -> np.ndarray:
        """Returns the features of an engine, float32 (44,), scaled."""
        return self._replica.observe(engine, belief, self._kept(engine.now_s), self._blocks, self._budget)

    def _kept(self, now_s: float) -> ArrivalRates:
        if self._rates is None:
            self._rates = ArrivalRates(now_s)
        return self._rates
