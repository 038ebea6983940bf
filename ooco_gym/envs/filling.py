"""The compiled code that fills observations (`features` has the tables, in the same order)."""

import math

import numpy as np

from ooco_gym.compile import inlined, inner
from ooco_gym.compile.instructions import LANES, count_below, quotient, stack_floats
from ooco_gym.envs.config import MOST_CANDIDATES
from ooco_gym.envs.features import BELIEVED, CLUSTER, CLUSTER_COLUMN, CLUSTER_SIZE, INSTANCE, REQUEST, columns
from ooco_gym.policy.engine_features import log1p, online_rate
from ooco_gym.policy.lengths import believed_remaining, believed_spread
from ooco_gym.sim import state as s
from ooco_gym.sim.costs import blocks_for, decode_sum, length, predict_decode, predict_prefill
from ooco_gym.sim.decode import flush_totals
from ooco_gym.sim.loop import FAST_S, HALF_HOUR_S, MINUTE_S, SLOW_S


@inlined
def scale_log(x, scale):
    """Returns log(1 + x) times `scale`, cut to 0 … 1; x itself if the scale is 0."""
    scaled = min(1.0, log1p(max(0.0, x)) * scale)
    return scaled if scale > 0.0 else x


# --- Features ---------------------------------------------------------------------------------------------------------
DAY_S = 86_400.0
GUARD = 0.85  # share of the TPOT SLO: OOCO's slo_margin less its pull_margin
TEN_MS, SHORT, _LONG = (1.0 / math.log1p(x) for x in (10_000.0, 32_768.0, 16_384.0))
REQUESTS, BELIEFS, INSTANCES = columns(REQUEST), columns(BELIEVED), columns(INSTANCE)
FIRST_LOG, LOG_COUNT = REQUESTS.tokens, 4  # log features of a request: tokens, generated, prefill, wait
ROW = CLUSTER_SIZE + -CLUSTER_SIZE % LANES  # length of a feature row, in whole vector registers
CHUNK = 32  # number of candidates' logarithms taken at once


def log_scales(features, size=0):
    """Factors of the logarithms of features; 0 for other features, and up to `size`."""
    scales = [1.0 / math.log1p(feature.limit) if feature.scale == "log" else 0.0 for feature in features]
    return scales + [0.0] * (size - len(scales))


_CLUSTER_SCALES = np.array(log_scales(CLUSTER, ROW))
_LOG_SCALES = np.tile(log_scales(REQUEST[FIRST_LOG : FIRST_LOG + LOG_COUNT]), CHUNK // LOG_COUNT)
_LOG_UNITS = np.tile([1.0, 1.0, 1e9, s.PS_PER_S], CHUNK // LOG_COUNT)  # tokens, tokens, ms and s of ps
_cluster_row = stack_floats(ROW)
stack_logs = stack_floats(MOST_CANDIDATES * LOG_COUNT)
_chunk = stack_floats(CHUNK)
_lengths = stack_floats(MOST_CANDIDATES + LANES)


@inlined
def log_scale(value, per_log):
    """log(1 + value) times `per_log`, cut to 0 … 1."""
    return min(1.0, log1p(max(0.0, float(value))) * per_log)


@inlined
def share(value, limit):
    """value / limit, cut to 0 … 1."""
    return min(1.0, max(0.0, value / limit))


@inlined
def signed(value, limit):
    """value / limit, cut to -1 … 1."""
    return min(1.0, max(-1.0, value / limit))


@inlined
def fast_rate(state):
    """Moving online arrival rate over the shortest horizon, in requests/s."""
    return online_rate(state, state.observed.online_rate_fast, FAST_S)


@inner
def fill_cluster(state, instance, day_s, packing, recent_violations, picks, shown, out):
    """Writes the `shown` (int64[C]) CLUSTER features of a decision on `instance` to `out`,
    float32[C].

    Args:
        packing, recent_violations, picks: shares that the episode keeps.
    """
    row = _cluster_row()
    _fill_row(state, instance, day_s, row)
    row[CLUSTER_COLUMN.packing] = packing
    row[CLUSTER_COLUMN.recent_violations] = recent_violations
    row[CLUSTER_COLUMN.picks] = picks
    for index in range(ROW):
        row[index] = scale_log(row[index], _CLUSTER_SCALES[index])
    for index in range(shown.size):
        out[index] = row[np.uint64(shown[index])]


@inlined
def _fill_row(state, instance, day_s, out):
    """Writes the features before logarithms are taken; 0 for those that the episode keeps."""
    spec, observed = state.instances[instance], state.observed
    now = state.clock.now_ps
    flush_totals(state, instance)
    context = spec.urgent_context + spec.offline_context
    out[CLUSTER_COLUMN.resident_decodes] = share(spec.decodable / state.tables[spec.belief].bs_sat, 2.0)
    out[CLUSTER_COLUMN.resident_context] = context / max(1, spec.decodable)
    out[CLUSTER_COLUMN.kv_free] = spec.free_blocks / spec.total_blocks
    out[CLUSTER_COLUMN.decode_step] = predict_decode(state, instance, spec.decodable, context) / 1e9
    _fill_queues(state, instance, out)
    out[CLUSTER_COLUMN.busy] = 0.0
    out[CLUSTER_COLUMN.progress] = 0.0
    if spec.activity != s.IDLE:
        end_ps = spec.end_ps
        if spec.activity == s.DECODE and spec.steps > 1:  # the end of the run would reveal the shortest output's length
            end_ps = spec.start_ps + decode_sum(state, spec.table, spec.batch_size, spec.context, 1)
        out[CLUSTER_COLUMN.busy] = (end_ps - now) / 1e9
        out[CLUSTER_COLUMN.progress] = share((now - spec.start_ps) / max(1, end_ps - spec.start_ps), 1.0)
    out[CLUSTER_COLUMN.online_rate_10s] = fast_rate(state)
    out[CLUSTER_COLUMN.online_rate_60s] = online_rate(state, observed.online_rate_minute, MINUTE_S)
    out[CLUSTER_COLUMN.online_rate_300s] = online_rate(state, observed.online_rate_slow, SLOW_S)
    out[CLUSTER_COLUMN.online_rate_1800s] = online_rate(state, observed.online_rate_half_hour, HALF_HOUR_S)
    out[CLUSTER_COLUMN.since_online_arrival] = (now - state.clock.last_online_arrival_ps) / s.PS_PER_S
    angle = 2.0 * math.pi * day_s / DAY_S
    out[CLUSTER_COLUMN.time_of_day_sin] = math.sin(angle)
    out[CLUSTER_COLUMN.time_of_day_cos] = math.cos(angle)
    out[CLUSTER_COLUMN.evicted_share] = observed.offline_evicted_share
    out[CLUSTER_COLUMN.offline_output_mean] = observed.offline_output_mean
    out[CLUSTER_COLUMN.online_output_mean] = observed.online_output_mean
    _fill_strict(state, out)
    out[CLUSTER_COLUMN.push_waiting] = 1.0 if state.push_queues[s.URGENT].head >= 0 else 0.0
    out[CLUSTER_COLUMN.pull_guard] = _guard(state, instance)
    for index in range(CLUSTER_COLUMN.packing, ROW):
        out[index] = 0.0
    out[CLUSTER_COLUMN.violations] = share(state.totals.violations / max(1, state.totals.online_arrived), 0.06)


@inlined
def _fill_queues(state, instance, out):
    """Writes features of an instance's prefill queues. For a strict one, they cover all relaxed
    instances: lengths and latencies are sums, times are the most urgent request's."""
    now, first, last = state.clock.now_ps, instance, instance + 1
    if state.instances[instance].role == s.STRICT:
        first, last = np.int64(0), np.int64(state.config.relaxed_count)
    waiting = tokens = oldest = online = prefill = 0.0
    slack = 1.0
    for one in range(first, last):
        spec = state.instances[one]
        waiting += spec.offline_waiting
        tokens += spec.offline_waiting_tokens
        online += spec.online_waiting
        if spec.offline_head >= 0:
            oldest = max(oldest, (now - state.requests[spec.offline_head].arrival_ps) / s.PS_PER_S)
        if spec.online_head >= 0:
            head = state.requests[spec.online_head]
            prefill += predict_prefill(state, one, spec.online_waiting_tokens) / 1e9
            slack = min(slack, signed((head.arrival_ps + head.ttft_slo_ps - now) / s.PS_PER_S, 5.0))
    out[CLUSTER_COLUMN.offline_waiting] = waiting
    out[CLUSTER_COLUMN.offline_waiting_tokens] = tokens
    out[CLUSTER_COLUMN.oldest_wait] = oldest
    out[CLUSTER_COLUMN.online_waiting] = online
    out[CLUSTER_COLUMN.online_waiting_prefill] = prefill
    out[CLUSTER_COLUMN.online_slack] = slack


@inlined
def _fill_strict(state, out):
    first, total = state.config.strict_from, state.instances.size
    latency = online = offline = free = wants_pull = arriving = context = 0.0
    for instance in range(first, total):
        flush_totals(state, instance)
        spec = state.instances[instance]
        per_seat = 1.0 / state.tables[spec.belief].bs_sat
        step = predict_decode(state, instance, spec.decodable, spec.urgent_context + spec.offline_context)
        latency += step / state.config.default_tpot_ps
        online += spec.urgent_decodable * per_seat
        offline += (spec.decodable - spec.urgent_decodable) * per_seat
        free += spec.free_blocks / spec.total_blocks
        wants_pull += spec.wants_pull
        arriving += spec.arriving
        context += spec.arriving_context
    size = max(1, total - first)
    out[CLUSTER_COLUMN.strict_latency] = share(latency / size, 2.0)
    out[CLUSTER_COLUMN.strict_online] = share(online / size, 1.0)
    out[CLUSTER_COLUMN.strict_offline] = share(offline / size, 1.0)
    out[CLUSTER_COLUMN.strict_kv_free] = share(free / size, 1.0)
    out[CLUSTER_COLUMN.strict_hungry] = wants_pull / size
    out[CLUSTER_COLUMN.arriving] = arriving
    out[CLUSTER_COLUMN.arriving_context] = context
    busy = 0
    for link in range(state.links.size):
        busy += state.links[link].current >= 0
    out[CLUSTER_COLUMN.links_busy] = busy / max(1, state.links.size)


@inlined
def _guard(state, instance):
    """Whether OOCO's Algorithm 1 (3.4.3) would consider a pull: all in the batch, latency and
    memory to spare."""
    spec = state.instances[instance]
    if spec.role != s.STRICT or spec.all_included == 0 or spec.arriving_pulls > 0 or spec.free_blocks <= 0:
        return 0.0
    context = spec.urgent_context + spec.offline_context + spec.arriving_context
    latency = predict_decode(state, instance, spec.decodable + spec.arriving, context)
    return 1.0 if latency < GUARD * state.config.default_tpot_ps else 0.0


@inlined
def fill_request(state, instance, slot, blocks_of, logs, k, out):
    """Writes the REQUEST features of candidate k, which waits for or holds memory on `instance`.

    Args:
        blocks_of: number of blocks that count as the whole memory.
        logs: `stack_logs()`; `take_logs` takes the logarithms of all candidates at once.
        out: its row of candidates; the decision writes `shorter` and `base_policy`.

    Returns:
        Predicted latency of its prefill, in ps.
    """
    request, now = state.requests[slot], state.clock.now_ps
    tokens = length(state, slot)
    prefill_ps = predict_prefill(state, instance, tokens)
    out[REQUESTS.present] = 1.0
    at = LOG_COUNT * k
    logs[at] = tokens
    logs[at + 1] = request.generated_tokens
    logs[at + 2] = prefill_ps
    logs[at + 3] = now - request.arrival_ps
    out[REQUESTS.evictions] = share(float(request.evictions), 4.0)
    out[REQUESTS.memory] = share(blocks_for(state, tokens + 1) / max(1, blocks_of), 1.0)
    return prefill_ps


@inner
def fill_believed(state, slot, out):
    """Writes a request's predicted remaining output (`features.BELIEVED`)."""
    out[BELIEFS.believed_remaining] = log_scale(believed_remaining(state, slot), _LONG)
    out[BELIEFS.believed_spread] = log_scale(believed_spread(state, slot), _LONG)


@inlined
def take_logs(logs, count, candidates):
    """Writes the log features of the first `count` candidates from `fill_request`'s values."""
    for index in range(LOG_COUNT * count, LOG_COUNT * count + -LOG_COUNT * count % CHUNK):
        logs[index] = 0.0
    chunk = _chunk()  # only a local array is known not to overlap, which vector code needs
    for first in range(0, count, CHUNK // LOG_COUNT):
        for lane in range(CHUNK):
            chunk[lane] = logs[LOG_COUNT * first + lane]
        for lane in range(CHUNK):
            chunk[lane] = scale_log(quotient(chunk[lane], _LOG_UNITS[lane]), _LOG_SCALES[lane])
        for k in range(min(count - first, CHUNK // LOG_COUNT)):
            for log in range(LOG_COUNT):
                candidates[first + k, FIRST_LOG + log] = chunk[LOG_COUNT * k + log]


@inner
def step_share(state, instance, requests, context):
    """Predicted latency of a decode step of an instance over the TPOT SLO (the features `step`)."""
    return share(predict_decode(state, instance, requests, context) / state.config.default_tpot_ps, 2.0)


@inner
def fill_instance(state, instance, slot, decodes, out):
    """Writes the INSTANCE features of an instance that a request may go to, for prefill or
    decode."""
    flush_totals(state, instance)
    spec, now = state.instances[instance], state.clock.now_ps
    tokens = length(state, slot)
    out[INSTANCES.present] = 1.0
    out[INSTANCES.tokens] = log_scale(tokens, SHORT)
    out[INSTANCES.generated] = log_scale(state.requests[slot].generated_tokens, _LONG)
    out[INSTANCES.prefill] = log_scale(predict_prefill(state, instance, tokens) / 1e9, TEN_MS)
    out[INSTANCES.memory] = share(blocks_for(state, tokens + 1) / max(1, spec.free_blocks), 1.0)
    requests = spec.decodable + spec.arriving + decodes
    context = spec.urgent_context + spec.offline_context + spec.arriving_context + tokens * decodes
    out[INSTANCES.step] = step_share(state, instance, requests, context)
    backlog_ps = 0
    waiting = spec.online_waiting_tokens + spec.offline_waiting_tokens
    if waiting > 0:
        backlog_ps = predict_prefill(state, instance, waiting)
    if spec.activity == s.PREFILL_ONLINE or spec.activity == s.PREFILL_OFFLINE:
        backlog_ps += spec.end_ps - now
    out[INSTANCES.backlog] = log_scale(backlog_ps / 1e9, TEN_MS)
    out[INSTANCES.residents] = share(spec.decodable / state.tables[spec.belief].bs_sat, 2.0)


@inlined
def rank_requests(candidates, present):
    """Writes for each of the first `present` candidates the share of the others that are shorter."""
    lengths = _lengths()
    for k in range(present):
        lengths[k] = candidates[k, REQUESTS.tokens]
    for lane in range(LANES):
        lengths[present + lane] = math.inf
    for k in range(present):
        shorter = 0
        for first in range(0, present, LANES):
            shorter += count_below(lengths, first, lengths[k])
        candidates[k, REQUESTS.shorter] = quotient(float(shorter), float(max(1, present - 1)))


@inner
def running(state, instance, slot):
    """Whether a request is in the iteration in progress on its instance."""
    batch = state.members[2, instance]
    for i in range(state.instances[instance].running):
        if batch[i] == slot:
            return True
    return False


