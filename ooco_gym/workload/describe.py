"""What a workload looks like: its figures, and these as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ooco_gym.report import layout, write_figure
from ooco_gym.workload.reading import Sample
from ooco_gym.workload.sharing import sharing_ratio
from ooco_gym.workload.trace import NO_SESSION, Trace

DISPERSION_S = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
PEAK_S = (60.0, 420.0, 600.0, 3600.0)
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999)
FEWEST_WINDOWS = 8      # from which a spread between windows is worth a figure
COLOURS = ("#0072B2", "#D55E00")
POINTS = 400
BINS_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)


def describe(sample: Sample) -> dict[str, Any]:
    """Returns the figures of a trace or a set of lengths; JSON-able.

    Keys: `requests`, `prompt_tokens` and `output_tokens` (`mean`, `sd`, `min`, `max`, `p1` … `p99.9`),
    `length_rank_correlation`, and with arrivals `span_s`, `rate_per_s`, `gaps` (`cv`, `mean_s`, `p50_s`, `p99_s`),
    `dispersion` and `peak_over_mean` (by window in seconds, as text), `online_share` (named classes count as online
    until a scenario says what they are promised), `class_shares` (only where there are such), `sessions`,
    `sharing_ratio` (of prompt tokens), and always `read` (how a file was read) and `notes`.
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
    return figures | {"read": dict(sample.read), "notes": list(sample.notes)}


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
    from scipy.stats import spearmanr

    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    found: Any = spearmanr(a, b)
    return float(found.statistic)


def ks(a: np.ndarray, b: np.ndarray) -> float:
    """Returns Kolmogorov and Smirnov's distance: the largest difference between two samples' distribution functions."""
    from scipy.stats import ks_2samp

    found: Any = ks_2samp(a, b, method="asymp")
    return float(found.statistic)


def _lengths(values: np.ndarray) -> dict[str, float]:
    found = {f"p{100 * q:g}": float(value) for q, value in zip(QUANTILES, np.quantile(values, QUANTILES), strict=True)}
    return {"mean": float(values.mean()), "sd": float(values.std()), "min": float(values.min()), **found,
            "max": float(values.max())}


def _arrivals(trace: Trace) -> dict[str, Any]:
    arrival_s = trace.arrival_s
    shares = {}
    if trace.class_id is not None:
        counts = np.bincount(trace.class_id, minlength=len(trace.class_names))
        shares = {"class_shares": {name: count / len(trace) for name, count in zip(
            trace.class_names, counts.tolist(), strict=True) if count}}
    return {
        "span_s": float(arrival_s[-1] - arrival_s[0]), "rate_per_s": trace.mean_rate, "gaps": _gaps(arrival_s),
        "dispersion": {f"{window_s:g}": dispersion(arrival_s, window_s) for window_s in DISPERSION_S},
        "peak_over_mean": {f"{window_s:g}": _peak(arrival_s, window_s) for window_s in PEAK_S},
        "online_share": float(trace.online.mean()), **shares,
        "sessions": None if trace.session is None else len(np.unique(trace.session[trace.session != NO_SESSION])),
        "sharing_ratio": sharing_ratio(trace),
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


def write_page(samples: Sequence[Sample], title: str, path: Path,
               measured: Mapping[str, Sequence[float]] | None = None, notes: Sequence[str] = ()) -> Path:
    """Writes one self-contained HTML page with five panels.

    Args:
        samples: one, or a trace and its generator.
        title: of the page.
        path: the file.
        measured: the dispersion at 1, 2, 5 … s of each sample by name, where it is known better than from the sample
            (a generator's mean over seeds).
        notes: sentences below the panels.

    Returns:
        The path.
    """
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    spans = [float(np.ptp(sample.trace.arrival_s)) for sample in samples if sample.trace is not None]
    width = next((width for width in BINS_S if max(spans, default=0.0) / width <= POINTS), BINS_S[-1])
    figure = make_subplots(rows=3, cols=2, specs=[[{"colspan": 2}, None], [{}, {}], [{}, {}]], vertical_spacing=0.1,
                           subplot_titles=(f"Requests per second, in bins of {width:g} s",
                                           "Index of dispersion by window (1: Poisson)", "Gaps between arrivals",
                                           "Prompt tokens", "Output tokens"))
    for sample, colour in zip(samples, COLOURS, strict=False):
        curves: dict[tuple[int, int], tuple[Any, Any]] = {}
        if sample.trace is not None:
            arrival_s = sample.trace.arrival_s
            counts = counts_in_windows(arrival_s, width)
            curves[1, 1] = (arrival_s[0] + width * (np.arange(len(counts)) + 0.5)) / 3600.0, counts / width
            known = (measured or {}).get(sample.name) or [dispersion(arrival_s, x) for x in DISPERSION_S]
            curves[2, 1] = DISPERSION_S[:len(known)], [np.nan if x is None else x for x in known]
            curves[2, 2] = _distribution(np.diff(arrival_s))
        for column, tokens in ((1, sample.prompt_tokens), (2, sample.output_tokens)):
            if tokens is not None:
                curves[3, column] = _distribution(tokens)
        for place, (x, y) in curves.items():
            figure.add_trace(go.Scatter(
                x=np.asarray(x, np.float32), y=np.asarray(y, np.float32), name=sample.name, legendgroup=sample.name,
                mode="lines+markers" if place == (2, 1) else "lines", line={"color": colour, "width": 1.5},
                showlegend=place == max(curves)), row=place[0], col=place[1])
    for row, column, said in ((1, 1, "hours"), (2, 1, "window (s)"), (2, 2, "gap (s)"), (3, 1, "tokens"),
                              (3, 2, "tokens")):
        figure.update_xaxes(title_text=said, type="linear" if row == 1 else "log", row=row, col=column)
        if (row, column) > (2, 1):
            figure.update_yaxes(title_text="share at or below", row=row, col=column)
    figure.update_yaxes(type="log", row=2, col=1)
    return write_figure(path, layout(figure, 1000, top=90), title, notes=notes)


def _distribution(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A distribution function in 400 points, for a logarithmic axis."""
    share = np.linspace(0, 1, POINTS)
    if len(values) == 0:
        return np.zeros(0), np.zeros(0)
    return np.maximum(np.quantile(values, share, method="inverted_cdf"), 1e-6), share
