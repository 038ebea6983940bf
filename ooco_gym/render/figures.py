"""Figures of runs: totals with intervals over seeds, courses over time, and evaluations of learned policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ooco_gym.metrics.statistics import interval, within
from ooco_gym.render.record import RunRecord
from ooco_gym.report import colours, error_bars, layout, percent
from ooco_gym.report.pages import KV_COLOUR, LIMIT_COLOUR, LIMIT_LINE, WORK_COLOURS

Groups = Mapping[str, Sequence[RunRecord]]
NO_ONLINE = "no online request"
PANELS = (("violation_rate", "online requests that violate (%)", 100.0),
          ("offline_reference_gpu_s_per_s", "offline service (reference GPU-s/s)", 1.0),
          ("episode_reward", "reward of an episode", 1.0))
LEAST_RATE = 1e-4  # a logarithmic axis has no zero: what is below stands at its edge
QUANTILES = ((0.99, "solid", "P99"), (0.50, "dot", "P50"))
MOST_INSTANCES = 4  # more are shown as the mean of each role
WORK = ("online_prefill_share", "offline_prefill_share", "decode_share")
BINS_S = (10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0, 14400.0)
MOST_BINS = 300
FEW_MINUTES_S = 120.0
DAY_LIKE_S = (12 * 3600.0, 36 * 3600.0)  # windows with a tick every three hours


# --- Totals of whole runs ---------------------------------------------------------------------------------------------
def values_of(members: Sequence[RunRecord], kind: str, name: str) -> np.ndarray:
    """A figure of `summary[kind]` for each record, NaN where it has none: float64[records]."""
    figures = [record.summary[kind][name] for record in members]
    return np.array([np.nan if value is None else value for value in figures], float)


def within_budget(members: Sequence[RunRecord], budget: float) -> bool:
    """Whether the upper 95 % limit of the violation rate over seeds is within the budget; of one seed, the rate.

    Without an online request there is no rate, and nothing that was kept.
    """
    return within(values_of(members, "online", "violation_rate"), budget)


def idle_seeds(members: Sequence[RunRecord]) -> list[int]:
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
        error = error_bars(mean, low, high, factor=100.0, thickness=2, width=7)
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


def glance_figure(groups: Groups, budget: float) -> Any:
    """What each policy breaks beside what it serves, as bars: violations with the budget, and offline output tokens a
    second with what was offered; hatched where it is not ranked.

    Args:
        groups: records by label.
        budget: share of online requests that may violate.
    """
    from plotly.subplots import make_subplots

    figure, colour = make_subplots(rows=1, cols=2, shared_yaxes=True, horizontal_spacing=0.05), colours(list(groups))
    most = [100 * budget, offered_tokens_per_s(next(iter(groups.values()))) or 0.0]
    lines = [(most[0], f"allowed {percent(budget, 0)}"), (most[1], f"offered {most[1]:,.0f}")]
    for label, members in groups.items():
        shape = "" if within_budget(members, budget) else "/"
        rates = 100 * values_of(members, "online", "violation_rate")
        for place, values in enumerate((rates, values_of(members, "offline", "output_tokens_per_s"))):
            mean = float(values.mean())
            shown = NO_ONLINE if np.isnan(mean) else percent(mean / 100) if place == 0 else f"{mean:,.0f}"
            figure.add_bar(x=[0.0 if np.isnan(mean) else mean], y=[label], orientation="h", name=label, text=[shown],
                           textposition="outside", cliponaxis=False, showlegend=False, row=1, col=1 + place,
                           hovertemplate=f"{label} {shown}<extra></extra>",
                           marker={"color": colour[label], "line": {"color": colour[label], "width": 1},
                                   "pattern": {"shape": shape, "fgcolor": "white", "solidity": 0.4}})
            most[place] = max(most[place], 0.0 if np.isnan(mean) else mean)
    for col, (at, text) in enumerate(lines, start=1):
        if at > 0:
            figure.add_vline(x=at, line=LIMIT_LINE if col == 1 else {"color": "#111", "dash": "dash"},
                             row=1, col=col)  # type: ignore[arg-type]
            figure.add_annotation(x=at, y=1.0, yref="y domain", yanchor="bottom", showarrow=False, row=1, col=col,
                                  text=text)
        figure.update_xaxes(range=[0, 1.25 * max(most[col - 1], 1e-3)], row=1, col=col)
    figure.update_xaxes(title_text="online requests that miss a promise (%)", row=1, col=1)
    figure.update_xaxes(title_text="offline output, completed (tokens/s)", row=1, col=2)
    figure.update_yaxes(autorange="reversed", type="category")
    layout(figure, 150 + 55 * len(groups), top=40)
    return figure.update_layout(margin_l=150, bargap=0.35)


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


def offered_tokens_per_s(members: Sequence[RunRecord]) -> float | None:
    """Output tokens of the offline requests that arrived in the window, a second; None where no record has requests."""
    rates = []
    for record in members:
        if record.requests is not None:
            offline = ~record.requests["online"]
            rates.append(float(record.requests["output_tokens"][offline].sum()) / record.window_s)
    return float(np.mean(rates)) if rates else None


# --- Over time --------------------------------------------------------------------------------------------------------
def bin_s(window_s: float, least_s: float = FEW_MINUTES_S) -> float:
    """Width of the bins over time: the smallest usual one of at least `least_s` with at most `MOST_BINS` of them."""
    least_s = min(least_s, window_s / 5)  # a short window keeps a handful of bins
    fitting = [width for width in BINS_S if width >= least_s and window_s / width <= MOST_BINS]
    return fitting[0] if fitting else max(BINS_S[-1], window_s / MOST_BINS)


class TimeAxis:
    """Places of a record on the time axis: time of day for hours, minutes since the window's start for less."""

    def __init__(self, record: RunRecord) -> None:
        self.window_s = record.window_s
        self.short = record.window_s < 7200.0
        self.origin_s = 0.0 if self.short else record.day_start_s
        self.unit_s = 60.0 if self.short else 3600.0
        workload = record.scenario["workload"]
        path = workload.get("path") if isinstance(workload, Mapping) else None
        self.title = ("time since the window's start (min)" if self.short
                      else "time in the trace (h)" if path else "time of day (h; over 24 is the next day)"
                      if (record.day_start_s + record.window_s) > 25 * 3600 else "time of day (h)")

    @property
    def tick(self) -> float | None:
        """Distance of ticks that suits a day; None leaves it to the figure."""
        return 3.0 if not self.short and DAY_LIKE_S[0] <= self.window_s <= DAY_LIKE_S[1] else None

    def at(self, seconds: np.ndarray) -> np.ndarray:
        """Seconds since the window's start as places on the axis."""
        return np.round((self.origin_s + np.asarray(seconds)) / self.unit_s, 5)


def lean(values: Any) -> np.ndarray:
    """Figures for a page, as float32: half the size and still seven digits."""
    return np.asarray(values, np.float32)


def load_figure(records: Sequence[RunRecord]) -> Any:
    """Online arrivals, offline completions and requests waiting for their prefill, one curve a record.

    Args:
        records: one of each policy, with samples; arrivals are drawn once where all records share them.
    """
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=3, cols=1, shared_xaxes=True, vertical_spacing=0.05)
    colour, axis = colours([record.label for record in records]), TimeAxis(records[0])
    arrivals = [_binned(record, "online_arrivals_per_s") for record in records]
    shared = all(len(one[1]) == len(arrivals[0][1]) and np.allclose(one[1], arrivals[0][1]) for one in arrivals)
    for index, record in enumerate(records):
        name, line = record.label, {"color": colour[record.label], "width": 1.8}
        at, values = arrivals[index]
        if index == 0 or not shared:
            figure.add_scatter(x=axis.at(at), y=lean(values), mode="lines", row=1, col=1,
                               name="online arrivals" if shared else f"online arrivals, {name}",
                               line={**line, "color": "#444"} if shared else line)
        at, values = _binned(record, "offline_finished_per_s")
        figure.add_scatter(x=axis.at(at), y=lean(values), mode="lines", name=name, legendgroup=name, line=line, row=2,
                           col=1)
        at, waiting = _binned(record, "online_waiting", "offline_waiting")
        figure.add_scatter(x=axis.at(at), y=lean(waiting), mode="lines", name=name, legendgroup=name, line=line,
                           showlegend=False, row=3, col=1)
    for row, title in ((1, "online arrivals<br>(requests/s)"), (2, "offline completions<br>(requests/s)"),
                       (3, "waiting for prefill<br>(requests)")):
        figure.update_yaxes(title_text=title, rangemode="tozero", row=row, col=1)
    figure.update_xaxes(dtick=axis.tick)
    figure.update_xaxes(title_text=axis.title, row=3, col=1)
    return layout(figure, 700)


def latency_figure(records: Sequence[RunRecord], budget: float) -> Any:
    """P99 and P50 of TTFT and TPOT by arrival, with the SLO, and the share that violates, with the budget.

    What was unfinished at the run's end enters with the time it had waited by then, a lower bound.

    Args:
        records: one of each policy, with requests.
        budget: share of online requests that may violate.
    """
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=3, cols=1, shared_xaxes=True, vertical_spacing=0.05, row_heights=[0.37, 0.37, 0.26])
    colour, axis = colours([record.label for record in records]), TimeAxis(records[0])
    for record in records:
        edges, which, quality = online_quality(record)
        at = axis.at((edges[:-1] + edges[1:]) / 2)
        for row, key in ((1, "ttft_s"), (2, "tpot_s")):
            for share, dash, name in QUANTILES:
                figure.add_scatter(x=at, y=lean(_quantiles(quality[key], which, len(at), share)), mode="lines",
                                   name=f"{record.label} {name}", legendgroup=record.label, showlegend=row == 1,
                                   line={"color": colour[record.label], "dash": dash, "width": 1.8}, row=row, col=1)
        rate = 100 * _means(quality["violated"], which, len(at))
        figure.add_scatter(x=at, y=lean(rate), mode="lines", legendgroup=record.label, showlegend=False,
                           name=f"{record.label} violations", line={"color": colour[record.label], "width": 1.8},
                           row=3, col=1)
        marked = rate > 100 * budget
        figure.add_scatter(x=at[marked], y=lean(rate[marked]), mode="markers", legendgroup=record.label,
                           showlegend=False, name=f"{record.label} over the budget", row=3, col=1,
                           marker={"color": colour[record.label], "symbol": "x", "size": 5})
    ends = axis.at(np.array([0.0, records[0].window_s]))
    limits = [(row, slo[key], name) for name, slo in _slos(records[0]).items() for row, key in (
        (1, "ttft_s"), (2, "tpot_s"))]
    for index, (row, value, name) in enumerate([*limits, (3, 100 * budget, "budget")]):
        figure.add_scatter(x=ends, y=[value, value], mode="lines", name="SLO, violation budget", legendgroup="limit",
                           showlegend=index == 0, line={"color": LIMIT_COLOUR, "dash": "dash", "width": 1.6}, row=row,
                           col=1, hovertemplate=f"{name} {value:g}<extra></extra>")
    figure.update_yaxes(title_text="TTFT (s), log scale", type="log", row=1, col=1)
    figure.update_yaxes(title_text="TPOT (s per token), log scale", type="log", row=2, col=1)
    figure.update_yaxes(title_text="violating (%)", rangemode="tozero", row=3, col=1)
    figure.update_yaxes(dtick=1, minor={"showgrid": False}, tickformat="~g", row=1, col=1)
    figure.update_yaxes(tickformat="~g", dtick="D2", row=2, col=1)
    figure.update_xaxes(dtick=axis.tick)
    figure.update_xaxes(title_text=axis.title, row=3, col=1)
    return layout(figure, 860, top=90)


def _slos(record: RunRecord) -> dict[str, Mapping[str, Any]]:
    """The SLOs that online requests were held against, by name: of each class where the scenario names some."""
    classes, scenario = record.summary.get("classes", {}), record.scenario
    return {f"SLO of {name}": scenario["classes"][name] for name, one in classes.items() if one["online"]} or {
        "SLO": scenario["slo"]}


def instance_figure(records: Sequence[RunRecord]) -> Any:
    """Share of time that each instance spends on each kind of work, stacked, and the KV memory in use.

    One row of panels a record, one column an instance; of more than `MOST_INSTANCES`, the mean of each role.
    """
    from plotly.subplots import make_subplots

    shown = [_columns(record) for record in records]
    width = max(len(columns) for columns in shown)
    titles = [f"{record.label}: {columns[col][0]}" if col < len(columns) else "" for record, columns in
              zip(records, shown, strict=True) for col in range(width)]
    figure = make_subplots(rows=len(records), cols=width, shared_xaxes=True, shared_yaxes=True, subplot_titles=titles,
                           vertical_spacing=0.22 / max(1, len(records)), horizontal_spacing=0.04)
    axis, named = TimeAxis(records[0]), set()
    for row, (record, columns) in enumerate(zip(records, shown, strict=True), start=1):
        for col, (_, members) in enumerate(columns, start=1):
            parts = {work_name(key, record): _binned(record, key, members=members) for key in WORK
                     if key != "offline_prefill_share" or not record.class_blind}
            at = axis.at(next(iter(parts.values()))[0])
            busy = sum(100 * values for _, values in parts.values())
            areas = {name: 100 * values for name, (_, values) in parts.items()}
            for name, values in {**areas, "idle": np.maximum(0.0, 100.0 - busy)}.items():
                figure.add_scatter(x=at, y=lean(values), mode="lines", stackgroup=f"{row},{col}", name=name,
                                   legendgroup=name, showlegend=name not in named, fillcolor=WORK_COLOURS[name],
                                   row=row, col=col, line={"width": 0, "color": WORK_COLOURS[name]},
                                   hovertemplate=f"{name} %{{y:.1f}} %<extra></extra>")
                named.add(name)
            memory = 100 * _binned(record, "kv_share", members=members)[1]
            figure.add_scatter(x=at, y=lean(memory), mode="lines", name="KV memory in use", legendgroup="kv",
                               showlegend=row == col == 1, line={"color": KV_COLOUR, "width": 1.6}, row=row, col=col,
                               hovertemplate="KV memory %{y:.1f} %<extra></extra>")
        figure.update_yaxes(title_text="share (%)", row=row, col=1)
    figure.update_yaxes(range=[0, 102])
    figure.update_xaxes(dtick=axis.tick)
    figure.update_xaxes(title_text=axis.title, row=len(records))
    layout(figure, 130 + 230 * len(records), top=90)
    figure.update_layout(legend_y=1.0 + 40 / (230 * len(records)))
    return figure


def work_name(key: str, record: RunRecord) -> str:
    """What a share of the samples is called; a policy that knows no classes has one kind of prefill."""
    name = key.removesuffix("_share").replace("_", " ")
    return "prefill of either class" if record.class_blind and name == "online prefill" else name


def online_quality(record: RunRecord) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Times of the counted online requests, and in which bin of the window each arrived.

    Returns:
        Edges of the bins (b + 1,) in seconds since the window's start, the bin of each request (n,), and `ttft_s`,
        `tpot_s` and `violated`, each (n,). TPOT counts from the first token; it is NaN for single tokens and for what
        never began.
    """
    assert record.requests is not None
    mine = {key: values[record.requests["online"]] for key, values in record.requests.items()}
    first, steps = mine["first_token_s"], mine["output_tokens"] - 1.0
    ttft_s = np.where(np.isnan(first), record.end_s, first) - mine["arrival_s"]
    until = np.where(np.isnan(mine["finish_s"]), record.end_s, mine["finish_s"])
    tpot_s = np.where(steps > 0, (until - first) / np.maximum(steps, 1.0), np.nan)
    width = bin_s(record.window_s)
    edges = np.append(np.arange(0.0, record.window_s - 1e-9, width), record.window_s)
    which = np.clip((mine["arrival_s"] // width).astype(int), 0, len(edges) - 2)
    return edges, which, {"ttft_s": ttft_s, "tpot_s": tpot_s, "violated": mine["violated"].astype(bool)}


def _quantiles(values: np.ndarray, which: np.ndarray, bins: int, share: float) -> np.ndarray:
    """A quantile of each bin, NaN where it is empty: float64[bins]."""
    result = np.full(bins, np.nan)
    for place in range(bins):
        inside = values[which == place]
        inside = inside[~np.isnan(inside)]
        if inside.size:
            result[place] = np.quantile(inside, share)
    return result


def _means(flags: np.ndarray, which: np.ndarray, bins: int) -> np.ndarray:
    counts = np.bincount(which, minlength=bins)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(counts > 0, np.bincount(which, flags, minlength=bins) / counts, np.nan)


def _binned(record: RunRecord, *keys: str, members: Sequence[int] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Samples averaged over bins: middles of the bins, and the values; over instances, their mean where `members`
    names them, else their sum."""
    assert record.samples is not None
    ends = record.samples["t_s"]
    values = np.sum([record.samples[key] for key in keys], axis=0).astype(float)
    if values.ndim == 2:
        values = values.sum(axis=1) if members is None else values[:, list(members)].mean(axis=1)
    interval = float(ends[0]) if len(ends) == 1 else float(ends[1] - ends[0]) if len(ends) else 1.0
    width = max(bin_s(record.window_s), interval)
    which = ((ends - interval / 2) // width).astype(int)
    bins, place = np.unique(which, return_inverse=True)
    return (bins + 0.5) * width, np.bincount(place, values) / np.bincount(place) if len(ends) else values


def _columns(record: RunRecord) -> list[tuple[str, list[int]]]:
    """What the panels of a record show: each instance, or each role, with the instances it is the mean of."""
    roles = [one["role"] for one in record.summary["instances"]]
    if len(roles) <= MOST_INSTANCES:
        return [(f"instance {place} ({role})", [place]) for place, role in enumerate(roles)]
    return [(f"mean of {roles.count(role)} {role} instances",
             [place for place, one in enumerate(roles) if one == role]) for role in dict.fromkeys(roles)]


# --- Evaluations and training -----------------------------------------------------------------------------------------
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
            error = error_bars(row["mean"], row["ci_low"], row["ci_high"], factor=factor, thickness=2, width=7)
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
