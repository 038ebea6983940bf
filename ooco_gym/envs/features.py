"""What an agent sees at a gate decision: tables of features (for people) and the compiled code that fills them.

Every feature is bounded. `log` features are log(1 + x) / log(1 + limit), cut at 1; `linear` ones x / limit, cut at 1.
Nothing here knows more than a scheduler would: output lengths of unfinished requests are not among them.
"""

import math
from typing import NamedTuple

import numpy as np

from ooco_gym.compile import inner
from ooco_gym.policy.rules import decodable
from ooco_gym.sim.costs import length, predict_decode, predict_prefill
from ooco_gym.sim.decode import settle
from ooco_gym.sim.prefill import prompt_blocks
from ooco_gym.sim.state import (
    DEFAULT_TPOT_PS,
    NOW,
    OFFLINE,
    OFFLINE_EVICTED_SHARE,
    OFFLINE_OUTPUT_MEAN,
    ONLINE_ARRIVED,
    ONLINE_RATE_FAST,
    ONLINE_RATE_SLOW,
    PS_PER_S,
    RATE_PS,
    RELAXED_COUNT,
    URGENT,
    VIOLATIONS,
)

FAST_S, SLOW_S, DAY_S = 10.0, 300.0, 86_400.0


class Feature(NamedTuple):
    """One entry of an observation."""

    name: str
    unit: str
    scale: str  # log, linear, or as is
    limit: float
    low: float
    high: float
    meaning: str


def _log(name: str, unit: str, limit: float, meaning: str) -> Feature:
    return Feature(name, unit, "log", limit, 0.0, 1.0, meaning)


def _share(name: str, limit: float, meaning: str) -> Feature:
    return Feature(name, "share", "linear", limit, 0.0, 1.0, meaning)


CLUSTER = (
    _share("resident_decodes", 2.0, "offline requests that decode on this instance, over bs_sat"),
    _log("resident_context", "tokens", 32_768, "their mean context length"),
    _share("kv_free", 1.0, "free KV memory of this instance"),
    _log("decode_step", "ms", 1_000, "believed latency of a decode step of the residents"),
    _log("offline_waiting", "requests", 4_096, "offline requests waiting for prefill here"),
    _log("offline_waiting_tokens", "tokens", 1e7, "their tokens"),
    _log("oldest_wait", "s", 3_600, "time since the head of the offline queue arrived"),
    _log("online_rate_10s", "requests/s", 100, "online arrivals, exponential average over 10 s"),
    _log("online_rate_300s", "requests/s", 100, "online arrivals, exponential average over 300 s"),
    _log("since_online_arrival", "s", 60, "time since the last online arrival anywhere"),
    Feature("time_of_day_sin", "", "as is", 1.0, -1.0, 1.0, "sine of the time of day"),
    Feature("time_of_day_cos", "", "as is", 1.0, -1.0, 1.0, "cosine of the time of day"),
    _share("evicted_share", 1.0, "moving share of offline requests that were evicted before they finished"),
    _log("offline_output_mean", "tokens", 16_384, "moving mean of finished offline requests' output"),
    _share("strict_latency", 2.0, "believed latency of all residents of the strict instances over the TPOT SLO, mean"),
    _share("strict_online", 1.0, "online requests decoding on strict instances over bs_sat, mean"),
    _share("strict_offline", 1.0, "offline requests decoding on strict instances over bs_sat, mean"),
    _share("strict_kv_free", 1.0, "free KV memory of the strict instances, mean"),
    _share("strict_hungry", 1.0, "share of strict instances that look for somebody to pull"),
    _log("arriving", "requests", 64, "requests on their way to strict instances"),
    _share("violations", 0.06, "online requests of the episode so far that missed an SLO, over those that arrived"),
)
CANDIDATES = (
    _share("present", 1.0, "1 where there is a candidate"),
    _log("prefill_tokens", "tokens", 32_768, "tokens to prefill: prompt and what was generated before an eviction"),
    _log("generated", "tokens", 16_384, "tokens generated before an eviction"),
    _log("prefill", "ms", 10_000, "believed latency of its prefill alone"),
    _log("wait", "s", 3_600, "time since its arrival"),
    _share("evictions", 4.0, "times that it was evicted"),
    _share("interruptions", 8.0, "times that its prefill was interrupted"),
    _share("memory", 1.0, "KV blocks that it takes over those free"),
    _share("interrupt_risk", 1.0, "1 - exp(-online_rate_10s x prefill): chance of an online arrival meanwhile"),
    _share("shorter", 1.0, "share of the other candidates that are shorter"),
)
CLUSTER_SIZE, CANDIDATE_SIZE = len(CLUSTER), len(CANDIDATES)


@inner
def _log_scale(value, limit):
    return min(1.0, math.log1p(max(0.0, value)) / math.log1p(limit))


@inner
def _linear(value, limit):
    return min(1.0, max(0.0, value / limit))


@inner
def online_rate(state, slot, horizon_s):
    """A moving online arrival rate, faded to now, in requests a second."""
    elapsed = (state.counters[NOW] - state.counters[RATE_PS]) / PS_PER_S
    return state.stats[slot] * math.exp(-elapsed / horizon_s)


@inner
def fill_cluster(state, instance, day_s, out):
    """Writes the CLUSTER features of a gate decision on `instance`; `day_s` is the time of day, in seconds."""
    spec, counters, stats = state.instances[instance], state.counters, state.stats
    now, saturated = counters[NOW], state.tables[spec.belief].bs_sat
    residents, context = decodable(state, instance, OFFLINE)
    out[0] = _linear(residents / saturated, 2.0)
    out[1] = _log_scale(context / max(1, residents), 32_768.0)
    out[2] = spec.free_blocks / spec.total_blocks
    out[3] = _log_scale(predict_decode(state, instance, residents, context) / 1e9, 1_000.0)
    out[4] = _log_scale(float(spec.offline_waiting), 4_096.0)
    out[5] = _log_scale(float(spec.offline_waiting_tokens), 1e7)
    waited = 0.0
    if spec.offline_head >= 0:
        waited = (now - state.requests[spec.offline_head].arrival_ps) / PS_PER_S
    out[6] = _log_scale(waited, 3_600.0)
    out[7] = _log_scale(online_rate(state, ONLINE_RATE_FAST, FAST_S), 100.0)
    out[8] = _log_scale(online_rate(state, ONLINE_RATE_SLOW, SLOW_S), 100.0)
    out[9] = _log_scale((now - counters[RATE_PS]) / PS_PER_S, 60.0)
    angle = 2.0 * math.pi * day_s / DAY_S
    out[10] = math.sin(angle)
    out[11] = math.cos(angle)
    out[12] = stats[OFFLINE_EVICTED_SHARE]
    out[13] = _log_scale(stats[OFFLINE_OUTPUT_MEAN], 16_384.0)
    _fill_strict(state, out)
    out[20] = _linear(counters[VIOLATIONS] / max(1, counters[ONLINE_ARRIVED]), 0.06)


@inner
def _fill_strict(state, out):
    first, total = state.counters[RELAXED_COUNT], state.instances.size
    latency = online_share = offline_share = free = hungry = arriving = 0.0
    for instance in range(first, total):
        settle(state, instance)
        spec = state.instances[instance]
        saturated = state.tables[spec.belief].bs_sat
        online, online_context = decodable(state, instance, URGENT)
        offline, offline_context = decodable(state, instance, OFFLINE)
        step = predict_decode(state, instance, online + offline, online_context + offline_context)
        latency += step / state.counters[DEFAULT_TPOT_PS]
        online_share += online / saturated
        offline_share += offline / saturated
        free += spec.free_blocks / spec.total_blocks
        hungry += spec.hungry
        arriving += spec.arriving
    size = max(1, total - first)
    out[14] = _linear(latency / size, 2.0)
    out[15] = _linear(online_share / size, 1.0)
    out[16] = _linear(offline_share / size, 1.0)
    out[17] = _linear(free / size, 1.0)
    out[18] = hungry / size
    out[19] = _log_scale(arriving, 64.0)


@inner
def fill_candidate(state, instance, slot, out):
    """Writes the CANDIDATES features of one waiting request, all but the last."""
    request, spec = state.requests[slot], state.instances[instance]
    tokens = length(state, slot)
    prefill_ps = predict_prefill(state, instance, tokens)
    out[0] = 1.0
    out[1] = _log_scale(float(tokens), 32_768.0)
    out[2] = _log_scale(float(request.generated_tokens), 16_384.0)
    out[3] = _log_scale(prefill_ps / 1e9, 10_000.0)
    out[4] = _log_scale((state.counters[NOW] - request.arrival_ps) / PS_PER_S, 3_600.0)
    out[5] = _linear(float(request.evictions), 4.0)
    out[6] = _linear(float(request.interruptions), 8.0)
    out[7] = _linear(prompt_blocks(state, slot) / max(1, spec.free_blocks), 1.0)
    out[8] = 1.0 - math.exp(-online_rate(state, ONLINE_RATE_FAST, FAST_S) * prefill_ps / PS_PER_S)


def bounds(table: tuple[Feature, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Lowest and highest value of each feature: float32."""
    return np.array([f.low for f in table], np.float32), np.array([f.high for f in table], np.float32)
