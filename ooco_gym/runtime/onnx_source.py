"""Writes a policy of plain layers that sets parameters as `policy.onnx`; needs the package onnx."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ooco_gym.errors import UserError

_OPS = {"tanh": "Tanh", "relu": "Relu", "sigmoid": "Sigmoid"}
_OPSET, _IR = 18, 9  # what onnxruntime of some years reads


def parameter_graph(manifest: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """The graph from `cluster` float32 (batch, F) to `parameters` float64 (batch, P), as `runtime.parameters` computes.

    Raises:
        UserError: the policy is of another kind, or onnx is not installed.
    """
    if manifest["kind"] != "parameters":
        raise UserError("the graph of a policy of kind 'candidates' is written by ooco-gym export, of a trained run; "
                        "leave the form onnx out")
    try:
        from onnx import TensorProto, checker, helper, numpy_helper
    except ImportError as error:
        raise UserError("onnx is not installed, which writing the form onnx needs; install with: pip install "
                        "'ooco-gym[export]'") from error
    parameters, names = manifest["parameters"], manifest["network"]["activations"]
    log = np.array([one["scale"] == "log" for one in parameters])
    step = np.array([one["step"] for one in parameters], np.float64)
    constants = {"log": np.where(log, step, 0.0), "linear": np.where(log, 0.0, step),
                 "least": np.float64(-80.0), "most": np.float64(80.0),
                 **{key: np.array([one[key] for one in parameters], np.float64) for key in ("base", "low", "high")}}
    nodes, last = [helper.make_node("Cast", ["cluster"], ["x0"], to=TensorProto.DOUBLE)], "x0"
    for place, name in enumerate(names):
        constants[f"weight{place}"] = np.asarray(arrays[f"layers.{place}.weight"], np.float64).T
        constants[f"bias{place}"] = np.asarray(arrays[f"layers.{place}.bias"], np.float64)
        nodes += [helper.make_node("MatMul", [last, f"weight{place}"], [f"product{place}"]),
                  helper.make_node("Add", [f"product{place}", f"bias{place}"], [f"sum{place}"])]
        last = f"sum{place}"
        if name in _OPS:
            nodes.append(helper.make_node(_OPS[name], [last], [f"x{place + 1}"]))
            last = f"x{place + 1}"
    nodes += [helper.make_node(*one) for one in (
        ("Mul", [last, "log"], ["exponent"]), ("Clip", ["exponent", "least", "most"], ["cut"]),
        ("Exp", ["cut"], ["factor"]), ("Mul", ["factor", "base"], ["scaled"]),
        ("Mul", [last, "linear"], ["shift"]), ("Add", ["scaled", "shift"], ["free"]),
        ("Max", ["free", "low"], ["above"]), ("Min", ["above", "high"], ["parameters"]))]
    features = len(manifest["inputs"]["cluster"]["features"])
    graph = helper.make_graph(
        nodes, "parameters", [helper.make_tensor_value_info("cluster", TensorProto.FLOAT, ["batch", features])],
        [helper.make_tensor_value_info("parameters", TensorProto.DOUBLE, ["batch", len(parameters)])],
        [numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in constants.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR)
    checker.check_model(model, full_check=True)
    return model.SerializeToString()
