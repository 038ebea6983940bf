"""Our own schema (docs/calibration.md): one row a measurement, `op` and `time_us` and the shape's columns."""

from __future__ import annotations

from typing import Any

from ooco_gym.calibrate.rows import NUMBERS, TEXTS, Rows
from ooco_gym.calibrate.sources import Context, Found, Frame

NAME = "ooco_gym"


def claims(frame: Frame) -> bool:
    """Operators and times, and nothing of a composed iteration; all-reduces alone may leave `op` away."""
    return "time_us" in frame and ("op" in frame or ("n_gpus" in frame and "bytes" in frame))


def read(frame: Frame, context: Context, found: Found) -> None:
    """Takes all rows; the device's name is the command's where the file has none."""
    columns: dict[str, Any] = {"op": "all_reduce", "device": context.device}
    columns |= {name: frame.texts(name) for name in TEXTS if name in frame}
    columns |= {name: frame.numbers(name) for name in NUMBERS if name in frame}
    found.rows.append(Rows.of(frame.path, frame.first_row, len(frame), **columns))
