"""Offline service relative to offline arrivals (docs/protocol.md, capacity)."""

from __future__ import annotations

import numpy as np

from ooco_gym.metrics.chosen import Chosen
from ooco_gym.sim.state import FINISHED, PS_PER_S


def kept_up_metrics(offline: Chosen, window_s: tuple[float, float], end_s: float) -> dict[str, float | None]:
    """Returns offline service over arrivals in the window's second half; below 1, the backlog grew.

    `kept_up_share` counts requests completed over requests arrived; a request under way at an edge
    counts by the share of its tokens computed on this side. `kept_up_service_share` counts
    reference GPU time of requests begun over those arrived, which shows neglected hard requests;
    remaining work of single long requests does not count as backlog. Both are None if nothing
    arrived (docs/protocol.md, capacity).
    """
    half = (0.5 * (window_s[0] + window_s[1]), window_s[1])
    arrived = offline.each(lambda some: _within(some["arrival_ps"], half))
    if not arrived.any():
        return {"kept_up_share": None, "kept_up_service_share": None}
    share = float(offline.each(lambda some: computed_share(some, half[1], end_s)
                               - computed_share(some, half[0], end_s)).sum() / arrived.sum())
    begun = offline.each(lambda some: (some["first_token_ps"] > 0) & _within(some["first_token_ps"], half))
    service_ps = offline["service_ps"]
    begun_s, arrived_s = (float((service_ps[which] / PS_PER_S).sum()) for which in (begun, arrived))
    return {"kept_up_share": share, "kept_up_service_share": begun_s / arrived_s}


def _within(times_ps: np.ndarray, window_s: tuple[float, float]) -> np.ndarray:
    return (times_ps / PS_PER_S >= window_s[0]) & (times_ps / PS_PER_S < window_s[1])


def computed_share(requests: np.ndarray, at_s: float, end_s: float) -> np.ndarray:
    """Returns the share of each request's tokens computed by `at_s` in a run that ended at `end_s`,
    float64 (n,).

    The prompt counts with the first token, the output evenly from there to its last token, or to
    the end.
    """
    first_s, finish_s = requests["first_token_ps"] / PS_PER_S, requests["finish_ps"] / PS_PER_S
    whole = requests["status"] == FINISHED
    last_s = np.where(requests["finish_ps"] > 0, finish_s, end_s)
    passed = np.clip((at_s - first_s) / np.maximum(last_s - first_s, 1e-9), 0.0, 1.0)
    output = np.where(whole, requests["output_tokens"], requests["generated_tokens"]) * passed
    begun = (requests["first_token_ps"] > 0) & (first_s <= at_s)
    total = requests["prompt_tokens"] + requests["output_tokens"].astype(np.int64)
    share = np.where(begun, requests["prompt_tokens"] + output, 0.0) / total
    return np.where(whole & (finish_s <= at_s), 1.0, share)
