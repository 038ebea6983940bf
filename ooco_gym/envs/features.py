"""What an agent observes: tables of features. The compiled code that fills them is in `filling`.

Every feature is bounded. `log` features are log(1 + x) / log(1 + limit), cut at 1; `signed log`
features are the same of |x| with the sign of x; `linear` features are x / limit, cut at the
bounds. Features have no more than a scheduler knows: output lengths of unfinished requests are
hidden, and only some decisions have a length predictor's estimates.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ooco_gym.errors import UserError

# Actions of every environment with a discrete choice: the decision's own *no*, and the base
# policy's action. Candidates come after them.
DECLINE_ACTION, BASE_ACTION, FIXED = range(3)


class Feature(NamedTuple):
    """One entry of an observation."""

    name: str
    unit: str
    scale: str  # log, signed log, linear, or as is
    limit: float
    low: float
    high: float
    meaning: str


def _log(name: str, unit: str, limit: float, meaning: str) -> Feature:
    return Feature(name, unit, "log", limit, 0.0, 1.0, meaning)


def _share(name: str, limit: float, meaning: str) -> Feature:
    return Feature(name, "share", "linear", limit, 0.0, 1.0, meaning)


def _signed(name: str, unit: str, limit: float, meaning: str) -> Feature:
    return Feature(name, unit, "linear", limit, -1.0, 1.0, meaning)


CLUSTER = (
    _share("resident_decodes", 2.0, "requests decoding on this instance, divided by bs_sat"),
    _log("resident_context", "tokens", 32_768, "mean context length of the requests decoding on this instance"),
    _share("kv_free", 1.0, "free KV memory of this instance"),
    _log("decode_step", "ms", 1_000, "predicted latency of a decode step with all residents of this instance"),
    _log("offline_waiting", "requests", 4_096, "offline requests waiting for prefill here; if a strict instance "
                                               "decides, this and the next five features describe all relaxed "
                                               "instances"),
    _log("offline_waiting_tokens", "tokens", 1e7, "their tokens"),
    _log("oldest_wait", "s", 3_600, "time since the first request of the offline queue arrived"),
    _log("online_waiting", "requests", 256, "online requests waiting for prefill here"),
    _log("online_waiting_prefill", "ms", 10_000, "predicted latency of prefilling these online requests"),
    _signed("online_slack", "s", 5.0, "time until the TTFT deadline of the first of these online requests; 1 if none "
                                      "waits"),
    _log("busy", "ms", 10_000, "time until the prefill or decode step in progress here ends"),
    _share("progress", 1.0, "completed share of the prefill or decode step in progress"),
    _log("online_rate_10s", "requests/s", 100, "online arrivals, exponential average over 10 s"),
    _log("online_rate_60s", "requests/s", 100, "online arrivals, exponential average over 60 s"),
    _log("online_rate_300s", "requests/s", 100, "online arrivals, exponential average over 300 s"),
    _log("online_rate_1800s", "requests/s", 100, "online arrivals, exponential average over 1800 s"),
    _log("since_online_arrival", "s", 60, "time since the last online arrival anywhere"),
    Feature("time_of_day_sin", "", "as is", 1.0, -1.0, 1.0, "sine of the time of day"),
    Feature("time_of_day_cos", "", "as is", 1.0, -1.0, 1.0, "cosine of the time of day"),
    _share("evicted_share", 1.0, "moving average of the share of offline requests that were evicted before they "
                                 "finished"),
    _log("offline_output_mean", "tokens", 16_384, "moving average of finished offline requests' output length"),
    _log("online_output_mean", "tokens", 16_384, "moving average of finished online requests' output length"),
    _share("strict_latency", 2.0, "predicted latency of a decode step with all residents of a strict instance, divided "
                                  "by the TPOT SLO, mean over strict instances"),
    _share("strict_online", 1.0, "online requests decoding on a strict instance, divided by bs_sat, mean over strict "
                                 "instances"),
    _share("strict_offline", 1.0, "offline requests decoding on a strict instance, divided by bs_sat, mean over strict "
                                  "instances"),
    _share("strict_kv_free", 1.0, "free KV memory of a strict instance, mean over strict instances"),
    _share("strict_hungry", 1.0, "share of strict instances that look for requests to pull"),
    _log("arriving", "requests", 64, "requests in transfer to strict instances"),
    _log("arriving_context", "tokens", 1e6, "total context length of the requests in transfer to strict instances"),
    _share("links_busy", 1.0, "share of links with a transfer in progress"),
    _share("push_waiting", 1.0, "1 if a prefilled online request waits for memory on a strict instance"),
    _share("pull_guard", 1.0, "1 if the guard of OOCO's Algorithm 1 allows a pull to this instance"),
    _share("packing", 2.0, "share of the TPOT SLO up to which decode steps are filled, if the base policy has such a "
                           "margin"),
    _share("violations", 0.06, "share of the episode's arrived online requests that have violated an SLO so far"),
    _share("recent_violations", 0.06, "share of the online requests that violated an SLO in the last ten minutes or "
                                      "less"),
    _share("picks", 1.0, "picks made so far in this decision, divided by the largest number allowed"),
)
PRESENT = _share("present", 1.0, "1 if the row holds a candidate")
WANTED = _share("base_policy", 1.0, "1 if the base policy would choose this candidate")
# Columns of every request offered at a pool's decision; a decision adds its own after them.
REQUEST = (
    PRESENT,
    _log("tokens", "tokens", 32_768, "context length: prompt and generated tokens (to prefill, or held in KV memory)"),
    _log("generated", "tokens", 16_384, "tokens generated so far"),
    _log("prefill", "ms", 10_000, "predicted latency of prefilling the context alone: the cost of starting it, or of "
                                  "losing it"),
    _log("wait", "s", 3_600, "time since the request arrived"),
    _share("evictions", 4.0, "number of its evictions"),
    _share("memory", 1.0, "KV blocks needed divided by free ones (for a resident: held, divided by all)"),
    _share("shorter", 1.0, "share of the other candidates that have a shorter context"),
    WANTED,
)
GATE = (
    *REQUEST,
    _share("interruptions", 8.0, "number of interruptions of its prefill"),
    _share("interrupt_risk", 1.0, "1 - exp(-online_rate_10s x prefill): probability of an online arrival during the "
                                  "prefill"),
)
# Columns of a decoding request, for eviction and migration.
RESIDENT = (
    *REQUEST,
    _share("running", 1.0, "1 if the request is in the iteration in progress"),
    _share("step", 2.0, "predicted latency of the resulting decode step, divided by the TPOT SLO"),
)
# The same with a length predictor's estimates (EvictionPredicted and MigrationPredicted).
BELIEVED = (
    *RESIDENT,
    _log("believed_remaining", "tokens", 16_384, "predicted number of output tokens still to generate (median)"),
    _log("believed_spread", "tokens", 16_384, "uncertainty of believed_remaining: half the distance between the 16th "
                                              "and the 84th percentile"),
)
ARRIVAL = (
    _log("tokens", "tokens", 32_768, "prompt length of the arrived online request"),
    _log("prefill", "ms", 10_000, "predicted latency of prefilling the online request alone"),
    _share("memory", 1.0, "KV blocks that the online request needs, divided by free ones"),
    _signed("slack", "s", 5.0, "time until the online request's TTFT deadline"),
    _log("backlog", "ms", 10_000, "predicted time until the online request's prefill ends if nothing is interrupted"),
    _share("base_policy", 1.0, "1 if the base policy would interrupt the offline work"),
)
INSTANCE = (
    PRESENT,
    _log("tokens", "tokens", 32_768, "context length of the request: prompt and generated tokens"),
    _log("generated", "tokens", 16_384, "tokens generated so far by the request"),
    _log("prefill", "ms", 10_000, "predicted latency of prefilling the request alone on the candidate instance"),
    _share("memory", 1.0, "KV blocks that the request needs, divided by the candidate instance's free ones"),
    _share("step", 2.0, "predicted latency of the resulting decode step on the candidate instance, divided by the TPOT "
                        "SLO"),
    _log("backlog", "ms", 10_000, "predicted latency of the prefills on the candidate instance"),
    _share("residents", 2.0, "requests decoding on the candidate instance, divided by bs_sat"),
    WANTED,
)
LEVEL = (
    PRESENT,
    _share("level", 2.0, "share of the TPOT SLO up to which decode steps may be filled"),
    _share("in_force", 1.0, "1 if this level is in force"),
    _share("step", 2.0, "predicted latency of a decode step with all residents, divided by the TPOT SLO"),
    _share("base_policy", 1.0, "1 if this is the base policy's own level"),
)
RETAINED = (
    PRESENT,
    _signed("level", "s", 500.0, "seconds that the request's blocks stay longer than their last use says; -1: first "
                                   "to go"),
    _share("online", 1.0, "1 if the request is online"),
    _log("turn", "turns", 40, "its turn: one more than the number of earlier prompts that its prompt begins with"),
    _log("tokens", "tokens", 32_768, "its context: prompt and answer"),
    _log("new_tokens", "tokens", 32_768, "tokens of its prompt that no earlier prompt has"),
    _share("cached", 1.0, "share of its prompt that the cache had"),
    _share("client", 16.0, "its client's number and one; 0: none"),
    _signed("hint", "", 1.0, "what its client says: 1, the session ends; -1, it goes on; 0, nothing"),
    _share("pressure", 1.0, "share of the instance's blocks that requests read"),
    _log("oldest", "s", 3_600, "time since the first of the blocks that may give way was used, by its value"),
    _share("base_policy", 1.0, "1 if this level is the nearest to the base policy's own"),
)
PARAMETER = (_share("level", 1.0, "position of the parameter's value among its levels, from 0 (first) to 1 (last)"),)


def columns(table: Sequence[Any]) -> Any:
    """Returns the index of each feature by its name as a named tuple: compiled code reads
    `COLUMN.tokens` as a constant."""
    return namedtuple("Columns", [feature.name for feature in table])(*range(len(table)))


CLUSTER_COLUMN, CLUSTER_SIZE = columns(CLUSTER), len(CLUSTER)
# Features of `CLUSTER` that never change at a kind of decision (`Decision.still`): if the base
# policy's margin is not set, if no picks are made, if the instance is idle, and if it is not a
# strict one.
MARGIN, PICKS = ("packing",), ("picks",)
IDLE = ("busy", "progress")
RELAXED = ("pull_guard",)


def bounds(table: tuple[Feature, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the lowest and highest value of each feature: float32."""
    return np.array([f.low for f in table], np.float32), np.array([f.high for f in table], np.float32)


def candidate_table(observation: Mapping[str, Any], parameters: int | None = None) -> Any:
    """Returns the candidates of an observation as a table, which is a view.

    Args:
        observation: of one or many episodes; `candidates` is (..., K·F), row by row, a NumPy
            array or torch tensor.
        parameters: K, if the action is a vector of levels, one per parameter; else `action_mask`
            gives K.

    Returns:
        (..., K, F), of the same type; the environment's `feature_tables()["candidates"]` names
            the columns.

    Raises:
        UserError: not an observation, or candidates of another shape.
    """
    try:
        candidates, actions = observation["candidates"], observation["action_mask"].shape[-1]
        shape = tuple(candidates.shape)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise UserError("expected an observation: a mapping with the arrays candidates and action_mask") from error
    places = actions - FIXED if parameters is None else parameters
    if not shape or places < 1 or not shape[-1] or shape[-1] % places:
        raise UserError(f"candidates of shape {shape} must have {places} candidates a row; if an action is a vector of "
                        "levels, give parameters=…")
    return candidates.reshape(*shape[:-1], places, shape[-1] // places)
