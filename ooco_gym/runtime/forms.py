"""What writes each form of a policy: `policy.onnx`, `weights.npz`, and the C sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ooco_gym.errors import UserError, unknown
from ooco_gym.runtime.arrays import write_arrays
from ooco_gym.runtime.manifest import ARRAYS_FILE, MODEL_FILE

FORMS = ("onnx", "npz", "c")


def writers(manifest: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None,
            reference: Mapping[str, np.ndarray] | None, forms: Sequence[str], graph: Callable[[Path], Any] | None,
            target: str | None = None) -> dict[str, Callable[[Path], Any]]:
    """The files of the forms that are wanted, each with what writes it.

    Raises:
        UserError: an unknown form, or one that this policy cannot be written in.
    """
    found: dict[str, Callable[[Path], Any]] = {}
    for form in forms:
        if form not in FORMS:
            raise unknown("form", form, FORMS)
    if "npz" in forms:
        held = _needed(arrays, "npz")
        found[ARRAYS_FILE] = lambda path: write_arrays(path, held)
    if "onnx" in forms:
        if graph is None:
            from ooco_gym.runtime.onnx_source import parameter_graph, scorer_graph

            write_graph = parameter_graph if manifest["kind"] == "parameters" else scorer_graph
            content = write_graph(manifest, _needed(arrays, "onnx"))
            found[MODEL_FILE] = lambda path: path.write_bytes(content)
        else:
            found[MODEL_FILE] = graph
    if "c" in forms:
        from ooco_gym.runtime.c_source import c_writers

        if reference is None:
            raise UserError("the form 'c' needs reference vectors for its self-test")
        found |= c_writers(manifest, _needed(arrays, "c"), reference, target)
    return found


def _needed(arrays: Mapping[str, np.ndarray] | None, form: str) -> Mapping[str, np.ndarray]:
    if arrays is None:
        raise UserError(f"this policy's network has no form '{form}': it can be exported as onnx alone")
    return arrays
