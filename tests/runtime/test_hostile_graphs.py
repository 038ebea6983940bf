"""A graph from anybody neither runs forever, nor fills memory, nor reads files: it is refused in a sentence."""

from __future__ import annotations

import json
import math
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ooco_gym.errors import UserError
from ooco_gym.runtime import Policy
from ooco_gym.runtime import bundle as bundles
from ooco_gym.runtime.manifest import signed
from tests.runtime.c_double import parameter_bundle, sign
from tests.runtime.test_damaged_bundles import rewritten
from tests.runtime.test_runtime_policy import write_bundle


def behind(graph: Any, nodes: list[Any], name: str) -> None:
    """Adds the value `name` of some nodes to the first output of a graph."""
    output = graph.output[-1]
    for node in graph.node:
        node.output[:] = ["before" if one == output.name else one for one in node.output]
    cast = helper.make_node("Cast", [name], ["added"], to=output.type.tensor_type.elem_type)
    graph.node.extend([*nodes, cast, helper.make_node("Add", ["before", "added"], [output.name])])


def constant(graph: Any, name: str, value: Any) -> None:
    graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))


def loop(model: Any) -> None:
    body = helper.make_graph(
        [helper.make_node("Identity", ["going"], ["still"]), helper.make_node("Add", ["x", "x"], ["y"])], "body",
        [helper.make_tensor_value_info(*one, []) for one in (
            ("i", TensorProto.INT64), ("going", TensorProto.BOOL), ("x", TensorProto.FLOAT))],
        [helper.make_tensor_value_info(*one, []) for one in (("still", TensorProto.BOOL), ("y", TensorProto.FLOAT))])
    for name, value in (("trips", np.int64(10**12)), ("true", np.bool_(True)), ("zero", np.float32(0))):
        constant(model.graph, name, value)
    behind(model.graph, [helper.make_node("Loop", ["trips", "true", "zero"], ["end"], body=body)], "end")


def bomb(model: Any) -> None:
    constant(model.graph, "size", np.array([1_500_000_000]))
    behind(model.graph, [helper.make_node("ConstantOfShape", ["size"], ["many"]),
                         helper.make_node("ReduceSum", ["many"], ["one"], keepdims=0)], "one")


def folded(model: Any) -> None:
    """Constants alone would be computed as the graph is loaded."""
    constant(model.graph, "row", np.ones((1, 100_000), np.float32))
    constant(model.graph, "column", np.ones((100_000, 1), np.float32))
    behind(model.graph, [helper.make_node("Add", ["row", "column"], ["many"]),
                         helper.make_node("ReduceSum", ["many"], ["one"], keepdims=0)], "one")


def elsewhere(model: Any) -> None:
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "/etc/passwd"


def foreign(model: Any) -> None:
    constant(model.graph, "unit", np.float32(0))
    model.opset_import.append(helper.make_opsetid("other", 1))
    behind(model.graph, [helper.make_node("Add", ["unit", model.graph.input[0].name], ["x"], domain="other")], "x")


def with_function(model: Any) -> None:
    model.functions.append(helper.make_function(
        "own", "f", ["x"], ["y"], [helper.make_node("Identity", ["x"], ["y"])], [helper.make_opsetid("", 18)]))


def endless(model: Any) -> None:
    constant(model.graph, "unit", np.float32(0))
    behind(model.graph, [helper.make_node("Max", ["unit", model.graph.input[0].name], [f"x{i}"])
                         for i in range(2000)], "x0")


@pytest.mark.parametrize(("change", "word"), [
    (loop, "'Loop'"), (bomb, "'ConstantOfShape'"), (folded, "constants alone"), (elsewhere, "another file"),
    (foreign, "another domain"), (with_function, "functions"), (endless, "operators; expected at most")])
def test_a_graph_that_no_export_writes_is_refused_before_it_runs(tmp_path: Path, change: Callable[[Any], None],
                                                                 word: str) -> None:
    folder = rewritten(write_bundle(tmp_path), change)
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError, match=word):
        Policy.load(folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before_kb + 100_000


def test_memory_of_a_graph_is_limited(tmp_path: Path) -> None:
    """The operators are an export's; 100,000 x 100,000 sums of features would take 40 GB."""
    def grows(model: Any) -> None:
        graph = model.graph
        for name, shape in (("row", (1, 100_000)), ("column", (100_000, 1))):
            constant(graph, name, np.zeros(shape, np.float32))
        constant(graph, "axes", np.array([0, 1, 2]))
        reduced = helper.make_node("ReduceSum", ["candidates", "axes"], ["scalar"], keepdims=0)
        behind(graph, [reduced, helper.make_node("Add", ["row", "scalar"], ["r"]),
                       helper.make_node("Add", ["r", "column"], ["many"]),
                       helper.make_node("ReduceSum", ["many"], ["one"], keepdims=0)], "one")

    with pytest.raises(UserError, match="cannot be run"):
        Policy.load(rewritten(write_bundle(tmp_path), grows))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 3_000_000


def test_a_graph_that_takes_too_long_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(model: Any) -> None:
        constant(model.graph, "square", np.full((2000, 2000), 1e-4, np.float32))
        constant(model.graph, "axes", np.array([0, 1, 2]))
        nodes = [helper.make_node("ReduceSum", ["candidates", "axes"], ["scalar"], keepdims=0),
                 helper.make_node("Mul", ["scalar", "square"], ["m0"])]
        nodes += [helper.make_node("MatMul", [f"m{i}", "square"], [f"m{i + 1}"]) for i in range(900)]
        behind(model.graph, [*nodes, helper.make_node("ReduceSum", ["m900"], ["one"], keepdims=0)], "one")

    monkeypatch.setattr(bundles, "MOST_LOADING_S", 0.5)
    with pytest.raises(UserError, match="cannot be run"):  # some 900 products of 16 GFLOP, of which a few are computed
        Policy.load(rewritten(write_bundle(tmp_path), slow))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400])
def test_every_number_of_a_manifest_is_finite(tmp_path: Path, value: float) -> None:
    folder = parameter_bundle(tmp_path, forms=("npz",))
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    for change in (lambda one: one["parameters"][0].update(step=value), lambda one: one["trained_for"]["slo"].update(
            ttft_s=value), lambda one: one.update(parts=[{"name": "gate", "levels": [1.0, value]}])):
        changed = json.loads(path.read_text())
        change(changed)
        path.write_text(json.dumps(signed(changed)))
        with pytest.raises(UserError, match="is not a finite number"):
            Policy.load(folder)
        path.write_text(json.dumps(manifest))
    sign(folder)
    Policy.load(folder)


def test_reference_vectors_have_the_shapes_that_the_manifest_says(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["inputs"]["candidates"]["shape"][0] = 1
    (folder / "manifest.json").write_text(json.dumps(signed(manifest)))
    with pytest.raises(UserError):
        Policy.load(folder)


def test_our_own_graphs_pass(tmp_path: Path) -> None:
    from ooco_gym.runtime.onnx_graph import OPERATORS

    model = onnx.load(str(parameter_bundle(tmp_path, forms=("onnx",)) / "policy.onnx"))
    assert {node.op_type for node in model.graph.node} <= set(OPERATORS)
    assert Policy.load(tmp_path).form == "onnx"
