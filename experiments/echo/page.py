"""What the study leaves behind: Markdown with its tables, static plots, the figures, and a page to explore."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments.echo.tables import TITLES, blocks, cells, name_of
from experiments.field_page import rounded
from experiments.marked_page import merged
from experiments.plots import COLOURS, write_page
from experiments.validity.markdown import table as markdown_table
from experiments.validity.svg import Axis, Panel, Series, draw
from ooco_gym.files import atomic_write, write_json
from ooco_gym.metrics.statistics import interval_words

BEGIN = "<!-- results: written by ooco-gym experiment echo; what stands outside is not touched -->"
END = "<!-- end of results -->"
CURVES = (("hit_rate", "hit rate of offline prompts (%)", 100.0), ("online_per_s", "online requests/s", 1.0),
          ("offline_active", "active offline requests", 1.0), ("online_active", "active online requests", 1.0),
          ("kv_share", "KV memory in use by running requests (%)", 100.0))


def write_results(summary: Mapping[str, Any], out: Path) -> list[Path]:
    """Writes `echo.html`, the Markdown page (`echo.page`, else `echo.md` in the run folder), and plots and figures in
    a folder of its name. A page that is there keeps what stands outside its marked part.

    Returns:
        The paths of what was written.
    """
    given = summary["options"]["page"]
    path = Path(given) if given else out / "echo.md"
    beside = path.with_suffix("")
    figure = figure_of(summary)
    options = {key: value for key, value in summary["options"].items() if key != "page"}
    write_json(beside / "results.json", rounded({**summary, "options": options}))
    texts = {path: merged(path, "Echo", body(summary, beside.name), (BEGIN, END))}
    day = summary["results"].get("hit_rate")
    if day:
        texts[beside / "day.svg"] = draw(day_panels(day))
    for file, text in texts.items():
        with atomic_write(file) as temporary:
            temporary.write_text(text, encoding="utf-8")
    if figure is not None:
        write_page(figure, out / "echo.html")
    return [*texts, beside / "results.json", *([out / "echo.html"] if figure is not None else [])]


def body(summary: Mapping[str, Any], folder: str) -> str:
    """The marked part of the page."""
    parts = []
    for part, result in summary["results"].items():
        parts.append(f"### {TITLES[part]}")
        for title, rows in blocks(part, result):
            header, lines = cells(part, rows)
            parts += [*([f"{title}:"] if title else []), markdown_table(header, lines)]
        if part == "hit_rate":
            parts.append(f"![Online load up to the peak, and what offline work made of it]({folder}/day.svg)")
    if summary["rate_scale"] is not None:
        options = summary["options"]
        parts.append(f"`{options['cluster']}` serves {summary['rate_scale']:g} times `{options['online']}`'s own rate "
                     f"alone with at most {100 * options['alone_violations']:g} % of violations: this is online load "
                     f"100 %. Seeds {', '.join(str(seed) for seed in summary['seeds'])}; "
                     f"{interval_words(len(summary['seeds']))}")
    return "\n\n".join(parts)


def _mean_curve(runs: Any, key: str, factor: float) -> list[float]:
    values = np.array([[np.nan if one is None else one for one in run[key]] for run in runs], float)
    return [float(factor * np.nanmean(column)) if np.isfinite(column).any() else float("nan") for column in values.T]


def _hours(day: Mapping[str, Any], curves: Any) -> list[float]:
    return [(day["start_s"] + t) / 3600 for t in curves[0]["t_s"]]


def day_panels(day: Mapping[str, Any]) -> list[Panel]:
    """Curves over time, the mean of the seeds: one panel a figure, one line a variant."""
    panels = []
    for key, title, factor in CURVES:
        series = []
        for place, (policy, curves) in enumerate(day["curves"].items()):
            if key == "online_per_s" and place > 0:
                continue
            series.append(Series("" if key == "online_per_s" else name_of(policy), _hours(day, curves),
                                 _mean_curve(curves, key, factor), colour=place))
        limits = (0.0, 100.0) if factor == 100.0 else None
        panels.append(Panel(title, Axis("hour of the day"), Axis(limits=limits), series))
    return panels


def figure_of(summary: Mapping[str, Any]) -> Any:
    """A Plotly figure: speed-ups of the ablation, and the day's curves; None where neither was run."""
    from plotly.subplots import make_subplots

    ablation, day = (summary["results"].get(part) for part in ("ablation", "hit_rate"))
    titles = ["offline tokens/s over BS"] * bool(ablation) + [title for _, title, _ in CURVES] * bool(day)
    if not titles:
        return None
    figure = make_subplots(rows=len(titles), cols=1, subplot_titles=titles, vertical_spacing=0.06)
    row = 1
    if ablation:
        policies = list(dict.fromkeys(one["policy"] for one in ablation))
        for place, policy in enumerate(policies):
            mine = [one for one in ablation if one["policy"] == policy]
            ratios = [one["speed_up"] for one in mine]
            figure.add_bar(x=[f"{one['dataset']}, load {100 * one['load']:g} %" for one in mine], row=row, col=1,
                           y=[one["mean"] for one in ratios], name=name_of(policy), legendgroup=policy,
                           marker_color=COLOURS[place % len(COLOURS)],
                           error_y={"type": "data", "symmetric": False,
                                    "array": [one["high"] - one["mean"] for one in ratios],
                                    "arrayminus": [one["mean"] - one["low"] for one in ratios]})
        figure.add_hline(y=3.3, line_dash="dot", line_color="#888", row=row, col=1)  # type: ignore[arg-type]
        row += 1
    for key, _, factor in CURVES if day else ():
        for place, (policy, curves) in enumerate(day["curves"].items()):  # type: ignore[index]
            figure.add_scatter(x=_hours(day, curves), y=_mean_curve(curves, key, factor), mode="lines", row=row, col=1,
                               name=name_of(policy), legendgroup=policy, showlegend=not ablation and row == 1,
                               line={"color": COLOURS[place]})
        row += 1
    figure.update_layout(template="plotly_white", height=320 * len(titles) + 100, barmode="group",
                         title="Echo and its ablations (dotted: the paper's largest speed-up)")
    return figure
