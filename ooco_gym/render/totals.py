"""Figures of whole runs and of evaluations: which policies violate, what they serve, with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ooco_gym.metrics.statistics import interval, within
from ooco_gym.render.record import Record
from ooco_gym.report import colours, error_bars, layout, percent
from ooco_gym.report.pages import LIMIT_COLOUR, LIMIT_LINE

Groups = Mapping[str, Sequence[Record]]
NO_ONLINE = "no online request"
PANELS = (("violation_rate", "online requests that violate (%)", 100.0),
          ("offline_reference_gpu_s_per_s", "offline service (reference GPU-s/s)", 1.0),
          ("episode_reward", "reward of an episode", 1.0))
LEAST_RATE = 1e-4  # a logarithmic axis has no zero: what is below stands at its edge


def values_of(members: Sequence[Record], room: str, name: str) -> np.ndarray:
    """A figure of `summary[room]` for each record, NaN where it has none: float64[records]."""
    figures = [record.summary[room][name] for record in members]
    return np.array([np.nan if value is None else value for value in figures], float)


def within_budget(members: Sequence[Record], budget: float) -> bool:
    """Whether the upper 95 % limit of the violation rate over seeds is within the budget; of one seed, the rate.

    Without an online request there is no rate, and nothing that was kept.
    """
    return within(values_of(members, "online", "violation_rate"), budget)


def idle_seeds(members: Sequence[Record]) -> list[int]:
    """Seeds on which no online request arrived in the window: they have no violation rate."""
    return [record.seed for record in members if record.summary["online"]["violation_rate"] is None]


def violation_figure(groups: Groups, budget: float) -> Any:
    """Violation rate of each policy with its interval over seeds, and the budget; logarithmic axis.

    Args:
        groups: records by label.
        budget: share of online requests that may violate.
    """
    import plotly.graph_objects as go

    labels = list(groups)
    figure, colour = go.Figure(), colours(labels)
    for label, members in groups.items():
        rates = values_of(members, "online", "violation_rate")
        if idle_seeds(members):
            figure.add_scatter(x=[100 * LEAST_RATE], y=[label], mode="text", name=label, text=[NO_ONLINE],
                               textposition="middle right", cliponaxis=False, hoverinfo="skip")
            continue
        mean, low, high = (float(np.maximum(LEAST_RATE, value)) for value in interval(rates))
        error = error_bars(mean, low, high, 100.0, thickness=2, width=7)
        figure.add_scatter(
            x=[100 * mean], y=[label], mode="markers+text", name=label, text=[percent(float(rates.mean()))],
            textposition="top center", cliponaxis=False, marker={"size": 12, "color": colour[label]},
            error_x=error, hovertemplate=f"{label} %{{text}}<extra></extra>")
        figure.add_scatter(x=100 * np.maximum(rates, LEAST_RATE), y=[label] * len(rates), mode="markers",
                           name=f"{label}, each seed", hovertemplate="%{x:.3g} %<extra>one seed</extra>",
                           marker={"size": 7, "symbol": "circle-open", "color": colour[label]})
    figure.add_vline(x=100 * budget, line=LIMIT_LINE)  # type: ignore[arg-type]
    figure.add_annotation(x=np.log10(100 * budget), y=1.0, yref="paper", yanchor="bottom", showarrow=False,
                          text=f"budget {percent(budget, 0)}", font={"color": LIMIT_COLOUR})
    figure.update_xaxes(type="log", range=[np.log10(100 * LEAST_RATE), np.log10(130)], tickformat="~g", dtick=1,
                        title_text="online requests that violate (%), log scale; ≤ 0.01 stands at the edge")
    figure.update_yaxes(autorange="reversed", type="category", title_text="policy")
    layout(figure, 170 + 70 * len(groups), legend=False, top=40)
    return figure.update_layout(margin_l=150)


def throughput_figure(groups: Groups, budget: float) -> Any:
    """Offline output tokens completed and tokens recomputed a second, for each policy; hatched where it is not ranked.

    Args:
        groups: records by label.
        budget: share of online requests that a ranked policy may let violate.
    """
    from plotly.subplots import make_subplots

    figure, colour = make_subplots(rows=1, cols=2, shared_yaxes=True, horizontal_spacing=0.05), colours(list(groups))
    most: dict[int, float] = {}
    for label, members in groups.items():
        ranked = within_budget(members, budget)
        for col, name in ((1, "output_tokens_per_s"), (2, "wasted_tokens_per_s")):
            mean, low, high = interval(values_of(members, "offline", name))
            error = error_bars(mean, low, high, color="#222")
            figure.add_bar(
                x=[mean], y=[label], orientation="h", name=label, showlegend=False, row=1, col=col, error_x=error,
                marker={"color": colour[label], "line": {"color": colour[label], "width": 1},
                        "pattern": {"shape": "" if ranked else "/", "fgcolor": "white", "solidity": 0.4}},
                hovertemplate=f"{label} %{{x:,.1f}} tokens/s<extra></extra>")
            text = f"{mean:,.0f}" if ranked or col == 2 else f"{mean:,.0f}, not ranked"
            figure.add_annotation(x=mean if np.isnan(high) else high, y=label, text=text, showarrow=False,
                                  xanchor="left", xshift=8, bgcolor="white", row=1, col=col)
            most[col] = max(most.get(col, 0.0), mean)
    offered = offered_tokens_per_s(next(iter(groups.values())))
    if offered is not None:
        figure.add_vline(x=offered, line={"color": "#111", "dash": "dash", "width": 1.6}, row=1, col=1)  # type: ignore
        figure.add_annotation(x=offered, y=1.0, yref="y domain", yanchor="bottom", showarrow=False, row=1, col=1,
                              text=f"offered {offered:,.0f}")
    ends = 1.35 * max(most[1], offered or 0.0, 1.0)
    figure.update_xaxes(title_text="offline output, completed (tokens/s)", range=[0, ends], row=1, col=1)
    figure.update_xaxes(title_text="recomputed (tokens/s)", range=[0, 1.35 * max(most[2], 1.0)], row=1, col=2)
    figure.update_yaxes(autorange="reversed", type="category")
    figure.update_yaxes(title_text="policy", row=1, col=1)
    layout(figure, 170 + 60 * len(groups), top=50)
    return figure.update_layout(margin_l=150, bargap=0.35)


def offered_tokens_per_s(members: Sequence[Record]) -> float | None:
    """Output tokens of the offline requests that arrived in the window, a second; None where no record has requests."""
    rates = []
    for record in members:
        if record.requests is not None:
            offline = ~record.requests["online"]
            rates.append(float(record.requests["output_tokens"][offline].sum()) / record.window_s)
    return float(np.mean(rates)) if rates else None


# --- Of an evaluation ------------------------------------------------------------------------------------------------
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
            mean = None if row["mean"] is None else factor * row["mean"]
            error = error_bars(row["mean"], row["ci_low"], row["ci_high"], factor, thickness=2, width=7)
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
