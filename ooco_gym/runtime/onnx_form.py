"""Runs `policy.onnx`; the one place that imports onnxruntime, when a policy in this form is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ooco_gym.errors import UserError


def open_graph(path: Path, threads: int = 1) -> Any:
    """The session of a graph.

    Raises:
        UserError: onnxruntime is not installed, or cannot load it.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise UserError("onnxruntime is not installed, which running an exported policy needs; install with: "
                        "pip install 'ooco-gym[export]' (or only: pip install onnxruntime)") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = threads
    options.log_severity_level = 4  # errors are raised, and need not be printed as well
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own exception classes; all mean that the file is no usable model
        raise UserError(f"'{path}' cannot be loaded by onnxruntime: {_said(error)}") from error


def run_graph(session: Any, path: Path, outputs: Sequence[str], inputs: dict[str, np.ndarray]) -> list[Any]:
    """What the graph answers.

    Raises:
        UserError: it does not take these inputs, or has no such outputs.
    """
    try:
        return session.run(outputs, inputs)
    except Exception as error:  # onnxruntime's own exception classes; all mean that they do not fit each other
        raise UserError(f"'{path}' does not take what its manifest says: {_said(error)}") from error


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:400]
