"""Writes `policy.onnx` from a policy's arrays, where no trained network is at hand; needs the package onnx."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.runtime.scorers import Sizes, sizes_of

_OPS = {"tanh": "Tanh", "relu": "Relu", "sigmoid": "Sigmoid"}
_OPSET, _IR = 18, 9  # what onnxruntime of some years reads


def parameter_graph(manifest: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """The graph from `cluster` float32 (batch, F) to `parameters` float64 (batch, P), as `runtime.parameters` computes.

    Raises:
        UserError: onnx is not installed.
    """
    onnx = _onnx()
    checker, helper, numpy_helper, kinds = onnx.checker, onnx.helper, onnx.numpy_helper, onnx.TensorProto
    parameters, names = manifest["parameters"], manifest["network"]["activations"]
    log = np.array([one["scale"] == "log" for one in parameters])
    step = np.array([one["step"] for one in parameters], np.float64)
    constants = {"log": np.where(log, step, 0.0), "linear": np.where(log, 0.0, step),
                 "least": np.float64(-80.0), "most": np.float64(80.0),
                 **{key: np.array([one[key] for one in parameters], np.float64) for key in ("base", "low", "high")}}
    nodes, last = [helper.make_node("Cast", ["cluster"], ["x0"], to=kinds.DOUBLE)], "x0"
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
        nodes, "parameters", [helper.make_tensor_value_info("cluster", kinds.FLOAT, ["batch", features])],
        [helper.make_tensor_value_info("parameters", kinds.DOUBLE, ["batch", len(parameters)])],
        [numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in constants.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR)
    checker.check_model(model, full_check=True)
    return model.SerializeToString()


def scorer_graph(manifest: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """The graph of a `candidate_scorer` or `scorer` whose action is one of a few, from its arrays, with the inputs and
    outputs that `ooco-gym export` gives a trained network's.

    Raises:
        UserError: the network is another, has heads for several decisions, or onnx is not installed.
    """
    sizes, network = sizes_of(manifest), manifest["network"]
    if sizes.levels or network.get("kinds", 1) != 1 or network["form"] not in ("candidate_scorer", "scorer"):
        raise UserError(f"the graph of a network of the form '{network['form']}' is written by ooco-gym export, of a "
                        "trained run; leave the form onnx out")
    graph = _Graph()
    body = _set_scores if network["form"] == "candidate_scorer" else _layer_scores
    graph.add("Cast", ["action_mask"], "legal", to="BOOL")
    raw = body(graph, arrays, sizes, network)
    graph.add("Where", ["legal", raw, graph.held(np.float32(-1e8))], "logits")
    graph.add("ArgMax", ["logits"], "action", axis=1, keepdims=0)
    shapes = {"cluster": [sizes.cluster], "candidates": [sizes.places, sizes.features], "action_mask": [sizes.actions],
              "decision": [sizes.decisions]}
    return graph.model(shapes, {"action": ("INT64", []), "logits": ("FLOAT", [sizes.actions])})


class _Graph:
    """Nodes and constants of a graph in the making."""

    def __init__(self) -> None:
        self._onnx = _onnx()
        self._nodes, self._constants = [], {}

    def held(self, value: Any) -> str:
        """The name of a constant."""
        name = f"constant{len(self._constants)}"
        self._constants[name] = np.ascontiguousarray(value)
        return name

    def add(self, operator: str, inputs: list[str], output: str | None = None, **attributes: Any) -> str:
        """A node; returns the name of what it gives."""
        named = output or f"value{len(self._nodes)}"
        if "to" in attributes:
            attributes["to"] = getattr(self._onnx.TensorProto, attributes["to"])
        self._nodes.append(self._onnx.helper.make_node(operator, inputs, [named], **attributes))
        return named

    def dense(self, x: str, weight: np.ndarray, bias: np.ndarray | None = None, kind: Any = np.float32) -> str:
        """weight · x (+ bias)."""
        product = self.add("MatMul", [x, self.held(np.asarray(weight, kind).T)])
        return product if bias is None else self.add("Add", [product, self.held(np.asarray(bias, kind))])

    def model(self, inputs: Mapping[str, list[int]], outputs: Mapping[str, tuple[str, list[int]]]) -> bytes:
        """The checked model, as bytes."""
        helper, kinds = self._onnx.helper, self._onnx.TensorProto
        taken = [helper.make_tensor_value_info(name, kinds.INT8 if name == "action_mask" else kinds.FLOAT,
                                               ["batch", *shape]) for name, shape in inputs.items()]
        given = [helper.make_tensor_value_info(name, getattr(kinds, kind), ["batch", *shape])
                 for name, (kind, shape) in outputs.items()]
        constants = [self._onnx.numpy_helper.from_array(value, name) for name, value in self._constants.items()]
        graph = helper.make_graph(self._nodes, "policy", taken, given, constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR)
        self._onnx.checker.check_model(model, full_check=True)
        return model.SerializeToString()


def _set_scores(graph: _Graph, arrays: Mapping[str, np.ndarray], sizes: Sizes, network: Mapping[str, Any]) -> str:
    def scaled(name: str) -> str:
        away = graph.add("Sub", [name, graph.held(arrays[f"{name}.mean"])])
        z = graph.add("Div", [away, graph.held(arrays[f"{name}.deviation"])])
        return graph.add("Clip", [z, graph.held(np.float32(-8.0)), graph.held(np.float32(8.0))])

    def beside(x: str) -> str:
        return graph.add("Unsqueeze", [x, graph.held(np.array([1], np.int64))])

    context = graph.add("Concat", [scaled("cluster"), "decision"], axis=1)
    flags = graph.add("Slice", ["legal", *(graph.held(np.array([place], np.int64))
                                           for place in (sizes.fixed, sizes.actions, 1))])
    there = graph.add("Cast", [flags], to="FLOAT")
    column = graph.add("Unsqueeze", [there, graph.held(np.array([2], np.int64))])
    offered = graph.add("Mul", [scaled("candidates"), column])
    own = graph.add("Add", [graph.dense(offered, arrays["embed.weight"], arrays["embed.bias"]),
                            beside(graph.dense(context, arrays["context.weight"]))])
    embedded = graph.add("Tanh", [own])
    count = graph.add("ReduceSum", [there, graph.held(np.array([1], np.int64))], keepdims=1)
    weight = graph.add("Div", [there, graph.add("Max", [count, graph.held(np.float32(1.0))])])
    pooled = graph.add("Squeeze", [graph.add("MatMul", [beside(weight), embedded]),
                                   graph.held(np.array([1], np.int64))])
    state = graph.add("Concat", [pooled, context], axis=1)
    mine = graph.add("Tanh", [graph.add("Add", [graph.dense(embedded, arrays["own.weight"], arrays["own.bias"]),
                                                beside(graph.dense(state, arrays["state.weight"]))])])
    each = graph.add("Squeeze", [graph.dense(mine, arrays["head.weight"], arrays["head.bias"]),
                                 graph.held(np.array([2], np.int64))])
    fixed = graph.dense(graph.add("Tanh", [graph.dense(state, arrays["pool.weight"], arrays["pool.bias"])]),
                        arrays["fixed.weight"], arrays["fixed.bias"])
    return graph.add("Concat", [fixed, each], axis=1)


def _layer_scores(graph: _Graph, arrays: Mapping[str, np.ndarray], sizes: Sizes, network: Mapping[str, Any]) -> str:
    """Layers in float64, as numpy and C compute them: a sum of few large features loses nothing."""
    cluster, x = graph.add("Cast", ["cluster"], to="DOUBLE"), graph.add("Cast", ["candidates"], to="DOUBLE")
    if network["sizes"][0] > sizes.features:
        wide = graph.add("Unsqueeze", [cluster, graph.held(np.array([1], np.int64))])
        times = graph.held(np.array([1, sizes.places, 1], np.int64))
        x = graph.add("Concat", [x, graph.add("Tile", [wide, times])], axis=2)
    for place, name in enumerate(network["activations"]):
        x = graph.dense(x, arrays[f"layers.{place}.weight"], arrays[f"layers.{place}.bias"], np.float64)
        x = graph.add(_OPS[name], [x]) if name in _OPS else x
    each = graph.add("Squeeze", [x, graph.held(np.array([2], np.int64))])
    if sizes.fixed:
        fixed = graph.dense(cluster, arrays["fixed.weight"], arrays["fixed.bias"], np.float64)
        each = graph.add("Concat", [fixed, each], axis=1)
    return graph.add("Cast", [each], to="FLOAT")


def _onnx() -> Any:
    """The package onnx, with the parts of it that are used.

    Raises:
        UserError: it is not installed.
    """
    try:
        import onnx
        from onnx import checker, helper, numpy_helper  # noqa: F401  (parts that import onnx does not promise)
    except ImportError as error:
        raise UserError("onnx is not installed, which writing the form onnx needs; install with: pip install "
                        "'ooco-gym[export]'") from error
    return onnx
