"""Damages of `policy.onnx` whose digests fit: what is left to find them are the checks of the graph's bytes, ONNX
Runtime, and the reference vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from c_double import sign
from onnx import TensorProto, helper, numpy_helper


def flipped_graph(folder: Path, random: np.random.Generator) -> None:
    """Some bits, anywhere in the graph."""
    path = folder / "policy.onnx"
    content = bytearray(path.read_bytes())
    for _ in range(int(random.integers(1, 4))):
        content[random.integers(len(content))] ^= 1 << int(random.integers(8))
    path.write_bytes(bytes(content))
    sign(folder)


def cut_graph(folder: Path, random: np.random.Generator) -> None:
    path = folder / "policy.onnx"
    path.write_bytes(path.read_bytes()[: random.integers(path.stat().st_size)])
    sign(folder)


def patched_graph(folder: Path, random: np.random.Generator) -> None:
    """A piece of the graph somewhere else in it, or random bytes."""
    path = folder / "policy.onnx"
    content = bytearray(path.read_bytes())
    length = int(random.integers(1, 40))
    start, place = random.integers(0, len(content) - length, 2)
    piece = bytes(content[start : start + length]) if random.random() < 0.5 else random.bytes(length)
    end = place + (length if random.random() < 0.5 else 0)
    content[place:end] = piece
    path.write_bytes(bytes(content))
    sign(folder)


def other_weights(folder: Path, random: np.random.Generator) -> None:
    """A weight that is not finite, or another one altogether."""
    model, tensor = _drawn(folder, random, (TensorProto.FLOAT, TensorProto.DOUBLE))
    array = numpy_helper.to_array(tensor).copy()
    values = [np.nan, np.inf, -np.inf, 1e38, random.normal() * 3.0]
    array.reshape(-1)[random.integers(array.size)] = values[random.integers(len(values))]
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    _write(folder, model)


def other_lengths(folder: Path, random: np.random.Generator) -> None:
    """Another whole number among those from which operators take axes, shapes and repeats; where there are any."""
    model, tensor = _drawn(folder, random, (TensorProto.INT64,))
    array = numpy_helper.to_array(tensor).copy()
    values = [0, -1, 1, 7, 99_999, 1 << 29, 1 << 40, -(1 << 63), (1 << 63) - 1]
    array.reshape(-1)[random.integers(array.size)] = values[random.integers(len(values))]
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    _write(folder, model)


def other_dims(folder: Path, random: np.random.Generator) -> None:
    """A tensor that claims another shape, of two gigabytes and more, or brings other numbers than it claims."""
    model, tensor = _drawn(folder, random)
    shape = list(tensor.dims)
    wrong = [[*shape, 2], [536_870_912], [1 << 40], [1 << 62, 1 << 62], [-1], [0], [65_536] * 4, shape[::-1],
             [*shape[:-1], (shape or [1])[-1] + 1], [1] * 100_000]
    if random.random() < 0.7:
        del tensor.dims[:]
        tensor.dims.extend(wrong[random.integers(len(wrong))])
    else:
        tensor.raw_data = tensor.raw_data[: random.integers(len(tensor.raw_data) + 1)]
    _write(folder, model)


def other_kind(folder: Path, random: np.random.Generator) -> None:
    """Numbers that are said to be of another kind, perhaps none that there is."""
    model, tensor = _drawn(folder, random)
    tensor.data_type = int(random.integers(0, 30))
    _write(folder, model)


def weights_beside(folder: Path, random: np.random.Generator) -> None:
    """Weights that are said to be in another file, which leaves the folder, is none, or is one of the bundle's own."""
    model, tensor = _drawn(folder, random)
    wrong = ["../manifest.json", "/etc/hostname", "/dev/zero", "..", "", "a/../../b", "weights.npz", "policy.onnx",
             "nothing.data", "../" * 60 + "etc/hostname", "manifest.json\x00"]
    entries = [("location", wrong[random.integers(len(wrong))]), ("offset", "0"), ("length", str(len(tensor.raw_data)))]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for place in random.permutation(len(entries)):
        entry = tensor.external_data.add()
        entry.key, entry.value = entries[place]
    if random.random() < 0.3:
        entry = tensor.external_data.add()  # which of both counts?
        entry.key, entry.value = "location", "weights.npz"
    _write(folder, model)


def other_operator(folder: Path, random: np.random.Generator) -> None:
    """Another operator of as many inputs, one that draws at random, or one from elsewhere."""
    model = onnx.load(str(folder / "policy.onnx"))
    node = model.graph.node[random.integers(len(model.graph.node))]
    names = ["ArgMin", "Identity", "Neg", "Sub", "Add", "Tile", "Expand", "ConstantOfShape", "RandomNormalLike", "Loop",
             "Relu", "Abs", "Less", "Softmax", "nothing"]
    node.op_type = names[random.integers(len(names))]
    if random.random() < 0.1:
        node.domain = ["com.microsoft", "x"][random.integers(2)]
    _write(folder, model)


def other_wires(folder: Path, random: np.random.Generator) -> None:
    """A node that takes another value of the graph, or is not there, or an output that is another node's."""
    model = onnx.load(str(folder / "policy.onnx"))
    nodes = model.graph.node
    place, names = int(random.integers(len(nodes))), [name for node in nodes for name in (*node.input, *node.output)]
    what = random.integers(3)
    if what == 0:
        nodes[place].input[random.integers(len(nodes[place].input))] = names[random.integers(len(names))]
    elif what == 1:
        del nodes[place]
    else:
        nodes[place].output[0] = names[random.integers(len(names))]
    _write(folder, model)


def huge_nodes(folder: Path, random: np.random.Generator) -> None:
    """Nodes that make gigabytes of what they are given, from which an output is taken."""
    model = onnx.load(str(folder / "policy.onnx"))
    graph, output = model.graph, model.graph.output[0].name
    length = int([1 << 31, 99_999][random.integers(2)])
    last = next(node for node in graph.node if output in node.output)
    last.output[list(last.output).index(output)] = "before"
    shape = numpy_helper.from_array(np.array([length, length], np.int64), "room")
    if random.random() < 0.5:
        graph.initializer.append(shape)
    else:
        graph.node.append(helper.make_node("Constant", [], ["room"], value=shape))
    graph.node.append(helper.make_node("ConstantOfShape", ["room"], ["large"]))
    graph.node.append(helper.make_node("ReduceMax", ["large"], ["zero"], keepdims=0))
    kind = graph.output[0].type.tensor_type.elem_type
    graph.node.append(helper.make_node("Cast", ["zero"], ["nothing"], to=kind))
    graph.node.append(helper.make_node("Add", ["before", "nothing"], [output]))
    _write(folder, model)


def bulky_graph(folder: Path, random: np.random.Generator) -> None:
    """Graphs within graphs, parts that no policy has, a second graph, or random bytes altogether."""
    path = folder / "policy.onnx"
    model, what = onnx.load(str(path)), random.integers(4)
    if what == 0:
        for _ in range(int(random.integers(5, 15))):
            inner = helper.make_graph([], "inner", [], [])
            inner.node.extend(model.graph.node)
            del model.graph.node[:]
            model.graph.node.append(helper.make_node("Loop", ["", "x"], ["y"], body=inner))
        content = model.SerializeToString()
    elif what == 1:
        function = model.functions.add()
        function.name, function.domain = "f", "x"
        content = model.SerializeToString()
    elif what == 2:
        content = 2 * model.SerializeToString()
    else:
        content = random.bytes(int(random.integers(0, 4000)))
    path.write_bytes(content)
    sign(folder)


GRAPH_DAMAGES = (flipped_graph, cut_graph, patched_graph, other_weights, other_lengths, other_dims, other_kind,
                 weights_beside, other_operator, other_wires, huge_nodes, bulky_graph)


def _drawn(folder: Path, random: np.random.Generator,
           kinds: tuple[int, ...] = ()) -> tuple[onnx.ModelProto, TensorProto]:
    """The graph, and one of its tensors, of these kinds where it has any."""
    model = onnx.load(str(folder / "policy.onnx"))
    every = list(model.graph.initializer)
    some = [tensor for tensor in every if tensor.data_type in kinds] or every
    return model, some[random.integers(len(some))]


def _write(folder: Path, model: onnx.ModelProto) -> None:
    (folder / "policy.onnx").write_bytes(model.SerializeToString())
    sign(folder)

