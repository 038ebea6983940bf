"""Recorded beside simulated: each request's latencies, and the engine's state over time."""

from __future__ import annotations

from typing import Any

from experiments.plots import COLOURS
from experiments.replay.again import Again, measured
from experiments.replay.recorded import Recorded

PANELS = ("TTFT of each request (s): simulated over recorded", "end to end (s): simulated over recorded",
          "running requests", "waiting requests", "KV memory in use (%)")


def replay_figure(run: Recorded, simulated: dict[str, Again]) -> Any:
    """A Plotly figure of `PANELS`; the recorded curves are black."""
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=4, cols=2, subplot_titles=PANELS, vertical_spacing=0.07,
                           row_heights=[0.4, 0.2, 0.2, 0.2], specs=[[{}, {}], *[[{"colspan": 2}, None]] * 3])
    real = measured(run)
    for place, (timing, again) in enumerate(simulated.items()):
        look: dict[str, Any] = {"name": f"timing={timing}", "legendgroup": timing}
        for column, key in ((1, "ttft_s"), (2, "e2e_s")):
            figure.add_scatter(x=getattr(real, key), y=getattr(again.served, key), mode="markers", row=1, col=column,
                               marker={"size": 5, "color": COLOURS[place]}, showlegend=column == 1, **look)
        for row, key in enumerate(("running", "waiting", "kv_percent"), start=2):
            figure.add_scatter(x=again.curves["t_s"], y=again.curves[key], mode="lines", row=row, col=1,
                               line={"color": COLOURS[place]}, showlegend=False, **look)
    for column, key in ((1, "ttft_s"), (2, "e2e_s")):
        most = float(getattr(real, key).max())
        figure.add_scatter(x=[0, most], y=[0, most], mode="lines", line={"color": "#888", "dash": "dot"}, row=1,
                           col=column, showlegend=False, name="equal")
    for row, key in enumerate(("running", "waiting", "kv_percent"), start=2):
        if run.curves:
            figure.add_scatter(x=run.curves["t_s"], y=run.curves[key], mode="lines", line={"color": "black"}, row=row,
                               col=1, showlegend=row == 2, name="recorded")
    figure.update_xaxes(title_text="recorded (s)", row=1)
    figure.update_xaxes(title_text="time since the first arrival (s)", row=4, col=1)
    end_s = 1.05 * float(run.requests["last_token_s"].max())
    for row in (2, 3, 4):
        figure.update_xaxes(range=[0, end_s], row=row, col=1)
    figure.update_layout(template="plotly_white", height=1300, title=f"{run.folder.name}: recorded and simulated")
    return figure
