"""Workloads as pages: rate over time, dispersion, gaps, lengths; a trace and its generator side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ooco_gym.report import layout, write_figure
from ooco_gym.workload.describe import DISPERSION_S, counts_in_windows, dispersion
from ooco_gym.workload.sample import Sample

COLOURS = ("#0072B2", "#D55E00")
POINTS = 400
BINS_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)


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
        for place, tokens in enumerate((sample.prompt_tokens, sample.output_tokens)):
            if tokens is not None:
                draw(*_distribution(tokens), 3, 1 + place, legend=place == 1)
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
