"""The page of the study: four figures against the rate of real-time requests, as the paper's Figures 10 and 11."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.plots import COLOURS

PANELS = {"normalized_latency_s": "normalised latency, s", "best_effort_per_s": "best-effort requests/s",
          "ttft_attainment": "TTFT kept", "tpot_attainment": "TPOT kept"}


def bros_figure(rows: Sequence[Mapping[str, Any]], said: str) -> Any:
    """A row of panels for each cluster and workload, a curve for each policy, seeds' intervals as bars.

    Args:
        rows: `results[]` of the study.
        said: what the intervals are, under the title.
    """
    from plotly.subplots import make_subplots

    places = list(dict.fromkeys((row["cluster"], row["workload"]) for row in rows))
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    figure = make_subplots(rows=len(places), cols=len(PANELS), vertical_spacing=0.4 / (len(places) + 1),
                           subplot_titles=[f"{title}<br>{' on '.join(place[::-1])}" for place in places
                                           for title in PANELS.values()])
    for line, place in enumerate(places, start=1):
        for column, name in enumerate(PANELS, start=1):
            for policy in policies:
                mine = [row for row in rows if (row["cluster"], row["workload"]) == place and row["policy"] == policy]
                figure.add_scatter(
                    x=[row["rate"] for row in mine], y=[row[name] for row in mine], name=policy, legendgroup=policy,
                    showlegend=line == column == 1, mode="lines+markers", row=line, col=column,
                    line={"color": COLOURS[policies.index(policy) % len(COLOURS)]},
                    error_y=_bars(mine, name))
            figure.update_xaxes(title_text="real-time requests/s", row=line, col=column)
        figure.update_yaxes(type="log", row=line, col=1)
    title = {"text": "BROS beside its baselines", "subtitle": {"text": said}}
    figure.update_layout(title=title, template="plotly_white", height=330 * len(places) + 120)
    return figure


def _bars(rows: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any] | None:
    """Intervals of a figure as bars; None where one seed gives none."""
    if not any(math.isfinite(row[f"{name}_low"]) for row in rows):
        return None
    return {"type": "data", "symmetric": False, "array": [row[f"{name}_high"] - row[name] for row in rows],
            "arrayminus": [row[name] - row[f"{name}_low"] for row in rows]}
