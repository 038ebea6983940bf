"""Simulates a scenario from Python: as a whole, or decision by decision."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ooco_gym.cluster import ROLES, Cluster
from ooco_gym.compile.references import Handle
from ooco_gym.errors import UserError
from ooco_gym.metrics import summarise
from ooco_gym.peak import title_of
from ooco_gym.perf import load_model
from ooco_gym.perf.engine_clock import EngineClock
from ooco_gym.perf.model import start_time_s
from ooco_gym.policy import Policy, policy_of
from ooco_gym.policy.decisions import POINTS, answer_of, rules_of
from ooco_gym.policy.policy import ENGINE_OPTIONS
from ooco_gym.report import joined
from ooco_gym.report.terminal import remark
from ooco_gym.run import RunRecord
from ooco_gym.scenario import DAY_S, LONGEST_S, ResolvedScenario, Scenario
from ooco_gym.schema import check_keys
from ooco_gym.sim import loop
from ooco_gym.sim import state as s
from ooco_gym.sim.build import build_state, least_ps, slo_ps
from ooco_gym.sim.config import Group, Machine, SimConfig
from ooco_gym.sim.edges import Edge, edge_of
from ooco_gym.sim.policy_context import PolicyContext, policy_context
from ooco_gym.sim.retention import LONGEST_US
from ooco_gym.workload import Trace, merge, sharing_ratio
from ooco_gym.workload.classes import check_deadlines, patience_s, tightest, unused_note
from ooco_gym.workload.context_names import grows_note
from ooco_gym.workload.sessions import open_note
from ooco_gym.workload.sharing import shared_tokens

NOTED_SHARE = 0.01  # share of prompt tokens


class Run(RunRecord):
    """Result of a simulation (`ooco_gym.run.RunRecord`), with its metrics."""

    @property
    def summary(self) -> dict[str, Any]:
        """The protocol's metrics (`ooco_gym.metrics.summarise`)."""
        return summarise(self)


def requests_of(scenario: Scenario | ResolvedScenario) -> tuple[Trace, tuple[float, float]]:
    """Returns all requests of a scenario, in seconds from the start of the warm-up, and the
    measured window."""
    known = scenario.resolve()
    start_s, duration_s, seed = known.start_s, known.duration_s, known.seed
    warmup_s, drain_s = float(known.protocol.warmup_s), known.drain_s
    if known.from_file:  # a window near a trace's first request has a shorter warm-up
        warmup_s = min(warmup_s, max(0.0, start_s))
    begin_s = start_s - warmup_s
    if begin_s < 0:  # a generated day repeats
        begin_s += math.ceil(-begin_s / DAY_S) * DAY_S
    total_s = warmup_s + duration_s + drain_s
    if total_s > LONGEST_S:
        raise UserError(f"duration_s={duration_s:g} with a warm-up of {warmup_s:g} s and a drain of {drain_s:g} s "
                        f"exceeds the simulator's longest run, {LONGEST_S:g} s; simulate a shorter window (start_s "
                        "chooses where in a trace)")
    online = known.draw(begin_s, total_s).shift(-begin_s)
    if known.from_file and not np.any((online.arrival_s >= warmup_s) & (online.arrival_s < total_s - drain_s)):
        raise UserError(f"workload: no request of the trace falls into the window of {duration_s:g} s from "
                        f"start_s={start_s:g}; choose start_s and duration_s within what it holds")
    at_s = warmup_s if known.offline.mode == "jobs" else 0.0
    load = known.offline.draw(duration_s=total_s, seed=seed, start_s=at_s)
    trace = known.promised(merge(online, load))
    check_deadlines(trace)
    return trace, (warmup_s, warmup_s + duration_s)


def sim_config_of(scenario: ResolvedScenario, trace: Trace | None = None) -> SimConfig:
    """Returns SLOs, protocol and cluster of a scenario for the simulator.

    With several online classes the tightest TTFT and TPOT apply. The class `online` is left out
    without a trace, or if none of its requests has that class.
    """
    slo, protocol, cluster = scenario.slo, scenario.protocol, scenario.cluster
    if scenario.classes:
        slo = replace(slo, **dict(zip(("ttft_s", "tpot_s"), tightest(scenario.classes, trace), strict=True)))
    return SimConfig(
        slo,
        max_batch=cluster.max_batch,
        block_tokens=cluster.block_tokens,
        kv_link_bytes_per_s=cluster.kv_link_bytes_per_s,
        gate_poll_s=float(protocol.gate_poll_s),
        prior_output_tokens=float(protocol.prior_output_tokens),
        belief_factor=scenario.predictor.factor,
        belief_noise=scenario.predictor.noise,
        jitter=scenario.given.jitter,
        host_link_bytes_per_s=cluster.host_link_bytes_per_s,
        host_bytes=cluster.host_gib * 2.0**30,
        offloading_bytes=cluster.kv_offloading_gib * 2.0**30,
        engine_clock=EngineClock.load(cluster.engine_clock),
        decode_first_token=cluster.pd_first_token == "decode",
        handover_s=cluster.pd_handover_s,
        groups=groups_of(cluster),
        scale_interval_s=cluster.scale_interval_s,
        begin_s=scenario.start_s - float(protocol.warmup_s),
        role_changes=tuple((change.at_s, change.relaxed) for change in cluster.role_changes),
    )


def groups_of(cluster: Cluster) -> tuple[Group, ...]:
    """The groups of an elastic fleet, or the one whose instances are relaxed or strict; none of a fixed one."""
    if cluster.relaxed_min is not None:
        begun = sum(pool.ranks for pool in cluster.relaxed)
        count = begun + sum(pool.ranks for pool in cluster.strict)
        return (Group(0, count, begun, cluster.relaxed_min, cluster.relaxed_max or count - 1),)
    found, first = [], 0
    for pool in cluster.mixed if cluster.scales else ():
        spot = pool.reclaimed
        start_s = start_time_s(load_model(cluster.model)) if pool.start_s is None else pool.start_s
        found.append(Group(first, pool.ranks, pool.count, *pool.bounds, start_s, spot.notice_s if spot else 0.0,
                           spot.rate_per_h if spot else 0.0, pool.tp * pool.pp))
        first += pool.ranks
    return tuple(found)


class Simulation:
    """One episode, driven from Python.

    Attributes:
        scenario: the resolved scenario.
        policy: the policy, as prepared for the scenario.
        state: the simulator's state.
        sim_config: SLOs, protocol and cluster for the simulator.
        class_id: int8[requests], indices in `scenario.classes`; None without classes.
        window_s: start and end of the measured window, in seconds since the start of the warm-up;
            for a trace simulated to its last request's end, of the time of arrivals.
        turns: dependencies of closed sessions; None if sessions are open.

    Examples:
        >>> simulation = Simulation(Scenario(duration_s=60.0, rate_scale=0.1), "ooco", outside=("gate",))
        >>> while simulation.advance():
        ...     simulation.answer(simulation.rule_answer())
    """

    def __init__(self, scenario: Scenario | ResolvedScenario, policy: Any = "ooco", outside: tuple[str, ...] = (),
                 bulk: bool = True, whole: bool = False) -> None:
        """As `simulate`; `outside` names the decision points that the caller answers. Unless
        `whole` (as in `simulate`), an episode ends once all SLO violations are certain."""
        chosen = policy_of(policy)
        self.scenario = scenario.resolve().for_policies(chosen.mixed)
        chosen = with_rules(chosen, self.scenario.cluster)
        self._handle: Handle | None = None
        trace, self.window_s = requests_of(self.scenario)
        template = EngineClock.load(self.scenario.cluster.engine_clock).template_tokens
        if template:
            trace = replace(trace, prompt_tokens=trace.prompt_tokens + np.int32(template))
        self.turns = self.scenario.workload.turns(trace, self.scenario.seed)
        chained = self.turns is not None and self.turns.clients is None
        self.job = trace.session if trace.job is None and chained else trace.job
        self.notes = trace.notes + unused_note(trace, self.scenario.classes)
        if self.scenario.from_file:
            self.notes += open_note(trace, self.turns)
        self.class_id = trace.class_id
        self.sim_config = sim_config = replace(sim_config_of(self.scenario, trace), retention=chosen.retention,
                                               foresees=chosen.scaled_by is not None and chosen.scaled_by.foresees)
        self.ttft_slo_ps = None  # the clients' SLO, if it differs from the engine's
        if sim_config.engine_clock.has_frontend:
            self.ttft_slo_ps = slo_ps(trace.ttft_slo_s, sim_config.slo.ttft_s, len(trace))
        machines = [Machine(*one) for one in self.scenario.deployments]
        _check_architecture(chosen, self.scenario.cluster)
        self.policy = _prepared_there(chosen, self.scenario, machines, trace, sim_config)
        engine = (self.policy.mixed_by or self.policy).engine_options  # size the KV memory, too
        machines = [one if not engine or one.deployment.memory != "vllm" or one.deployment.batch_limits == (
            *engine.values(),) or one.role != "mixed" else replace(
                one, deployment=replace(one.deployment, **engine)) for one in machines]
        learns = self.scenario.lengths.predictor == "client"
        if learns and trace.client is None:
            raise UserError("lengths.predictor=client learns the outputs of each client, and no request names one: add "
                            "a column 'client' to the trace, or 'clients' to the workload or to offline; or take "
                            "another predictor")
        predicted = self.scenario.lengths.believe(trace, self.scenario.seed)
        self.state = build_state(machines, trace, sim_config, seed=self.scenario.seed, window_s=self.window_s,
                                 params=self.policy.vector(), settings=self.policy.settings(),
                                 class_blind=self.policy.class_blind, bulk=bulk,
                                 keys=self.policy.keys(trace, self.scenario.seed, predicted), predicted=predicted,
                                 weights=self.policy.weights, turns=self.turns, job=self.job,
                                 patience_s=_patience_of(self.scenario, trace))
        self.state.config.learns_lengths = learns
        self.notes += _unused_notes(self.state, self.scenario.cluster, sim_config, chosen) + self.scenario.offline.notes
        if self.scenario.from_file:
            self.notes += grows_note(trace) if self.state.blocks.size else _uncached_note(trace, chosen)
        if outside:
            self.state.config.rules_flush = 0  # an outside caller need not flush
        check_keys("outside", outside, [point.name for point in POINTS])
        self._asks_no_retention = "retain" not in outside
        self._hooks = rules_of(self.policy, outside)
        self._answer = s.ASK
        self.end_ps = round((self.window_s[1] + self.scenario.drain_s) * s.PS_PER_S)
        cached = shared_tokens(trace) if trace.session is None else trace.prompt_tokens  # a turn may be cached whole
        self.least_ps = least_ps(machines, self.state, sim_config, cached) if whole else None
        if whole:
            self.state.config.ends = s.ALL_TOKENS if self.scenario.open_end else s.LAST_TOKENS
        if whole and self.scenario.open_end:  # sums over the window run to the end
            self.state.clock.window_end_ps = self.end_ps

    @property
    def handle(self) -> Handle:
        """The state laid out for compiled code."""
        if self._handle is None or self._handle.value is not self.state:
            self._handle = s.handle_of(self.state)
        return self._handle

    def __getstate__(self) -> dict[str, Any]:
        """Everything except the handle, as a copy lays out its own state."""
        return {**self.__dict__, "_handle": None}

    @property
    def now_s(self) -> float:
        """The clock, in seconds since the start of the warm-up."""
        return int(self.state.clock.now_ps) / s.PS_PER_S

    @property
    def finished(self) -> bool:
        """Whether the window is over and everything waited for has happened, or the drain is over."""
        now_ps, ends, gauges = self.state.clock.now_ps, self.state.config.ends, self.state.gauges
        still = gauges.open_online + (ends >= s.LAST_TOKENS) * gauges.late_online
        still += (ends == s.ALL_TOKENS) * gauges.open_offline
        over = ends == s.ALL_TOKENS or now_ps >= self.state.clock.window_end_ps
        return bool((over and still <= 0) or now_ps >= self.end_ps)

    def advance(self, until_s: float | None = None) -> bool:
        """Runs until a decision is pending (True), or until `until_s` or the end (False)."""
        return self._run(self.end_ps if until_s is None else min(self.end_ps, round(until_s * s.PS_PER_S)))

    def _run(self, until_ps: int) -> bool:
        why = loop.run(self.handle.address, self._hooks, until_ps, self._answer)
        self._answer = s.ASK
        if self.state.config.retain_wrong:
            raise UserError(f"the rule of retention={(self.policy.kept_by or self.policy).name} returned no number of "
                            f"microseconds from {-LONGEST_US:,} to {LONGEST_US:,} (NaN, or too large a time)")
        if why == s.ASKED and self.state.pending.point == s.RETAIN and self._asks_no_retention:
            name = (self.policy.kept_by or self.policy).name
            raise UserError(f"the rule of retention={name} returned -1, which asks the "
                            "caller: return ooco_gym.policy.retention.microseconds(seconds)")
        return why == s.ASKED

    def edge(self, at_s: float) -> Edge:
        """Runs until just before a time; returns what has been done up to it."""
        at_ps = round(at_s * s.PS_PER_S)
        if at_ps > 0:
            self._run(at_ps - 1)
        return edge_of(self.state, at_ps)

    def answer(self, value: int) -> None:
        """Answers the pending decision; wide answers must be in `state.picks` before."""
        self._answer = int(value)

    @property
    def pending(self) -> str | None:
        """Name of the pending decision point, or None."""
        index = int(self.state.pending.point)
        return POINTS[index - 1].name if index != s.NO_POINT else None

    def rule_answer(self) -> int:
        """Returns the policy's own answer to the pending decision."""
        return answer_of(self.state, self.policy)


def _patience_of(scenario: ResolvedScenario, trace: Trace) -> np.ndarray | None:
    """When requests leave (`patience_s`); raises UserError if they cannot leave where they are served."""
    found, cluster = patience_s(trace, scenario.classes, scenario.seed), scenario.cluster
    if found is not None and cluster.roles != ROLES[2:]:
        raise UserError("timeout_s, abort_share and expires of classes let requests leave mixed instances alone, and "
                        f"cluster '{cluster.name}' has {joined(cluster.roles)} instances")
    return found


def with_rules(policy: Policy, cluster: Cluster) -> Policy:
    """Returns the policy with the cluster's rules for its prefix caches and its fleet, unless it was given some.

    Raises:
        UserError: a scaling rule for a fleet that does not scale.
    """
    if policy.kept_by is None and cluster.retention:
        policy = replace(policy, kept_by=policy_of(cluster.retention, "retention"))
    if policy.scaled_by is None and cluster.scale:
        policy = replace(policy, scaled_by=policy_of(cluster.scale, "scale"))
    if policy.scaled_by is not None and not cluster.steered:
        raise UserError(f"scale={policy.scaled_by.name} has nothing to scale: no group of mixed instances of cluster "
                        f"'{cluster.name}' has min and max, nor has it relaxed_min and relaxed_max")
    if policy.scaled_by is not None and policy.scaled_by.name != "static" and policy.scaled_by.mixed != cluster.scales:
        what = ("how many instances are on" if policy.scaled_by.mixed else "how many instances are relaxed")
        raise UserError(f"scale={policy.scaled_by.name} says {what}, and the instances of cluster '{cluster.name}' "
                        f"{'start and stop' if cluster.scales else 'change their roles'}; use for example "
                        f"scale={'headroom' if cluster.scales else 'ratio'}")
    return policy


def _unused_notes(state: s.State, cluster: Cluster, sim_config: SimConfig, policy: Policy) -> tuple[str, ...]:
    """Sentences on settings of the cluster that the policy does not use."""
    notes = []
    if sim_config.offloading_bytes and not state.tier.size:
        why = (f"policy '{policy.name}' has none here (prefix_caching)" if not state.blocks.size else
               "relaxed and strict instances keep theirs on chips alone")
        notes.append(f"kv_offloading_gib={cluster.kv_offloading_gib:g} is not used: it is memory for a prefix cache, "
                     f"and {why}")
    if policy.kept_by is not None and not state.blocks.size:
        notes.append(f"retention={policy.kept_by.name} is not used: it orders a prefix cache, and policy "
                     f"'{policy.name}' has none here (prefix_caching)")
    if "mixed" in policy.roles and sim_config.engine_clock.async_scheduling and not state.config.async_scheduling:
        notes.append(f"policy '{policy.name}' composes an iteration after the previous one ends, as its engine has no "
                     f"asynchronous scheduling. The host times of engine_clock={sim_config.engine_clock.name} were "
                     "measured with asynchronous scheduling; without it an iteration takes longer than simulated")
    return tuple(notes)


def _uncached_note(trace: Trace, policy: Policy) -> tuple[str, ...]:
    """A sentence if prompts share prefixes and no prefix cache keeps them."""
    share = sharing_ratio(trace) or 0.0
    if share < NOTED_SHARE:
        return ()
    kept = (f"policy '{policy.name}' recomputes them (policy.prefix_caching=on caches them, as engines do by default)"
            if "prefix_caching" in policy.values else f"policy '{policy.name}' has no prefix cache")
    return (f"{100 * share:.0f} % of the trace's prompt tokens lie in prefixes of an earlier prompt, and {kept}",)


def _check_architecture(policy: Policy, cluster: Cluster) -> None:
    """Raises UserError for a policy on instances of the other kind, with a cluster of its kind."""
    if policy.roles == cluster.roles:
        return
    where = f"cluster={title_of(cluster.twin)}, the same chips" if cluster.twin else (
        f"cluster={('pair_7b', 'mixed_7b')[policy.mixed]}")
    if ROLES in (policy.roles, cluster.roles):
        where = ("a policy for pools and one for mixed instances, such as policy=ooco:mixed=deadline, where a cluster "
                 "has all three, else one of both")
    raise UserError(f"policy '{policy.name}' schedules {joined(policy.roles)} instances, but cluster '{cluster.name}' "
                    f"has {joined(cluster.roles)} instances; take {where}")


def _prepared_there(policy: Policy, scenario: ResolvedScenario, machines: Sequence[Machine], trace: Trace,
                    sim_config: SimConfig) -> Policy:
    """Sets what a policy derives from the scenario's machines; side by side, each policy from its own."""
    theirs = [one for one in machines if (one.role == "mixed") == policy.mixed]
    policy = prepared(profiled(policy, scenario), policy_context(theirs, trace, sim_config))
    if policy.mixed_by is None:
        return policy
    return replace(policy, mixed_by=_prepared_there(policy.mixed_by, scenario, machines, trace, sim_config))


def profiled(policy: Policy, scenario: ResolvedScenario) -> Policy:
    """Sets the engine's options that the cluster states, and what a policy finds by test runs (HyGen 4.2); raises
    UserError if cluster and policy state different engines."""
    for key in ENGINE_OPTIONS:
        stated, own, same = getattr(scenario.cluster, key), policy.values.get(key) or 0, key in policy.engine_options
        if stated and (own > stated or (same and 0 < own < stated)):
            raise UserError(f"cluster.{key}={stated} is how the engine is started, and policy '{policy.name}' has "
                            f"{key}={own}; an engine has one: leave the cluster's out, or give the policy {stated}")
        policy = policy.with_values({key: stated}) if stated and same else policy
    return policy if policy.profile is None else policy.with_values(policy.profile(policy, scenario))


def prepared(policy: Policy, context: PolicyContext) -> Policy:
    """Sets the parameters that a policy derives from the scenario."""
    if policy.scaled_by is not None:
        policy = replace(policy, scaled_by=prepared(policy.scaled_by, context))
    if policy.prepare is None:
        return policy
    return replace(policy, values={**policy.values, **policy.prepare(policy, context)})


def simulate(scenario: Scenario | ResolvedScenario, policy: str | Mapping[str, Any] | Policy = "ooco", *,
             params: Mapping[str, Any] | None = None, sample_s: float = 60.0, bulk: bool = True) -> Run:
    """Simulates a scenario under a policy.

    Args:
        scenario: the scenario.
        policy: a name (`ooco`, `ooco:slo_margin=0.85`), a mapping with parameters, or a `Policy`.
        params: more parameters to set.
        sample_s: interval of the samples over time, in seconds.
        bulk: simulate many decode steps at once; False gives the same result.

    Raises:
        UserError: unknown names, a model that does not fit, or an SLO that cannot be met.
    """
    chosen = policy_of(policy)
    if params:
        chosen = chosen.with_values(params)
    begun = time.perf_counter()
    simulation = Simulation(scenario, chosen, bulk=bulk, whole=True)
    state, rows, until_s = simulation.state, [], sample_s
    start_s, end_s = simulation.window_s
    edges_s, edges = (start_s, math.inf if simulation.scenario.open_end else end_s, math.inf), []
    while not simulation.finished:
        if edges_s[len(edges)] <= until_s:
            edges.append(simulation.edge(edges_s[len(edges)]))
            continue
        simulation.advance(until_s)
        if until_s <= edges_s[1]:
            rows.append(_sample(state, until_s))
        until_s += sample_s
    while len(edges) < 2:  # the window has no fixed end
        edges.append(edge_of(state, int(state.clock.now_ps)))
    requests = seen_by_clients(state.requests, simulation.sim_config.engine_clock, simulation.ttft_slo_ps)
    if simulation.scenario.open_end:  # just after the last request's end as its client sees it
        last_s = max(simulation.now_s, int(requests["finish_ps"].max(initial=0)) / s.PS_PER_S)
        end_s = last_s + max(1 / s.PS_PER_S, math.ulp(last_s))
    samples, late = _columns(rows), simulation.scenario.cluster.role_changes[state.config.next_change:]
    simulation.notes += tuple(f"role_changes with at_s={one.at_s:g} is never reached: the run ends "
                              f"{simulation.now_s - start_s:.4g} s after its window begins" for one in late[:1])
    run = Run(simulation.scenario, chosen.name, dict(simulation.policy.values),
              requests, state.instances, state.itl, (start_s, end_s), state.totals.as_dict(), samples, simulation.now_s,
              time.perf_counter() - begun, simulation.notes, simulation.class_id,
              state.due_ps if state.due_ps.size else None, simulation.turns,
              int(state.tier["blocks"].sum()) if state.tier.size else None,
              (start_s, min(simulation.window_s[1], end_s)), edges[1].since(edges[0]), edges[0].computed_tokens,
              simulation.job, simulation.least_ps,
              state.tides[:, : state.fleet.intervals] if state.units.size else None)
    for line in run.range_warnings:
        remark(line, line.partition("; this run reaches")[0])
    return run


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Samples of a run as arrays by key."""
    found = {}
    for key in rows[0] if rows else ():
        found[key] = np.array([row[key] for row in rows])
    return found


def seen_by_clients(requests: np.ndarray, clock: EngineClock, ttft_slo_ps: np.ndarray | None) -> np.ndarray:
    """Changes requests (`REQUEST`) in place to their clients' view and returns them: tokens are
    later by the front end's time, with the clients' TTFT SLO, int64[n]; None: the front end takes
    no time."""
    if ttft_slo_ps is None:
        return requests
    frontend_ps = clock.frontend_ps(requests["prompt_tokens"])
    requests["ttft_slo_ps"] = ttft_slo_ps
    for name in ("first_token_ps", "last_token_ps", "first_decode_ps", "finish_ps"):
        requests[name] += np.where(requests[name] > 0, frontend_ps, 0)
    return requests


def _sample(state: s.State, time_s: float) -> dict[str, Any]:
    """Sample of each instance at a time: members by class, waiting requests, share of KV memory in
    use."""
    instances = state.instances
    return {"t_s": time_s, "urgent": instances["urgent_members"].copy(), "offline": instances["offline_members"].copy(),
            "online_waiting": instances["online_waiting"].copy(),
            "offline_waiting": instances["offline_waiting"].copy(),
            "kv_share": 1.0 - instances["free_blocks"] / instances["total_blocks"],
            **({"power": instances["power"].copy()} if state.units.size else {})}
