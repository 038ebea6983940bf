"""Writes results/validity.json, and from it the tables of docs/validity.md and conf/validity.yaml."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from docs.generators.pages import filled, markdown
from ooco_gym.files import as_json, write_json
from ooco_gym.report import NONE, minus, percent

FIGURES, PAGE = Path("results", "validity.json"), Path("docs", "validity.md")
CLOCKS = Path("conf", "validity.yaml")
"""What commands say of their clock (`ooco_gym.perf.engine_clock`)."""
CASES = Path(__file__).with_name("published.yaml")
BEGIN = "<!-- Written by `make validity` from results/validity.json. -->"
BEGIN_PUBLISHED = "<!-- Written by `make validity` from docs/generators/published.yaml and results/validity.json. -->"
TARGETS = {"ooco": 6.5, "extended": 4, "sparse": 6}
"""Greatest mean error in percent that is wanted on iterations of an unseen architecture, by form; `sparse`: of
`extended`, where the model has experts, latent attention or weights of 8 bits."""
KERNELS = {"experts": "experts", "experts_fp8": "experts, 8 bits", "experts_fp4": "experts, 4 bits",
           "gemm_fp8": "linear layers, 8 bits", "latent_prefill": "latent attention, prefill",
           "latent_decode": "latent attention, decode"}
"""Kernels that are judged alone."""
TITLES = {"tokens_s_chip": "tokens/s per chip", "output_tokens_s": "output tokens/s", "tpot_ms": "TPOT, ms",
          "ttft_ms": "TTFT, ms", "ttft_p50_ms": "TTFT P50, ms", "ttft_p99_ms": "TTFT P99, ms",
          "late_percent": "violations, %", "kv_percent": "KV memory in use, %", "preemptions": "preemptions"}
"""Figures of published runs."""
AVERAGED = {"tokens_s_chip": 6, "tpot_ms": 8, "ttft_ms": 20}
"""Figures whose errors are averaged, and the greatest mean in percent that is wanted of rows that no fit has seen."""
WANTED_ON = ("h100", "h200")
SERVED = {"h100": [  # docs/sim_to_real.md, On a GPU: mean TTFT and TPOT in ms, measured and simulated
    ("vLLM 0.32.0", "none", (333, 61.7), (212, 53.4)),
    ("vLLM 0.32.0", "vllm_eager_async", (333, 61.7), (337, 62.9)),
    ("vLLM 0.32.0", "vllm_eager_sync", (287, 68.1), (253, 69.0))]}
REPLAYED_ON = "rtx4090"


def read_figures(out: Path) -> dict[str, Any]:
    """The figures by part and row; of a part that was never measured none."""
    path = out / FIGURES
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def write(out: Path, figures: Mapping[str, Any]) -> None:
    """Writes figures, page and clocks."""
    for name in (FIGURES, PAGE, CLOCKS):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
    write_json(out / FIGURES, as_json(figures, 6))
    (out / CLOCKS).write_text(clocks(figures), encoding="utf-8")
    for begin, text in tables(figures).items():
        (out / PAGE).write_text(filled(out / PAGE, begin, text), encoding="utf-8")


def tables(figures: Mapping[str, Any]) -> dict[str, str]:
    """The page's tables in Markdown, by the line that they stand below."""
    sparse = figures.get("sparse") or {}
    composed = []
    for kind in dict.fromkeys(kind for row in sparse.values() for kind in row["composed"]):
        found = [row["composed"].get(kind) for row in sparse.values()]
        some = [one for one in found if one]
        names = sorted({name.partition(" ")[0] for one in some for name in one["architectures"]})
        composed.append((kind, names, sum(one["iterations"] for one in some),
                         [one and one["forms"]["extended"] for one in found]))
    cases = yaml.safe_load(CASES.read_text(encoding="utf-8"))
    played = {name: source | {"found": figures["published"][name]} for name, source in cases.items()
              if name in figures.get("published", {})}
    unseen = [one for source in played.values() for one in source["found"]
              if source["seen"] == "no" and one["chip"] in WANTED_ON]
    return {BEGIN: markdown("validity", **{part: figures.get(part) for part in (
                "unseen", "sparse", "left_out", "replayed")}, composed=composed, targets=TARGETS, kernels=KERNELS),
            **({BEGIN_PUBLISHED: markdown("published", sources=played, unseen=unseen, chips=WANTED_ON, off=off,
                                          titles=TITLES, averaged=AVERAGED)} if played else {})}


def errors(rows: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    """Errors in percent of a figure, of those rows of published runs that have it."""
    return [100 * (row[key][1] / row[key][0] - 1) for row in rows if key in row and row[key][0]]


def off(rows: Sequence[Mapping[str, Any]], key: str) -> str:
    """The mean absolute error of a figure, with the worst error."""
    found = errors(rows, key)
    return f"{np.abs(found).mean():.1f} % ({minus(percent(max(found, key=abs), 0, '+', 1.0))})" if found else NONE


def clocks(figures: Mapping[str, Any]) -> str:
    """Errors by chip and form in YAML, percent: MAPE of iterations, and means of what engines served."""
    found: dict[str, dict[str, dict[str, Any]]] = {}

    def served(chip: str, form: str, engine: str, clock: str, ttft: float, tpot: float) -> None:
        listed = found.setdefault(chip, {}).setdefault(form, {}).setdefault("served", [])
        if clock not in [one["clock"] for one in listed]:
            listed.append({"engine": engine, "clock": clock, "ttft": round(ttft, 1), "tpot": round(tpot, 1)})

    for chip, row in {**figures.get("left_out", {}), **figures.get("unseen", {})}.items():
        for form, item in row["forms"].items():
            mape = item.get("own", item)["mape"]
            found.setdefault(chip, {}).setdefault(form, {})["iterations"] = round(mape, 1)
    for row in [one for one in figures.get("replayed", {}).values() if not one["what"]]:
        for form, item in row["forms"].items():
            served(REPLAYED_ON, form, row["engine"], "none", item["ttft"], item["tpot"])
    for chip, cells in SERVED.items():
        for engine, clock, real, ours in cells:
            served(chip, "extended", engine, clock, *(100 * (one / of - 1) for one, of in zip(ours, real, strict=True)))
    again = [row for rows in figures.get("published", {}).values() for row in rows
             if {"ttft_ms", "tpot_ms"} <= set(row)]
    for chip, clock in dict.fromkeys((row["chip"], row["clock"]) for row in again):
        rows = [row for row in again if (row["chip"], row["clock"]) == (chip, clock)]
        served(chip, "extended", f"{len(rows)} published runs", clock, *(
            float(np.mean(errors(rows, key))) for key in ("ttft_ms", "tpot_ms")))
    return ("# How far off the clock is on each chip, percent: written by `make validity` (docs/validity.md).\n"
            + yaml.safe_dump(found, sort_keys=True, default_flow_style=None, width=120))
