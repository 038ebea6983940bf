"""The chain as a page: what requests saw, real beside simulated, and iterations' times, predicted beside measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from experiments.engine_chain.compare import Served
from experiments.plots import COLOURS

_POINTS = 2000


class Drawn(NamedTuple):
    """One load: what its requests saw, and its iterations in milliseconds, float64[n]."""

    real: Served
    simulated: Served
    measured_ms: np.ndarray
    predicted_ms: np.ndarray


def chain_figure(loads: Mapping[str, Drawn], title: str) -> Any:
    """A row for each load: distributions of TTFT and TPOT, and iterations."""
    from plotly.subplots import make_subplots

    titles = [f"{name}: {what}" for name in loads for what in ("TTFT (ms)", "TPOT (ms)", "iterations (ms)")]
    figure = make_subplots(rows=len(loads), cols=3, subplot_titles=titles, vertical_spacing=0.12)
    for row, drawn in enumerate(loads.values(), start=1):
        for column, key in ((1, "ttft_s"), (2, "tpot_s")):
            for name, served, colour in (("real engine", drawn.real, COLOURS[0]),
                                         ("simulated", drawn.simulated, COLOURS[1])):
                values = 1e3 * np.sort(getattr(served, key))
                figure.add_scatter(x=values, y=100.0 * np.arange(1, len(values) + 1) / len(values), name=name,
                                   legendgroup=name, showlegend=row == 1 and column == 1, line={"color": colour},
                                   row=row, col=column)
            figure.update_yaxes(title_text="% of requests" if column == 1 else "", row=row, col=column)
        taken = np.linspace(0, len(drawn.measured_ms) - 1, min(_POINTS, len(drawn.measured_ms))).astype(int)
        ends = [float(drawn.measured_ms.min()), float(drawn.measured_ms.max())]
        figure.add_scatter(x=drawn.measured_ms[taken], y=drawn.predicted_ms[taken], mode="markers", showlegend=False,
                           marker={"size": 3, "opacity": 0.4, "color": COLOURS[2]}, row=row, col=3)
        figure.add_scatter(x=ends, y=ends, mode="lines", showlegend=False, hoverinfo="skip",
                           line={"color": "#999", "dash": "dot"}, row=row, col=3)
        figure.update_xaxes(title_text="measured", type="log", row=row, col=3)
        figure.update_yaxes(title_text="predicted", type="log", row=row, col=3)
    figure.update_layout(title=title, template="plotly_white", height=320 * len(loads) + 120)
    return figure
