"""Sections on load: generators beside their traces, Azure's published curves, and what one week says of the next."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.validity import refits
from experiments.validity.section import Context, Figures, Missing, Section, percent, read_csv, signed, table
from ooco_gym.report import joined, minus, number
from ooco_gym.report.svg import Axis, Panel, Series
from ooco_gym.workload.describe import counts_in_windows, ks_lengths, likeness, play, rank_correlation
from ooco_gym.workload.fitting import fit
from ooco_gym.workload.generate import WorkloadSpec, load_spec
from ooco_gym.workload.sample import Sample, read_sample
from ooco_gym.workload.sharing import Chat

SEED, PEAK_RUNS, MOST_SEEDS, SHOWN = 11, 12, 100, 80
PEAKS_S, FEWEST = (60.0, 600.0), 3
SIDES = ("prompt", "output")


class Pair(NamedTuple):
    """An embedded workload and the file that it was fitted to."""

    workload: str
    file: str


PAIRS = (Pair("azure_conv_2023", "azure_conv_2023.parquet"), Pair("mooncake", "mooncake_conversation_dev.parquet"),
         Pair("sharegpt", "sharegpt_8k_lengths.parquet"), Pair("lmsys", "lmsys_vicuna13b_output_lengths.parquet"))


def measure_generators(context: Context) -> dict[str, Any]:
    """Plays each workload over its trace's span and measures both in the same way."""
    paths = [context.file(f"traces/{pair.file}") for pair in PAIRS]
    return {"workloads": [_compared(pair, path) for pair, path in zip(PAIRS, paths, strict=True)],
            "refitted": {"name": PAIRS[0].workload, **_refitted(read_sample(paths[0]))}}


def _refitted(sample: Sample) -> dict[str, Any]:
    """What `ooco-gym workload fit` makes of a trace today."""
    report = fit(sample, name="refitted", source=sample.name).report
    return {"form": report["form"], "arrivals": report["arrivals"],
            "ks": {side: report["lengths"][side]["ks"] for side in SIDES}}


def _compared(pair: Pair, path: Path) -> dict[str, Any]:
    sample, spec = read_sample(path), load_spec(pair.workload)
    return {"name": pair.workload, "requests": sample.requests, "arrivals": _arrivals(sample, spec),
            "lengths": {side: _lengths(getattr(sample, f"{side}_tokens"), getattr(spec.lengths, side))
                        for side in SIDES},
            "rank_correlation": _correlation(sample), "rank_correlation_model": spec.lengths.correlation}


def _arrivals(sample: Sample, spec: WorkloadSpec) -> dict[str, Any] | None:
    if sample.trace is None:
        return None
    arrival_s = sample.trace.arrival_s
    chat = spec.sharing if isinstance(spec.sharing, Chat) else None
    alike = likeness(spec.arrivals, arrival_s, SEED, most=MOST_SEEDS, chat=chat).describe()
    start_s, span_s = float(arrival_s[0]), float(np.ptp(arrival_s))
    runs = [play(spec.arrivals, start_s, span_s, SEED + number, chat) for number in range(PEAK_RUNS)]
    peaks = {}
    for window_s in (window_s for window_s in PEAKS_S if span_s >= FEWEST * window_s):
        values = [_peak(run, window_s) for run in runs]
        peaks[f"{window_s:g}"] = {"trace": _peak(arrival_s, window_s), "model": float(np.mean(values)),
                                  "model_low": float(np.min(values)), "model_high": float(np.max(values))}
    gaps = {"trace": np.diff(arrival_s), "model": np.concatenate([np.diff(run) for run in runs])}
    return {**alike, "span_s": span_s, "peaks": peaks, "batch_s": spec.arrivals.batch_s,
            "gaps": {name: _quantiles(values) for name, values in gaps.items()}}


def _peak(arrival_s: np.ndarray, window_s: float) -> float:
    counts = counts_in_windows(arrival_s, window_s)
    return float(counts.max() / counts.mean())


def _lengths(measured: np.ndarray | None, model: Any) -> dict[str, Any] | None:
    if measured is None:
        return None
    drawn = model.at((np.arange(20_000) + 0.5) / 20_000)
    return {"ks": ks_lengths(model, measured, SEED), "mean": float(measured.mean()), "mean_model": float(drawn.mean()),
            "trace": _quantiles(measured), "model": _quantiles(drawn)}


def _quantiles(values: np.ndarray) -> list[float]:
    return np.quantile(values, np.linspace(0.0, 1.0, SHOWN), method="inverted_cdf").tolist()


def _correlation(sample: Sample) -> float | None:
    if sample.prompt_tokens is None or sample.output_tokens is None:
        return None
    return rank_correlation(sample.prompt_tokens, sample.output_tokens)


def write_generators(figures: Figures) -> str:
    """Tables of arrivals and of lengths."""
    found = figures["workloads"]
    arrivals = [[f"`{item['name']}`", f"{item['requests']:,}", f"{item['arrivals']['ks_gaps']:.3f}",
                 f"{item['arrivals']['ks_counts']:.3f}", *_peaks(item["arrivals"]), _worst_ratio(item["arrivals"])]
                for item in found if item["arrivals"]]
    windows = list(dict.fromkeys(window for item in found if item["arrivals"]
                                 for window in item["arrivals"]["dispersion"]))
    spread = [[f"`{item['name']}`", *(_dispersion(item["arrivals"]["dispersion"].get(window)) for window in windows)]
              for item in found if item["arrivals"]]
    lengths = [[f"`{item['name']}`", side, number(one["mean"], 4), number(one["mean_model"], 4), f"{one['ks']:.3f}"]
               for item in found for side in SIDES if (one := item["lengths"][side])]
    return "\n\n".join([
        f"The trace's own span, played by up to {MOST_SEEDS} seeds (peaks: {PEAK_RUNS}); **KS** is Kolmogorov and "
        "Smirnov's distance, dispersion the variance over the mean of counts in windows (1 for a Poisson process). "
        "Peaks are the busiest window over the mean, trace against generator (least to most of the seeds).",
        table(["workload", "requests", "KS of gaps", "KS of counts, 0.5–3 s", "peak/mean 1 min", "peak/mean 10 min",
               "dispersion, worst ratio"], arrivals), *_off(found),
        _again(figures["refitted"]),
        "Index of dispersion by window, trace → generator:",
        table(["workload", *(f"{window} s" for window in windows)], spread),
        "Lengths (`sharegpt` and `lmsys` have no arrivals in public, so theirs are an assumption, as are the prompts "
        "of `lmsys`):",
        table(["workload", "side", "mean, trace", "mean, generator", "KS"], lengths)])


def _peaks(arrivals: Figures) -> list[str]:
    known = [arrivals["peaks"].get(f"{window_s:g}") for window_s in PEAKS_S]
    return [f"{item['trace']:.2f} / {item['model']:.2f} ({item['model_low']:.2f}–{item['model_high']:.2f})"
            if item else "–" for item in known]


def _again(refitted: Figures) -> str:
    window, ratio = _farthest(refitted["arrivals"])
    return (f"`ooco-gym workload fit` on the trace of `{refitted['name']}` today: form `{refitted['form']}`, KS of "
            f"gaps {refitted['arrivals']['ks_gaps']:.3f}, of lengths {max(refitted['ks'].values()):.3f}, dispersion at "
            f"most {abs(100 * (ratio - 1)):.0f} % off ({window} s).")


def _off(found: list[dict[str, Any]]) -> list[str]:
    """Where the dispersion is more than a tenth off, in a sentence."""
    said = []
    for item in found:
        windows = [window for window, one in (item["arrivals"] or {"dispersion": {}})["dispersion"].items()
                   if one["ratio"] is None or abs(one["ratio"] - 1) > 0.1]
        if windows:
            said.append(f"**Off:** the dispersion of `{item['name']}` differs by more than 10 % in windows of "
                        f"{joined(windows)} s.")
    return said


def _worst_ratio(arrivals: Figures) -> str:
    window, ratio = _farthest(arrivals)
    return f"{ratio:.2f} at {window} s"


def _farthest(arrivals: Figures) -> tuple[str, float]:
    known = {window: item["ratio"] for window, item in arrivals["dispersion"].items() if item["ratio"]}
    window = max(known, key=lambda key: abs(np.log(known[key])))
    return window, known[window]


def _dispersion(item: Figures | None) -> str:
    return f"{item['trace']:.3g} → {item['model']:.3g}" if item else "–"


def draw_generators(figures: Figures) -> list[Panel]:
    """Dispersion, gaps, and both lengths, trace and generator."""
    found = figures["workloads"]
    arriving = [item for item in found if item["arrivals"]]
    share = np.linspace(0.0, 1.0, SHOWN).tolist()
    spread, gaps = [], []
    for index, item in enumerate(arriving):
        arrivals = item["arrivals"]
        windows = [float(window) for window in arrivals["dispersion"]]
        for style, key in (("line", "trace"), ("dashes", "model")):
            name = item["name"] if key == "trace" else "generator"
            spread.append(Series(name, windows, [one[key] for one in arrivals["dispersion"].values()], style,
                                 colour=index))
            gaps.append(Series(name, arrivals["gaps"][key], share, style, colour=index))
    panels = [Panel("Index of dispersion", Axis("window (s)", log=True), Axis("variance / mean", log=True), spread),
              Panel("Gaps between arrivals", Axis("gap (s)", log=True, limits=(0.001, 10)), Axis("share at or below"),
                    gaps)]
    for side in SIDES:
        series = []
        for index, item in enumerate(found):
            one = item["lengths"][side]
            if one:
                series += [Series(item["name"], one["trace"], share, "line", colour=index),
                           Series("", one["model"], share, "dashes", colour=index)]
        panels.append(Panel(f"{side.capitalize()} tokens (dashes: generator)",
                            Axis("tokens", log=True, limits=(10, 100_000) if side == "prompt" else (1, 3000)),
                            Axis("share at or below"), series))
    return panels


def glance_generators(figures: Figures) -> list[tuple[str, str, str]]:
    """Acceptance of the load: azure_conv_2023 as embedded, and fitted anew."""
    embedded = next(item for item in figures["workloads"] if item["name"] == figures["refitted"]["name"])
    again = figures["refitted"]
    wanted = "≤ 0.03, ≤ 0.03, within 10 %"
    rows = []
    for title, arrivals, lengths in (
            ("embedded", embedded["arrivals"], [embedded["lengths"][side]["ks"] for side in SIDES]),
            ("fitted anew", again["arrivals"], list(again["ks"].values()))):
        window, ratio = _farthest(arrivals)
        rows.append((f"`{again['name']}` ({title}): KS of gaps, KS of lengths, dispersion from 1 to 300 s",
                     f"{arrivals['ks_gaps']:.3f}, {max(lengths):.3f}, at most {abs(100 * (ratio - 1)):.0f} % off "
                     f"({window} s)", wanted))
    return rows


DAY_RUNS, DRAWS = 3, 100_000
DAY_S, LIMIT = 86_400.0, 10.0
SERVICES = {"conv": 2, "code": 4}
"""Service, and the day of its week that the embedded workload is: Tuesday (the weeks begin on Sunday and Friday)."""


def measure_curves(context: Context) -> dict[str, Any]:
    """Compares the day's course and the lengths of both services."""
    found = {}
    for service, day in SERVICES.items():
        files = {key: context.file(f"traces/azure_2024_{service}_{key}_digitised.csv")
                 for key in ("rate", *(f"{side}_cdf" for side in SIDES))}
        spec = load_spec(f"azure_{service}")
        found[f"azure_{service}"] = {
            "rate": _rates(read_csv(files["rate"]), day, spec.arrivals),
            **{side: _curve_lengths(read_csv(files[f"{side}_cdf"]), getattr(spec.lengths, side)) for side in SIDES}}
    return {"workloads": found}


def _rates(curve: dict[str, np.ndarray], day: int, arrivals: Any) -> dict[str, Any]:
    """The Tuesday of the curve and of the generator in the curve's own bins."""
    inside = (curve["t_s"] >= day * DAY_S) & (curve["t_s"] < (day + 1) * DAY_S)
    at_s, rate = curve["t_s"][inside] - day * DAY_S, curve["rate_rps"][inside]
    step_s = float(np.median(np.diff(curve["t_s"])))
    edges = np.concatenate([at_s - step_s / 2, [at_s[-1] + step_s / 2]]).clip(0.0, DAY_S)
    width = np.diff(edges)
    runs, minutes = [], []
    for seed in range(DAY_RUNS):
        arrival_s = play(arrivals, 0.0, DAY_S, SEED + seed)
        runs.append(np.diff(np.searchsorted(arrival_s, edges)) / width)
        minutes.append(np.diff(np.searchsorted(arrival_s, np.arange(0.0, DAY_S + 1, 60.0))) / 60.0)
    played = np.array(runs)
    relative = played / played.mean(axis=1, keepdims=True) / (rate / rate.mean()) - 1.0
    return {
        "mean": float(rate.mean()), "mean_model": float(played.mean()), "step_s": step_s,
        "peak": float(rate.max() / rate.mean()), "peak_model": float(np.mean(played.max(1) / played.mean(1))),
        "trough": float(rate.min() / rate.mean()), "trough_model": float(np.mean(played.min(1) / played.mean(1))),
        "peak_minute": float(curve["hi_rpm"][inside].max() / 60 / rate.mean()),
        "peak_minute_model": float(np.mean([item.max() / item.mean() for item in minutes])),
        "rms_percent": 100.0 * float(np.sqrt(np.mean(relative ** 2))),
        "curve": _hourly(at_s, rate), "model": _hourly(at_s, played[0])}


def _hourly(at_s: np.ndarray, rate: np.ndarray) -> list[float]:
    """Means by hour, for the plot."""
    hour = (at_s // 3600).astype(int)
    return (np.bincount(hour, rate, minlength=24) / np.maximum(np.bincount(hour, minlength=24), 1)).tolist()


def _curve_lengths(curve: dict[str, np.ndarray], model: Any) -> dict[str, Any]:
    """Distance beyond what the curve's own width leaves open, as it is and with the generator's mean moved back."""
    drawn = np.sort(model.at((np.arange(DRAWS) + 0.5) / DRAWS).astype(np.float64))
    order = np.argsort(curve["tokens"], kind="stable")
    tokens, middle = curve["tokens"][order], np.maximum.accumulate(curve["F_mid"][order].clip(0, 100)) / 100
    low, high = (curve[key][order].clip(0, 100) / 100 for key in ("F_lo", "F_hi"))
    mean = float(np.sum(np.diff(tokens, prepend=0.0) * (1.0 - np.concatenate([[0.0], middle[:-1]]))))
    share = np.linspace(0.0, 1.0, SHOWN)
    return {"point": _point(tokens), "mean": mean, "mean_model": float(drawn.mean()),
            "ks": _distance(tokens, low, high, drawn),
            "ks_moved": _distance(tokens, low, high, drawn * mean / drawn.mean()),
            "curve": np.interp(share, middle, tokens).tolist(), "model": np.quantile(drawn, share).tolist()}


def _distance(tokens: np.ndarray, low: np.ndarray, high: np.ndarray, drawn: np.ndarray) -> float:
    """The largest distance of a sample's distribution function from a band, half a point's width to either side."""
    half = _point(tokens) / 2
    above = np.searchsorted(drawn, tokens - half, side="right") / len(drawn) - high
    below = low - np.searchsorted(drawn, tokens + half, side="right") / len(drawn)
    return float(max(0.0, above.max(), below.max()))


def _point(tokens: np.ndarray) -> float:
    """Tokens between two points of a digitised curve: nearer than that it says nothing."""
    return float(np.median(np.diff(np.unique(tokens))))


def write_curves(figures: Figures) -> str:
    """Tables of the day's course and of lengths."""
    found = figures["workloads"]
    rates = [[f"`{name}`", *(f"{item['rate'][key]:.2f} / {item['rate'][f'{key}_model']:.2f}"
                             for key in ("peak", "trough", "peak_minute")), percent(item["rate"]["rms_percent"])]
             for name, item in found.items()]
    lengths = [[f"`{name}`", side, f"{number(one['mean'], 4)} / {number(one['mean_model'], 4)}", f"{one['ks']:.3f}",
                f"{one['ks_moved']:.3f}", f"{one['point']:.0f}"]
               for name, item in found.items() for side in SIDES for one in [item[side]]]
    return "\n\n".join([
        "The week itself is an external download; its plots were digitised. Curve against generator on the Tuesday "
        "that both workloads are. Gaps and dispersion of this week are not in the curves, so `azure_code`'s bursts of "
        "seconds are an assumption.",
        table(["workload", "peak/mean, 7 min", "trough/mean, 7 min", "peak/mean, 1 min", "RMS difference, 7 min"],
              rates), *_higher(found),
        "Lengths: the generators keep the curves' shape, but OOCO's Table 5 means; *moved* is the distance with the "
        "mean moved back to the curve's. A point of the plot is some tokens wide, and distances count beyond it.",
        table(["workload", "side", "mean tokens, curve / generator", "KS", "KS, mean moved", "a point, tokens"],
              lengths)])


def _higher(found: Figures) -> list[str]:
    """Where a generator's peaks are more than a tenth from the curve's, in a sentence."""
    said = []
    for name, item in found.items():
        off = {title: 100 * (item["rate"][f"{key}_model"] / item["rate"][key] - 1)
               for key, title in (("peak", "in 7 minutes"), ("peak_minute", "in 1 minute"))}
        if any(abs(value) > LIMIT for value in off.values()):
            said.append(f"**Off:** the peaks of `{name}` are " + ", ".join(
                f"{signed(value, 0)} {title}" for title, value in off.items()) + " from the curve's.")
    return said


def draw_curves(figures: Figures) -> list[Panel]:
    """The day, and the lengths."""
    panels = []
    share = np.linspace(0.0, 1.0, SHOWN).tolist()
    hours = [hour + 0.5 for hour in range(24)]
    for index, (name, item) in enumerate(figures["workloads"].items()):
        rate = item["rate"]
        panels.append(Panel(f"{name}: a Tuesday, by the hour", Axis("hour (UTC)", limits=(0, 24)),
                            Axis("requests/s"), [Series("published curve", hours, rate["curve"], colour=index),
                                                 Series("generator", hours, rate["model"], "dashes", colour=-1)]))
    for side in SIDES:
        series = []
        for index, (name, item) in enumerate(figures["workloads"].items()):
            series += [Series(name, item[side]["curve"], share, colour=index),
                       Series("", item[side]["model"], share, "dashes", colour=index)]
        panels.append(Panel(f"{side.capitalize()} tokens (dashes: generator)",
                            Axis("tokens", limits=(0, 8000 if side == "prompt" else 800)), Axis("share at or below"),
                            series))
    return panels


HOUR_S, STEP_S, WEEK_HOURS = 3600.0, 600, 168
SILENT = 0.01
"""Share of the mean rate below which ten minutes count as not recorded."""
SERVEGEN = ("language/m-large", "language/m-mid", "language/m-small")
AZURE = ("conv", "code")


def measure_tides(context: Context) -> dict[str, Any]:
    """Hourly rates relative to their mean, and how well one period's predict the next one's."""
    azure = {f"azure_2024_{service}": _days(read_csv(context.file(f"traces/azure_2024_{service}_rate_digitised.csv")))
             for service in AZURE}
    root = context.folders("servegen")[-1]
    weeks = {}
    for name in SERVEGEN:
        files = sorted((root / "data" / name).glob("chunk-*-trace.csv"))
        if not files:
            raise Missing(f"`servegen=` has no `data/{name}/chunk-*-trace.csv`")
        context.rest_on(f"servegen/data/{name}/chunk-*-trace.csv ({len(files)} files)", files)
        weeks[name] = _weeks(_total(files))
    return {"days": azure, "weeks": weeks}


def said(before: np.ndarray, after: np.ndarray) -> float:
    """R² of the next period's rates where the last one's, both relative to their means, are the prediction.

    1: the same course; 0: no better than a flat one; below 0: worse than that.
    """
    before, after = before / before.mean(), after / after.mean()
    return 1.0 - float(np.sum((after - before) ** 2) / np.sum((after - 1.0) ** 2))


def _days(curve: dict[str, np.ndarray]) -> dict[str, Any]:
    """R² from each day of the week to the next."""
    hour = (curve["t_s"] // HOUR_S).astype(int)
    hourly = np.bincount(hour, curve["rate_rps"]) / np.maximum(np.bincount(hour), 1)
    days = hourly[:7 * 24].reshape(-1, 24)
    return {"r2": [said(a, b) for a, b in pairwise(days)]}


def _total(files: list[Path]) -> np.ndarray:
    """Requests per second of all clients, in steps of ten minutes."""
    total: dict[int, float] = {}
    for path in files:
        for line in path.read_text(encoding="utf-8").splitlines():
            step, rate = line.split(",")[:2]
            total[int(float(step)) // STEP_S] = total.get(int(float(step)) // STEP_S, 0.0) + float(rate or 0.0)
    return np.array([total.get(step, 0.0) for step in range(max(total) + 1)])


def _weeks(rate: np.ndarray) -> dict[str, Any]:
    """Two weeks by the hour; hours in which either week has ten minutes all but without requests are left out."""
    steps = rate[:len(rate) // (6 * WEEK_HOURS) * (6 * WEEK_HOURS)].reshape(-1, WEEK_HOURS, 6)
    if len(steps) < 2:
        raise Missing("`servegen=` has less than two weeks")
    known = (steps[:2] > SILENT * steps.mean()).all(axis=(0, 2))
    first, second = (week.mean(axis=1) / week[known].mean() for week in steps[:2])
    return {"r2": said(first[known], second[known]), "hours": int(known.sum()),
            "r2_line": float(np.corrcoef(first[known], second[known])[0, 1] ** 2),
            "first": np.where(known, first, np.nan).tolist(), "second": np.where(known, second, np.nan).tolist()}


def write_tides(figures: Figures) -> str:
    """One table."""
    rows = [[f"ServeGen `{name}`", f"week to week, {item['hours']} of {WEEK_HOURS} hours", minus(f"{item['r2']:.2f}"),
             f"{item['r2_line']:.2f}"] for name, item in figures["weeks"].items()]
    rows += [[f"`{name}`", "day to day within a week", minus(f"{min(item['r2']):.2f} to {max(item['r2']):.2f}"), "–"]
             for name, item in figures["days"].items()]
    return "\n\n".join([
        "Hourly rates of one period, relative to their mean, taken as the prediction of the next (R²: 1 the same, 0 no "
        "better than a flat line, negative worse), and the R² of the best straight line between them. A tide must not "
        "be taken for granted: policies should be judged on weeks that they were not tuned on (`drift` of a workload "
        "gives such weeks). Hours with ten minutes below 1 % of the mean rate count as not recorded. (ServeGen: github "
        "alibaba/ServeGen, rates of clients summed.)",
        table(["service", "from … to", "R² as prediction", "R² of a line"], rows)])


def draw_tides(figures: Figures) -> list[Panel]:
    """The two weeks of two services of ServeGen."""
    hours = list(range(WEEK_HOURS))
    return [Panel(f"ServeGen {name}: hourly rate over the week's mean", Axis("hour of the week", limits=(0, 168),
                  ticks=[(24 * day, f"day {day + 1}") for day in range(7)]), Axis(),
                  [Series(f"{week} week", hours, [np.nan if rate is None else rate for rate in item[week]],
                          colour=index) for index, week in enumerate(("first", "second"))])
            for name, item in list(figures["weeks"].items())[:2]]


def glance_tides(figures: Figures) -> list[tuple[str, str, str]]:
    """One week against the next."""
    values = [item["r2"] for item in figures["weeks"].values()]
    return [("What one week's tide says of the next (ServeGen, R² as prediction)",
             minus(f"{min(values):.2f} to {max(values):.2f}"), "near zero")]


SECTIONS = refits.SECTIONS | {
    "generators": Section(210, "Generators beside their traces",
                          measure_generators, write_generators, draw_generators, glance_generators),
    "curves": Section(220, "Azure 2024 beside its published curves", measure_curves, write_curves, draw_curves),
    "tides": Section(230, "What one week's tide says of the next",
                     measure_tides, write_tides, draw_tides, glance_tides),
}
