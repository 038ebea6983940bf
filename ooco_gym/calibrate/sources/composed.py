"""Iterations composed of measured operators: attention (`tat`) and the layer's four GEMMs (`t0..t3`), in µs.

The file is short and stands apart because a layout is one file of this package.
"""

from __future__ import annotations

from ooco_gym.calibrate.sources import Context, Found, Frame

NAME = "composed"
NUMBERS = ("L", "hq", "hkv", "b", "q", "ctx", "m", "tat", "t0", "t1", "t2", "t3", "T")


def claims(frame: Frame) -> bool:
    """By the columns of `iter_*.parquet`."""
    return all(name in frame for name in ("arch", "op", "L", "tat", "t0", "T"))


def read(frame: Frame, context: Context, found: Found) -> None:
    """Keeps the columns; the shapes of the GEMMs are found by their times among the operators (`steps`)."""
    frame.require(["arch", "op", *NUMBERS])
    columns = {name: frame.numbers(name) for name in NUMBERS}
    found.composed.append({"file": frame.path.name, "arch": frame.texts("arch"), "op": frame.texts("op"), **columns})
