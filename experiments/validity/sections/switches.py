"""Kernel switches: a library takes another kernel at some size, and more work takes less time."""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.validity.markdown import percent, signed, table
from experiments.validity.profiles import by_shape, of_device, operators
from experiments.validity.section import Context, Figures, Section
from ooco_gym.calibrate.cleaning import CACHED_BYTES

DEVICES = {"A100 80 GB": "a100_sxm", "H200": "h200_sxm", "H100": "vidur_h100"}
NOTICED = 0.05
LEAST_S = 20e-6
"""Times below this are left out: there a microsecond of the clock's resolution looks like a switch."""


def measure(context: Context) -> dict[str, Any]:
    """Looks at neighbouring numbers of tokens of the same linear layer."""
    rows = operators(context)
    return {"devices": [{"title": title, **_drops(by_shape(of_device(rows, device).of_kind("gemm"),
                                                           ("d_in", "d_out", "n_tokens")))}
                        for title, device in DEVICES.items()]}


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


def write(figures: Figures) -> str:
    """One table."""
    rows = [[item["title"], f"{item['pairs']:,}", percent(item["noticed_percent"]),
             f"{signed(item['worst_percent'], 0)} ({item['worst']['from']:,.0f} to {item['worst']['to']:,.0f} tokens, "
             f"{item['worst']['d_in']:,.0f} × {item['worst']['d_out']:,.0f})"] for item in figures["devices"]]
    return "\n\n".join([
        "Measured linear layers at neighbouring numbers of tokens: how often *more* tokens take at least "
        f"{100 * NOTICED:.0f} % *less* time, because the library takes another kernel there. A roofline "
        "never goes down with size, so errors of this size are to be expected of it at single batch sizes.",
        table(["chip", "neighbouring sizes", f"faster by {100 * NOTICED:.0f} % or more", "largest drop"], rows)])


SECTION = Section(520, "Kernel switches", measure, write)
