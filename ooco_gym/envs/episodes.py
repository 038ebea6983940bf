"""N episodes that start, step and end together; the environment classes wrap this."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from copy import copy
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from ooco_gym.cluster import Cluster
from ooco_gym.compile import address_of
from ooco_gym.envs import buffers as b
from ooco_gym.envs import reward as r
from ooco_gym.envs.config import EpisodeConfig, pack_parameter
from ooco_gym.envs.custom import OwnFeature, Term, addresses_of, check, scales_of
from ooco_gym.envs.decision import Controls, Decision, OpenDecision, address, candidate_columns, cluster_table
from ooco_gym.envs.features import CLUSTER
from ooco_gym.envs.stepping import begin, drain, look_on, step_all
from ooco_gym.errors import UserError
from ooco_gym.policy import policy_of, spelling_of
from ooco_gym.policy.decisions import addresses, ask_outside, call_rule
from ooco_gym.policy.policy import Param, Policy
from ooco_gym.policy.registry import policy_named
from ooco_gym.scenario import ResolvedScenario
from ooco_gym.sim import state as s
from ooco_gym.sim.config import Machine
from ooco_gym.sim.loop import RUN_SIGNATURE, run
from ooco_gym.sim.policy_context import PolicyContext, policy_context
from ooco_gym.simulation import Simulation, prepared

_INFO = slice(r.TERM, r.ELAPSED + 1)
INFO_KEYS = (*(f"reward/{term}" for term in r.TERMS), "reward", "cost", *(f"cost_{slo}" for slo in r.COSTS),
             "elapsed_s")



class Episodes:
    """Episodes of one configuration that advance in one compiled call.

    Attributes:
        buffers: their arrays: observations, masks, reward sums.
        features: features of the observation's `cluster`.
        config: configuration of the episodes.
        own_terms: maps names of the environment's own reward terms to columns of
            `buffers.reward_sums`: the step's term and the total so far.
        bank: number of windows kept as they are after the warm-up, so that they restart at once.
        threads: threads that step them, at most one per episode.
        watchers: objects whose `begin` and `on_step` are called, such as `viewer.Viewer`.
    """

    def __init__(self, config: EpisodeConfig, decisions: Sequence[Decision], count: int, bank: int = 0,
                 terms: Sequence[Term] = (), own: Sequence[OwnFeature] = (), threads: int = 1) -> None:
        self.config, self.decisions = config, tuple(decisions)
        self._by_kind = {decision.kind: decision for decision in decisions}
        base_policy = policy_of(config.base_policy)
        _refuse_nothing_to_decide(self.decisions, base_policy, config)
        self._base_policy = self._prepared(base_policy)
        self._known_rules: set[str] = set()
        self._rules: list[dict[str, Policy]] = [{} for _ in range(count)]
        self._notes: list[dict[str, np.ndarray]] = [{} for _ in range(count)]  # of scaling rules
        self._lay_out(count, terms, own)
        self.threads = min(threads, count)
        self._pool: ThreadPoolExecutor | None = None
        self._process: int | None = None  # process of the pool's threads
        self.simulations: list[Simulation | None] = [None] * count
        self.windows: list[tuple[int, int]] = [(-1, -1)] * count
        self.bank = bank
        self._bank: dict[tuple[int, int], Simulation] = {}
        self.watchers: list[Any] = []
        self._latest: ResolvedScenario | None = None  # of the latest window: the next one loads only differences
        self._first: s.State | None = None  # state of the first episode: the others share its cost tables

    def _prepared(self, base_policy: Policy) -> Policy:
        """Returns the base policy, made to look at as many waiting requests as the decisions
        offer."""
        window = max(decision.window for decision in self.decisions)
        base_policy = self._stale(base_policy)
        if set(self._by_kind) == {s.ROUTE} and "lag_s" not in base_policy.values:
            raise UserError(f"base policy '{base_policy.name}' is no router: use one, such as router:rule=latency")
        if not window:
            return base_policy
        if base_policy.mixed and b.ADMIT in self._by_kind:  # none of its own rules looks at them
            gate_window = Param("gate_window", "waiting requests", 1, 1024)
            base_policy = replace(base_policy, params=(*base_policy.params, gate_window))
        if any(param.name == "gate_window" for param in base_policy.params):
            return replace(base_policy, values={**base_policy.values, "gate_window": window})
        why = ("its class-blind queue leaves nothing to the agent" if base_policy.class_blind else
               "it has no parameter gate_window, which sets how many waiting requests it looks at")
        raise UserError(f"base policy '{base_policy.name}' has no gate that can be asked here: {why}")

    def _stale(self, policy: Policy) -> Policy:
        """Returns a router, if it alone is asked, with metrics as old as the agent's; other policies unchanged."""
        routes = set(self._by_kind) == {s.ROUTE} and "lag_s" in policy.values
        return replace(policy, values={**policy.values, "lag_s": self.config.interval_s}) if routes else policy

    def _lay_out(self, count: int, terms: Sequence[Term], own_features: Sequence[OwnFeature]) -> None:
        config = self.config
        dimensions, levels, actions, size = 1, np.zeros((1, 1)), None, config.candidates
        self.controls: Controls | None = None
        for decision in self.decisions:
            if decision.controls is not None:
                self.controls = decision.controls(self._base_policy, config)
                levels, dimensions = self.controls.levels, len(self.controls.names)
                size, actions = dimensions, int(self.controls.counts.sum())
            elif decision.levels is not None:
                levels = decision.levels(self._base_policy, config)
                size = max(size, levels.shape[1]) if len(self.decisions) > 1 else levels.shape[1]
        if config.box:
            dimensions = len(levels)
            if not all(decision.box for decision in self.decisions):
                raise UserError("action=box: this environment's actions are candidates; leave it out, or use "
                                "ooco_gym/Batching-v1")
        common = cluster_table(self.decisions)
        check(terms, own_features, r.TERMS, [feature.name for feature in common])
        self.features = (*common, *(one.feature for one in own_features)) if own_features else common
        self.buffers = b.empty_buffers(
            count, size, dimensions, levels.shape, actions, len(self.decisions), len(self.features),
            len(candidate_columns(self.decisions)), _most_instances(config), len(terms), len(own_features))
        own = len(terms)
        if common and common[0] in CLUSTER:
            self.buffers.shown[:] = [CLUSTER.index(feature) for feature in common]
        first = r.REWARD_SUMS + own  # the steps' own terms, then their totals
        self.own_terms = {term.name: (first + k, first + own + k) for k, term in enumerate(terms)}
        self.buffers.own_terms[:] = addresses_of([term.total for term in terms])
        self.buffers.own_features[:] = addresses_of([one.value for one in own_features])
        self.buffers.own_scales[:] = scales_of(own_features)
        self.buffers.levels[:] = levels
        self.buffers.weights[:] = config.weights
        self.buffers.settings[b.OFFERED] = config.candidates
        for slot, decision in enumerate(self.decisions):
            self.buffers.offers[decision.kind] = address(decision.offer)
            self.buffers.answers[decision.kind] = address(decision.answer)
            self.buffers.slots[decision.kind] = slot
            if decision.observe is not None:
                self.buffers.observers[decision.kind] = address(decision.observe)
            if decision.base_policy is not None:
                self.buffers.bases[decision.kind] = address(decision.base_policy)
        self._told = list(self.buffers.reward_sums[:, _INFO])  # views of rows, which a step reads
        self._handle = b.buffers_handle(self.buffers)
        self._run = address_of(run, RUN_SIGNATURE)

    # --- Beginning, stepping, ending -------------------------------------------------------------------------------
    def start(self, i: int, seed: int, number: int) -> None:
        """Simulates window `number` of `seed` in slot i up to its first decision."""
        buffers = self.buffers
        simulation = self._warm(i, seed, number)
        for watcher in self.watchers:
            watcher.begin(i)
        buffers.handles[i] = simulation.handle.address
        index = int(buffers.settings[b.PACK_PARAM])
        buffers.tuned[i] = simulation.policy.vector()[index] if index >= 0 else 0.0
        buffers.days[i] = simulation.scenario.start_s - simulation.window_s[0]
        turn = buffers.status[i]
        turn[:] = 0
        buffers.notes[i], buffers.held[i] = 0.0, 0
        turn[b.UNTIL_PS] = round(simulation.window_s[1] * s.PS_PER_S)
        clocks = [kind for kind in self._by_kind if kind >= b.CLOCK]
        turn[b.STEP_KIND] = clocks[0] if clocks else b.NO_KIND
        turn[b.OPEN] = 1
        begin(self._handle.address, self._run, i)
        for watcher in self.watchers:
            watcher.on_step(i)

    def _warm(self, i: int, seed: int, number: int) -> Simulation:
        """Returns a window's simulation after the warm-up, from the bank if it is kept there."""
        kept = self._bank.get((seed, number))
        if kept is not None:
            self.windows[i], self._rules[i], self._notes[i] = (seed, number), {}, {}
            simulation = self.simulations[i] = copy(kept)
            simulation.state = s.copy_state(kept.state)
            return simulation
        simulation = self.build(i, seed, number)
        simulation.advance(simulation.window_s[0])
        if len(self._bank) < self.bank:
            kept = self._bank[seed, number] = copy(simulation)
            kept.state = s.copy_state(simulation.state)
        return simulation

    def build(self, i: int, seed: int, number: int) -> Simulation:
        """Builds window `number` of `seed` in slot i, before its warm-up."""
        self.windows[i], self._rules[i], self._notes[i] = (seed, number), {}, {}
        self._latest = self.config.window(seed, number).resolve(like=self._latest)
        simulation = self.simulations[i] = Simulation(self._latest, self._base_policy)
        if self._first is None:
            self._set_rules(simulation)
            self._first = simulation.state
        simulation.state = s.share_tables(simulation.state, self._first)
        return simulation

    def _set_rules(self, simulation: Simulation) -> None:
        """Sets what depends on the base policy as the scenario prepared it."""
        buffers, policy = self.buffers, simulation.policy
        hooks = policy.hooks()
        buffers.rules[1] = addresses(hooks)
        asked = {s.COMPOSE if kind in b.OF_ENGINES else kind for kind in self._by_kind}
        buffers.rules[0] = addresses([ask_outside if index + 1 in asked else rule for index, rule in enumerate(hooks)])
        index, scale = pack_parameter(policy, self.config)
        buffers.settings[b.PACK_PARAM], buffers.settings[b.PACK_SCALE] = index, scale
        buffers.settings[b.CONTROL_INTERVAL_PS] = round(self.config.interval_s * s.PS_PER_S)
        buffers.settings[b.BOX] = float(self.config.box)
        buffers.settings[b.VIOLATION_BUDGET] = float(simulation.scenario.protocol.violation_budget)
        if self.controls is not None:
            names = [param.name for param in policy.params]
            buffers.params[:] = [names.index(name) for name in self.controls.names]

    def step(self, first: int = 0, last: int | None = None) -> list[int]:
        """Takes `buffers.actions` in the open episodes first … last - 1. Returns the slots of
        ended episodes."""
        end, turns = len(self.simulations) if last is None else last, self.buffers.status
        watched = [i for i in range(first, end) if turns[i, b.OPEN]] if self.watchers else []
        ended: list[int] = []
        if self._step(first, end):
            ended = [i for i in range(first, end) if turns[i, b.OPEN] and turns[i, b.KIND] == b.NO_KIND]
            for i in ended:
                self._finish(i)
        for i in watched:
            for watcher in self.watchers:
                watcher.on_step(i)
        return ended

    def _step(self, first: int, end: int) -> int:
        if self.threads == 1 or end - first < len(self.simulations):
            return step_all(self._handle.address, self._run, first, end)
        return self._step_with_threads()

    def _step_with_threads(self) -> int:
        """Steps a share of neighbouring episodes in each thread, for their memory to stay in its
        core's cache; the caller steps the first share. Episodes share no written data, so results
        do not depend on threads."""
        if self._pool is None or self._process != os.getpid():  # a forked process has the pool, but not its threads
            self._pool, self._process = ThreadPoolExecutor(self.threads - 1, "ooco_gym-step"), os.getpid()
        bounds = [len(self.simulations) * share // self.threads for share in range(self.threads + 1)]
        mine, *others = pairwise(bounds)
        tasks = [self._pool.submit(step_all, self._handle.address, self._run, *share) for share in others]
        try:
            ended = step_all(self._handle.address, self._run, *mine)
        finally:
            wait(tasks)
        return ended + sum(task.result() for task in tasks)

    def close(self) -> None:
        """Ends the stepping threads; another step starts new ones."""
        if self._pool is not None and self._process == os.getpid():
            self._pool.shutdown()
        self._pool = None

    def _finish(self, i: int) -> None:
        """Observes the next decision, drains under the base policy and adds the outcome to the last reward."""
        simulation, buffers = self._simulation(i), self.buffers
        last = buffers.reward_sums[i].copy()
        ahead = copy(simulation)  # goes on to the next decision as in a longer window
        ahead.state = s.copy_state(simulation.state)
        ahead.state.clock.window_end_ps = simulation.end_ps
        buffers.handles[i] = ahead.handle.address
        look_on(self._handle.address, self._run, i, simulation.end_ps)
        buffers.handles[i], buffers.reward_sums[i] = simulation.handle.address, last
        drain(self._handle.address, self._run, i, simulation.end_ps)
        buffers.reward_sums[i, r.TERM:r.ELAPSED] += last[r.TERM:r.ELAPSED]
        buffers.reward_sums[i, r.ELAPSED] = last[r.ELAPSED]
        for column, _ in self.own_terms.values():
            buffers.reward_sums[i, column] += last[column]
        buffers.status[i, b.OPEN] = 0

    @property
    def address(self) -> int:
        """Address of the step buffers, for compiled code."""
        return self._handle.address

    def asked(self, i: int) -> Decision | None:
        """Returns the pending decision of the episode in slot i, or of an ended one the next; None without."""
        return self._by_kind.get(int(self.buffers.status[i, b.KIND]))

    def open(self, i: int) -> bool:
        """Whether the episode in slot i is not over."""
        return bool(self.buffers.status[i, b.OPEN])

    def _simulation(self, i: int) -> Simulation:
        simulation = self.simulations[i]
        if simulation is None:
            raise UserError("call reset() first: there is no episode yet")
        return simulation

    # --- Actions, information and metrics ---------------------------------------------------------------------------
    def set_levels(self, levels: np.ndarray) -> None:
        """Sets the actions, int64[N, P], as levels of parameters; the tuned level replaces an
        invalid one, which counts as illegal."""
        assert self.controls is not None
        buffers, legal = self.buffers, self.controls.legal(levels)
        wrong = (legal != levels).any(axis=-1) & (buffers.status[:, b.OPEN] == 1)
        buffers.actions[:] = legal
        buffers.status[wrong, b.WAS_ILLEGAL] = 1
        buffers.status[wrong, b.ILLEGALS] += 1
        buffers.settings[b.ANY_ILLEGAL] += float(wrong.any())

    def illegal(self) -> np.ndarray | None:
        """Mask of episodes whose last action was illegal, bool[N], or None if there is none;
        reading resets it."""
        if not self.buffers.settings[b.ANY_ILLEGAL]:
            return None
        was = self.buffers.status[:, b.WAS_ILLEGAL] == 1
        self.buffers.status[:, b.WAS_ILLEGAL], self.buffers.settings[b.ANY_ILLEGAL] = 0, 0.0
        return was

    def info(self, i: int) -> dict[str, Any]:
        """Returns the step's information on episode i, without the mask."""
        told = dict(zip(INFO_KEYS, self._told[i].tolist(), strict=True))
        for name, (column, _) in self.own_terms.items():
            told[f"reward/{name}"] = float(self.buffers.reward_sums[i, column])
        return told

    def summary(self, i: int) -> dict[str, float]:
        """Returns the protocol's metrics of episode i so far."""
        simulation, window_s = self._simulation(i), self.config.window_s
        totals, account = simulation.state.totals, self.buffers.reward_sums[i]
        arrived = max(1, int(totals.online_arrived))
        return {
            "reward_total": float(account[r.TOTAL + r.REWARD - r.TERM]),
            "online_arrived": float(totals.online_arrived), "online_violated": float(totals.violations),
            "online_undecided": float(simulation.state.gauges.open_online),
            "violation_rate": float(totals.violations / arrived),
            "offline_finished": float(totals.offline_finished),
            "offline_reference_gpu_s_per_s": float(totals.service_ps / s.PS_PER_S / window_s),
            "output_tokens_per_s": float(totals.offline_output_tokens / window_s),
            "wasted_tokens_per_s": float(totals.wasted_tokens / window_s),
            "wasted_gpu_s_per_s": float(totals.wasted_ps / s.PS_PER_S / window_s),
            "evictions": float(totals.evictions), "interruptions": float(totals.interruptions),
            "migrations": float(totals.migrations),
            **{f"reward/{term}": float(account[r.TOTAL + index]) for index, term in enumerate(r.TERMS)},
            **{f"reward/{name}": float(account[total]) for name, (_, total) in self.own_terms.items()},
            **({"illegal_actions": float(illegal)} if (illegal := self.buffers.status[i, b.ILLEGALS]) else {}),
        }

    def notes(self, i: int) -> tuple[str, ...]:
        """Sentences on what was not measured on the chips, and on how the trace was read."""
        simulation = self._simulation(i)
        return simulation.scenario.remarks + simulation.notes

    def rule_answer(self, i: int, name: str) -> tuple[int, np.ndarray]:
        """Returns a policy's answer to the pending decision of episode i, and the requests that
        it picks.

        Raises:
            UserError: no policy of that name.
        """
        policy, simulation = self._rule(i, name), self._simulation(i)
        state = simulation.state
        if policy.layout is not None and (not policy.mixed or set(self._by_kind) == {s.ROUTE}):
            state = state._replace(weights=policy.weights)  # the policy's own, for this answer only
        elif policy.layout is not None and policy.layout != simulation.policy.layout:
            raise UserError(f"policy '{policy.name}' computes with weights that the episode does not have; make it the "
                            f"base policy (base_policy={name})")
        pending, turn = state.pending, state.pending.route_step
        params, picks = state.params.copy(), state.picks.copy()
        memory, wake, notes = state.memory.copy(), state.instances["pull_wake_ps"].copy(), state.notes.copy()
        state.params[:] = policy.vector()
        state.notes[:] = self._notes[i].get(name, 0.0)
        answer = call_rule(state, policy.hooks()[int(pending.point) - 1], int(pending.instance), int(pending.request),
                           int(pending.count))
        written = state.picks[: max(0, answer)].copy()
        self._notes[i][name] = state.notes.copy()
        state.params[:], state.picks[:], state.memory[:], state.notes[:] = params, picks, memory, notes
        state.instances["pull_wake_ps"], pending.route_step = wake, turn
        return answer, written

    def base_actions(self) -> np.ndarray:
        """Returns the actions that do what the base policy would do: (N,), or (N, P)."""
        count, parts = self.buffers.actions.shape
        if self.config.box:
            return np.full((count, parts), np.nan, np.float32)
        return np.full(count, b.BASE_ACTION) if self.controls is None else np.tile(self.controls.tuned, (count, 1))

    def rule_actions(self, name: Any) -> np.ndarray:
        """Returns the actions closest to what a policy's rule would do now: (N,), or (N, P).

        Raises:
            UserError: no policy of that name.
        """
        if not isinstance(name, str):
            raise UserError(f"rule_action({name!r}): expected a policy's name, such as 'ooco'; `env.rules` lists them")
        if name not in self._known_rules:
            policy_named(name)
            self._known_rules.add(name)
        if self.controls is not None or self.config.box:
            if name != spelling_of(self.config.base_policy):
                raise UserError(f"rule_action({name!r}): an action is a vector of levels here, and no single rule "
                                "gives one; make the policy the base policy (base_policy=…)")
            return self.base_actions()
        return np.array([self.rule_action(i, name) for i in range(len(self.simulations))])

    def _rule(self, i: int, name: str) -> Policy:
        """Returns a policy as the scenario of episode i prepares it."""
        rules, simulation = self._rules[i], self._simulation(i)
        if name not in rules:
            policy = self._stale(policy_named(name, simulation.policy))
            if name == spelling_of(self.config.base_policy):
                policy = simulation.policy
            elif policy.kept_by is None and policy.prepare is not None:
                policy = prepared(policy, _policy_context(simulation))
            rules[name] = policy
        return rules[name]

    def rule_action(self, i: int, name: str) -> int:
        """Returns the action closest to a policy's answer to the pending decision of episode i."""
        decision = self.asked(i) if self.open(i) else None
        if decision is None or decision.action_of is None:
            return b.BASE_ACTION
        answer, picks = self.rule_answer(i, name)
        opened = OpenDecision(self._simulation(i).state, answer, picks, self.buffers.chosen[i], self.buffers.status[i])
        return decision.action_of(opened)


def _refuse_nothing_to_decide(decisions: Sequence[Decision], base_policy: Policy, config: EpisodeConfig) -> None:
    """Raises UserError if none of the environment's decisions can come up, whatever the load."""
    cluster = config.scenario.load_cluster()
    if base_policy.mixed_by is not None or (cluster.mixed and cluster.relaxed):
        raise UserError(f"base policy '{base_policy.name}' on cluster '{cluster.name}': environments have "
                        "mixed instances, or relaxed and strict ones, not both; use for example pair_7b with ooco")
    if len(config.clusters()) > 1:
        return  # windows have different clusters
    kinds, engines = {decision.kind for decision in decisions}, set(b.OF_ENGINES)
    roles = [decision.name for decision in decisions] == ["roles"]  # the kind `scale`, of pools
    of_engines = bool(kinds & engines) or kinds == {s.ROUTE} or (kinds == {s.SCALE} and not roles)
    wrong_pools = not cluster.mixed and of_engines
    if not wrong_pools and not (roles and cluster.mixed) and any(
            _may_come_up(kind, cluster, base_policy, config.candidates) for kind in kinds):
        return
    why, instead = f"base policy '{base_policy.name}' leaves nothing to the agent", "base policy deadline"
    if wrong_pools:
        why, instead = "its instances are relaxed and strict", (
            f"cluster {'elastic' if s.SCALE in kinds else 'mixed'}_7b with base policy deadline")
    elif s.ROUTE in kinds:
        why, instead = "there are fewer than two instances or candidates", "engines_7b, and candidates=2 at least"
    elif kinds == {s.RETAIN}:
        why = ("it needs mixed instances whose retention is a rule that is asked" if not cluster.retention
               else f"retention={cluster.retention} is no rule that is asked")
        instead = "retention=offline_first on a cluster of mixed instances"
    elif roles:
        why = "its instances are mixed" if cluster.mixed else "it has no relaxed_min and relaxed_max"
        instead = "a cluster of relaxed and strict instances with relaxed_min and relaxed_max"
    elif kinds == {s.SCALE}:
        why, instead = "no group of its instances has min and max", "elastic_7b with base policy deadline"
    elif cluster.mixed and not kinds <= engines:
        why, instead = "its instances are mixed", f"cluster {cluster.twin or 'pair_7b'} with base policy ooco"
    elif base_policy.class_blind:
        why = f"base policy '{base_policy.name}' treats offline requests as online ones"
        instead = f"base policy {'deadline' if cluster.mixed else 'ooco'}"
    names = " or ".join(decision.name for decision in decisions)
    raise UserError(f"no {names} decision ever comes up on cluster '{cluster.name}' with base policy "
                    f"'{base_policy.name}': {why}; use for example {instead}")


def _may_come_up(kind: int, cluster: Cluster, base_policy: Policy, candidates: int) -> bool:
    """Whether a kind of decision can come up; `sim/dispatch.py` and `sim/loop.py` ask them."""
    if kind >= b.CLOCK:
        return True
    if kind == s.ROUTE:
        return sum(pool.ranks for pool in cluster.mixed) > 1 and candidates > 1
    if kind == s.SCALE:
        return cluster.steered
    if kind == s.COMPOSE:
        return bool(cluster.mixed) and not base_policy.class_blind
    if kind == b.RECLAIM:  # with two owners, online requests overwrite offline blocks: none is preempted
        two_owners = base_policy.values.get("bidirectional", "off") not in ("off", False)
        return bool(cluster.mixed) and not base_policy.class_blind and not two_owners
    if kind == b.ADMIT:
        return bool(cluster.mixed) and base_policy.leaves_open
    if kind == s.RETAIN:
        asked = cluster.retention and policy_of(cluster.retention, "retention").retain
        return bool(cluster.mixed) and bool(asked)
    if cluster.mixed:
        return False
    return kind == s.EVICT or not base_policy.class_blind


def _most_instances(config: EpisodeConfig) -> int:
    """Number of instances of the largest cluster that an episode may have."""
    clusters = [config.scenario.with_(cluster=one).load_cluster() for one in config.clusters()]
    return max(sum(pool.ranks for pool in (*cluster.relaxed, *cluster.strict, *cluster.mixed)) for cluster in clusters)


def _policy_context(simulation: Simulation) -> PolicyContext:
    """The context that policies are prepared with, from a simulation in progress."""
    machines = [Machine(*one) for one in simulation.scenario.deployments]
    return policy_context(machines, simulation.state.requests, simulation.sim_config)
