"""What a workload looks like: its figures, how like a generator is to a trace, and both as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ooco_gym.report import layout, write_figure
from ooco_gym.workload.arrivals import Arrivals
from ooco_gym.workload.generate import WorkloadSpec
from ooco_gym.workload.generate import play as play_workload
from ooco_gym.workload.lengths import Constant, LengthModel
from ooco_gym.workload.reading import Sample
from ooco_gym.workload.sharing import Chat, sharing_ratio
from ooco_gym.workload.trace import NO_SESSION, Trace

DISPERSION_S = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
PEAK_S = (60.0, 420.0, 600.0, 3600.0)
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999)
FEWEST_WINDOWS = 8      # from which a spread between windows is worth a figure
COUNT_WINDOWS_S = (0.5, 1.0, 3.0)
MOST_REQUESTS, MOST_SPAN_S, FEWEST_SEEDS, MOST_SEEDS = 2_000_000, 1_200_000.0, 4, 12
COLOURS = ("#0072B2", "#D55E00")
POINTS = 400
BINS_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)


def describe(sample: Sample) -> dict[str, Any]:
    """Returns the figures of a trace or a set of lengths; JSON-able.

    Keys: `requests`, `prompt_tokens` and `output_tokens` (`mean`, `sd`, `min`, `max`, `p1` … `p99.9`),
    `length_rank_correlation`, and with arrivals `span_s`, `rate_per_s`, `gaps` (`cv`, `mean_s`, `p50_s`, `p99_s`),
    `dispersion` and `peak_over_mean` (by window in seconds, as text), `online_share` (named classes count as online
    until a scenario says what they are promised), `class_shares` (only where there are such), `sessions`,
    `repeated_prefix_share` (of blocks), `sharing_ratio` (of prompt tokens), and always `read` (how a file was read) and
    `notes`.
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
        "online_share": float(trace.online.mean()), **_class_shares(trace),
        "sessions": None if trace.session is None else len(np.unique(trace.session[trace.session != NO_SESSION])),
        "repeated_prefix_share": _repeated(trace), "sharing_ratio": sharing_ratio(trace),
    }


def _class_shares(trace: Trace) -> dict[str, Any]:
    """Shares of the requests by class, where some are of named ones."""
    if trace.class_id is None:
        return {}
    counts = np.bincount(trace.class_id, minlength=len(trace.class_names))
    return {"class_shares": {name: count / len(trace) for name, count in zip(trace.class_names, counts.tolist(),
                                                                           strict=True) if count}}


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


@dataclass(frozen=True)
class Likeness:
    """A generator beside a trace; all measured in the same way, the generator's over several seeds.

    Attributes:
        ks_gaps: Kolmogorov and Smirnov's distance of the gaps between arrivals.
        ks_counts: mean of the distances of counts in windows of 0.5 to 3 s.
        window_s: windows of the two next.
        trace: index of dispersion of the trace.
        model: the same of the generator, mean over seeds.
        seeds: how many.
    """

    ks_gaps: float
    ks_counts: float
    window_s: tuple[float, ...]
    trace: tuple[float, ...]
    model: tuple[float, ...]
    seeds: int

    def describe(self) -> dict[str, Any]:
        """Returns the figures, JSON-able."""
        return {"ks_gaps": self.ks_gaps, "ks_counts": self.ks_counts, "seeds": self.seeds,
                "dispersion": {f"{w:g}": {"trace": a, "model": b, "ratio": b / a if a else None}
                               for w, a, b in zip(self.window_s, self.trace, self.model, strict=True)}}


def ks(a: np.ndarray, b: np.ndarray) -> float:
    """Returns the largest difference between two samples' distribution functions; ties are handled."""
    a, b = np.sort(a), np.sort(b)
    places = np.concatenate([a, b])
    return float(np.max(np.abs(np.searchsorted(a, places, side="right") / len(a)
                               - np.searchsorted(b, places, side="right") / len(b))))



def play(arrivals: Arrivals, start_s: float, duration_s: float, seed: int, chat: Chat | None = None) -> np.ndarray:
    """Returns the arrival times of one realisation, float64[n]."""
    model = WorkloadSpec("fit", arrivals, LengthModel(Constant(1), Constant(1)), 0.0, chat)
    return play_workload(model, start_s=start_s, duration_s=duration_s, seed=seed, stream="fit").arrival_s


def likeness(arrivals: Arrivals, arrival_s: np.ndarray, seed: int, most: int = MOST_SEEDS,
             windows_s: Sequence[float] = DISPERSION_S, chat: Chat | None = None,
             fewest: int = FEWEST_SEEDS) -> Likeness:
    """Plays a generator over the trace's own span, with `fewest` to `most` seeds, and measures both alike."""
    start_s, span_s = float(arrival_s[0]), float(arrival_s[-1] - arrival_s[0])
    seeds = int(np.clip(min(MOST_REQUESTS // len(arrival_s), MOST_SPAN_S // max(span_s, 1.0)), fewest, most))
    runs = [play(arrivals, start_s, span_s, seed * 1000 + i, chat) for i in range(seeds)]
    runs = [run for run in runs if len(run) > 1]
    trace = [(window_s, dispersion(arrival_s, window_s)) for window_s in windows_s]
    known = [(window_s, value) for window_s, value in trace if value is not None]
    model = []
    for window_s, _ in known:
        values = [dispersion(run, window_s, span_s - (run[0] - start_s)) for run in runs]
        model.append(float(np.mean([value for value in values if value is not None] or [0.0])))
    gaps = np.concatenate([np.diff(run) for run in runs] or [np.zeros(1)])
    counts = [ks(counts_in_windows(arrival_s, window_s), np.concatenate(
        [counts_in_windows(run, window_s, span_s - (run[0] - start_s)) for run in runs]))
        for window_s in COUNT_WINDOWS_S if runs and span_s >= 50 * window_s]
    return Likeness(ks(np.diff(arrival_s), gaps), float(np.mean(counts or [0.0])), tuple(w for w, _ in known),
                    tuple(value for _, value in known), tuple(model), len(runs))


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

    width = _bin_s(samples)
    titles = (f"Requests per second, in bins of {width:g} s", "Index of dispersion by window (1: Poisson)",
              "Gaps between arrivals", "Prompt tokens", "Output tokens")
    figure = make_subplots(rows=3, cols=2, specs=[[{"colspan": 2}, None], [{}, {}], [{}, {}]], vertical_spacing=0.1,
                           subplot_titles=titles)
    for sample, colour in zip(samples, COLOURS, strict=False):
        def draw(x: Any, y: Any, row: int, column: int, sample: Sample = sample, colour: str = colour,
                 mode: str = "lines", legend: bool = False) -> None:
            figure.add_trace(go.Scatter(x=np.asarray(x, np.float32), y=np.asarray(y, np.float32), mode=mode,
                                        name=sample.name, legendgroup=sample.name, showlegend=legend,
                                        line={"color": colour, "width": 1.5}), row=row, col=column)

        if sample.trace is not None:
            arrival_s = sample.trace.arrival_s
            counts = counts_in_windows(arrival_s, width)
            draw((arrival_s[0] + width * (np.arange(len(counts)) + 0.5)) / 3600.0, counts / width, 1, 1)
            known = (measured or {}).get(sample.name)
            values = known if known is not None else [dispersion(arrival_s, x) for x in DISPERSION_S]
            draw(DISPERSION_S[:len(values)], [np.nan if x is None else x for x in values], 2, 1, mode="lines+markers")
            draw(*_distribution(np.diff(arrival_s)), 2, 2)
        for index, tokens in enumerate((sample.prompt_tokens, sample.output_tokens)):
            if tokens is not None:
                draw(*_distribution(tokens), 3, 1 + index, legend=index == 1)
    figure.update_xaxes(title_text="hours", row=1, col=1)
    figure.update_xaxes(title_text="window (s)", type="log", row=2, col=1)
    figure.update_yaxes(type="log", row=2, col=1)
    figure.update_xaxes(title_text="gap (s)", type="log", row=2, col=2)
    for column in (1, 2):
        figure.update_xaxes(title_text="tokens", type="log", row=3, col=column)
    figure.update_yaxes(title_text="share at or below", row=3)
    figure.update_yaxes(title_text="share at or below", row=2, col=2)
    return write_figure(path, layout(figure, 1000, top=90), title, notes=notes)


def _bin_s(samples: Sequence[Sample]) -> float:
    """The shortest usual bin of which at most 400 fit the longest trace."""
    spans = [float(np.ptp(sample.trace.arrival_s)) for sample in samples if sample.trace is not None]
    return next((width for width in BINS_S if max(spans, default=0.0) / width <= POINTS), BINS_S[-1])


def _distribution(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A distribution function in 400 points, for a logarithmic axis."""
    share = np.linspace(0, 1, POINTS)
    if len(values) == 0:
        return np.zeros(0), np.zeros(0)
    return np.maximum(np.quantile(values, share, method="inverted_cdf"), 1e-6), share
