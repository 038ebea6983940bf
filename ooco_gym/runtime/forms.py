"""What writes each form of a policy: `policy.onnx`, `weights.npz`, and the C sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ooco_gym.errors import UserError, unknown
from ooco_gym.runtime.arrays import write_arrays
from ooco_gym.runtime.manifest import ARRAYS_FILE

FORMS = ("onnx", "npz", "c")


def writers(manifest: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None,
            reference: Mapping[str, np.ndarray] | None, forms: Sequence[str], graph: Callable[[Path], None] | None
            ) -> dict[str, Callable[[Path], None]]:
    """The files of the forms that are wanted, each with what writes it.

    Raises:
        UserError: an unknown form, or one that this policy cannot be written in.
    """
    found: dict[str, Callable[[Path], None]] = {}
    for form in forms:
        if form not in FORMS:
            raise unknown("form", form, FORMS)
    if "npz" in forms:
        found[ARRAYS_FILE] = lambda path: write_arrays(path, _needed(arrays, "npz"))
    return found


def _needed(arrays: Mapping[str, np.ndarray] | None, form: str) -> Mapping[str, np.ndarray]:
    if arrays is None:
        raise UserError(f"this policy's network has no form '{form}': it can be exported as onnx alone")
    return arrays
