"""Runs made by hand: a request array with chosen times, and the little of a `Run` that the metrics read."""

from __future__ import annotations

import numpy as np

from ooco_gym.scenario import Scenario
from ooco_gym.sim.batch import ITL_FIRST_PS
from ooco_gym.sim.state import FINISHED, INSTANCE, ITL_BINS, PS_PER_S, REQUEST, WAITING, Totals
from ooco_gym.simulation import Run


def ps(seconds: float) -> int:
    """Seconds as the core's picoseconds."""
    return round(seconds * PS_PER_S)


def request(arrival_s=0.0, first_s=None, finish_s=None, tokens=100, online=1, counted=1, decode_s=None, generated=None,
            status=None, ttft_slo_s=2.0, tpot_slo_s=0.05, prompt=1000, service_s=0.5, **others):
    """One row of the request table; what is None has not happened."""
    row = np.zeros((), REQUEST)
    row["arrival_ps"], row["output_tokens"], row["prompt_tokens"] = ps(arrival_s), tokens, prompt
    row["online"], row["counted"], row["service_ps"] = online, counted, ps(service_s)
    row["ttft_slo_ps"], row["tpot_slo_ps"] = ps(ttft_slo_s), ps(tpot_slo_s)
    row["status"] = status if status is not None else WAITING if finish_s is None else FINISHED
    if first_s is not None:
        row["first_token_ps"] = row["last_token_ps"] = ps(first_s)
        row["generated_tokens"] = 1
    if decode_s is None and first_s is not None and finish_s is not None and tokens > 1:
        decode_s = first_s
    if decode_s is not None:
        row["first_decode_ps"] = ps(decode_s)
    if finish_s is not None:
        row["finish_ps"] = row["last_token_ps"] = ps(finish_s)
        row["generated_tokens"] = tokens
    if generated is not None:
        row["generated_tokens"] = generated
    for name, value in others.items():
        row[name] = value
    return row


def table(*rows) -> np.ndarray:
    """Rows as one `REQUEST` array, sorted by arrival."""
    requests = np.stack(rows).astype(REQUEST)
    return requests[np.argsort(requests["arrival_ps"], kind="stable")]


def run_of(requests, window_s=(0.0, 3600.0), end_s=4000.0, tpot_min_tokens=16, tpot_from="first_token", itl=None,
           instances=None, sums=None, done=None) -> Run:
    """A run with these requests, as far as the metrics look into it."""
    slo = {"ttft_s": 2.0, "tpot_s": 0.05, "tpot_min_tokens": tpot_min_tokens, "tpot_from": tpot_from}
    counters = dict.fromkeys(Totals.fields, 0) | (sums or {})
    return Run(Scenario(slo=slo, seed=3).resolve(), "ooco", {}, requests,
               np.zeros(0, INSTANCE) if instances is None else instances,
               np.zeros(ITL_BINS, np.int64) if itl is None else itl, window_s, counters, {}, end_s,
               0.1, done=done)


FIRST_BIN_S = ITL_FIRST_PS / PS_PER_S
