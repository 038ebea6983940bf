"""Asks a rule for each iteration, and looks at its answer before anything is done: a rule never stops the server.

A rule that raises, takes too long or answers nonsense is passed over for that iteration, and counted. One of another
package (`rule: module:function`) runs in a thread of its own, so that it can be left waiting; ours run in line. After
`MOST_IN_A_ROW` failures the rule rests for `REST_S`.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping
from typing import Any

from ooco_gym.errors import UserError
from ooco_gym.runtime.guard import Stalled, TimeLimit
from ooco_gym.runtime.rules import RULES, Belief, Engine, Fitted, Learned, Plan, Rule, make_rule
from ooco_gym.runtime.vllm.settings import LEARNED, STOCK, Settings
from ooco_gym.runtime.vllm.watching import Watch

MOST_IN_A_ROW, REST_S = 10, 10.0


class NonsenseError(ValueError):
    """An answer that cannot be followed."""


class Decider:
    """A rule with its belief, watched over.

    Attributes:
        rule: None where vLLM's own schedule is wanted.
        belief: what iterations take.
        watch: counters.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.perf_counter) -> None:
        self.settings, self.clock = settings, clock
        self.belief: Fitted | Learned = Learned() if settings.belief == LEARNED else Fitted.load(settings.belief)
        self.watch = Watch(settings.rule, settings.metrics_port, settings.metrics_address)
        self.rule: Rule | None = None
        self.learned: Any = None  # an Adjuster
        self._failures, self._rest_until = 0, 0.0
        self.use(settings)

    def use(self, settings: Settings) -> None:
        """Takes other settings, as to rule and parameters.

        Raises:
            UserError: the rule cannot be found, or the bundle is none.
        """
        rule: Rule | None = None
        if settings.rule in RULES:
            rule = make_rule(settings.rule, settings.values)
        elif settings.rule != STOCK:
            rule = Threaded(_foreign(settings.rule, settings.values), settings.time_budget_s)
        learned = None
        if settings.bundle is not None and rule is not None:
            from ooco_gym.runtime.vllm.learned import Adjuster

            learned = Adjuster(settings, rule, self.watch)
        self.settings, self.rule, self.learned = settings, rule, learned
        self._failures, self._rest_until = 0, 0.0

    def arrived(self, online: bool, now_s: float) -> None:
        """A request has arrived."""
        if self.learned is not None and online:
            self.learned.arrived(now_s)

    def missed(self, now_s: float) -> None:
        """An online request has missed an SLO, for the first time."""
        if self.learned is not None:
            self.learned.missed(now_s)

    def decide(self, describe: Callable[[], Engine], waits: Callable[[Any], bool]) -> Plan | None:
        """The rule's answer for the iteration that `describe` describes; None: vLLM's own schedule.

        Args:
            describe: the engine as a rule sees it.
            waits: whether the engine has a request of this name that waits and may be scheduled.
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
        except Stalled:
            self.watch.fell_back("was still busy", "with an iteration that it was too late for")
            return None
        except TimeoutError:
            return self._failed("stalled", f"more than {self.settings.time_budget_s:g} s")
        except NonsenseError as error:
            return self._failed("answered nonsense", str(error))
        except Exception as error:
            return self._failed("raised", f"{type(error).__name__}: {error}")
        self._failures = 0
        self.watch.decided(self.clock() - began)
        return None if self.settings.shadow else plan

    def _failed(self, reason: str, detail: str) -> None:
        self.watch.fell_back(reason, detail)
        self._failures += 1
        if self._failures >= MOST_IN_A_ROW:
            self._failures, self._rest_until = 0, self.clock() + REST_S
            self.watch.count("rests")


def check(plan: Any, engine: Engine, running: Mapping[Any, Any], waits: Callable[[Any], bool]) -> None:
    """Whether a plan can be followed.

    Raises:
        NonsenseError: it names requests that are not there, or gives tokens that may not be given.
    """
    if not isinstance(plan, Plan) or not isinstance(plan.tokens, dict):
        raise NonsenseError(f"a {type(plan).__name__} instead of a Plan")
    admitted, preempted = list(plan.admitted), list(plan.preempted)
    if len(set(admitted)) < len(admitted) or len(set(preempted)) < len(preempted):
        raise NonsenseError("a request twice")
    if not set(preempted) <= set(running):
        raise NonsenseError("preempts a request that does not run")
    enters, left = set(admitted), set(running) - set(preempted)
    if enters & left:
        raise NonsenseError("admits a request that runs")
    if not all(name in running or waits(name) for name in enters):
        raise NonsenseError("admits a request that does not wait")
    if not enters <= set(plan.tokens):
        raise NonsenseError("admits a request without tokens")
    total = 0
    for name, tokens in plan.tokens.items():
        if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
            raise NonsenseError(f"{tokens!r} tokens")
        if name not in left and name not in enters:
            raise NonsenseError("tokens for a request that neither runs nor is admitted")
        total += tokens
    if total > engine.max_num_batched_tokens:
        raise NonsenseError(f"{total} tokens, of {engine.max_num_batched_tokens}")
    if len(left) + len(enters) > engine.max_num_seqs:
        raise NonsenseError(f"{len(left) + len(enters)} requests, of {engine.max_num_seqs}")
    if not plan.tokens and not preempted and (running or engine.online.peek() or engine.offline.peek()):
        raise NonsenseError("nothing to do, though there is")


class Threaded:
    """A rule in a thread of its own, which is left waiting where it takes longer than its budget."""

    def __init__(self, rule: Rule, budget_s: float) -> None:
        self._rule, self._budget_s, self._limit = rule, budget_s, TimeLimit(most_late=1)

    def compose(self, engine: Engine, belief: Belief) -> Plan:
        """The rule's answer.

        Raises:
            Late: it does not come in time.
            Stalled: it is still at an earlier question.
        """
        def answer() -> Plan:
            try:
                return self._rule.compose(engine, belief)
            except BaseException as error:  # one that would end the server, too
                raise RuntimeError(f"{type(error).__name__}: {error}") from error

        return self._limit.call(answer, self._budget_s)


def _foreign(name: str, values: Mapping[str, Any]) -> Rule:
    """A rule of another package: `module:attribute`, called with its parameters."""
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)(dict(values))
    except Exception as error:
        raise UserError(f"rule '{name}' cannot be made ({type(error).__name__}: {error}); expected module:attribute of "
                        "what is called with parameters and has compose(engine, belief)") from error
