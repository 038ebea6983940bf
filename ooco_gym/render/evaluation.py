"""Figures of an environment's evaluation and of the training before it, from their machine-readable results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ooco_gym.render.style import LIMIT_COLOUR, colours, layout, percent

PANELS = (("violation_rate", "online requests that violate (%)", 100.0),
          ("offline_reference_gpu_s_per_s", "offline service (reference GPU-s/s)", 1.0),
          ("episode_reward", "reward of an episode", 1.0))
LIMIT_LINE = {"color": LIMIT_COLOUR, "dash": "dash", "width": 1.6}


def evaluation_figure(results: Sequence[Mapping[str, Any]], limit: float) -> Any:
    """Violations, offline service and reward of each policy on the same held-out windows, with intervals.

    Args:
        results: `results[]` of `evaluate`: `policy`, `metric`, `mean`, `ci_low`, `ci_high`.
        limit: largest violation rate (its upper limit) of a ranked policy.
    """
    from plotly.subplots import make_subplots

    policies = list(dict.fromkeys(row["policy"] for row in results))
    colour = colours(policies)
    figure = make_subplots(rows=1, cols=len(PANELS), shared_yaxes=True, horizontal_spacing=0.04)
    for col, (metric, title, factor) in enumerate(PANELS, start=1):
        for row in (row for row in results if row["metric"] == metric):
            mean, low, high = (None if row[key] is None else factor * row[key] for key in ("mean", "ci_low", "ci_high"))
            error = None if low is None or high is None else {
                "type": "data", "symmetric": False, "array": [high - mean], "arrayminus": [mean - low],
                "thickness": 2, "width": 7}
            figure.add_scatter(x=[mean], y=[row["policy"]], mode="markers", name=row["policy"], error_x=error,
                               marker={"size": 11, "color": colour[row["policy"]]}, row=1, col=col,
                               hovertemplate=f"{row['policy']} %{{x:.4g}}<extra></extra>")
        figure.update_xaxes(title_text=title, row=1, col=col)
    figure.add_vline(x=100 * limit, line=LIMIT_LINE, row=1, col=1)  # type: ignore
    figure.add_annotation(x=100 * limit, y=1.0, yref="y domain", yanchor="bottom", showarrow=False, row=1, col=1,
                          text=f"limit {percent(limit, 0)}", font={"color": LIMIT_COLOUR})
    figure.update_xaxes(rangemode="tozero", row=1, col=1)
    figure.update_yaxes(autorange="reversed", type="category", categoryorder="array", categoryarray=policies)
    figure.update_yaxes(title_text="policy", row=1, col=1)
    layout(figure, 150 + 48 * len(policies), legend=False, top=40)
    return figure.update_layout(margin_l=120)


def training_figure(history: Sequence[Mapping[str, Any]], limit: float) -> Any:
    """Reward and violation rate on the validation windows as training goes on.

    Args:
        history: `validation[]` of `train`: `timesteps`, `reward`, `violation_rate`.
        limit: violation rate up to which a policy counts as feasible.
    """
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=1, cols=2, horizontal_spacing=0.09)
    steps = [one["timesteps"] for one in history]
    line = {"color": "#CC79A7", "width": 1.8}
    for col, key, title, factor in ((1, "reward", "validation reward of an episode", 1.0),
                                    (2, "violation_rate", "validation violations (%)", 100.0)):
        figure.add_scatter(x=steps, y=[factor * one[key] for one in history], mode="lines+markers", name=key, line=line,
                           row=1, col=col)
        figure.update_yaxes(title_text=title, row=1, col=col)
        figure.update_xaxes(title_text="decisions", rangemode="tozero", row=1, col=col)
    figure.update_yaxes(rangemode="tozero", row=1, col=2)
    figure.add_hline(y=100 * limit, line=LIMIT_LINE, row=1, col=2)  # type: ignore
    return layout(figure, 330, legend=False, top=30)
