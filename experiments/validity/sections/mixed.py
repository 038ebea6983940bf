"""Prompts and decodes that share one attention kernel: not the sum of the two alone."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from experiments.validity.markdown import signed, table
from experiments.validity.section import Context, Figures, Missing, Section

FILE = "runs/rtx4090_llama31_8b/attention.parquet"
EDGES = (1, 16, 64, 257)
"""Decoding requests by which the batches are told apart: from one number up to below the next."""


def measure(context: Context) -> dict[str, Any]:
    """Measured kernels of both kinds at once against the sum of those of one kind, at the very same sizes."""
    import pyarrow.parquet as pq

    columns = pq.read_table(context.file(FILE)).to_pydict()
    new, cached, batch, length, time = (np.asarray(columns[name], dtype=np.float64) for name in (
        "prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"))
    prefill = {(a, b): t for a, b, t in zip(*(x[batch == 0] for x in (new, cached, time)), strict=True)}
    decode = {(a, b): t for a, b, t in zip(*(x[new == 0] for x in (batch, length, time)), strict=True)}
    found = np.array([(n, p + d, t) for a, b, n, c, t in zip(new, cached, batch, length, time, strict=True)
                      if a > 0 and n > 0 and (p := prefill.get((a, b))) and (d := decode.get((n, c)))])
    if not len(found):
        raise Missing(f"`{FILE}` has no mixed batches whose parts were measured alone")
    error = 100 * (found[:, 1] / found[:, 2] - 1)
    groups = []
    for low, high in pairwise(EDGES):
        mine = error[(found[:, 0] >= low) & (found[:, 0] < high)]
        if len(mine):
            groups.append({"from": low, "to": high - 1, "batches": len(mine), **_quantiles(mine)})
    return {"batches": len(found), **_quantiles(error), "groups": groups}


def _quantiles(error: np.ndarray) -> dict[str, float]:
    return {name: float(np.percentile(error, q)) for name, q in (("p5", 5), ("median", 50), ("p95", 95))}


def write(figures: Figures) -> str:
    """The sum's error, by how many decode."""
    rows = [[f"{item['from']}–{item['to']}", f"{item['batches']:,}", signed(item["median"], 0),
             f"{signed(item['p5'], 0)} to {signed(item['p95'], 0)}"] for item in figures["groups"]]
    rows.append(["all", f"{figures['batches']:,}", signed(figures["median"], 0),
                 f"{signed(figures['p5'], 0)} to {signed(figures['p95'], 0)}"])
    return "\n\n".join([
        "Every form here adds operators up. Where a prompt's chunk and decoding requests share one attention kernel "
        "(vLLM 0.19 on RTX 4090), the sum of the two kernels alone, measured at the very same sizes, is mostly too "
        "little. What that does to a whole run stands in section 3: the engine replayed there served mixed batches.",
        table(["decoding requests", "mixed batches", "error of the sum, median", "P5 to P95"], rows)])


SECTION = Section(535, "Mixed batches share kernels", measure, write)
