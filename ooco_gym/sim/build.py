"""Builds a `State` from cost tables, requests and settings; no other module fills one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.perf import CostTable, decode_latency_ps, prefill_alone_ps
from ooco_gym.perf.engine_clock import EngineClock
from ooco_gym.perf.table import fill, least_decode_ps, least_prefill_ps, sums_latency_ps
from ooco_gym.sim import state as s
from ooco_gym.sim.config import Machine, SimConfig
from ooco_gym.sim.costs import work_out_alone
from ooco_gym.sim.fleet import begin_fleet
from ooco_gym.sim.policy_context import PREFILL_ENTRIES, table_of
from ooco_gym.sim.pool import fill_pool, fill_retained, offloaded_blocks, pool_for
from ooco_gym.sim.sessions import BEGUN, LEFT
from ooco_gym.workload import Trace, Turns
from ooco_gym.workload.context_names import context_names
from ooco_gym.workload.trace import NO_SESSION

SOME = 1 << 14  # requests filled at once
REFERENCE_BATCH = 64  # batch of the decode step that prices an output token


def build_state(machines: Sequence[Machine], trace: Trace, sim: SimConfig, *, seed: int, window_s: tuple[float, float],
                params: np.ndarray, settings: Mapping[str, int], class_blind: bool, keys: np.ndarray | None = None,
                predicted: np.ndarray | None = None, weights: np.ndarray | None = None, bulk: bool = True,
                turns: Turns | None = None, job: np.ndarray | None = None,
                patience_s: np.ndarray | None = None) -> s.State:
    """Builds the initial state of an episode.

    Args:
        machines: instances, relaxed ones first, strict ones last.
        trace: all requests, arrivals in seconds from the start of the run.
        sim: SLOs, protocol and cluster.
        seed: keys every random draw.
        window_s: start and end of the measured window.
        params: float64[RULE_PARAMS], the policy's parameters (`Policy.vector`).
        settings: fields of `State.config` that the policy sets (`Policy.settings()`).
        class_blind: offline requests are scheduled as online ones.
        keys: float64[requests] or None, the order of waiting offline requests (`Policy.keys`).
        predicted: float64[requests, 2] or None, predictions of `workload.LengthPredictor`.
        weights: float64[k], of a learned rule (`Policy.weights`), or None.
        bulk: simulate many decode steps at once; False gives the same result.
        turns: dependencies of closed sessions; None: requests arrive at the trace's times.
        job: int64[requests], of one job an equal number >= 0 (`Trace.job`), or None.
        patience_s: float64[requests], time from its arrival at which a request leaves (inf: it stays), or None.

    Raises:
        UserError: even one token cannot meet the SLO, or settings do not fit the cluster.
    """
    sim, settings, async_scheduling = _split_settings(sim, settings)
    tables = [table_of(machine.deployment, sim.max_batch) for machine in machines]
    unique = list({id(table): table for table in tables}.values())
    _check_config(unique, sim)
    mixed = all(machine.role == "mixed" for machine in machines)
    entries = sum(machine.role != "strict" for machine in machines)  # instances where requests arrive
    rows = 2 if (sim.belief_factor, sim.belief_noise) != (1.0, 0.0) else 1
    names = context_names(trace) if settings.get("prefix_caching") and len(trace) else None
    waits = np.zeros(len(trace), bool) if turns is None else turns.waits
    sizes = pool_for(trace, tables, settings, sim, names, mixed)._replace(
        groups=len(sim.groups), predicted=0 if predicted is None else len(trace), role_changes=len(sim.role_changes),
        weights=0 if weights is None else len(weights), **_linked(turns, job, patience_s),
        **_intervals(trace, sim, window_s[1]))
    first_target, most = _reach(sim, entries, mixed)
    state = s.empty_state(len(trace), int((trace.online & ~waits).sum()), len(machines),
                          most * (len(machines) - first_target), rows * len(unique), sim.max_batch, PREFILL_ENTRIES,
                          pool=sizes, block_tokens=sim.block_tokens)
    _fill_tables(state, unique, sim, rows)
    _fill_instances(state, machines, tables, unique, rows, sim)
    _fill_links(state, sim, most, first_target)
    _fill_requests(state, trace, sim, window_s, class_blind, waits, tables[0], tables[min(entries, len(tables) - 1)])
    _fill_turns(state, turns, waits, sim.engine_clock)
    _charge_host(state, len(unique), sim, async_scheduling if mixed else s.SYNCHRONOUS)
    _fill_alone(state)
    _fill_records(state, sim, seed, window_s, bulk, class_blind, trace.block_tokens)
    _fill_roles(state, sim, entries, first_target)
    state.config.max_position = machines[0].deployment.model.max_position
    _set_config(state.config, settings, sim)
    _fill_tier(state, trace, tables, sim)
    fill_pool(state, trace, sim.max_batch, names, keys)
    if state.blocks.size:
        fill_retained(state, trace, names, sim.retention, seed)
    return _with_given(state, trace, params, predicted, weights, job, patience_s)


def _split_settings(sim: SimConfig, settings: Mapping[str, int]) -> tuple[SimConfig, dict[str, int], int]:
    """Returns the sim with the policy's own host memory, settings that are fields of
    `State.config`, and the policy's `async_scheduling`, which applies if the engine's clock has it."""
    fields = dict(settings)
    host_gib = fields.pop("host_gib", None)
    async_scheduling = fields.pop("async_scheduling", s.SYNCHRONOUS)
    if host_gib is not None:  # the policy's value overrides the cluster's
        sim = replace(sim, host_bytes=host_gib * 2.0**30)
    return sim, fields, async_scheduling


def _linked(turns: Turns | None, job: np.ndarray | None, patience_s: np.ndarray | None) -> dict[str, int]:
    """Sizes of what closed sessions, trees, jobs and requests that leave need."""
    waiting = {} if turns is None else {"turns": int(turns.waits.sum()), "edges": turns.edges.shape[1]}
    return waiting | {"jobs": 0 if job is None else len(np.unique(job)),
                      "quits": 0 if patience_s is None else len(patience_s)}


def _fill_turns(state: s.State, turns: Turns | None, waits: np.ndarray, clock: EngineClock) -> None:
    """Fills the dependencies of closed sessions: what waits for each request, and the think time after its answer."""
    if turns is None or not waits.any():
        return
    n, (sources, targets) = len(waits), turns.edges
    state.think_ps[:] = -1
    state.followers[: n + 1] = n + 1 + np.searchsorted(sources, np.arange(n + 1))  # edges are sorted by source
    state.followers[n + 1 :] = targets
    state.unfinished[:] = np.bincount(targets, minlength=n)
    state.think_ps[waits] = np.rint(np.minimum(turns.think_s[waits] * s.PS_PER_S, s.NEVER)).astype(np.int64)
    config = state.config
    config.clients = turns.clients or 0
    config.frontend_ps, config.frontend_token_ps = (round(each_s * s.PS_PER_S) for each_s in (
        clock.frontend_s, clock.frontend_token_s))


def _fill_alone(state: s.State) -> None:
    """Fills the latency of single prompts' prefills, once the cost tables are complete."""
    handle = s.handle_of(state)  # must live as long as its address is used
    work_out_alone(handle.address)


def _fill_tier(state: s.State, trace: Trace, tables: Sequence[CostTable], sim: SimConfig) -> None:
    """Sets the sizes of the second tier of prefix caches in host memory, if there is one."""
    if state.tier.size:
        state.config.offloading, state.tier["blocks"] = 1, offloaded_blocks(trace, tables, sim)


def _fill_jobs(state: s.State, job: np.ndarray | None) -> None:
    """Numbers jobs, and adds up their requests' reference times."""
    if job is None:
        return
    _, place = np.unique(job, return_inverse=True)
    state.job[:] = np.where(job == NO_SESSION, -1, place)
    state.jobs[:, BEGUN] = -1.0
    np.add.at(state.jobs[:, LEFT], place, state.requests["service_ps"])


def _with_given(state: s.State, trace: Trace, params: np.ndarray, predicted: np.ndarray | None,
                weights: np.ndarray | None, job: np.ndarray | None, patience_s: np.ndarray | None) -> s.State:
    """Copies the policy's parameters, predicted lengths, weights and times to leave, if any. Numbers jobs, and the
    rows of `State.ended` that requests of a client count in; those of none: of all of their class."""
    state.params[:] = params
    if predicted is not None:
        state.predicted[:] = predicted
    if weights is not None:
        state.weights[:] = weights
    _fill_jobs(state, job)
    if patience_s is not None:
        state.quit_ps[:] = np.rint(np.clip(patience_s * s.PS_PER_S, 1, s.NEVER)).astype(np.int64)
    if state.client.size and trace.client is not None:
        client = np.where(trace.client < 0, state.ended.shape[0] // 2 - 1, trace.client)
        state.client[:] = 2 * client + trace.online
    return state


def _set_config(config: s.Config, settings: Mapping[str, int], sim: SimConfig) -> None:
    """Sets the fields of `State.config` that the policy sets.

    Raises:
        UserError: too many sequences for the cluster, or no memory left for requests.
    """
    for name, value in settings.items():
        setattr(config, name, value)
    if config.max_num_seqs > sim.max_batch:
        raise UserError(f"max_num_seqs={config.max_num_seqs} must be at most the cluster's max_batch="
                        f"{sim.max_batch}")
    if config.reserved_blocks >= config.least_blocks:
        raise UserError(f"reserved_blocks={config.reserved_blocks} leaves no KV memory for requests: an instance has "
                        f"{config.least_blocks:,} blocks of {sim.block_tokens} tokens")


def _check_config(tables: Sequence[CostTable], sim: SimConfig) -> None:
    """Raises UserError for a batch larger than the task ring allows, and a TPOT SLO below one
    decode step."""
    if sim.max_batch > s.TASKS // 2:
        raise UserError(f"max_batch={sim.max_batch} must be at most {s.TASKS // 2}")
    fastest = min(decode_latency_ps(table, 1, 1) for table in tables) / s.PS_PER_S
    if fastest > sim.slo.tpot_s:
        raise UserError(f"slo.tpot_s={sim.slo.tpot_s:g} cannot be met: a decode step of one request takes "
                        f"{fastest:.4g} s on this cluster; raise slo.tpot_s or take more chips")


def _fill_tables(state: s.State, unique: Sequence[CostTable], sim: SimConfig, rows: int) -> None:
    for belief in range(rows):
        for i, table in enumerate(unique, belief * len(unique)):
            fill(state, i, table, sim.belief_factor if belief else 1.0)
            state.tables["noise"][i] = sim.belief_noise if belief else sim.jitter


def _fill_instances(state: s.State, machines: Sequence[Machine], tables: Sequence[CostTable],
                    unique: Sequence[CostTable], rows: int, sim: SimConfig) -> None:
    index = {id(table): i for i, table in enumerate(unique)}
    instances = state.instances
    instances["role"] = [s.ROLE_NAMES.index(machine.role) for machine in machines]
    instances["table"] = [index[id(table)] for table in tables]
    instances["belief"] = instances["table"] + (rows - 1) * len(unique)
    instances["total_blocks"] = [table.kv_blocks for table in tables]
    instances["free_blocks"] = instances["total_blocks"]
    for key in ("online_head", "online_tail", "offline_head", "offline_tail"):
        instances[key] = -1
    instances["pull_wake_ps"] = s.NEVER
    block_bytes = np.array([table.kv_bytes_per_token for table in tables]) * sim.block_tokens
    instances["host_free_blocks"] = sim.host_bytes / block_bytes
    instances["pull_due"] = 1
    instances["hold"] = s.HOLD_UNTIL_CHANGE
    instances["wants_pull"] = 1
    _fill_ranks(instances, [machine.deployment.data_parallel for machine in machines])


def _fill_ranks(instances: np.ndarray, data_parallel: Sequence[int]) -> None:
    """Groups each `data_parallel` instances in a row as the ranks of one group."""
    begin = 0
    while begin < len(data_parallel):
        end = begin + data_parallel[begin]
        if end > begin + 1:
            instances["first_rank"][begin:end], instances["ranks"][begin:end] = begin, end - begin
        begin = end


def _fill_links(state: s.State, sim: SimConfig, sources: int, first_target: int) -> None:
    targets = state.instances.size - first_target
    links = state.links
    links["source"] = np.repeat(np.arange(sources), targets)
    links["target"] = first_target + np.tile(np.arange(targets), sources)
    for key in ("current", "push_head", "push_tail", "pull_head", "pull_tail"):
        links[key] = -1
    links["bytes_per_s"] = sim.kv_link_bytes_per_s
    state.heap[2] = -1


def _reach(sim: SimConfig, entries: int, mixed: bool) -> tuple[int, int]:
    """Returns the least and the most instances that requests may arrive at, as roles change."""
    counts = [entries, *(count for _, count in sim.role_changes)]
    for group in () if mixed else sim.groups:
        counts += [group.least, group.most]
    return min(counts), max(counts)


def _intervals(trace: Trace, sim: SimConfig, end_s: float) -> dict[str, int]:
    """Sizes by the number of intervals of an elastic fleet until the window's end or the last arrival."""
    last_s = max(end_s, float(trace.arrival_s.max(initial=0.0)))
    count = int(last_s / sim.scale_interval_s) + 1 if sim.groups else 0
    return {"intervals": count, "foreseen": count * sim.foresees}


def _fill_fleet(state: s.State, sim: SimConfig) -> None:
    """Fills the groups of an elastic fleet, and which of their instances are on at the beginning."""
    for index, group in enumerate(sim.groups):
        row, engines = state.groups[index], slice(group.first, group.first + group.engines)
        for name in ("first", "engines", "least", "most", "count", "rate_per_h", "chips"):
            row[name] = getattr(group, name)
        row["target"] = group.count
        row["start_ps"], row["notice_ps"] = round(group.start_s * s.PS_PER_S), round(group.notice_s * s.PS_PER_S)
        state.units["group"][engines], state.units["due_ps"][engines] = index, s.NEVER
        if state.instances["role"][group.first] == s.MIXED:
            state.instances["power"][engines] = s.OFF
            state.instances["power"][engines][: group.count] = s.ON
    if sim.foresees:
        ahead = state.requests[(state.requests["online"] == 1) & (state.requests["arrival_ps"] < s.NEVER)]
        place = (ahead["arrival_ps"] / s.PS_PER_S / sim.scale_interval_s).astype(np.int64)
        for row, name in enumerate(("prompt_tokens", "output_tokens")):
            np.add.at(state.foreseen[row], place, ahead[name])
    fleet = state.fleet
    fleet.interval_ps = fleet.next_ps = round(sim.scale_interval_s * s.PS_PER_S)
    fleet.day_ps = round(sim.begin_s * s.PS_PER_S)
    fleet.asked = len(sim.groups)
    handle = s.handle_of(state)  # must live as long as its address is used
    begin_fleet(handle.address)


def least_ps(machines: Sequence[Machine], state: s.State, sim: SimConfig, cached: np.ndarray) -> np.ndarray:
    """Lower bounds of each request's times to its first token, and from there to its last, as its client sees them, on
    an idle cluster without jitter, whatever the policy does: int64[2, n] in ps. Pools prefill a prompt as a whole,
    mixed instances in any chunks, with up to `cached` tokens of it, int64[n], from a prefix cache."""
    tables, found = {}, np.full((2, len(cached)), s.NEVER)
    roles = {machine.role for machine in machines}
    pairs = [(role, machine, row) for machine, row in zip(machines, state.instances["table"].tolist(), strict=True)
             for role in (roles if sim.role_changes or sim.groups else (machine.role,))]
    for role, machine, row in pairs:
        tables[role, row] = table_of(machine.deployment, sim.max_batch)._replace(  # with the engine's host time
            prefill_slope_ps=int(state.tables["prefill_slope_ps"][row]),
            **{name: getattr(state, name)[row] for name in ("prefill_ps", "head_ps", "decode_lines")})
    for part in (slice(begin, begin + SOME) for begin in range(0, len(cached), SOME)):
        prompt, output = (state.requests[name][part].astype(np.int64) for name in ("prompt_tokens", "output_tokens"))
        for (role, _), table in tables.items():
            if role != "strict":
                alone = prefill_alone_ps(table, prompt) if role == "relaxed" else (
                    least_prefill_ps(table, prompt, np.minimum(cached[part], prompt - 1)))
                found[0, part] = np.minimum(found[0, part], alone)
            if role != "relaxed":
                found[1, part] = np.minimum(found[1, part], least_decode_ps(table, prompt + 1, output - 1))
        found[0, part] += sim.engine_clock.frontend_ps(prompt)
    return found


def slo_ps(own_s: np.ndarray | None, default_s: float, n: int) -> np.ndarray:
    """The SLO of each of n requests, its own or the default, in ps: int64[n]."""
    seconds = np.full(n, default_s) if own_s is None else np.where(np.isnan(own_s), default_s, own_s)
    return np.rint(np.minimum(seconds * s.PS_PER_S, s.NEVER)).astype(np.int64)


def _fill_requests(state: s.State, trace: Trace, sim: SimConfig, window_s: tuple[float, float], class_blind: bool,
                   waits: np.ndarray, prefill: CostTable, decode: CostTable) -> None:
    """Fills the requests in parts, so that temporary arrays stay small; `waits` (bool[n]) marks
    those that arrive after another one has finished."""
    requests = state.requests
    for begin in range(0, len(trace), SOME):
        part = slice(begin, begin + SOME)
        _fill_some(requests[part], trace, part, sim, waits[part])
        _price_requests(requests[part], prefill, decode)
        if trace.deadline_s is not None:
            left = np.where(np.isnan(trace.deadline_s[part]), np.inf, trace.deadline_s[part]) * s.PS_PER_S
            state.due_ps[part] = np.rint(np.minimum(np.where(waits[part], 0, _arrival_ps(trace, part)) + left,
                                                    s.NEVER)).astype(np.int64)
    requests["urgent"] = 1 if class_blind else requests["online"]
    start, end = (round(edge * s.PS_PER_S) for edge in window_s)
    requests["counted"] = (requests["arrival_ps"] >= start) & (requests["arrival_ps"] < end)
    online = np.flatnonzero(trace.online & ~waits).astype(np.int32)
    deadline = requests["arrival_ps"][online]
    deadline += requests["ttft_slo_ps"][online]
    in_order = (deadline[1:] >= deadline[:-1]).all()  # as with equal SLOs
    state.deadlines[:] = online if in_order else online[np.argsort(deadline, kind="stable")]


def _arrival_ps(trace: Trace, part: slice) -> np.ndarray:
    return np.rint(trace.arrival_s[part] * s.PS_PER_S).astype(np.int64)


def _fill_some(requests: np.ndarray, trace: Trace, part: slice, sim: SimConfig, waits: np.ndarray) -> None:
    """Fills a part of the requests from the same part of the trace."""
    requests["arrival_ps"] = np.where(waits, s.NEVER, _arrival_ps(trace, part))
    for name in ("prompt_tokens", "output_tokens", "online"):
        requests[name] = getattr(trace, name)[part]
    slo = sim.slo
    ttft_ps, tpot_ps = (slo_ps(None if own_s is None else own_s[part], default_s, len(requests))
                        for own_s, default_s in ((trace.ttft_slo_s, slo.ttft_s), (trace.tpot_slo_s, slo.tpot_s)))
    requests["ttft_slo_ps"] = np.maximum(ttft_ps - sim.engine_clock.frontend_ps(requests["prompt_tokens"]), 1)
    # An SLO whose deadline would overflow an int64 is one that cannot be violated.
    requests["tpot_slo_ps"] = np.minimum(tpot_ps, s.NEVER // requests["output_tokens"].astype(np.int64))
    for key in ("instance", "origin", "target", "previous", "next", "position"):
        requests[key] = -1


def _price_requests(requests: np.ndarray, prefill: CostTable, decode: CostTable) -> None:
    """Sets the reference GPU time of each request (docs/protocol.md): its prefill alone on the
    first relaxed instance, and its output tokens' share of a decode step of 64 at its mean context
    on the first strict one."""
    output = requests["output_tokens"].astype(np.float64)
    size = min(REFERENCE_BATCH, len(decode.decode_lines) - 1)
    context = size * (requests["prompt_tokens"] + 0.5 * output)
    share = sums_latency_ps(decode, (size, size, size, context, context / size, 0, 0, 0, 0, 0)) / size
    alone = prefill_alone_ps(prefill, requests["prompt_tokens"].astype(np.int64))
    requests["service_ps"] = np.rint(alone + output * share).astype(np.int64)


def _charge_host(state: s.State, truths: int, sim: SimConfig, async_scheduling: int) -> None:
    """Adds the engine's host time to the true and predicted latency of every iteration, not to
    reference GPU times.

    With asynchronous scheduling an iteration is composed while another runs; its latency has no
    scheduling time.
    """
    clock = sim.engine_clock
    if clock.async_scheduling:
        state.config.async_scheduling = async_scheduling
    if clock.async_scheduling and state.config.async_scheduling != s.SYNCHRONOUS:
        state.config.schedule_ps = round(clock.schedule_s * s.PS_PER_S)
    schedule_s = 0.0 if state.config.async_scheduling else clock.schedule_s
    for rows, factor in ((slice(truths), 1.0), (slice(truths, None), sim.belief_factor)):
        ps = factor * s.PS_PER_S
        sequences = np.rint(clock.sequence_s * ps * np.arange(state.head_ps.shape[1])).astype(np.int64)
        tokens = np.rint(clock.prefill_token_s * ps * np.arange(state.prefill_ps.shape[1])).astype(np.int64)
        state.decode_lines[rows, 1:, 0::2] += (round((schedule_s + clock.decode_s) * ps) + sequences[1:])[:, None]
        state.prefill_ps[rows, 1:] += round((schedule_s + clock.prefill_s) * ps) + tokens[1:]
        state.head_ps[rows] += sequences
        state.tables["prefill_slope_ps"][rows] += round(clock.prefill_token_s * ps)


def _fill_roles(state: s.State, sim: SimConfig, entries: int, first_target: int) -> None:
    config, mixed = state.config, int((state.instances["role"] == s.MIXED).sum())
    config.mixed_count = mixed if mixed < state.instances.size else 0  # those beside pools
    config.strict_from = entries
    config.relaxed_count = config.wanted_relaxed = entries - config.mixed_count
    config.first_target = first_target
    if sim.role_changes:
        times_s, state.role_changes[:, 1] = zip(*sim.role_changes, strict=True)
        state.role_changes[:, 0] = state.clock.window_start_ps + np.rint(np.multiply(times_s, s.PS_PER_S))
        source = state.heap.shape[1] - 1
        state.heap[:2, 0], state.heap[2, source], state.queues.heap_size = (state.role_changes[0, 0], source), 0, 1


def _fill_records(state: s.State, sim: SimConfig, seed: int, window_s: tuple[float, float], bulk: bool,
                  class_blind: bool, hash_tokens: int) -> None:
    config = state.config
    state.push_queues["head"] = state.push_queues["tail"] = -1
    state.clock.last_arrival = -1
    config.seed = seed
    state.clock.window_start_ps, state.clock.window_end_ps = (round(edge * s.PS_PER_S) for edge in window_s)
    online = state.requests["online"][state.requests["counted"] == 1]  # of requests that count
    state.gauges.open_online, state.gauges.open_offline = int((online == 1).sum()), int((online == 0).sum())
    config.bulk = int(bulk)
    config.class_blind = int(class_blind)
    config.gate_window = s.DEFAULT_GATE_WINDOW
    config.prefill_tokens = 2048
    config.block_tokens, config.hash_tokens = sim.block_tokens, hash_tokens
    config.host_bytes_per_s = int(sim.host_link_bytes_per_s)
    config.max_num_batched_tokens, config.max_num_seqs = 2048, sim.max_batch
    config.tpot_min_tokens = sim.slo.tpot_min_tokens
    config.tpot_from_decode = int(sim.slo.tpot_from == "first_decode")
    config.gate_poll_ps = round(sim.gate_poll_s * s.PS_PER_S)
    config.decode_first_token = int(sim.decode_first_token)
    config.handover_ps = round(sim.handover_s * s.PS_PER_S) if sim.decode_first_token else 0
    config.data_parallel = int(state.instances["ranks"].max())
    config.least_blocks = int(state.instances["total_blocks"].min())
    config.inter_token_slo_ps = s.NEVER if sim.slo.gap_s is None else round(sim.slo.gap_s * s.PS_PER_S)
    config.default_ttft_ps = round(sim.slo.ttft_s * s.PS_PER_S)
    config.default_tpot_ps = round(sim.slo.tpot_s * s.PS_PER_S)
    online = state.requests["online"] == 1
    if sim.groups:
        _fill_fleet(state, sim)
    config.own_tpot = int((state.requests["tpot_slo_ps"][online] < config.default_tpot_ps).any())
    state.observed.offline_output_mean = sim.prior_output_tokens
    state.observed.online_output_mean = sim.prior_output_tokens


