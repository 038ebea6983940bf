"""Plots of an evaluation as one HTML page that needs no network: profiles, and throughput against violations."""

from __future__ import annotations

import html
import os
from collections.abc import Mapping
from typing import Any

from agents.scoring import HEADLINE
from agents.tables import budget, note
from ooco_gym.files import atomic_write
from ooco_gym.report import colours, layout, percent
from ooco_gym.report.pages import FONT, LIMIT_COLOUR


def write_page(path: str | os.PathLike[str], summary: Mapping[str, Any]) -> None:
    """Writes the figures of each suite, with the sentences that say what they show.

    Args:
        path: of the page.
        summary: of `evaluate`.
    """
    title = html.escape(f"Evaluation on {summary['env']}")
    parts = [f"<h1>{title}</h1>"]
    script: Any = True  # the library itself goes into the page once
    for suite in summary.get("suites") or [summary]:
        if summary.get("suites"):
            parts.append(f"<h2>{html.escape('Shift: ' + suite['shift'] if suite['shift'] else 'No shift')}</h2>")
        parts.append(f"<p>{html.escape(note(suite))}</p>")
        parts.append("<ul>" + "".join(f"<li>{html.escape(line)}</li>" for line in budget(suite)) + "</ul>")
        for figure in (pareto_figure(suite), profile_figure(suite)):
            parts.append(figure.to_html(full_html=False, include_plotlyjs=script))
            script = False
    style = f"body{{font-family:{FONT};max-width:1100px;margin:2em auto;padding:0 1em;color:#222}}"
    text = (f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{title}</title><style>{style}</style>"
            f"</head><body>{''.join(parts)}</body></html>\n")
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def pareto_figure(suite: Mapping[str, Any]) -> Any:
    """Offline service against violations, each with its interval; hollow where a policy is not feasible."""
    import plotly.graph_objects as go

    figure, colour = go.Figure(), colours([entry["policy"] for entry in suite["policies"]])
    cells = {(row["policy"], row["metric"]): row for row in suite["results"]}
    for entry in suite["policies"]:
        name = entry["policy"]
        rate, service = cells[name, "violation_rate"], cells[name, HEADLINE]
        if rate["mean"] is None:
            continue
        figure.add_scatter(
            x=[100 * rate["mean"]], y=[service["mean"]], mode="markers", name=name, error_x=_bars(rate, 100.0),
            error_y=_bars(service, 1.0),
            marker={"size": 12 if entry["learned"] else 9, "color": colour[name],
                    "symbol": ("diamond" if entry["learned"] else "circle") + ("" if entry["feasible"] else "-open")},
            hovertemplate=f"{html.escape(name)}<br>%{{x:.3g}} % violate<br>%{{y:.4g}} ref. GPU-s/s<extra></extra>")
    limit = 100 * suite["violation_limit"]
    figure.add_vline(x=limit, line={"color": LIMIT_COLOUR, "dash": "dash", "width": 1.6})  # type: ignore[arg-type]
    figure.add_annotation(x=limit, y=1.0, yref="paper", yanchor="bottom", showarrow=False,
                          text=f"limit {percent(suite['violation_limit'], 0)}", font={"color": LIMIT_COLOUR})
    figure.update_xaxes(title_text="online requests that violate (%)", rangemode="tozero")
    figure.update_yaxes(title_text="offline service (reference GPU-s/s)")
    return layout(figure, 520, top=110)


def profile_figure(suite: Mapping[str, Any]) -> Any:
    """Performance profile: share of runs and windows with more than a normalised service, with 95 % bands."""
    import plotly.graph_objects as go

    figure, profile = go.Figure(), suite["profile"]
    colour, taus = colours(list(profile["shares"])), profile["thresholds"]
    for name, share in profile["shares"].items():
        figure.add_scatter(x=[*taus, *taus[::-1]], y=[*share["high"], *share["low"][::-1]], fill="toself",
                           fillcolor=colour[name], opacity=0.13, line={"width": 0}, hoverinfo="skip",
                           showlegend=False, legendgroup=name)
        figure.add_scatter(x=taus, y=share["value"], mode="lines", name=name, legendgroup=name,
                           line={"color": colour[name], "width": 2})
    unit = "the fluid bound" if suite["normalised_by"] == "bound" else f"the {suite['normalised_by']}"
    figure.update_xaxes(title_text=f"offline service as a share of {unit}")
    figure.update_yaxes(title_text="share of runs and windows with more", range=[0, 1.02])
    return layout(figure, 460, top=110)


def _bars(row: Mapping[str, Any], factor: float) -> dict[str, Any] | None:
    if row["ci_low"] is None or row["ci_high"] is None:
        return None
    return {"type": "data", "symmetric": False, "array": [factor * (row["ci_high"] - row["mean"])],
            "arrayminus": [factor * (row["mean"] - row["ci_low"])], "thickness": 1.5, "width": 5}
