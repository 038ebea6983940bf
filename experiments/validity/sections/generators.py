"""The embedded workloads beside the traces that they were fitted to: gaps, dispersion, peaks, lengths."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.validity.markdown import joined, number, table
from experiments.validity.section import Context, Figures, Section
from experiments.validity.svg import Axis, Panel, Series
from ooco_gym.workload.describe import counts_in_windows, rank_correlation
from ooco_gym.workload.fitting import fit
from ooco_gym.workload.likeness import ks_lengths, likeness, play
from ooco_gym.workload.sample import Sample, read_sample
from ooco_gym.workload.sessions import Chat
from ooco_gym.workload.spec import WorkloadSpec, load_spec

SEED, RUNS, MOST_SEEDS, SHOWN = 11, 12, 100, 80
PEAKS_S, FEWEST = (60.0, 600.0), 3
SIDES = ("prompt", "output")


class Pair(NamedTuple):
    """An embedded workload and the file that it was fitted to."""

    workload: str
    file: str


PAIRS = (Pair("azure_conv_2023", "azure_conv_2023.parquet"), Pair("mooncake", "mooncake_conversation_dev.parquet"),
         Pair("sharegpt", "sharegpt_8k_lengths.parquet"), Pair("lmsys", "lmsys_vicuna13b_output_lengths.parquet"))


def measure(context: Context) -> dict[str, Any]:
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
    runs = [play(spec.arrivals, start_s, span_s, SEED + number, chat) for number in range(RUNS)]
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


def write(figures: Figures) -> str:
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
        f"The trace's own span, played by up to {MOST_SEEDS} seeds (peaks: {RUNS}); **KS** is Kolmogorov and Smirnov's "
        "distance, dispersion the variance over the mean of counts in windows (1 for a Poisson process). Peaks are the "
        "busiest window over the mean, trace against generator (least to most of the seeds).",
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


def draw(figures: Figures) -> list[Panel]:
    """Dispersion, gaps, and both lengths, trace and generator."""
    found = figures["workloads"]
    arriving = [item for item in found if item["arrivals"]]
    share = np.linspace(0.0, 1.0, SHOWN).tolist()
    spread, gaps = [], []
    for place, item in enumerate(arriving):
        arrivals = item["arrivals"]
        windows = [float(window) for window in arrivals["dispersion"]]
        for style, key in (("line", "trace"), ("dashes", "model")):
            name = item["name"] if key == "trace" else "generator"
            spread.append(Series(name, windows, [one[key] for one in arrivals["dispersion"].values()], style,
                                 colour=place))
            gaps.append(Series(name, arrivals["gaps"][key], share, style, colour=place))
    panels = [Panel("Index of dispersion", Axis("window (s)", log=True), Axis("variance / mean", log=True), spread),
              Panel("Gaps between arrivals", Axis("gap (s)", log=True, limits=(0.001, 10)), Axis("share at or below"),
                    gaps)]
    for side in SIDES:
        series = []
        for place, item in enumerate(found):
            one = item["lengths"][side]
            if one:
                series += [Series(item["name"], one["trace"], share, "line", colour=place),
                           Series("", one["model"], share, "dashes", colour=place)]
        panels.append(Panel(f"{side.capitalize()} tokens (dashes: generator)",
                            Axis("tokens", log=True, limits=(10, 100_000) if side == "prompt" else (1, 3000)),
                            Axis("share at or below"), series))
    return panels


def glance(figures: Figures) -> list[tuple[str, str, str]]:
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


SECTION = Section(210, "Generators beside their traces", measure, write, draw, glance)
