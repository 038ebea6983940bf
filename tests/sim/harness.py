"""Small episodes for the simulator's tests: build one, drive it in any way, compare two."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from operator import attrgetter
from typing import Any

import numpy as np

from ooco_gym.compile.references import Handle
from ooco_gym.perf import Deployment, load_chip, load_model
from ooco_gym.perf.engine_clock import EngineClock
from ooco_gym.policy import Policy, get_policy
from ooco_gym.policy.decisions import POINTS, answer_of, rules_of
from ooco_gym.protocol import Slo
from ooco_gym.schema import kinds
from ooco_gym.sim import loop
from ooco_gym.sim import state as s
from ooco_gym.sim.build import build_state
from ooco_gym.sim.config import Machine, SimConfig
from ooco_gym.sim.policy_context import policy_context
from ooco_gym.sim.sessions import QUIT
from ooco_gym.workload import Trace, close_sessions
from ooco_gym.workload.sessions import Turns, at_most
from tests.sim import random_rules

BASELINES = ("ooco", "memory_gate", "ooco_lengths", "ooco_xllm", "base_pd", "online_priority")
POINT_NAMES = tuple(point.name for point in POINTS)
# What a run leaves behind, whichever way it was driven. Links in queues, and what decision counts say, are no result.
REQUEST_FIELDS = tuple(name for name in s.REQUEST.names or () if name not in ("previous", "next", "position"))
INSTANCE_FIELDS = ("free_blocks", "online_waiting", "offline_waiting", "urgent_members", "offline_members", "decodable",
                   "arriving", "leaving", "suspended", "online_prefill_ps", "offline_prefill_ps", "decode_ps",
                   "wasted_ps", "decode_steps", "decoded_tokens", "steps_begun", "kv_times_us")
SUMS = tuple(name for name in s.Totals.fields if name not in ("decisions", "events"))


@dataclass(frozen=True)
class Setup:
    """An episode to be. Requests are rows of (arrival_s, prompt, output, online), sorted by arrival."""

    requests: tuple[tuple[float, int, int, bool], ...]
    relaxed: tuple[tuple[str, int], ...] = (("ascend_910c", 1),)  # (chip, tensor parallelism)
    strict: tuple[tuple[str, int], ...] = (("ascend_910c", 1),)
    mixed: tuple[tuple[str, int], ...] = ()
    model: str = "qwen2_5_7b"
    data_parallel: int = 1  # ranks of each instance
    kv_tokens: int | None = None  # memory of each instance; None: what the chip has
    policy: str | Policy = "ooco"
    values: tuple[tuple[str, Any], ...] = ()
    random_points: tuple[str, ...] = ()  # decided by the random rules
    sessions: tuple[tuple[int, float], ...] = ()  # of closed ones: each request's session (-1: none) and think time
    waits_for: tuple[tuple[int, ...], ...] = ()  # the earlier requests that each one waits for, beside its session's
    clients: int = 0  # that share the online requests; 0: none do
    patience_s: tuple[float, ...] = ()  # of each request, after which it leaves; empty: all stay
    seed: int = 1
    window_s: tuple[float, float] = (0.0, 60.0)
    rules: dict[str, Any] = field(default_factory=dict)

    def trace(self) -> Trace:
        rows, counts = list(self.requests), [len(one) for one in self.waits_for]
        after = np.cumsum([0, *counts]), np.array([one for those in self.waits_for for one in those], np.int64)
        return Trace(arrival_s=np.array([row[0] for row in rows], np.float64),
                     prompt_tokens=np.array([row[1] for row in rows], np.int32),
                     output_tokens=np.array([row[2] for row in rows], np.int32),
                     online=np.array([row[3] for row in rows], bool),
                     session=np.array([one for one, _ in self.sessions], np.int64) if self.sessions else None,
                     think_s=np.array([think_s for _, think_s in self.sessions]) if self.sessions else None,
                     key=np.arange(len(rows)) if counts else None, after=after if counts else None)

    def turns(self, trace: Trace) -> Turns | None:
        if self.clients:
            return at_most(trace, self.clients)
        return close_sessions(trace, None, self.seed) if self.sessions else None

    def with_(self, **changes: Any) -> Setup:
        """A copy with some fields changed."""
        return replace(self, **changes)


DEFAULT_RULES = {"slo": Slo(2.0, 0.05), "max_batch": 64,
                 "block_tokens": 16, "kv_link_bytes_per_s": 25e9, "gate_poll_s": 0.1, "prior_output_tokens": 64.0}


@cache
def chip_of(name: str) -> Any:
    """A chip, read once: reading takes longer than a short episode."""
    return load_chip(name)


@cache
def model_of(name: str) -> Any:
    return load_model(name)


def machines_of(setup: Setup) -> list[Machine]:
    """The instances, relaxed ones first, strict ones last."""
    model = model_of(setup.model)
    block_tokens = setup.rules.get("block_tokens", DEFAULT_RULES["block_tokens"])
    blocks = None if setup.kv_tokens is None else setup.kv_tokens // block_tokens
    return [Machine(role, Deployment(chip_of(chip), model, tp, known_kv_blocks=blocks,
                                     data_parallel=setup.data_parallel))
            for role, pool in (("relaxed", setup.relaxed), ("mixed", setup.mixed), ("strict", setup.strict))
            for chip, tp in pool for _ in range(setup.data_parallel)]


def on_its_machines(policy: Policy, machines: list[Machine], trace: Trace, rules: SimConfig) -> Policy:
    """The policy with what it derives from the machines that it schedules."""
    if policy.mixed_by is not None:
        policy = replace(policy, mixed_by=on_its_machines(policy.mixed_by, machines, trace, rules))
    if policy.prepare is None:
        return policy
    theirs = [one for one in machines if (one.role == "mixed") == policy.mixed]
    return policy.with_values(policy.prepare(policy, policy_context(theirs, trace, rules)))


class Episode:
    """One episode: `play` runs it; `outside` names the points that `play` answers by the policy's own rules."""

    def __init__(self, setup: Setup, *, outside: tuple[str, ...] = (), bulk: bool = True,
                 trace: Trace | None = None, predicted: np.ndarray | None = None) -> None:
        self.setup = setup
        self.trace = trace = setup.trace() if trace is None else trace
        promise = {key: value for key, value in setup.rules.items() if key in kinds(Slo)}
        rest = {key: value for key, value in setup.rules.items() if key not in promise}
        rules = SimConfig(**{**DEFAULT_RULES, "slo": replace(DEFAULT_RULES["slo"], **promise), **rest})
        if isinstance(rules.engine_clock, dict):
            rules = replace(rules, engine_clock=EngineClock.load(rules.engine_clock))
        machines = machines_of(setup)
        self.machines = machines
        policy, values = setup.policy, dict(setup.values)
        policy = get_policy(policy, values) if isinstance(policy, str) else policy.with_values(values)
        policy = on_its_machines(policy, machines, trace, rules)
        policy = replace(policy, **{name: getattr(random_rules.policy, name) for name in setup.random_points})
        self.policy = policy
        self.state = build_state(machines, trace, rules, seed=setup.seed, window_s=setup.window_s,
                                 params=policy.vector(), settings=policy.settings(), class_blind=policy.class_blind,
                                 keys=policy.keys(trace, setup.seed), predicted=predicted, weights=policy.weights,
                                 bulk=bulk,
                                 turns=setup.turns(trace), job=trace.job,
                                 patience_s=np.array(setup.patience_s) if setup.patience_s else None)
        self.rules = rules_of(policy, outside)
        self.end_ps = round((setup.window_s[1] + 600.0) * s.PS_PER_S)
        self.answers = 0
        self.handle: Handle | None = None

    def advance(self, until_ps: int | None = None, answer: int = s.ASK) -> int:
        """Calls the loop once; returns why it came back."""
        if self.handle is None or self.handle.value is not self.state:
            self.handle = s.handle_of(self.state)
        return int(loop.run(self.handle.address, self.rules, self.end_ps if until_ps is None else until_ps, answer))

    def rule_answer(self) -> int:
        """What the policy's own rule answers to the open decision."""
        return answer_of(self.state, self.policy)

    def play(self, until_ps: int | None = None) -> Episode:
        """Runs to the end, or to `until_ps`, answering what is asked by the policy's own rules."""
        answer = s.ASK
        while True:
            why = self.advance(until_ps, answer)
            if why != s.ASKED:
                return self
            answer = self.rule_answer()
            self.answers += 1

    def events(self, most: int) -> Iterator[s.State]:
        """Plays event by event, so many at the most: the state after each."""
        for _ in range(most):
            at_ps = self.next_event_ps()
            if at_ps >= s.NEVER or self.advance(at_ps) != s.HORIZON:
                return
            yield self.state

    def next_event_ps(self) -> int:
        """When the next event happens."""
        state = self.state
        times = [int(s.NEVER)]
        if state.queues.heap_size > 0:
            times.append(int(state.heap[0, 0]))
        if state.turns[QUIT, 0] > 0:
            times.append(int(state.quit_ps[state.turns[QUIT, 1]]))
        times += state.requests["arrival_ps"][state.requests["status"] == s.FUTURE].tolist()
        return min(times)


def play(setup: Setup, **options: Any) -> Episode:
    return Episode(setup, **options).play()


def differences(a: s.State, b: s.State) -> list[str]:
    """What two episodes' results differ in: names of fields, and how many rows."""
    found = []
    for name in REQUEST_FIELDS:
        wrong = int(np.count_nonzero(a.requests[name] != b.requests[name]))
        if wrong:
            found.append(f"requests.{name}: {wrong}")
    for name in INSTANCE_FIELDS:
        if not np.array_equal(a.instances[name], b.instances[name]):
            found.append(f"instances.{name}: {a.instances[name]} {b.instances[name]}")
    found += [name for name in ("itl", "tier") if not np.array_equal(getattr(a, name), getattr(b, name))]
    names = ("clock.now_ps", "gauges.open_online", "gauges.late_online", *(f"totals.{name}" for name in SUMS))
    values = {name: [attrgetter(name)(state) for state in (a, b)] for name in names}
    found += [f"{name}: {mine} {other}" for name, (mine, other) in values.items() if mine != other]
    for name in ("observed", "integrals"):
        mine, other = attrgetter(name)(a), attrgetter(name)(b)
        if not np.array_equal(mine, other):
            found.append(f"{name}: {mine} {other}")
    return found
