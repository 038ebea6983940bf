"""Our own schema (docs/calibration.md): one row a measurement, `op` and `time_us` and the shape's columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ooco_gym.calibrate.rows import NUMBERS, TEXTS, Rows
from ooco_gym.calibrate.tables import Frame

if TYPE_CHECKING:
    from ooco_gym.calibrate.sources import Context, Found

NAME = "ooco_gym"


def claims(frame: Frame) -> bool:
    """Operators and times, and nothing of a composed iteration."""
    return "op" in frame and "time_us" in frame


def read(frame: Frame, context: Context, found: Found) -> None:
    """Takes all rows; the device's name is the command's where the file has none."""
    columns: dict[str, Any] = {name: frame.texts(name) for name in TEXTS if name in frame}
    columns |= {name: frame.numbers(name) for name in NUMBERS if name in frame}
    if "device" not in columns:
        columns["device"] = context.device
    found.rows.append(Rows.of(frame.path, frame.first_row, len(frame), **columns))
