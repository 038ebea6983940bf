"""Statistics of a workload, and a page of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ooco_gym.report import Section, curve, plot
from ooco_gym.report import write_page as write_sections
from ooco_gym.workload.sharing import sharing_ratio
from ooco_gym.workload.trace import NO_SESSION, Trace

DISPERSION_S = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
PEAK_S = (60.0, 420.0, 600.0, 3600.0)
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999)
MOST_WINDOWS = 10_000_000
FEWEST_WINDOWS = 8      # fewer give no useful dispersion
POINTS = 400
BINS_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)


def describe(trace: Trace, read: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Returns the statistics of a trace; JSON-able.

    Keys: `requests`, `prompt_tokens` and `output_tokens` (`mean`, `sd`, `min`, `max`, `p1` …
    `p99.9`), `length_rank_correlation`, `span_s`, `rate_per_s`, `gaps` (`cv`, `mean_s`, `p50_s`,
    `p99_s`), `dispersion` and `peak_over_mean` (by window in seconds, as text), `online_share`
    (named classes count as online until a scenario defines them), `class_shares` (only with named
    classes), `sessions`, `sharing_ratio` (of prompt tokens), `read` (how a file was read) and
    `notes`. Unknown values are None.
    """
    arrival_s = trace.arrival_s
    shares = {}
    if trace.class_id is not None:
        counts = np.bincount(trace.class_id, minlength=len(trace.class_names))
        shares = {"class_shares": {name: count / len(trace) for name, count in zip(
            trace.class_names, counts.tolist(), strict=True) if count}}
    return {
        "name": trace.name, "requests": len(trace), "prompt_tokens": _lengths(trace.prompt_tokens),
        "output_tokens": _lengths(trace.output_tokens),
        "length_rank_correlation": rank_correlation(trace.prompt_tokens, trace.output_tokens),
        "span_s": float(arrival_s[-1] - arrival_s[0]), "rate_per_s": trace.mean_rate, "gaps": _gaps(arrival_s),
        "dispersion": {f"{window_s:g}": dispersion(arrival_s, window_s) for window_s in DISPERSION_S},
        "peak_over_mean": {f"{window_s:g}": _peak(arrival_s, window_s) for window_s in PEAK_S},
        "online_share": float(trace.online.mean()), **shares,
        "sessions": None if trace.session is None else len(np.unique(trace.session[trace.session != NO_SESSION])),
        "sharing_ratio": sharing_ratio(trace), "read": dict(read or {}), "notes": list(trace.notes),
    }


def dispersion(arrival_s: np.ndarray, window_s: float, span_s: float | None = None) -> float | None:
    """Returns the index of dispersion, variance over mean of `counts_in_windows` (1 for a Poisson
    process).

    Returns None if fewer than 8 windows fit, or nothing arrives.
    """
    counts = counts_in_windows(arrival_s, window_s, span_s)
    if len(counts) < FEWEST_WINDOWS or counts.sum() == 0:
        return None
    return float(counts.var() / counts.mean())


def counts_in_windows(arrival_s: np.ndarray, window_s: float, span_s: float | None = None) -> np.ndarray:
    """Returns the number of arrivals in each whole window of `window_s` from the first arrival on,
    int64[windows].

    The windows span `span_s`, or the time to the last arrival. None are returned if there are more
    than `MOST_WINDOWS`.
    """
    if len(arrival_s) == 0:
        return np.zeros(0, np.int64)
    span_s = float(arrival_s[-1] - arrival_s[0]) if span_s is None else span_s
    if span_s // window_s > MOST_WINDOWS:
        return np.zeros(0, np.int64)
    edges = arrival_s[0] + window_s * np.arange(int(span_s // window_s) + 1)
    return np.diff(np.searchsorted(arrival_s, edges))


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float | None:
    """Returns Spearman's rank correlation, or None if one of the two does not vary."""
    from scipy.stats import spearmanr

    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    found: Any = spearmanr(a, b)
    return float(found.statistic)


def ks(a: np.ndarray, b: np.ndarray) -> float:
    """Returns the Kolmogorov-Smirnov distance of two samples."""
    from scipy.stats import ks_2samp

    found: Any = ks_2samp(a, b, method="asymp")
    return float(found.statistic)


def _lengths(values: np.ndarray) -> dict[str, float]:
    found = {f"p{100 * q:g}": float(value) for q, value in zip(QUANTILES, np.quantile(values, QUANTILES), strict=True)}
    return {"mean": float(values.mean()), "sd": float(values.std()), "min": float(values.min()), **found,
            "max": float(values.max())}


def _gaps(arrival_s: np.ndarray) -> dict[str, float] | None:
    gaps = np.diff(arrival_s)
    if len(gaps) == 0 or gaps.mean() == 0:
        return None
    return {"mean_s": float(gaps.mean()), "cv": float(gaps.std() / gaps.mean()),
            "p50_s": float(np.quantile(gaps, 0.5)), "p99_s": float(np.quantile(gaps, 0.99))}


def _peak(arrival_s: np.ndarray, window_s: float) -> float | None:
    """Returns the highest over the mean count of windows that tile the span."""
    counts = counts_in_windows(arrival_s, window_s)
    return float(counts.max() / counts.mean()) if len(counts) >= 3 and counts.sum() else None


def write_page(trace: Trace, title: str, path: Path, notes: Sequence[str] = ()) -> Path:
    """Writes a self-contained HTML page of rate, dispersion, gaps, lengths and notes; returns its path."""
    arrival_s = trace.arrival_s
    width = next((width for width in BINS_S if np.ptp(arrival_s) / width <= POINTS), BINS_S[-1])
    counts = counts_in_windows(arrival_s, width)
    hours = (arrival_s[0] + width * (np.arange(len(counts)) + 0.5)) / 3600.0
    plots = [plot(f"Requests per second, in bins of {width:g} s", [curve("", hours, counts / width)], "hours"),
             plot("Index of dispersion by window (1: Poisson)",
                  [curve("", DISPERSION_S, [dispersion(arrival_s, one) for one in DISPERSION_S])], "window (s)",
                  log="xy")]
    for said, values, unit in (("Gaps between arrivals", np.diff(arrival_s), "gap (s)"),
                               ("Prompt tokens", trace.prompt_tokens, "tokens"),
                               ("Output tokens", trace.output_tokens, "tokens")):
        plots.append(plot(said, [curve("", *_distribution(values))], unit, "cumulative share", log="x"))
    return write_sections(path, title, [Section("", plots=plots), Section("", notes)])


def _distribution(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns a distribution function in 400 points, for a logarithmic axis."""
    share = np.linspace(0, 1, POINTS)
    if len(values) == 0:
        return np.zeros(0), np.zeros(0)
    return np.maximum(np.quantile(values, share, method="inverted_cdf"), 1e-6), share
