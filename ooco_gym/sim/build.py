"""From cost tables, requests and settings to a `State`: the only place that fills one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.perf import CostTable, Deployment, cost_table, decode_latency_ps, prefill_alone_ps
from ooco_gym.perf.engine_clock import NO_HOST_TIME, EngineClock
from ooco_gym.perf.timing import MixedKernel
from ooco_gym.rounding import steady
from ooco_gym.sim import state as s
from ooco_gym.sim.bidirectional import fill_pairs, pair_entries
from ooco_gym.sim.costs import work_out_alone
from ooco_gym.sim.retention import BELADY, LRU, TURNS, VLLMS_ORDER, Retention, next_uses, retained_size, turn_bonus
from ooco_gym.sim.waiting import words_for
from ooco_gym.workload import Trace, Turns
from ooco_gym.workload.context_names import ContextNames, context_names

PREFILL_ENTRIES = 16_385  # prefill batches longer than this are extrapolated, exactly where the chip is saturated
SOME = 1 << 14  # requests that are filled at once
REFERENCE_BATCH = 64  # the decode step that prices an output token


@lru_cache(maxsize=32)
def _table(deployment: Deployment, max_batch: int) -> CostTable:
    return cost_table(deployment, max_batch, PREFILL_ENTRIES - 1)


@dataclass(frozen=True)
class Machine:
    """One instance to be: its role and its deployment."""

    role: str
    deployment: Deployment


@dataclass(frozen=True)
class Rules:
    """What the simulator itself must know of SLOs, protocol and cluster. Times in seconds."""

    ttft_s: float
    tpot_s: float
    tpot_min_tokens: int
    tpot_from_decode: bool
    max_batch: int
    block_tokens: int
    kv_link_bytes_per_s: float
    gate_poll_s: float
    prior_output_tokens: float
    belief_factor: float = 1.0
    belief_noise: float = 0.0
    jitter: float = 0.0
    gap_s: float | None = None
    host_link_bytes_per_s: float = 25e9
    host_bytes: float = 4 * 2.0**30
    offloading_bytes: float = 0.0  # of the host, as second tier of the prefix cache
    retention: Retention = VLLMS_ORDER  # of the prefix cache
    engine_clock: EngineClock = NO_HOST_TIME
    decode_first_token: bool = False  # pools: the client's first token comes from the decode instance
    handover_s: float = 0.0


@dataclass(frozen=True)
class PolicyContext:
    """What a policy computes its derived parameters from: believed timing, SLO, mean context."""

    strict: CostTable  # of those that decode
    tpot_s: float
    mean_context_tokens: float
    max_batch: int
    relaxed: CostTable  # of those that prefill
    block_tokens: int
    chip: str = ""  # the card with the least memory
    memory_bytes: float = 0.0

    def largest_batch(self, share: float) -> int:
        """Largest decode batch at the mean context whose step stays within `share` of the TPOT SLO; at least 1."""
        bound = share * self.tpot_s * s.PS_PER_S
        low, high = 1, self.max_batch
        while low < high:
            middle = (low + high + 1) // 2
            if decode_latency_ps(self.strict, middle, int(middle * self.mean_context_tokens)) <= bound:
                low = middle
            else:
                high = middle - 1
        return low


def policy_context(machines: Sequence[Machine], trace: Trace | np.ndarray, rules: Rules) -> PolicyContext:
    """Returns the context for a trace, or for `State.requests`.

    The mean context length weighs each request by its decode steps.
    """
    strict = next((machine for machine in machines if machine.role == "strict"), machines[-1])
    if isinstance(trace, Trace):
        prompt, output = trace.prompt_tokens, trace.output_tokens.astype(np.float64)
    else:
        prompt, output = trace["prompt_tokens"], trace["output_tokens"].astype(np.float64)
    context = prompt + 0.5 * output
    mean = float((context * output).sum() / output.sum()) if len(trace) else 1.0
    decode = _believed(strict.deployment, rules.max_batch, rules.belief_factor)
    prefill = _believed(machines[0].deployment, rules.max_batch, rules.belief_factor)
    chip = min((machine.deployment.chip for machine in machines), key=lambda one: one.memory_bytes)
    return PolicyContext(decode, rules.tpot_s, mean, rules.max_batch, prefill, rules.block_tokens, chip.name,
                         chip.memory_bytes)


@lru_cache(maxsize=32)
def _believed(deployment: Deployment, max_batch: int, factor: float) -> CostTable:
    """A cost table with all latencies times `factor` (docs/protocol.md: truth and belief are two things)."""
    table = _table(deployment, max_batch)
    if factor == 1.0:
        return table
    names = ("decode_lines", "attention_lines", "prefill_ps", "head_ps", "shared_ps")
    scaled = {name: np.rint(getattr(table, name) * factor).astype(np.int64) for name in names}
    seconds = ("roofs_s", "launch_s", "linear_s", "critical_s")
    parts = {name: getattr(table.attention, name) * factor for name in seconds}
    grid = table.attention_grid + steady(np.log2(factor)) if table.attention_grid.size else table.attention_grid
    return table._replace(**scaled, prefill_slope_ps=round(table.prefill_slope_ps * factor),
                          attention=table.attention._replace(**parts), attention_grid=grid,
                          mixed=table.mixed and _scaled(table.mixed, factor),
                          decode_skew=(factor * table.decode_skew[0], table.decode_skew[1]))


def _scaled(mixed: MixedKernel, factor: float) -> MixedKernel:
    """A kernel of chunks and decodes with all times times `factor`."""
    seconds = ("launch_s", "chunk_s", "critical_s", "skew_s")
    return mixed._replace(**{name: factor * getattr(mixed, name) for name in seconds})


def build_state(machines: Sequence[Machine], trace: Trace, rules: Rules, *, seed: int, window_s: tuple[float, float],
                params: np.ndarray, settings: Mapping[str, int], class_blind: bool, keys: np.ndarray | None = None,
                predicted: np.ndarray | None = None, weights: np.ndarray | None = None, bulk: bool = True,
                turns: Turns | None = None) -> s.State:
    """Fills the state of an episode that has not begun.

    Args:
        machines: instances, relaxed ones first.
        trace: all requests, arrivals in seconds from the start of the run.
        rules: SLOs, protocol, cluster.
        seed: keys every random draw.
        window_s: start and end of the measured window.
        params: float64[PARAMS], the policy's parameters.
        settings: fields of `State.config` that the policy sets (`Policy.settings()`).
        class_blind: offline requests are scheduled as online ones.
        keys: float64[requests], the order of waiting offline requests, smallest first (`Policy.keys`), or None.
        predicted: float64[requests, 2], predicted output lengths (`workload.LengthPredictor`), or None.
        weights: float64[k], of a learned rule (`Policy.weights`), or None.
        bulk: many decode steps at once where nothing can change between them; off, one at a time, same result.
        turns: what closed sessions wait for; None: every request arrives at the trace's own time.

    Raises:
        UserError: the SLO cannot be met even by one token.
    """
    rules, settings, async_scheduling = _split_settings(rules, settings)
    tables = [_table(machine.deployment, rules.max_batch) for machine in machines]
    unique = list({id(table): table for table in tables}.values())
    _check_rules(unique, rules)
    mixed = all(machine.role == "mixed" for machine in machines)
    relaxed = sum(machine.role != "strict" for machine in machines)  # where requests arrive
    rows = 2 if (rules.belief_factor, rules.belief_noise) != (1.0, 0.0) else 1
    names = context_names(trace) if settings.get("prefix_caching") and len(trace) else None
    waits = np.zeros(len(trace), bool) if turns is None else turns.previous >= 0
    sizes = pool_for(trace, tables, settings, rules, names)._replace(
        turns=int(waits.sum()), predicted=0 if predicted is None else len(trace),
        weights=0 if weights is None else len(weights))
    if mixed:
        sizes = sizes._replace(waiting_window=settings.get("gate_window", 0))  # they have no gate
    state = s.empty_state(len(trace), int((trace.online & ~waits).sum()), len(machines),
                          relaxed * (len(machines) - relaxed), rows * len(unique), rules.max_batch, PREFILL_ENTRIES,
                          pool=sizes, block_tokens=rules.block_tokens)

    _fill_tables(state, unique, rules, rows)
    _fill_instances(state, machines, tables, unique, rows, rules)
    _fill_links(state, relaxed, rules)
    _fill_requests(state, trace, rules, window_s, class_blind, waits, tables[0], tables[min(relaxed, len(tables) - 1)])
    if turns is not None and waits.any():
        _fill_turns(state, trace, turns, waits, rules.engine_clock)
    _charge_host(state, len(unique), rules, async_scheduling if mixed else s.SYNCHRONOUS)
    _fill_alone(state)
    _fill_records(state, rules, seed, window_s, relaxed, bulk, class_blind, trace.block_tokens)
    state.config.max_position = machines[0].deployment.model.max_position
    _set_config(state.config, settings, rules)
    if state.tier.size:
        state.config.offloading, state.tier["blocks"] = 1, _offloaded_blocks(trace, tables, rules)
    fill_pool(state, trace, rules.max_batch, names, keys)
    if state.blocks.size:
        _fill_retained(state, trace, names, rules.retention)
    _copy_given(state, params, predicted, weights)
    return state


def _split_settings(rules: Rules, settings: Mapping[str, int]) -> tuple[Rules, dict[str, int], int]:
    """Returns the rules with the policy's own host memory, the settings that are fields of `State.config`, and the
    policy's `async_scheduling`, which counts only where the engine's clock has it."""
    fields = dict(settings)
    host_gib = fields.pop("host_gib", None)
    async_scheduling = fields.pop("async_scheduling", s.SYNCHRONOUS)
    if host_gib is not None:  # the policy's own need stands before the cluster's
        rules = replace(rules, host_bytes=host_gib * 2.0**30)
    return rules, fields, async_scheduling


def _fill_turns(state: s.State, trace: Trace, turns: Turns, waits: np.ndarray, clock: EngineClock) -> None:
    """Fills what each turn of a closed session waits for: the turn before it, and the think time after that."""
    previous = turns.previous[waits]
    state.successor[:], state.think_ps[:] = -1, -1
    state.successor[previous] = np.flatnonzero(waits)
    answer_ps = clock.frontend_ps(trace.prompt_tokens[previous])  # the answer on its way to the client
    think_ps = turns.think_s[waits] * s.PS_PER_S + answer_ps
    state.think_ps[waits] = np.rint(np.minimum(think_ps, s.NEVER)).astype(np.int64)


def _fill_alone(state: s.State) -> None:
    """Fills the latency of a prompt's prefill alone, once the cost tables are complete."""
    handle = s.handle_of(state)  # must live as long as its address is used
    work_out_alone(handle.address)


def _copy_given(state: s.State, params: np.ndarray, predicted: np.ndarray | None, weights: np.ndarray | None) -> None:
    """Copies the policy's parameters, predicted lengths and weights, as far as there are any."""
    state.params[:] = params
    if predicted is not None:
        state.predicted[:] = predicted
    if weights is not None:
        state.weights[:] = weights


def _set_config(config: s.Config, settings: Mapping[str, int], rules: Rules) -> None:
    """Sets the fields of `State.config` that the policy sets.

    Raises:
        UserError: too many sequences for the cluster, or no memory left for requests.
    """
    for name, value in settings.items():
        setattr(config, name, value)
    if config.max_num_seqs > rules.max_batch:
        raise UserError(f"max_num_seqs={config.max_num_seqs} must be at most the cluster's max_batch="
                        f"{rules.max_batch}")
    if config.reserved_blocks >= config.least_blocks:
        raise UserError(f"reserved_blocks={config.reserved_blocks} leaves no memory for requests: an instance "
                        f"has {config.least_blocks:,} blocks of {rules.block_tokens} tokens")


def _check_rules(tables: Sequence[CostTable], rules: Rules) -> None:
    """Refuses a largest batch that the task ring does not hold, and a TPOT SLO below one decode step."""
    if rules.max_batch > s.TASKS // 2:
        raise UserError(f"max_batch={rules.max_batch} must be at most {s.TASKS // 2}")
    fastest = min(decode_latency_ps(table, 1, 1) for table in tables) / s.PS_PER_S
    if fastest > rules.tpot_s:
        raise UserError(f"slo.tpot_s={rules.tpot_s:g} cannot be met: a decode step of one request takes "
                        f"{fastest:.4g} s on this cluster; raise slo.tpot_s or take more chips")


def _fill_tables(state: s.State, unique: Sequence[CostTable], rules: Rules, rows: int) -> None:
    for belief in range(rows):
        factor = rules.belief_factor if belief else 1.0
        for i, table in enumerate(unique):
            row = belief * len(unique) + i
            for name in ("decode_lines", "attention_lines", "prefill_ps", "head_ps"):
                getattr(state, name)[row] = np.rint(getattr(table, name) * factor).astype(np.int64)
            if table.shared_ps.size:
                state.shared_ps[row] = np.rint(table.shared_ps * factor).astype(np.int64)
            entry = state.tables[row]
            entry["prefill_slope_ps"] = np.rint(table.prefill_slope_ps * factor)
            _fill_attention(state, row, table, factor)
            entry["kv_bytes_per_token"] = table.kv_bytes_per_token
            entry["noise"] = rules.belief_noise if belief else rules.jitter
            entry["layers"] = table.layers
            entry["bs_sat"] = table.bs_sat


def _fill_attention(state: s.State, row: int, table: CostTable, factor: float) -> None:
    entry, attention = state.tables[row], table.attention
    ps = factor * s.PS_PER_S
    entry["roofs"][: len(attention.roofs_s)] = attention.roofs_s * ps
    entry["linear"] = attention.linear_s * ps
    entry["launch"], entry["critical"] = attention.launch_s * ps, attention.critical_s * ps
    entry["exponent"], entry["causal"], entry["tile"] = attention.exponent, attention.causal, attention.tile
    entry["split"] = attention.split
    entry["measured"] = int(table.attention_grid.size > 0)
    if entry["measured"]:
        state.attention_grid[row] = table.attention_grid + steady(np.log2(factor))
    entry["decode_skew"], entry["decode_skew_batch"] = table.decode_skew[0] * ps, max(table.decode_skew[1], 2.0)
    mixed = table.mixed
    entry["together"] = int(mixed is not None)
    if mixed is not None:
        entry["shared_launch"], entry["per_chunk"] = mixed.launch_s * ps, mixed.chunk_s * ps
        entry["chain"], entry["chain_exponent"] = mixed.critical_s * ps, mixed.exponent
        entry["chunk_skew"], entry["chunk_skew_batch"] = mixed.skew_s * ps, mixed.skew_batch


def _fill_instances(state: s.State, machines: Sequence[Machine], tables: Sequence[CostTable],
                    unique: Sequence[CostTable], rows: int, rules: Rules) -> None:
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
    block_bytes = np.array([table.kv_bytes_per_token for table in tables]) * rules.block_tokens
    instances["host_free_blocks"] = rules.host_bytes / block_bytes
    instances["pull_due"] = 1
    instances["hold"] = s.HOLD_UNTIL_CHANGE
    instances["wants_pull"] = 1
    _fill_ranks(instances, [machine.deployment.data_parallel for machine in machines])


def _fill_ranks(instances: np.ndarray, data_parallel: Sequence[int]) -> None:
    """So many instances in a row are the ranks of one group."""
    begin = 0
    while begin < len(data_parallel):
        end = begin + data_parallel[begin]
        if end > begin + 1:
            instances["first_rank"][begin:end], instances["ranks"][begin:end] = begin, end - begin
        begin = end


def _fill_links(state: s.State, relaxed: int, rules: Rules) -> None:
    strict = state.instances.size - relaxed
    links = state.links
    links["source"] = np.repeat(np.arange(relaxed), strict)
    links["target"] = relaxed + np.tile(np.arange(strict), relaxed)
    for key in ("current", "push_head", "push_tail", "pull_head", "pull_tail"):
        links[key] = -1
    links["bytes_per_s"] = rules.kv_link_bytes_per_s
    state.heap[2] = -1


def slo_ps(own_s: np.ndarray | None, default_s: float, n: int) -> np.ndarray:
    """An SLO of each of n requests, its own or else the default, in ps: int64[n]."""
    seconds = np.full(n, default_s) if own_s is None else np.where(np.isnan(own_s), default_s, own_s)
    return np.rint(np.minimum(seconds * s.PS_PER_S, s.NEVER)).astype(np.int64)


def _fill_requests(state: s.State, trace: Trace, rules: Rules, window_s: tuple[float, float], class_blind: bool,
                   waits: np.ndarray, prefill: CostTable, decode: CostTable) -> None:
    """Fills what is known of each request, some at a time, so that nothing on the way is as large as all of them;
    `waits` (bool[n]) says which arrive after another one has finished."""
    requests = state.requests
    for begin in range(0, len(trace), SOME):
        part = slice(begin, begin + SOME)
        _fill_some(requests[part], trace, part, rules, waits[part])
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
    in_order = (deadline[1:] >= deadline[:-1]).all()  # as where all have the same promise
    state.deadlines[:] = online if in_order else online[np.argsort(deadline, kind="stable")]


def _arrival_ps(trace: Trace, part: slice) -> np.ndarray:
    return np.rint(trace.arrival_s[part] * s.PS_PER_S).astype(np.int64)


def _fill_some(requests: np.ndarray, trace: Trace, part: slice, rules: Rules, waits: np.ndarray) -> None:
    """Fills a part of the requests from the same part of the trace."""
    requests["arrival_ps"] = np.where(waits, s.NEVER, _arrival_ps(trace, part))
    for name in ("prompt_tokens", "output_tokens", "online"):
        requests[name] = getattr(trace, name)[part]
    ttft_ps, tpot_ps = (slo_ps(None if own_s is None else own_s[part], default_s, len(requests))
                        for own_s, default_s in ((trace.ttft_slo_s, rules.ttft_s), (trace.tpot_slo_s, rules.tpot_s)))
    requests["ttft_slo_ps"] = np.maximum(ttft_ps - rules.engine_clock.frontend_ps(requests["prompt_tokens"]), 1)
    # A promise so lax that a request's deadline would leave an int64 is one that cannot be missed.
    requests["tpot_slo_ps"] = np.minimum(tpot_ps, s.NEVER // requests["output_tokens"].astype(np.int64))
    for key in ("instance", "origin", "target", "previous", "next", "position"):
        requests[key] = -1


def _price_requests(requests: np.ndarray, prefill: CostTable, decode: CostTable) -> None:
    """Reference GPU time of each request (docs/protocol.md): its prefill alone on the first relaxed instance,
    and its output tokens' share of a decode step of 64 at its mean context on the first strict one."""
    output = requests["output_tokens"].astype(np.float64)
    size = min(REFERENCE_BATCH, len(decode.decode_lines) - 1)
    context = size * (requests["prompt_tokens"] + 0.5 * output)
    base, slope, other_base, other_slope = decode.decode_lines[size]
    share = np.maximum(base + slope * context, other_base + other_slope * context) / size
    alone = prefill_alone_ps(prefill, requests["prompt_tokens"].astype(np.int64))
    requests["service_ps"] = np.rint(alone + output * share).astype(np.int64)


def _charge_host(state: s.State, truths: int, rules: Rules, async_scheduling: int) -> None:
    """Adds the engine's host time to the latency of every iteration, true and believed; reference GPU times stay.

    With asynchronous scheduling an iteration is composed while another runs, and its latency has no scheduling time.
    """
    clock = rules.engine_clock
    if clock.async_scheduling:
        state.config.async_scheduling = async_scheduling
    if clock.async_scheduling and state.config.async_scheduling != s.SYNCHRONOUS:
        state.config.schedule_ps = round(clock.schedule_s * s.PS_PER_S)
    schedule_s = 0.0 if state.config.async_scheduling else clock.schedule_s
    for rows, factor in ((slice(truths), 1.0), (slice(truths, None), rules.belief_factor)):
        ps = factor * s.PS_PER_S
        sequences = np.rint(clock.sequence_s * ps * np.arange(state.head_ps.shape[1])).astype(np.int64)
        tokens = np.rint(clock.prefill_token_s * ps * np.arange(state.prefill_ps.shape[1])).astype(np.int64)
        state.decode_lines[rows, 1:, 0::2] += (round((schedule_s + clock.decode_s) * ps) + sequences[1:])[:, None]
        state.prefill_ps[rows, 1:] += round((schedule_s + clock.prefill_s) * ps) + tokens[1:]
        state.head_ps[rows] += sequences
        state.tables["prefill_slope_ps"][rows] += round(clock.prefill_token_s * ps)


def _fill_records(state: s.State, rules: Rules, seed: int, window_s: tuple[float, float], relaxed: int, bulk: bool,
                   class_blind: bool, hash_tokens: int) -> None:
    config = state.config
    state.push_queues["head"] = state.push_queues["tail"] = -1
    state.clock.last_arrival = -1
    config.seed = seed
    state.clock.window_start_ps, state.clock.window_end_ps = (round(edge * s.PS_PER_S) for edge in window_s)
    counted = state.requests["online"][state.requests["counted"] == 1]
    state.gauges.open_online, state.gauges.open_offline = int((counted == 1).sum()), int((counted == 0).sum())
    config.bulk = int(bulk)
    config.class_blind = int(class_blind)
    config.gate_window = s.DEFAULT_GATE_WINDOW
    config.prefill_tokens = 2048
    config.block_tokens, config.hash_tokens = rules.block_tokens, hash_tokens
    config.host_bytes_per_s = int(rules.host_link_bytes_per_s)
    config.max_num_batched_tokens, config.max_num_seqs = 2048, rules.max_batch
    config.tpot_min_tokens = rules.tpot_min_tokens
    config.tpot_from_decode = int(rules.tpot_from_decode)
    config.gate_poll_ps = round(rules.gate_poll_s * s.PS_PER_S)
    config.decode_first_token = int(rules.decode_first_token)
    config.handover_ps = round(rules.handover_s * s.PS_PER_S) if rules.decode_first_token else 0
    config.relaxed_count = relaxed
    config.data_parallel = int(state.instances["ranks"].max())
    config.least_blocks = int(state.instances["total_blocks"].min())
    config.inter_token_slo_ps = s.NEVER if rules.gap_s is None else round(rules.gap_s * s.PS_PER_S)
    config.default_ttft_ps = round(rules.ttft_s * s.PS_PER_S)
    config.default_tpot_ps = round(rules.tpot_s * s.PS_PER_S)
    online = state.requests["online"] == 1
    config.own_tpot = int((state.requests["tpot_slo_ps"][online] < config.default_tpot_ps).any())
    state.observed.offline_output_mean = rules.prior_output_tokens
    state.observed.online_output_mean = rules.prior_output_tokens


def pool_for(trace: Trace, tables: Sequence[CostTable], settings: Mapping[str, int], rules: Rules,
             names: ContextNames | None = None) -> s.OptionalSizes:
    """Returns the sizes of the arrays that a policy's settings, the trace and the cost tables ask for."""
    caching, order = bool(settings.get("prefix_caching")), settings.get("waiting_order", 0)
    n = len(trace)
    sizes = {"waiting_window": min(settings.get("gate_window", s.DEFAULT_GATE_WINDOW), rules.max_batch),
             "outputs": settings.get("output_window", 0), "deadlines": 0 if trace.deadline_s is None else n,
             "shared": PREFILL_ENTRIES if any(table.shared_ps.size for table in tables) else 0}
    if names is not None:
        sizes |= {"hashes": 2 * n + len(names.values), "distinct": len(np.unique(names.values))}
    if order and n:
        sizes |= {"ranks": 2 * n + s.BUCKETS + 1, "words": words_for(n)}
    if caching:
        blocks = max(*(table.kv_blocks for table in tables), *_offloaded_blocks(trace, tables, rules))
        sizes["tiers"] = 1 + (rules.offloading_bytes > 0)
        rows, row_size, index = _kv_sizes(trace, blocks, settings, rules.max_batch, rules.block_tokens)
        sizes |= {"blocks": blocks, "entries": index + 2 * s.LEVELS + rows + rows * row_size}
        if rules.retention.order != LRU:
            sizes |= {"heaps": blocks + 1, "retained": retained_size(rules.retention.order, trace, names)}
    if settings.get("bidirectional"):
        if caching:
            raise UserError("bidirectional blocks hold no prefixes for others: give prefix_caching=off or "
                            "bidirectional=off")
        sizes |= {"pairs": max(table.kv_blocks for table in tables), "pair_entries": pair_entries(rules.block_tokens),
                  "owners": n}
    return s.OptionalSizes(**sizes)


def _offloaded_blocks(trace: Trace, tables: Sequence[CostTable], rules: Rules) -> list[int]:
    """Blocks of each instance's second tier in host memory: what fits, and no more than all requests fill."""
    most = int(((trace.prompt_tokens.astype(np.int64) + trace.output_tokens) // rules.block_tokens).sum())
    return [min(most, int(rules.offloading_bytes / (table.kv_bytes_per_token * rules.block_tokens)))
            for table in tables]


def _kv_sizes(trace: Trace, blocks: int, settings: Mapping[str, int], max_batch: int,
              block_tokens: int) -> tuple[int, int, int]:
    """(Block tables, blocks in each, entries of the index: a power of two at least twice the blocks)."""
    rows = min(settings.get("max_num_seqs", max_batch), max_batch) + 1
    longest = int((trace.prompt_tokens.astype(np.int64) + trace.output_tokens).max()) if len(trace) else 1
    row_size = min(blocks, -(-(longest + 1) // block_tokens) + 1)
    return rows, row_size, 1 << int(2 * blocks - 1).bit_length()


def fill_pool(state: s.State, trace: Trace, max_batch: int, names: ContextNames | None = None,
              keys: np.ndarray | None = None) -> None:
    """Fills the arrays that `pool_for` sized; settings are in State.config by now."""
    n = len(trace)
    state.requests["row"] = -1
    state.requests["cached_tokens"] = -1
    if names is not None:
        state.hash_ids[:n] = names.first + 2 * n
        state.hash_ids[n : 2 * n] = names.tokens
        state.hash_ids[2 * n :] = _dense_ids(names.values)
    if state.order.size and keys is not None:
        _order_by_key(state, keys)
    elif state.order.size:
        _fill_order(state, trace, state.config.waiting_order == s.BY_BUCKET)
    if state.blocks.shape[1]:
        _fill_blocks(state, trace, max_batch)
    if state.pairs.shape[1]:
        fill_pairs(state)


def _fill_retained(state: s.State, trace: Trace, names: ContextNames | None, retention: Retention) -> None:
    """Sets the order in which free blocks of the prefix cache give way, and what their worth is made of.

    Raises:
        UserError: the policy has an order of its own.
    """
    if state.config.kv_priority and retention.order != LRU:
        raise UserError("kv_priority=task is an order of its own: give kv_priority=lru or the cluster's retention=lru")
    state.config.retention = retention.order
    state.config.pinned_ps = round(retention.ttl_s * s.PS_PER_S)
    if state.retained.size and retention.order == TURNS:
        state.retained[:] = turn_bonus(trace, names, retention.turn_s, retention.token_s)
    elif state.retained.size and names is not None and retention.order == BELADY:
        state.retained[:] = next_uses(trace, names, _dense_ids(names.values))


def _dense_ids(values: np.ndarray) -> np.ndarray:
    """Prefix hashes numbered in the order in which they first come: int64[values]."""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    number = np.empty(len(first), np.int64)
    number[np.argsort(first, kind="stable")] = np.arange(len(first))
    return number[inverse]


def _fill_order(state: s.State, trace: Trace, by_bucket: bool) -> None:
    """Ranks of a depth-first walk through the trie of all prompts, branches in the order of their first arrival."""
    n = len(trace)
    buckets = np.minimum(s.BUCKETS - 1, np.frexp(trace.prompt_tokens.astype(np.float64))[1]) if by_bucket else \
        np.zeros(n, np.int64)
    offsets, values = trace.prefix_hashes or (np.zeros(n + 1, np.int64), np.zeros(0, np.int64))
    ids = _dense_ids(values)
    fresh = int(ids.max(initial=-1)) + 1
    walk = []
    for slot in range(n):
        path = tuple(ids[offsets[slot] : offsets[slot + 1]].tolist())
        walk.append((int(buckets[slot]), path or (fresh + slot,), slot))
    walk.sort()
    slots = np.array([slot for _, _, slot in walk], np.int64)
    state.order[slots] = np.arange(n)
    state.order[n : 2 * n] = slots
    state.order[2 * n :] = np.searchsorted(np.array([bucket for bucket, _, _ in walk]), np.arange(s.BUCKETS + 1))


def _order_by_key(state: s.State, keys: np.ndarray) -> None:
    """Ranks by the keys, of equals by arrival; no buckets."""
    n = len(keys)
    slots = np.argsort(keys, kind="stable")
    state.order[slots] = np.arange(n)
    state.order[n : 2 * n] = slots
    state.order[2 * n :] = n


def _fill_blocks(state: s.State, trace: Trace, max_batch: int) -> None:
    """All blocks wait in the lowest queue, in order, host memory's too; those that the engine keeps for itself in none.
    """
    config = state.config
    settings = {"max_num_seqs": int(config.max_num_seqs)}
    rows, row_size, index = _kv_sizes(trace, state.blocks.shape[1], settings, max_batch, int(config.block_tokens))
    config.index_size, config.block_tables, config.blocks_per_table = index, rows, row_size
    reserved = int(config.reserved_blocks)
    state.instances["rows_free"] = rows
    pools = [(reserved, end) for end in state.instances["total_blocks"]] + [(0, end) for end in state.tier["blocks"]]
    for (first, end), blocks, kv in zip(pools, state.blocks, state.kv, strict=True):
        usable = np.arange(first, end)
        blocks["previous"], blocks["next"], blocks["twin"] = -1, -1, -1
        blocks["previous"][usable[1:]] = usable[:-1]
        blocks["next"][usable[:-1]] = usable[1:]
        kv[index : index + 2 * s.LEVELS] = -1
        if len(usable):
            kv[index], kv[index + 1] = usable[0], usable[-1]
        spare = index + 2 * s.LEVELS
        kv[spare : spare + rows] = np.arange(rows)
