"""Errors of both forms on each chip: operators of unseen shapes, whole iterations of unseen architectures."""

from __future__ import annotations

from typing import Any

from experiments.validity import calibrations
from experiments.validity.calibrations import all_calibrated
from experiments.validity.markdown import details, errors, joined, table
from experiments.validity.section import Context, Figures, Missing, Section
from experiments.validity.svg import Axis, Panel, Series

FORMS = ("ooco", "extended")
NAMES = {"gemm": "linear layers (GEMM)", "attn_prefill": "prefill attention", "attn_decode": "decode attention",
         "all_reduce": "all-reduce", "elementwise": "element-wise", "sampler": "sampler"}
SHORT = {"gemm": "GEMM", "attn_prefill": "prefill att.", "attn_decode": "decode att.", "all_reduce": "all-reduce",
         "iterations": "iterations"}
_SOURCES = {"vidur@7d47513": "vidur@7d47513 (engine's version not stated)", "llmservingsim": "LLMServingSim"}
_WANTED = {"A100 80 GB": {"attn_decode": 15.0}, "H200": {"attn_decode": 9.0}}
_LIMITS = {"gemm": 7.0, "attn_prefill": 7.5, "all_reduce": 10.0}
_WHOLE = {"ooco": 6.5, "extended": 4.0}


def measure(context: Context) -> dict[str, Any]:
    """Calibrates every chip that the data have."""
    if context.data is None:
        raise Missing("no data folder was given (`OOCO_GYM_DATA`)")
    found = all_calibrated(context.data, context.workers, calibrations.CASES)
    if not found:
        raise Missing("the data folder has no measured operators of A100, H100, H200, A40 or RTX 4090 in `profiles/` "
                      "or `runs/`")
    for item in found:
        context.used |= item.pop("sha256")
    return {"chips": found}


def write(figures: Figures) -> str:
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
                _sources(chips)), *_lacking(chips)])


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


def _lacking(chips: list[dict[str, Any]]) -> list[str]:
    """What the data do not tell, in one sentence for each chip."""
    said = []
    for chip in chips:
        names = [item.split(":")[0] for item in chip["not_fitted"] if item.endswith("not measured")]
        operators = [NAMES[name] for name in names if name in NAMES and name != "elementwise"]
        if operators:
            said.append(f"- {chip['title']}: {joined(operators)} not measured; the shipped chip's YAML says where "
                        "their parameters come from.")
    return ["\n".join(said)] if said else []


def draw(figures: Figures) -> list[Panel]:
    """MAPE with a whisker to P95, by operator and chip, a panel for each form."""
    panels = []
    chips = figures["chips"]
    ops = list(SHORT)
    for form in FORMS:
        series = []
        for number, chip in enumerate(chips):
            judged = chip["architecture"] or chip["whole_steps"]
            items = {op: (judged if op == "iterations" else chip["shapes"].get(op, {})).get(form) for op in ops}
            points = [(place + (number - (len(chips) - 1) / 2) * 0.13, item) for place, op in enumerate(ops)
                      if (item := items[op])]
            if points:
                series.append(Series(chip["title"], [x for x, _ in points], [item["mape"] for _, item in points],
                                     "dots", [item["p95"] for _, item in points], number))
        panels.append(Panel(f"timing={form}: MAPE (dot) to P95 (end of the line)",
                            Axis(limits=(-0.6, len(ops) - 0.4), ticks=list(enumerate(SHORT.values()))),
                            Axis("error (%)", log=True, limits=(1, 500)), series))
    return panels


def glance(figures: Figures) -> list[tuple[str, str, str]]:
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


SECTION = Section(110, "Each chip and form", measure, write, draw, glance)
