"""Plots of `compare sustain=true`: what each policy sustains, with intervals; and how violations rise with the rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.field_tables import name_of
from experiments.validity.svg import Axis, Scale, line, text

KINDS = {"pools": "#0072B2", "mixed": "#D55E00"}  # instances of two roles, or of one
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#332288", "#117733", "#882255", "#999933")
GREY = "#888"
_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM, _STEP, _KEY = 560, 210, 18, 34, 40, 17, 40


def field_svg(summary: Mapping[str, Any]) -> str:
    """One panel a cell, two in a row: offline tokens a second that are sustained, the interval, and each seed."""
    panels = [(cell["name"], [row for row in summary["results"] if row["cell"] == cell["name"]])
              for cell in summary["cells"]]
    across = min(2, len(panels))
    heights = [max(_TOP + _BOTTOM + _STEP * len(rows) for _, rows in panels[at:at + across])
               for at in range(0, len(panels), across)]
    width, height = _WIDTH * across, sum(heights) + _KEY
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
             f'height="{height}" font-family="Helvetica, Arial, sans-serif" font-size="11">',
             f'<rect width="{width}" height="{height}" fill="#fff"/>', *_key()]
    for place, (title, rows) in enumerate(panels):
        row, column = divmod(place, across)
        corner = f"{column * _WIDTH} {_KEY + sum(heights[:row])}"
        parts += [f'<g transform="translate({corner})">', *_panel(title, rows), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


def _key() -> list[str]:
    words = {"pools": "a relaxed and a strict instance", "mixed": "two mixed instances"}
    parts, at = [], float(_LEFT)
    for kind, colour in KINDS.items():
        parts += [_dot(at, 12, colour), text(at + 8, 16, words[kind], "start")]
        at += 40 + 5.6 * len(words[kind])
    more = "line: 95 % interval; small dots: each seed by itself; hollow: not ranked"
    return [*parts, text(_LEFT - 4, 32, more, "start")]


def _panel(title: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    bottom = _TOP + _STEP * len(rows)
    reach = [_tokens(row, value) for row in rows
             for value in (row["max_offline_rate"]["mean"], row["max_offline_rate"]["ci_high"] or 0.0)]
    scale = Scale(Axis(), [0.0, *reach], _LEFT, _WIDTH - _RIGHT)
    parts = [text(_LEFT, 16, title, "start", 'font-weight="bold" font-size="12"')]
    for value, label in scale.ticks():
        parts += [line(scale(value), _TOP, scale(value), bottom, "#eee"), text(scale(value), bottom + 14, label)]
    parts += [line(_LEFT, _TOP, _LEFT, bottom, "#666"),
              text((_LEFT + _WIDTH - _RIGHT) / 2, bottom + 30, "offline tokens per second, sustained")]
    for place, row in enumerate(rows):
        parts += _mark(row, scale, _TOP + _STEP * (place + 0.5))
    return parts


def _mark(row: Mapping[str, Any], scale: Scale, y: float) -> list[str]:
    colour, found = KINDS[row["kind"]], row["max_offline_rate"]
    parts = [text(_LEFT - 6, y + 4, name_of(row), "end")]
    if found["ci_low"] is not None:
        parts.append(line(scale(_tokens(row, found["ci_low"])), y, scale(_tokens(row, found["ci_high"])), y, colour,
                          'stroke-width="1.6"'))
    parts += [f'<circle cx="{scale(_tokens(row, value)):.1f}" cy="{y:.1f}" r="1.6" fill="{colour}" opacity="0.6"/>'
              for value in found["values"]]
    return [*parts, _dot(scale(_tokens(row, found["mean"])), y, colour, hollow=not row["feasible"])]


def _dot(x: float, y: float, colour: str, hollow: bool = False) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{"#fff" if hollow else colour}" stroke="{colour}"/>'


def _tokens(row: Mapping[str, Any], rate: float) -> float:
    """Offline tokens a second at a rate near the sustained one: in proportion, for a held rate serves what arrives."""
    mean = row["max_offline_rate"]["mean"]
    return row["offline_tokens_per_s"]["mean"] * rate / mean if mean > 0 else 0.0


def field_figure(summary: Mapping[str, Any]) -> Any:
    """The same as a Plotly figure, with the violation rates at every offline rate that was tried beside it."""
    from plotly.subplots import make_subplots

    names = [cell["name"] for cell in summary["cells"]]
    most = max(len([row for row in summary["results"] if row["cell"] == name]) for name in names)
    height = 120 + len(names) * max(320, 24 * most)
    titles = [title for name in names for title in (f"{name}: sustained", f"{name}: online requests that violate (%)")]
    figure = make_subplots(rows=len(names), cols=2, subplot_titles=titles, horizontal_spacing=0.06,
                           vertical_spacing=90 / height)
    policies = list(dict.fromkeys(row["policy"] for row in summary["results"]))
    for place, name in enumerate(names, start=1):
        rows = [row for row in summary["results"] if row["cell"] == name]
        _add_marks(figure, rows[::-1], place)
        for row in rows:
            _add_curve(figure, row, PALETTE[policies.index(row["policy"]) % len(PALETTE)], place)
        figure.add_hline(y=3.0, line_dash="dot", line_color=GREY, row=place, col=2)  # type: ignore[arg-type]
        figure.update_yaxes(range=[0, 12], row=place, col=2)
        figure.update_xaxes(title_text="offline tokens per second", rangemode="tozero", row=place, col=1)
        figure.update_xaxes(title_text="offline requests per second", row=place, col=2)
    figure.update_layout(title=f"Sustainable offline load, seeds {summary['seeds']}; blue, solid: relaxed and strict "
                                            "instances; orange, dashed: mixed ones", template="plotly_white",
                         height=height, showlegend=False, hovermode="closest")
    return figure


def _add_marks(figure: Any, rows: Sequence[Mapping[str, Any]], place: int) -> None:
    at = [row["offline_tokens_per_s"]["mean"] if row["max_offline_rate"]["mean"] > 0 else 0.0 for row in rows]
    low, high = ([_tokens(row, row["max_offline_rate"][edge] or 0.0) for row in rows]
                 for edge in ("ci_low", "ci_high"))
    figure.add_scatter(
        cliponaxis=False, x=at, y=[name_of(row) for row in rows], mode="markers", row=place, col=1,
        marker={"size": 10, "color": [KINDS[row["kind"]] for row in rows],
                "symbol": ["circle" if row["feasible"] else "circle-open" for row in rows]},
        error_x={"type": "data", "symmetric": False, "color": GREY,
                 "array": [max(0.0, top - x) for top, x in zip(high, at, strict=True)],
                 "arrayminus": [max(0.0, x - bottom) for bottom, x in zip(low, at, strict=True)]},
        hovertext=[f"{row['max_offline_rate']['mean']:.2f} requests/s, limited by {row['limited_by']}" for row in rows])


def _add_curve(figure: Any, row: Mapping[str, Any], colour: str, place: int) -> None:
    curve = row["curve"]
    violations = [100 * sum(point["violation_rates"]) / len(point["violation_rates"]) for point in curve]
    figure.add_scatter(x=[point["offline_rate"] for point in curve], y=violations, mode="lines+markers",
                       name=name_of(row), hovertemplate=f"{name_of(row)}<br>%{{x:.2f}}/s: %{{y:.2f}} %<extra></extra>",
                       line={"color": colour, "dash": "solid" if row["kind"] == "pools" else "dash"}, row=place, col=2)
