"""Sections on kernels: each chip and form, kernel switches, other engines' versions, and known bad data."""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.validity.section import (
    CASES,
    Context,
    Figures,
    Missing,
    Section,
    all_calibrated,
    by_shape,
    details,
    errors,
    everything,
    of_device,
    operators,
    percent,
    signed,
    table,
)
from ooco_gym.calibrate import fitting
from ooco_gym.calibrate.operators import OPERATORS, fit
from ooco_gym.calibrate.rows import CACHED_BYTES, Rows, clean, fastest_kernels
from ooco_gym.perf.specs import load_chip
from ooco_gym.report import joined
from ooco_gym.report.svg import Axis, Panel, Series

FORMS = ("ooco", "extended")
NAMES = {"gemm": "linear layers (GEMM)", "attn_prefill": "prefill attention", "attn_decode": "decode attention",
         "all_reduce": "all-reduce", "elementwise": "element-wise", "sampler": "sampler"}
SHORT = {"gemm": "GEMM", "attn_prefill": "prefill att.", "attn_decode": "decode att.", "all_reduce": "all-reduce",
         "iterations": "iterations"}
_SOURCES = {"vidur@7d47513": "vidur@7d47513 (engine's version not stated)", "llmservingsim": "LLMServingSim"}
_WANTED = {"A100 80 GB": {"attn_decode": 15.0}, "H200": {"attn_decode": 9.0}}
_LIMITS = {"gemm": 7.0, "attn_prefill": 7.5, "all_reduce": 10.0}
_WHOLE = {"ooco": 6.5, "extended": 4.0}


def measure_chips(context: Context) -> dict[str, Any]:
    """Calibrates every chip that the data have."""
    if context.data is None:
        raise Missing("no data folder was given (`OOCO_GYM_DATA`)")
    found = all_calibrated(context.data, context.workers, CASES)
    if not found:
        raise Missing("the data folder has no measured operators of A100, H100, H200, A40 or RTX 4090 in `profiles/` "
                      "or `runs/`")
    for item in found:
        context.used |= item.pop("sha256")
    return {"chips": found}


def write_chips(figures: Figures) -> str:
    """Three tables: operators, whole iterations, sources."""
    chips = figures["chips"]
    return "\n\n".join([
        "`ooco-gym calibrate` on each chip. Shapes (widths of a layer, heads of attention) are held out in folds, so "
        "that every row is predicted by a fit that has not seen its shape. MAPE (P95, worst) in percent.",
        _operators(chips),
        "Whole iterations, composed of measured operators: prefills of equal prompts, decode steps. The architecture "
        "that is judged is left out of the fit. *As shipped* is the chip in `conf/chip`, whose fit may have seen "
        "these iterations.",
        _iterations(chips),
        details("What each figure stands for: rows that were fitted, by engine and version of the kernels",
                _sources(chips)), *_missing(chips)])


def _operators(chips: list[dict[str, Any]]) -> str:
    rows = []
    for chip in chips:
        for op, forms in chip["shapes"].items():
            count = next(iter(forms.values()))["rows"]
            rows.append([chip["title"], NAMES.get(op, op), f"{count:,}", *(errors(forms.get(form)) for form in FORMS),
                         chip["held_out"].get(op, "")])
    return table(["chip", "operator", "rows", "`ooco`", "`extended`", "held out"], rows)


def _iterations(chips: list[dict[str, Any]]) -> str:
    rows = []
    for chip in chips:
        judged = chip["architecture"] or chip["whole_steps"]
        if not judged:
            continue
        said = (f"{len(chip['iterations']['architectures'])} architectures in turn" if chip["architecture"]
                else "unseen sizes of one architecture")
        for form in FORMS:
            if form in judged:
                item = judged[form]
                rows.append([chip["title"], f"`{form}`", said, f"{item['rows']:,}", errors(item),
                             errors(item.get("prefill")), errors(item.get("decode")), _worst(item),
                             errors(chip["shipped"].get(form))])
    if not rows:
        return "*No chip's operators make up whole iterations.*"
    return table(["chip", "form", "held out", "rows", "all", "prefill", "decode", "worst architecture",
                  "as shipped"], rows)


def _worst(item: dict[str, Any]) -> str:
    name, least = max(item["by_architecture"].items(), key=lambda pair: pair[1]["mape"])
    return f"{name}: {least['mape']:.1f} %"


def _sources(chips: list[dict[str, Any]]) -> str:
    rows = []
    for chip in chips:
        groups: dict[str, list[str]] = {}
        for op, counts in chip["sources"].items():
            for source, count in counts.items():
                name = _SOURCES.get(source, source or "unnamed")
                name += f", {chip['engine']}" if chip["engine"] else ""
                groups.setdefault(name, []).append(f"{NAMES.get(op, op)} {count:,}")
        rows += [[chip["title"], name, ", ".join(ops)] for name, ops in groups.items()]
    return table(["chip", "source, engine and version", "rows"], rows)


def _missing(chips: list[dict[str, Any]]) -> list[str]:
    """What the data do not tell, in one sentence for each chip."""
    said = []
    for chip in chips:
        names = [item.split(":")[0] for item in chip["not_fitted"] if item.endswith("not measured")]
        operators = [NAMES[name] for name in names if name in NAMES and name != "elementwise"]
        if operators:
            said.append(f"- {chip['title']}: {joined(operators)} not measured; the shipped chip's YAML says where "
                        "their parameters come from.")
    return ["\n".join(said)] if said else []


def draw_chips(figures: Figures) -> list[Panel]:
    """MAPE with a whisker to P95, by operator and chip, a panel for each form."""
    panels = []
    chips = figures["chips"]
    ops = list(SHORT)
    for form in FORMS:
        series = []
        for number, chip in enumerate(chips):
            judged = chip["architecture"] or chip["whole_steps"]
            items = {op: (judged if op == "iterations" else chip["shapes"].get(op, {})).get(form) for op in ops}
            points = [(index + (number - (len(chips) - 1) / 2) * 0.13, item) for index, op in enumerate(ops)
                      if (item := items[op])]
            if points:
                series.append(Series(chip["title"], [x for x, _ in points], [item["mape"] for _, item in points],
                                     "dots", [item["p95"] for _, item in points], number))
        panels.append(Panel(f"timing={form}: MAPE (dot) to P95 (end of the line)",
                            Axis(limits=(-0.6, len(ops) - 0.4), ticks=list(enumerate(SHORT.values()))),
                            Axis("error (%)", log=True, limits=(1, 500)), series))
    return panels


def glance_chips(figures: Figures) -> list[tuple[str, str, str]]:
    """Acceptance of the timing: operators and whole iterations on A100 and H200."""
    rows = []
    for chip in figures["chips"]:
        if chip["title"] not in _WANTED:
            continue
        for form, limit in _WHOLE.items():
            if form in chip["architecture"]:
                rows.append((f"{chip['title']}, iterations of an unseen architecture, `{form}`",
                             f"MAPE {chip['architecture'][form]['mape']:.1f} %", f"≤ {limit:g} %"))
        limits = _LIMITS | _WANTED[chip["title"]]
        known = {op: chip["shapes"][op]["extended"]["mape"] for op in limits if op in chip["shapes"]}
        if known:
            rows.append((f"{chip['title']}, operators of unseen shapes, `extended`: " + ", ".join(
                SHORT[op] for op in known), " / ".join(f"{value:.1f}" for value in known.values()) + " %",
                "≤ " + " / ".join(f"{limits[op]:g}" for op in known) + " %"))
    return rows


SWITCH_DEVICES = {"A100 80 GB": "a100_sxm", "H200": "h200_sxm", "H100": "vidur_h100"}
NOTICED = 0.05
LEAST_S = 20e-6
"""Times below this are left out: there a microsecond of the clock's resolution looks like a switch."""


def measure_switches(context: Context) -> dict[str, Any]:
    """Looks at neighbouring numbers of tokens of the same linear layer."""
    rows = operators(context)
    return {"devices": [{"title": title, **_drops(by_shape(of_device(rows, device).of_kind("gemm"),
                                                           ("d_in", "d_out", "n_tokens")))}
                        for title, device in SWITCH_DEVICES.items()]}


def _drops(times: dict[tuple[float, ...], float]) -> dict[str, Any]:
    """How often the next larger size is faster."""
    shapes: dict[tuple[float, float], list[tuple[float, float]]] = {}
    for (d_in, d_out, tokens), seconds in times.items():
        if 2 * d_in * d_out >= CACHED_BYTES:
            shapes.setdefault((d_in, d_out), []).append((tokens, seconds))
    changes = [(after / before - 1.0, smaller, larger, *shape) for shape, points in shapes.items()
               for (smaller, before), (larger, after) in zip(sorted(points)[:-1], sorted(points)[1:], strict=True)
               if before >= LEAST_S]
    change = np.array([item[0] for item in changes])
    worst = min(changes)
    return {"pairs": len(changes), "noticed_percent": 100 * float(np.mean(change < -NOTICED)),
            "worst_percent": 100 * worst[0], "worst": {"from": worst[1], "to": worst[2], "d_in": worst[3],
                                                       "d_out": worst[4]}}


def write_switches(figures: Figures) -> str:
    """One table."""
    rows = [[item["title"], f"{item['pairs']:,}", percent(item["noticed_percent"]),
             f"{signed(item['worst_percent'], 0)} ({item['worst']['from']:,.0f} to {item['worst']['to']:,.0f} tokens, "
             f"{item['worst']['d_in']:,.0f} × {item['worst']['d_out']:,.0f})"] for item in figures["devices"]]
    return "\n\n".join([
        "Measured linear layers at neighbouring numbers of tokens: how often *more* tokens take at least "
        f"{100 * NOTICED:.0f} % *less* time, because the library takes another kernel there. A roofline "
        "never goes down with size, so errors of this size are to be expected of it at single batch sizes.",
        table(["chip", "neighbouring sizes", f"faster by {100 * NOTICED:.0f} % or more", "largest drop"], rows)])


ONE, OTHER, CHIP = "a100_sxm", "vidur_a100", "a100_80g"
LINKS = "vidur_a100_dgx"
SEED = 0


def measure_versions(context: Context) -> dict[str, Any]:
    """A100's linear layers and all-reduces, measured by two."""
    rows = operators(context)
    one, other = (_clean(of_device(rows, name), "gemm") for name in (ONE, OTHER))
    same = _same(one, other, ("n_tokens", "d_in", "d_out"))
    linked = _same(_clean(of_device(rows, ONE), "all_reduce"), _clean(of_device(rows, LINKS), "all_reduce"),
                   ("n_gpus", "bytes"))
    across = {}
    for form in ("ooco", "extended"):
        operator = OPERATORS[form]["gemm"]
        for name, known, judged in (("there", one, other), ("back", other, one)):
            found = fit(operator, known, load_chip(CHIP), SEED).found
            predicted = operator.seconds(operator.parameters(found), judged)
            across[f"{form}/{name}"] = fitting.errors(predicted, judged.seconds)
    return {"gemm": same, "all_reduce": linked, "across": across,
            "sources": [sorted({str(text) for text in part["source"]}) for part in (one, other)]}


def _clean(rows: Rows, kind: str) -> Rows:
    kept, _ = clean(rows.of_kind(kind), load_chip(CHIP))
    return fastest_kernels(kept)[0]


def _same(one: Rows, other: Rows, columns: tuple[str, ...]) -> dict[str, Any]:
    """Times of the second over those of the first, on shapes that both measured."""
    first, second = by_shape(one, columns), by_shape(other, columns)
    ratio = np.array([second[shape] / first[shape] for shape in first if shape in second])
    if not len(ratio):
        return {"shapes": 0}
    return {"shapes": len(ratio), "mean_difference": 100 * float(np.mean(np.abs(ratio - 1))),
            **{f"p{q}": 100 * float(np.percentile(ratio, q) - 1) for q in (5, 50, 95)}}


def write_versions(figures: Figures) -> str:
    """Same shapes, and parameters carried over."""
    first, second = (", ".join(f"`{name}`" for name in names) for names in figures["sources"])
    rows = [[title, f"{item['shapes']:,}", percent(item["mean_difference"]),
             f"{signed(item['p50'], 0)} ({signed(item['p5'], 0)} to {signed(item['p95'], 0)})"]
            for title, item in (("linear layers", figures["gemm"]), ("all-reduce", figures["all_reduce"]))
            if item["shapes"]]
    carried = [[f"`{form}`", *(f"{percent(item['mape'])}, {signed(item['median_bias'], 0)}" for item in (
        figures["across"][f"{form}/there"], figures["across"][f"{form}/back"]))] for form in ("ooco", "extended")]
    return "\n\n".join([
        f"A100 linear layers and all-reduces, timed by {first} (all-reduce: the faster of vLLM 0.14's own kernel and "
        f"NCCL 2.27, from CUDA graphs) and by {second} (NCCL, called). The same shapes on the same chip:",
        table(["operator", "shapes in both", "mean difference", "median (P5 to P95) of the second"], rows),
        "Linear layers fitted to one and judged on the other (MAPE, median bias):",
        table(["form", "fitted to the first", "fitted to the second"], carried),
        "So a chip's parameters are those of an engine and a version. Between two versions of one engine prefill "
        "kernels on H100 were seen to move by 20 %; those tables are not in this data."])


CLEANED_DEVICES = {"A100 80 GB": ("a100_sxm", "a100_80g"), "H100": ("vidur_h100", "h100"), "H200": ("h200_sxm", "h200"),
           "A40": ("vidur_a40", "a40")}
OPS = ("gemm", "attn_prefill", "attn_decode", "all_reduce")


def measure_bad_rows(context: Context) -> dict[str, Any]:
    """What `ooco-gym calibrate` leaves out of the data, by chip and reason."""
    rows, found = operators(context), []
    for title, (device, chip) in CLEANED_DEVICES.items():
        mine = of_device(rows, device)
        _, excluded = clean(mine, load_chip(chip))
        found += [{"title": title, "of": len(mine.of_kind(item.op)),
                   **{key: getattr(item, key) for key in ("op", "reason", "rows", "bad")}}
                  for item in excluded if item.op in OPS]
    return {"excluded": found, "skipped": everything(context).skipped}


def write_bad_rows(figures: Figures) -> str:
    """One table."""
    rows = [[item["title"], item["op"], f"{item['rows']:,} of {item['of']:,}", "wrong" if item["bad"] else "no load",
             item["reason"]] for item in figures["excluded"]]
    rows += [["–", "iterations", f"{count:,}", "wrong", reason] for reason, count in figures["skipped"].items()]
    count = sum(item["rows"] for item in figures["excluded"]) + sum(figures["skipped"].values())
    return "\n\n".join([
        "Rows that no fit sees: *wrong* ones (impossible, or known to be), and *no load* of a server (a benchmark's "
        "weights that stay in the cache, a handful of tokens). Whatever is faster than the chip is left out in any "
        "data (`ooco_gym/calibrate/rows.py`).",
        details(f"{count:,} rows left out, by chip and reason",
                table(["chip", "operator", "rows", "kind", "reason"], rows)),
        "What no data here can tell: the FLOP rate of decode attention in `ooco` (it is bound by memory at these head "
        "ratios), anything on Ascend, and sizes "
        "beyond a chip's `validity`, of which a run is warned once."])


SECTIONS = {
    "chips": Section(110, "Each chip and form", measure_chips, write_chips, draw_chips, glance_chips),
    "switches": Section(520, "Kernel switches", measure_switches, write_switches),
    "versions": Section(540, "Other engines, other versions", measure_versions, write_versions),
    "bad_rows": Section(550, "Known bad data, and what cannot be known", measure_bad_rows, write_bad_rows),
}
