"""A bundle that was damaged, or made by another hand, gives one clear sentence and never an illegal action."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from ooco_gym.errors import UserError
from ooco_gym.runtime import Policy
from ooco_gym.runtime import bundle as bundles
from ooco_gym.runtime.manifest import signed
from tests.runtime.c_double import parameter_bundle, scorer_bundle, sign
from tests.runtime.test_runtime_policy import good, write_bundle

JSON = st.recursive(st.none() | st.booleans() | st.integers(-3, 10**7) | st.floats() | st.text(max_size=4),
                    lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(max_size=4), one, max_size=3),
                    max_leaves=6)


def rewritten(folder, change):
    """The bundle with another graph, whose digest fits."""
    path = folder / "policy.onnx"
    model = onnx.load(str(path))
    change(model)
    path.write_bytes(model.SerializeToString())
    sign(folder)
    return folder


def never_masked(model):
    """As a network whose illegal logits are beyond those of legal actions."""
    next(one for one in model.graph.initializer if one.name == "low").CopyFrom(
        numpy_helper.from_array(np.float32(1e30), "low"))


def test_an_illegal_answer_is_refused_by_every_way_to_ask(tmp_path):
    policy = Policy.load(rewritten(write_bundle(tmp_path), never_masked))
    assert policy.decide(good(), [1] * 5) == 3
    mask = np.array([[1, 1, 1, 0, 1]])
    parts = {key: np.array([part], np.float32) for key, part in good().items()}
    for ask in (lambda: policy.decide(good(), mask[0]), lambda: policy.decide_batch(parts, mask),
                lambda: policy.preferences(parts, mask),
                lambda: policy.decide_unchecked(parts["cluster"], parts["candidates"], mask.astype(np.int8),
                                                parts["decision"])):
        with pytest.raises(UserError, match="an illegal action"):
            ask()


def places(node, path=()):
    yield path
    inside = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, one in inside:
        yield from places(one, (*path, key))


@given(data=st.data())
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_malformed_manifest_is_one_sentence(tmp_path, data):
    folder = write_bundle(tmp_path / "bundle")
    manifest = json.loads((folder / "manifest.json").read_text())
    place = data.draw(st.sampled_from([one for one in places(manifest) if one]))
    changed = copy.deepcopy(manifest)
    inside = changed
    for key in place[:-1]:
        inside = inside[key]
    if data.draw(st.booleans()):
        inside[place[-1]] = data.draw(JSON)
    else:
        del inside[place[-1]]
    (folder / "manifest.json").write_text(json.dumps(signed(changed) if isinstance(changed, dict) else changed))
    try:
        policy = Policy.load(folder)
    except UserError:
        return
    assert policy.decide(good(), [1] * 5) == 3


def test_bytes_that_are_no_text_and_endless_nesting_are_one_sentence(tmp_path):
    folder = write_bundle(tmp_path)
    for content in (b"\xff\xfe{", b"[" * 100_000):
        (folder / "manifest.json").write_bytes(content)
        with pytest.raises(UserError, match=r"manifest.json' (is not valid JSON|cannot be read)"):
            Policy.load(folder)


@pytest.mark.parametrize("name", ["set", "parameters"])
def test_a_damaged_file_is_one_sentence(tmp_path, name):
    """Bits, and the end of a file, of bundles whose digests fit what is there; an answer stays within rounding."""
    random = np.random.default_rng(7)
    for place in range(40):
        folder = tmp_path / str(place)
        forms = ("npz",) if place % 2 else ("onnx",)
        whole = parameter_bundle(folder, forms=forms) if name == "parameters" else scorer_bundle(
            folder, name, forms=forms)
        files = sorted(path for path in whole.iterdir() if path.suffix != ".json")
        path = files[random.integers(len(files))]
        content = bytearray(path.read_bytes())
        content[random.integers(len(content))] ^= 1 << int(random.integers(8))
        path.write_bytes(bytes(content[: len(content) if place % 4 else random.integers(len(content))]))
        sign(folder)
        with contextlib.suppress(UserError):
            Policy.load(folder)


# --- A graph from anybody neither runs forever, nor fills memory, nor reads files: it is refused in a sentence -------
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
