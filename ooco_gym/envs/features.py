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
    _share("resident_decodes", 2.0, "requests that decode on this instance, over bs_sat"),
    _log("resident_context", "tokens", 32_768, "their mean context length"),
    _share("kv_free", 1.0, "free KV memory of this instance"),
    _log("decode_step", "ms", 1_000, "believed latency of a decode step of all its residents"),
    _log("offline_waiting", "requests", 4_096, "offline requests waiting for prefill here; where a strict instance "
                                               "decides, this and the next five are of all relaxed ones"),
    _log("offline_waiting_tokens", "tokens", 1e7, "their tokens"),
    _log("oldest_wait", "s", 3_600, "time since the head of the offline queue arrived"),
    _log("online_waiting", "requests", 256, "online requests waiting for prefill here"),
    _log("online_waiting_prefill", "ms", 10_000, "believed latency of prefilling them"),
    _signed("online_slack", "s", 5.0, "until the TTFT deadline of the first of them; 1 where none waits"),
    _log("busy", "ms", 10_000, "until the prefill or decode step in progress here ends"),
    _share("progress", 1.0, "how much of it is over"),
    _log("online_rate_10s", "requests/s", 100, "online arrivals, exponential average over 10 s"),
    _log("online_rate_60s", "requests/s", 100, "online arrivals, exponential average over 60 s"),
    _log("online_rate_300s", "requests/s", 100, "online arrivals, exponential average over 300 s"),
    _log("online_rate_1800s", "requests/s", 100, "online arrivals, exponential average over 1800 s"),
    _log("since_online_arrival", "s", 60, "time since the last online arrival anywhere"),
    Feature("time_of_day_sin", "", "as is", 1.0, -1.0, 1.0, "sine of the time of day"),
    Feature("time_of_day_cos", "", "as is", 1.0, -1.0, 1.0, "cosine of the time of day"),
    _share("evicted_share", 1.0, "moving share of offline requests that were evicted before they finished"),
    _log("offline_output_mean", "tokens", 16_384, "moving mean of finished offline requests' output"),
    _log("online_output_mean", "tokens", 16_384, "moving mean of finished online requests' output"),
    _share("strict_latency", 2.0, "believed latency of all residents of the strict instances over the TPOT SLO, mean"),
    _share("strict_online", 1.0, "online requests decoding on strict instances over bs_sat, mean"),
    _share("strict_offline", 1.0, "offline requests decoding on strict instances over bs_sat, mean"),
    _share("strict_kv_free", 1.0, "free KV memory of the strict instances, mean"),
    _share("strict_hungry", 1.0, "share of strict instances that look for requests to pull"),
    _log("arriving", "requests", 64, "requests on their way to strict instances"),
    _log("arriving_context", "tokens", 1e6, "their context lengths in all"),
    _share("links_busy", 1.0, "share of links with a transfer in progress"),
    _share("push_waiting", 1.0, "1 where an online request that is prefilled waits for memory on a strict instance"),
    _share("pull_guard", 1.0, "1 where OOCO's Algorithm 1 would think of a pull to this instance (its guard)"),
    _share("packing", 2.0, "share of the TPOT SLO that steps are filled to, where the base policy has such a margin"),
    _share("violations", 0.06, "online requests of the episode so far that missed an SLO, over those that arrived"),
    _share("recent_violations", 0.06, "the same over the last (up to ten) minutes"),
    _share("picks", 1.0, "picks made so far in this decision, over the most"),
)
PRESENT = _share("present", 1.0, "1 where there is a candidate")
WANTED = _share("base_policy", 1.0, "1 where it is what the base policy would choose")
# Columns of every request offered at a pool's decision; a decision adds its own after them.
REQUEST = (
    PRESENT,
    _log("tokens", "tokens", 32_768, "its context: prompt and what it has generated (to prefill, or held)"),
    _log("generated", "tokens", 16_384, "tokens generated so far"),
    _log("prefill", "ms", 10_000, "believed latency of prefilling them alone: its cost, or that of losing them"),
    _log("wait", "s", 3_600, "time since its arrival"),
    _share("evictions", 4.0, "times that it was evicted"),
    _share("memory", 1.0, "KV blocks that it takes (or holds) over those free (or all)"),
    _share("shorter", 1.0, "share of the other candidates that are shorter"),
    WANTED,
)
GATE = (
    *REQUEST,
    _share("interruptions", 8.0, "times that its prefill was interrupted"),
    _share("interrupt_risk", 1.0, "1 - exp(-online_rate_10s x prefill): chance of an online arrival meanwhile"),
)
# Columns of a decoding request, for eviction and migration.
RESIDENT = (
    *REQUEST,
    _share("running", 1.0, "1 where it is in the iteration in progress"),
    _share("step", 2.0, "believed latency of the decode step that results, over the TPOT SLO"),
)
# The same with a length predictor's estimates (EvictionPredicted and MigrationPredicted).
BELIEVED = (
    *RESIDENT,
    _log("believed_remaining", "tokens", 16_384, "output tokens that it is believed to generate yet (median)"),
    _log("believed_spread", "tokens", 16_384, "how far that may be off: half of the way from the 16th to the 84th "
                                              "percentile"),
)
ARRIVAL = (
    _log("tokens", "tokens", 32_768, "the prompt of the online request that has arrived"),
    _log("prefill", "ms", 10_000, "believed latency of prefilling it alone"),
    _share("memory", 1.0, "KV blocks that it takes over those free"),
    _signed("slack", "s", 5.0, "until its TTFT deadline"),
    _log("backlog", "ms", 10_000, "believed latency until its prefill would be over, if nothing stops"),
    _share("base_policy", 1.0, "1 where the base policy would stop what runs"),
)
INSTANCE = (
    PRESENT,
    _log("tokens", "tokens", 32_768, "context of the request: prompt and what it has generated"),
    _log("generated", "tokens", 16_384, "tokens that the request has generated"),
    _log("prefill", "ms", 10_000, "believed latency of prefilling the request there alone"),
    _share("memory", 1.0, "KV blocks that the request takes over those free there"),
    _share("step", 2.0, "believed latency of the decode step that results there, over the TPOT SLO"),
    _log("backlog", "ms", 10_000, "believed latency of the prefills there"),
    _share("residents", 2.0, "requests that decode there, over bs_sat"),
    WANTED,
)
LEVEL = (
    PRESENT,
    _share("level", 2.0, "the share of the TPOT SLO that steps may fill"),
    _share("in_force", 1.0, "1 where it is in force now"),
    _share("step", 2.0, "believed latency of a step of all that is resident, over the TPOT SLO"),
    _share("base_policy", 1.0, "1 where it is what the base policy was tuned to"),
)
PARAMETER = (_share("level", 1.0, "where the parameter stands among its levels, 0 the first and 1 the last"),)


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
        raise UserError(f"candidates of shape {shape} are no whole rows of {places} candidates: give parameters=… "
                        "where an action is a vector of levels")
    return candidates.reshape(*shape[:-1], places, shape[-1] // places)
