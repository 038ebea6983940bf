"""What `ooco-gym experiment echo` shows and writes: tables, the page's marked part, plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from experiments.common.output import bars, mean_column, merged, rounded, write_texts
from ooco_gym.files import write_json
from ooco_gym.metrics.statistics import interval_words
from ooco_gym.report import Column, Table, as_text, console, layout, minus, percent, with_interval, write_figure
from ooco_gym.report.pages import COLOURS
from ooco_gym.report.tables import TO, Form

Row = Mapping[str, Any]
NAMES = {"echo_bs": "BS", "echo_bs_e": "BS+E", "echo_bs_e_s": "BS+E+S", "echo": "BS+E+S+M (Echo)"}
TITLES = {
    "estimator": "Estimator: mean absolute error (bias) on batches drawn apart (the paper gives none)",
    "ablation": "Offline throughput and online attainment (Figures 6 and 7; paper: BS+E slightly below BS, then "
                "BS+E+S, then Echo with up to 3.3 × BS; online TTFT 1 s and TPOT 50 ms kept by 90 %)",
    "hit_rate": "Prefix-cache hit rate of offline requests through the online peak (Figure 9; paper: 78.6 %, flat "
                "there only with the KV manager)",
    "readings": "What the paper leaves open, one change at a time",
    "cost": "Processor time of an iteration, decision and simulator together, by waiting offline requests",
}


def name_of(policy: str) -> str:
    """A variant as the paper calls it, and what was changed of it."""
    base, _, changed = policy.partition(":")
    return f"{NAMES.get(base, base)}{f' ({changed})' if changed else ''}"


def _of(head: str, key: str, form: Form) -> Column:
    """A mean with its interval over seeds, alone where both ends read alike."""

    def written(one: Row) -> str:
        low, high = one["low"], one["high"]
        alike = as_text(low, form) == as_text(high, form)
        return with_interval(one["mean"], None if alike else low, high, form, TO)

    return Column(head, key, written)


def _error(kind: str) -> Column:
    return Column(kind, lambda row: minus(f"{SHARE(row[f'{kind}_mape'])} ({100 * row[f'{kind}_bias']:+.1f} %)"))


SHARE = partial(percent, digits=1)
VARIANT = Column("variant", "policy", name_of)
FIGURES = (
    VARIANT, _of("offline tokens/s", "tokens_per_s", ",.0f"), _of("× BS", "speed_up", ".2f"),
    _of("× BS by work", "work_speed_up", ".2f"), mean_column("hit rate", "hit_rate", SHARE),
    mean_column("TTFT kept", "ttft_attainment", SHARE), mean_column("TPOT kept", "tpot_attainment", SHARE),
    mean_column("D(n) kept", "deadline_attainment", SHARE), mean_column("preempted", "evictions", ",.0f"),
    mean_column("recomputed tokens/s", "wasted_tokens_per_s", ",.0f"))
COLUMNS: dict[str, Sequence[Column]] = {
    "estimator": (Column("T_p", "prefill_form"), Column("T_d", "decode_form"), _error("prefill"), _error("decode"),
                  _error("mixed"), Column("lam", "overlap", ".2f")),
    "ablation": FIGURES,
    "hit_rate": (VARIANT, _of("whole time", "hit_rate", SHARE), _of("trough", "hit_rate_trough", SHARE),
                 _of("peak", "hit_rate_peak", SHARE)),
    "readings": FIGURES,
    "cost": (VARIANT, Column("waiting", "waiting", ",.0f"), Column("iterations", "iterations", ",.0f"),
             Column("µs an iteration", "us", ".1f")),
}


def blocks(part: str, result: Any) -> list[tuple[str, Sequence[Row]]]:
    """A part's tables: title and rows of each."""
    if part == "hit_rate":
        return [("", result["rows"])]
    if part not in ("ablation", "readings"):
        return [("", result)]
    keys = list(dict.fromkeys((row["load"], row["dataset"]) for row in result))
    return [(f"{dataset}, online load {100 * load:g} % of what the instance serves alone",
             [row for row in result if (row["load"], row["dataset"]) == (load, dataset)]) for load, dataset in keys]


def tables_of(part: str, result: Any) -> list[Table]:
    """A part's tables, with their titles."""
    return [replace(Table.of(COLUMNS[part], rows, title), align="") for title, rows in blocks(part, result)]


def terminal(summary: Mapping[str, Any]) -> None:
    """Prints all tables."""
    screen = console()
    for part, result in summary["results"].items():
        screen.print(TITLES[part], highlight=False, style="bold")
        for table in tables_of(part, result):
            table.show(screen)


BEGIN = "<!-- results: written by ooco-gym experiment echo; what stands outside is not touched -->"
CURVES = (("hit_rate", "hit rate of offline prompts (%)", 100.0), ("online_per_s", "online requests/s", 1.0),
          ("offline_active", "active offline requests", 1.0), ("online_active", "active online requests", 1.0),
          ("kv_share", "KV memory in use by running requests (%)", 100.0))


def write_results(summary: Mapping[str, Any], out: Path) -> list[Path]:
    """Writes `echo.html` with the plots, the Markdown page (`echo.page`, else `echo.md` in the run folder) and the
    figures (`echo.figures`, else `results.json` in a folder of the page's name).

    A page that is there keeps what stands outside its marked part.

    Returns:
        The paths of what was written.
    """
    page, figures = summary["options"]["page"], summary["options"].get("figures")
    path = Path(page) if page else out / "echo.md"
    data = Path(figures) if figures else path.with_suffix("") / "results.json"
    options = {key: value for key, value in summary["options"].items() if key not in ("page", "figures")}
    write_json(data, rounded({**summary, "options": options}, "curve"))
    written = [data, *write_texts({path: merged(path, "Echo", body(summary), BEGIN)})]
    figure = figure_of(summary)
    if figure is not None:
        write_figure(out / "echo.html", figure, "Echo and its ablations", "Dotted: the paper's largest speed-up.")
        written.append(out / "echo.html")
    return written


def body(summary: Mapping[str, Any]) -> str:
    """The marked part of the page."""
    parts = []
    for part, result in summary["results"].items():
        parts.append(f"### {TITLES[part]}")
        for table in tables_of(part, result):
            parts += [*([f"{table.title}:"] if table.title else []), table.markdown()]
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
        for index, policy in enumerate(policies):
            mine = [one for one in ablation if one["policy"] == policy]
            ratios = [one["speed_up"] for one in mine]
            figure.add_bar(x=[f"{one['dataset']}, load {100 * one['load']:g} %" for one in mine], row=row, col=1,
                           y=[one["mean"] for one in ratios], name=name_of(policy), legendgroup=policy,
                           marker_color=COLOURS[index % len(COLOURS)],
                           error_y=bars(ratios, "mean", "low", "high"))
        figure.add_hline(y=3.3, line_dash="dot", line_color="#888", row=row, col=1)  # type: ignore[arg-type]
        row += 1
    for key, _, factor in CURVES if day else ():
        for index, (policy, curves) in enumerate(day["curves"].items()):  # type: ignore[index]
            figure.add_scatter(x=_hours(day, curves), y=_mean_curve(curves, key, factor), mode="lines", row=row, col=1,
                               name=name_of(policy), legendgroup=policy, showlegend=not ablation and row == 1,
                               line={"color": COLOURS[index]})
        row += 1
    return layout(figure, 320 * len(titles) + 100, "side", barmode="group")
