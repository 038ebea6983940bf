"""The measured operators of the data folder, read once for all sections."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from experiments.validity.section import Context, Missing
from ooco_gym.calibrate import sources
from ooco_gym.calibrate.engine_rows import EngineRows
from ooco_gym.calibrate.rows import Rows

FILE = "profiles/calibration.parquet"


def everything(context: Context) -> sources.Found:
    """What the file holds.

    Raises:
        Missing: the file is not there.
    """
    path = context.file(FILE)
    if __name__ not in context.shared:
        context.shared[__name__] = sources.read(path, sources.Context())
    return context.shared[__name__]


def operators(context: Context) -> Rows:
    """All rows of operators.

    Raises:
        Missing: the file is not there.
    """
    return Rows.join(everything(context).rows)


def iterations(context: Context) -> list[EngineRows]:
    """Whole iterations of engines, one for each device, model and tensor-parallel degree.

    Raises:
        Missing: the file is not there, or has none.
    """
    found = everything(context).engine
    if not found:
        raise Missing(f"`{FILE}` has no whole iterations of an engine")
    return found


def of_device(rows: Rows, device: str) -> Rows:
    """The rows of one device.

    Raises:
        Missing: there are none.
    """
    found = rows.select(rows["device"] == device)
    if not len(found):
        raise Missing(f"`{FILE}` has no rows of device `{device}`")
    return found


def by_shape(rows: Rows, columns: Sequence[str]) -> dict[tuple[float, ...], float]:
    """Seconds by shape; of several measurements of a shape the median."""
    found: dict[tuple[float, ...], list[float]] = {}
    for *shape, seconds in zip(*(rows[name] for name in columns), rows.seconds, strict=True):
        found.setdefault(tuple(float(value) for value in shape), []).append(float(seconds))
    return {shape: float(np.median(values)) for shape, values in found.items()}
