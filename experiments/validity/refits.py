"""Sections on fitting load: what caches find by their size, and what a fit makes of bursts, clocks and slow drifts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from experiments.validity.section import Context, Figures, Section, table
from ooco_gym.report import joined
from ooco_gym.report.svg import Axis, Panel, Series
from ooco_gym.workload.arrivals import WEEK_S
from ooco_gym.workload.describe import likeness
from ooco_gym.workload.fitting import fit
from ooco_gym.workload.generate import generate, load_spec
from ooco_gym.workload.reading import read_trace
from ooco_gym.workload.reuse import curve_sizes, hit_rates
from ooco_gym.workload.sample import Sample, sample_of
from ooco_gym.workload.trace import Trace

SEEDS, SEED = 12, 11
SHARED = "traces/mooncake_conversation_dev.parquet"
MILLION = 1e6


def measure_reuse(context: Context) -> dict[str, Any]:
    """The hit-rate curve of Mooncake's trace beside the embedded generator's, and of a half that was not fitted."""
    trace = read_trace(context.file(SHARED))
    half_s = float(trace.arrival_s[-1]) / 2
    first, second = trace.slice_time(0.0, half_s), trace.slice_time(half_s, np.inf).shift(-half_s)
    fitted = fit(sample_of(first), name="half", source=trace.name)
    return {"requests": len(trace), "half_s": half_s,
            "whole": _curves(trace, "mooncake"), "unseen": _curves(second, fitted.spec)}


def _curves(trace: Trace, spec: Any) -> dict[str, Any]:
    sizes = curve_sizes(trace)
    span_s = float(trace.arrival_s[-1] - trace.arrival_s[0])
    runs = np.array([hit_rates(generate(spec, duration_s=span_s, seed=SEED + number), sizes)
                     for number in range(SEEDS)])
    return {"tokens": sizes, "trace": hit_rates(trace, sizes), "model": runs.mean(axis=0).tolist(),
            "low": runs.min(axis=0).tolist(), "high": runs.max(axis=0).tolist()}


def write_reuse(figures: Figures) -> str:
    """One table."""
    whole, unseen = figures["whole"], figures["unseen"]
    rows = []
    for index, size in enumerate(whole["tokens"]):
        other = ([f"{unseen['trace'][index]:.3f}", f"{unseen['model'][index]:.3f}"]
                 if index < len(unseen["tokens"]) else ["–", "–"])
        rows.append([f"{size / MILLION:.2f}", f"{whole['trace'][index]:.3f}",
                     f"{whole['model'][index]:.3f} ({whole['low'][index]:.3f}–{whole['high'][index]:.3f})", *other])
    return "\n\n".join([
        f"The share of prompt tokens that one LRU cache of prefixes holds, by its size, on Mooncake's conversations "
        f"({figures['requests']:,} requests; blocks of 512 tokens; prompts alone take memory). The generator is "
        f"`mooncake` as embedded, the mean of {SEEDS} seeds (least to most). The last two columns are a fit to the "
        f"first {figures['half_s'] / 60:.0f} minutes beside the other ones, which it has not seen.",
        table(["cache, million tokens", "trace", "`mooncake`", "second half", "fitted to the first"], rows),
        f"Farthest apart: {_farthest(whole):.3f} as embedded, {_farthest(unseen):.3f} on the unseen half."])


def _farthest(curves: Figures) -> float:
    return float(np.max(np.abs(np.asarray(curves["model"]) - np.asarray(curves["trace"]))))


def draw_reuse(figures: Figures) -> list[Panel]:
    """Both curves."""
    panels = []
    for title, key, model in (("As embedded", "whole", "mooncake"), ("A half that was not fitted", "unseen", "fitted")):
        item = figures[key]
        panels.append(Panel(title, Axis("cache (tokens)", log=True), Axis("share of prompt tokens found"), [
            Series("trace", item["tokens"], item["trace"]),
            Series(model, item["tokens"], item["model"], "dashes", colour=1)]))
    return panels


def glance_reuse(figures: Figures) -> list[tuple[str, str, str]]:
    """How far the curves are apart."""
    return [("LRU hit rates by cache size, `mooncake` beside its trace; a fit beside a half that it has not seen",
             f"at most {_farthest(figures['whole']):.3f}, {_farthest(figures['unseen']):.3f} apart", "–")]


CODE = "traces/AzureLLMInferenceTrace_code.csv"
TRACES = {"azure_code_2023": CODE, "azure_conv_2023": "traces/azure_conv_2023.parquet",
          "ServeGen DeepSeek-R1, 22 h": "traces/servegen_r1_21h40_thin10.parquet",
          "ServeGen m-large, 24 h": "traces/servegen_mlarge_24h_thin1pct.parquet"}
MADE = "made, 3 weeks that drift"
DRIFTING = {"name": "drifting", "mean_rate_per_s": 0.04, "drift": {"sigma": 0.5},
            "tide": [1.0 + 0.4 * np.sin(2 * np.pi * hour / 24) for hour in range(24)],
            "lengths": {"prompt": {"constant": 100}, "output": {"constant": 10}}}
SHORT_S = 60.0


def measure_refits(context: Context) -> dict[str, Any]:
    """What `ooco-gym workload fit` makes of traces with bursts, clocks, tides and drifts."""
    paths = {name: context.file(path) for name, path in TRACES.items()}
    found = {name: _refitted(sample_of(read_trace(path))) for name, path in paths.items()}
    made = generate(load_spec(DRIFTING), duration_s=3 * WEEK_S, seed=SEED)
    return {"fits": found | {MADE: _refitted(sample_of(made))}}


def _refitted(sample: Sample) -> dict[str, Any]:
    assert sample.trace is not None
    fitted = fit(sample, name="refitted", source=sample.name)
    arrivals = load_spec(fitted.spec).arrivals
    smooth = None
    if arrivals.batch_jitter_s:
        smooth = likeness(replace(arrivals, batch_s=0.0, batch_jitter_s=0.0), sample.trace.arrival_s, SEED).ks_gaps
    return {"requests": sample.requests, "form": fitted.report["form"], "arrivals": fitted.report["arrivals"],
            "batch_s": arrivals.batch_s, "ks_without_clock": smooth, "drift": arrivals.drift,
            "tide": len(set(arrivals.tide)) > 1}


def write_refits(figures: Figures) -> str:
    """One table, and where it is off."""
    rows, off = [], []
    for name, item in figures["fits"].items():
        title = f"`{name}`" if " " not in name else name
        short, long = ({window: one["ratio"] for window, one in item["arrivals"]["dispersion"].items()
                        if one["ratio"] and (float(window) <= SHORT_S) == wanted} for wanted in (True, False))
        rows.append([title, f"{item['requests']:,}", _form(item), f"{item['arrivals']['ks_gaps']:.3f}",
                     _worst(short), _worst(long)])
        if item["ks_without_clock"] is not None:
            off.append(f"Without the clock of {item['batch_s']:g} s the KS of gaps of {title} is "
                       f"{item['ks_without_clock']:.3f}.")
        far = [window for window, ratio in (short | long).items() if abs(ratio - 1) > 0.2]
        if far:
            off.append(f"**Off:** the dispersion of {title} differs by more than 20 % in windows of {joined(far)} s.")
    return "\n\n".join([
        "`ooco-gym workload fit` on traces with bursts switched on and off, tides and drifts, judged by seeds that the "
        "fit has not used: the gaps, and the index of dispersion, generator over trace. (A trace is one realisation: "
        "its own dispersion over 300 s rests on as many windows as fit its span, 11 in an hour.)",
        table(["trace", "requests", "form", "KS of gaps", "dispersion, worst ratio to 60 s", "beyond"], rows), *off])


def _form(item: Figures) -> str:
    parts = [f"`{item['form']}`", *(["tide"] if item["tide"] else []),
             *([f"drift {item['drift']:.2f}"] if item["drift"] else []),
             *([f"clock of {item['batch_s']:g} s"] if item["batch_s"] else [])]
    return ", ".join(parts)


def _worst(ratios: dict[str, float]) -> str:
    if not ratios:
        return "–"
    window = max(ratios, key=lambda key: abs(np.log(ratios[key])))
    return f"{ratios[window]:.2f} at {window} s"


def glance_refits(figures: Figures) -> list[tuple[str, str, str]]:
    """Gaps of an on/off trace, dispersion of one that drifts."""
    code, made = figures["fits"]["azure_code_2023"], figures["fits"][MADE]
    ratios = [one["ratio"] for one in made["arrivals"]["dispersion"].values() if one["ratio"]]
    return [("`azure_code_2023` (on/off) fitted: KS of gaps; three weeks that drift fitted: dispersion to 300 s",
             f"{code['arrivals']['ks_gaps']:.3f}; {min(ratios):.2f} to {max(ratios):.2f} of the trace's",
             "–; 0.8 to 1.2")]


SECTIONS = {
    "reuse": Section(212, "What caches find by their size", measure_reuse, write_reuse, draw_reuse, glance_reuse),
    "refits": Section(214, "What a fit makes of bursts, clocks and drifts", measure_refits, write_refits, None,
                      glance_refits),
}
