"""Writes a policy's `policy.onnx`: records each NumPy operation of `networks` as an ONNX node.

Needs the package onnx. A `Value` stands for an array with any number of rows; arrays combined with
it become constants of the graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.runtime.manifest import INPUTS, PARAMETERS
from ooco_gym.runtime.networks import network_of

_OPSET, _IR = 18, 9  # read by older versions of onnxruntime, too
_END = (1 << 63) - 1  # end of an open slice
_OPERATORS = {np.add: "Add", np.subtract: "Sub", np.multiply: "Mul", np.divide: "Div", np.matmul: "MatMul",
              np.maximum: "Max", np.minimum: "Min", np.tanh: "Tanh", np.exp: "Exp"}


def graph_of(manifest: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """Returns the graph of a policy of either kind.

    Raises:
        UserError: onnx is not installed, or the arrays do not fit the manifest.
    """
    try:
        import onnx
        from onnx import checker, helper, numpy_helper  # submodules that `import onnx` may not load
    except ImportError as error:
        raise UserError("onnx is not installed, which writing the form onnx needs; install with: pip install "
                        "'ooco-gym[export]'") from error
    graph = _Graph(onnx)
    given = {key: manifest["inputs"][key]["shape"]
             for key in (("cluster",) if manifest["kind"] == PARAMETERS else INPUTS)}
    kinds = {key: np.dtype(np.int8 if key == "action_mask" else np.float32) for key in given}
    found = network_of(manifest, arrays)(*(Value(graph, key, kind) for key, kind in kinds.items()))
    names = ("parameters",) if manifest["kind"] == PARAMETERS else ("action", "logits")
    for name, value in zip(names, found, strict=True):
        graph.node("Identity", [value.name], name)

    def described(name: str, kind: np.dtype, shape: list[int] | None) -> Any:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(kind),
                                             None if shape is None else ["batch", *shape])

    proto = helper.make_graph(
        graph.nodes, "policy", [described(key, kinds[key], shape) for key, shape in given.items()],
        [described(name, value.dtype, None) for name, value in zip(names, found, strict=True)],
        [numpy_helper.from_array(value, name) for name, value in graph.constants.items()])
    model = helper.make_model(proto, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR)
    model = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    del model.graph.value_info[:]
    checker.check_model(model, full_check=True)
    return model.SerializeToString()


class _Graph:
    """Nodes and constants of a graph under construction."""

    def __init__(self, onnx: Any) -> None:
        self.onnx, self.nodes = onnx, []
        self.constants: dict[str, np.ndarray] = {}

    def node(self, operator: str, inputs: list[str], output: str | None = None, **attributes: Any) -> str:
        """Adds a node; returns its output's name."""
        name = output or f"value{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(operator, inputs, [name], **attributes))
        return name

    def constant(self, value: Any) -> str:
        """Adds a constant; returns its name. Integers are indices or lengths."""
        name = f"constant{len(self.constants)}"
        self.constants[name] = np.ascontiguousarray(value).reshape(np.shape(value))
        return name


class Value(np.lib.mixins.NDArrayOperatorsMixin):
    """Stands for an array while a network is traced: each operation of `networks` on it adds nodes."""

    def __init__(self, graph: _Graph, name: str, dtype: np.dtype) -> None:
        self._graph, self.name, self.dtype = graph, name, dtype

    def _node(self, operator: str, inputs: list[str], dtype: Any = None, **attributes: Any) -> Value:
        return Value(self._graph, self._graph.node(operator, inputs, **attributes), np.dtype(dtype or self.dtype))

    def _named(self, operand: Any, dtype: np.dtype) -> str:
        """Returns an operand's name, cast to a type."""
        if isinstance(operand, Value):
            return operand.astype(dtype).name
        return self._graph.constant(np.asarray(operand, dtype))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Value:
        dtype = np.result_type(*(getattr(one, "dtype", one) for one in inputs))
        return self._node(_OPERATORS[ufunc], [self._named(one, dtype) for one in inputs], dtype)

    def __array_function__(self, function: Any, kinds: Any, given: Any, options: Any) -> Value:
        if function is np.where:
            dtype = np.result_type(*(one.dtype for one in given[1:]))
            return self._node("Where", [given[0].name, *(self._named(one, dtype) for one in given[1:])], dtype)
        parts, axis = given[0], options["axis"]
        dtype = np.result_type(*(part.dtype for part in parts))
        if function is np.stack:
            parts = [part._along("Unsqueeze", axis) for part in parts]
        return self._node("Concat", [self._named(part, dtype) for part in parts], dtype, axis=axis)

    def __getitem__(self, key: Any) -> Value:
        found, axis = self, 0
        for one in key:
            if isinstance(one, int):
                found = found._node("Gather", [found.name, self._graph.constant(one)], axis=axis)
                continue
            if one is None:
                found = found._along("Unsqueeze", axis)
            elif one != slice(None):
                ends = [[one.start or 0], [_END if one.stop is None else one.stop], [axis]]
                found = found._node("Slice", [found.name, *(self._graph.constant(end) for end in ends)])
            axis += 1
        return found

    def _along(self, operator: str, axis: int, **attributes: Any) -> Value:
        return self._node(operator, [self.name, self._graph.constant([axis])], **attributes)

    def astype(self, dtype: Any) -> Value:
        kind = np.dtype(dtype)
        if kind == self.dtype:
            return self
        return self._node("Cast", [self.name], kind, to=self._graph.onnx.helper.np_dtype_to_tensor_dtype(kind))

    def reshape(self, *shape: int) -> Value:
        return self._node("Reshape", [self.name, self._graph.constant(shape)])

    def sum(self, axis: int, keepdims: bool = False) -> Value:
        return self._along("ReduceSum", axis, keepdims=int(keepdims))

    def argmax(self, axis: int) -> Value:
        """Returns indices of the largest values along an axis."""
        return self._node("ArgMax", [self.name], np.int64, axis=axis, keepdims=0)
