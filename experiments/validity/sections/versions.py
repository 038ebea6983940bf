"""The same kernels under other engines and versions: how far parameters carry over."""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.validity.markdown import percent, signed, table
from experiments.validity.profiles import by_shape, of_device, operators
from experiments.validity.section import Context, Figures, Section
from ooco_gym.calibrate.cleaning import clean, fastest_kernels
from ooco_gym.calibrate.fitting import errors
from ooco_gym.calibrate.operators import OPERATORS, fit
from ooco_gym.calibrate.rows import Rows
from ooco_gym.perf.specs import load_chip

ONE, OTHER, CHIP = "a100_sxm", "vidur_a100", "a100_80g"
LINKS = "vidur_a100_dgx"
SEED = 0


def measure(context: Context) -> dict[str, Any]:
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
            across[f"{form}/{name}"] = errors(operator.seconds(operator.parameters(found), judged), judged.seconds)
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


def write(figures: Figures) -> str:
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


SECTION = Section(540, "Other engines, other versions", measure, write)
