"""Self-contained Plotly pages for `capacity` and `compare`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ooco_gym.files import atomic_write

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")
DASHES = {"first_token": "solid", "first_decode": "dash"}


def write_page(figure: Any, path: str | os.PathLike[str]) -> None:
    """Writes a Plotly figure as one HTML file that needs no network, atomically."""
    with atomic_write(path) as temporary:
        figure.write_html(temporary, include_plotlyjs=True, full_html=True)


def capacity_figure(rows: Sequence[dict[str, Any]], title: str, limit: float) -> Any:
    """Violation rate and offline throughput against the offline rate, one curve for each policy and TPOT definition.

    Args:
        rows: `results[]` of `capacity`, with their curves.
        title: what was measured.
        limit: the violation rate that ends the sustainable range.
    """
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.08,
                           subplot_titles=("online requests that violate (%)", "offline tokens per second, completed"))
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    for row in rows:
        curve, name = row["curve"], f"{row['policy']} ({row['tpot_from']})"
        rates = [point["offline_rate"] for point in curve]
        line = {"color": COLOURS[policies.index(row["policy"]) % len(COLOURS)], "dash": DASHES[row["tpot_from"]]}
        for place, values in ((1, [100 * point["violation_rate"] for point in curve]),
                              (2, [point["tokens_per_s"] for point in curve])):
            figure.add_scatter(x=rates, y=values, mode="lines+markers", name=name, legendgroup=name, line=line,
                               showlegend=place == 1, row=place, col=1)
        figure.add_scatter(x=[row["max_offline_rate"]], y=[row["max_offline_tokens_per_s"]], mode="markers", name=name,
                           marker={"size": 12, "symbol": "star", "color": line["color"]}, legendgroup=name,
                           showlegend=False, hovertext=f"sustainable: {row['max_offline_rate']:.3g}/s", row=2, col=1)
    figure.add_hline(y=100 * limit, line_dash="dot", line_color="#888", row=1, col=1)  # type: ignore[arg-type]
    figure.update_yaxes(range=[0, 400 * limit], row=1, col=1)
    figure.update_xaxes(title_text="offline requests per second", row=2, col=1)
    figure.update_layout(title=title, template="plotly_white", height=800)
    return figure


def compare_figure(rows: Sequence[dict[str, Any]], metrics: Sequence[str], baseline: str, title: str) -> Any:
    """Paired differences against one policy with their intervals, one panel for each metric."""
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=len(metrics), cols=1, subplot_titles=tuple(metrics),
                           vertical_spacing=0.35 / len(metrics))
    for place, metric in enumerate(metrics, start=1):
        mine = [row for row in rows if row["metric"] == metric and row["policy"] != baseline]
        shown = [row for row in mine if row["difference"] is not None]
        figure.add_scatter(
            x=[row["difference"] for row in shown], y=[row["policy"] for row in shown], mode="markers",
            marker={"size": 10, "color": COLOURS[0]}, showlegend=False, row=place, col=1,
            error_x={"type": "data", "symmetric": False,
                     "array": [(row["difference_high"] or row["difference"]) - row["difference"] for row in shown],
                     "arrayminus": [row["difference"] - (row["difference_low"] or row["difference"]) for row in shown]})
        figure.add_vline(x=0, line_dash="dot", line_color="#888", row=place, col=1)  # type: ignore[arg-type]
    figure.update_layout(title=title, template="plotly_white", height=170 * len(metrics) + 120)
    return figure
