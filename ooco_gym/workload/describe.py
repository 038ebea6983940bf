"""What a workload looks like, in figures: rates, bursts, gaps, lengths."""

from __future__ import annotations

from typing import Any

import numpy as np

from ooco_gym.workload.sample import Sample
from ooco_gym.workload.sharing import sharing_ratio
from ooco_gym.workload.trace import NO_SESSION, Trace

DISPERSION_S = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
PEAK_S = (60.0, 420.0, 600.0, 3600.0)
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999)
FEWEST_WINDOWS = 8      # from which a spread between windows is worth a figure


def describe(sample: Sample) -> dict[str, Any]:
    """Returns the figures of a trace or a set of lengths; JSON-able.

    Keys: `requests`, `prompt_tokens` and `output_tokens` (`mean`, `sd`, `min`, `max`, `p1` … `p99.9`),
    `length_rank_correlation`, and with arrivals `span_s`, `rate_per_s`, `gaps` (`cv`, `mean_s`, `p50_s`, `p99_s`),
    `dispersion` and `peak_over_mean` (by window in seconds, as text), `online_share`, `sessions`,
    `repeated_prefix_share` (of blocks), `sharing_ratio` (of prompt tokens, in blocks of 512), and always `notes`.
    What the data cannot tell is None.
    """
    figures: dict[str, Any] = {"name": sample.name, "requests": sample.requests}
    for field in ("prompt_tokens", "output_tokens"):
        values = getattr(sample, field)
        figures[field] = None if values is None else _lengths(values)
    figures["length_rank_correlation"] = None
    if sample.prompt_tokens is not None and sample.output_tokens is not None:
        figures["length_rank_correlation"] = rank_correlation(sample.prompt_tokens, sample.output_tokens)
    if sample.trace is not None:
        figures |= _arrivals(sample.trace)
    return figures | {"notes": list(sample.notes)}


def dispersion(arrival_s: np.ndarray, window_s: float, span_s: float | None = None) -> float | None:
    """Returns the index of dispersion of counts: variance over mean of the requests in windows of `window_s`.

    1 for a Poisson process. The windows tile the span from the first arrival; a last, incomplete one is left out.

    Args:
        arrival_s: float64[n], sorted.
        window_s: > 0.
        span_s: from the first arrival; up to the last unless given.

    Returns:
        None where fewer than 8 windows fit, or nothing arrives.
    """
    counts = counts_in_windows(arrival_s, window_s, span_s)
    if len(counts) < FEWEST_WINDOWS or counts.sum() == 0:
        return None
    return float(counts.var() / counts.mean())


def counts_in_windows(arrival_s: np.ndarray, window_s: float, span_s: float | None = None) -> np.ndarray:
    """Returns how many requests arrive in each whole window of `window_s` from the first arrival on, int64[windows]."""
    if len(arrival_s) == 0:
        return np.zeros(0, np.int64)
    span_s = float(arrival_s[-1] - arrival_s[0]) if span_s is None else span_s
    edges = arrival_s[0] + window_s * np.arange(int(span_s // window_s) + 1)
    return np.diff(np.searchsorted(arrival_s, edges))


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float | None:
    """Returns Spearman's rank correlation, or None where one of the two does not vary."""
    from scipy.stats import rankdata

    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return float(np.corrcoef(rankdata(a), rankdata(b))[0, 1])


def _lengths(values: np.ndarray) -> dict[str, float]:
    found = {f"p{100 * q:g}": float(value) for q, value in zip(QUANTILES, np.quantile(values, QUANTILES), strict=True)}
    return {"mean": float(values.mean()), "sd": float(values.std()), "min": float(values.min()), **found,
            "max": float(values.max())}


def _arrivals(trace: Trace) -> dict[str, Any]:
    arrival_s = trace.arrival_s
    span_s = float(arrival_s[-1] - arrival_s[0])
    return {
        "span_s": span_s, "rate_per_s": trace.mean_rate, "gaps": _gaps(arrival_s),
        "dispersion": {f"{window_s:g}": dispersion(arrival_s, window_s) for window_s in DISPERSION_S},
        "peak_over_mean": {f"{window_s:g}": _peak(arrival_s, window_s) for window_s in PEAK_S},
        "online_share": float(trace.online.mean()),
        "sessions": None if trace.session is None else len(np.unique(trace.session[trace.session != NO_SESSION])),
        "repeated_prefix_share": _repeated(trace), "sharing_ratio": sharing_ratio(trace),
    }


def _gaps(arrival_s: np.ndarray) -> dict[str, float] | None:
    gaps = np.diff(arrival_s)
    if len(gaps) == 0 or gaps.mean() == 0:
        return None
    return {"mean_s": float(gaps.mean()), "cv": float(gaps.std() / gaps.mean()),
            "p50_s": float(np.quantile(gaps, 0.5)), "p99_s": float(np.quantile(gaps, 0.99))}


def _peak(arrival_s: np.ndarray, window_s: float) -> float | None:
    """Highest over mean count of windows that tile the span."""
    counts = counts_in_windows(arrival_s, window_s)
    return float(counts.max() / counts.mean()) if len(counts) >= 3 and counts.sum() else None


def _repeated(trace: Trace) -> float | None:
    """The share of prompt blocks whose prefix was seen before, in the whole trace."""
    if trace.prefix_hashes is None or len(trace.prefix_hashes[1]) == 0:
        return None
    values = trace.prefix_hashes[1]
    return 1.0 - len(np.unique(values)) / len(values)
