"""Our own schema (docs/calibration.md): one measurement per row, with `op`, `time_us` and the shape's columns."""

from __future__ import annotations

from typing import Any

from ooco_gym.calibrate.rows import NUMBERS, TEXTS, Rows
from ooco_gym.calibrate.sources import Context, Found, Frame
from ooco_gym.errors import UserError

NAME = "ooco_gym"
APART = ("dtype", "node", "backend", "version", "engine", "framework")
"""Words in the name of a column that distinguishes measurements in a way that the schema lacks."""


def claims(frame: Frame) -> bool:
    """Recognises operators and times without columns of composed iterations; all-reduces may lack `op`."""
    return "time_us" in frame and ("op" in frame or ("n_gpus" in frame and "bytes" in frame))


def read(frame: Frame, context: Context, found: Found) -> None:
    """Reads all rows; the device's name is the command's if the file has none.

    Raises:
        UserError: a column outside the schema shows that different things were measured.
    """
    for name in frame.names:
        if name not in (*TEXTS, *NUMBERS) and any(word in name.lower() for word in APART):
            values = sorted(set(frame.texts(name)))
            if len(values) > 1:
                raise UserError(f"'{frame.path}': column '{name}' tells measurements apart ({', '.join(values[:4])}) "
                                "that would be fitted as one; expected one of them: give each a file of its own")
    columns: dict[str, Any] = {"op": "all_reduce", "device": context.device}
    columns |= {name: frame.texts(name) for name in TEXTS if name in frame}
    columns |= {name: frame.numbers(name) for name in NUMBERS if name in frame}
    found.rows.append(Rows.of(frame.path, frame.first_row, len(frame), **columns))
