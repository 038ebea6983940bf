"""Measurements that are known to be wrong, and what was left out for another reason."""

from __future__ import annotations

from typing import Any

from experiments.validity.markdown import details, table
from experiments.validity.profiles import everything, of_device, operators
from experiments.validity.section import Context, Figures, Section
from ooco_gym.calibrate.cleaning import clean
from ooco_gym.perf.specs import load_chip

DEVICES = {"A100 80 GB": ("a100_sxm", "a100_80g"), "H100": ("vidur_h100", "h100"), "H200": ("h200_sxm", "h200"),
           "A40": ("vidur_a40", "a40")}
OPS = ("gemm", "attn_prefill", "attn_decode", "all_reduce")


def measure(context: Context) -> dict[str, Any]:
    """What `ooco-gym calibrate` leaves out of the data, by chip and reason."""
    rows, found = operators(context), []
    for title, (device, chip) in DEVICES.items():
        mine = of_device(rows, device)
        _, excluded = clean(mine, load_chip(chip))
        found += [{"title": title, "of": len(mine.of_kind(item.op)),
                   **{key: getattr(item, key) for key in ("op", "reason", "rows", "bad")}}
                  for item in excluded if item.op in OPS]
    return {"excluded": found, "skipped": everything(context).skipped}


def write(figures: Figures) -> str:
    """One table."""
    rows = [[item["title"], item["op"], f"{item['rows']:,} of {item['of']:,}", "wrong" if item["bad"] else "no load",
             item["reason"]] for item in figures["excluded"]]
    rows += [["–", "iterations", f"{count:,}", "wrong", reason] for reason, count in figures["skipped"].items()]
    count = sum(item["rows"] for item in figures["excluded"]) + sum(figures["skipped"].values())
    return "\n\n".join([
        "Rows that no fit sees: *wrong* ones (impossible, or known to be), and *no load* of a server (a benchmark's "
        "weights that stay in the cache, a handful of tokens). Whatever is faster than the chip is left out in any "
        "data (`ooco_gym/calibrate/cleaning.py`).",
        details(f"{count:,} rows left out, by chip and reason",
                table(["chip", "operator", "rows", "kind", "reason"], rows)),
        "What no data here can tell: the FLOP rate of decode attention in `ooco` (it is bound by memory at these head "
        "ratios), anything on Ascend, and sizes "
        "beyond a chip's `validity`, of which a run is warned once."])


SECTION = Section(550, "Known bad data, and what cannot be known", measure, write)
