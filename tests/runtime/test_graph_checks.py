"""What of a graph's bytes is refused before ONNX Runtime sees them, each in one sentence."""

import numpy as np
import onnx
import pytest
from c_double import parameter_bundle, scorer_bundle, sign
from onnx import TensorProto, helper, numpy_helper

from ooco_gym.errors import UserError
from ooco_gym.runtime import Policy
from ooco_gym.runtime.graph_checks import check_graph


@pytest.fixture
def bundle(tmp_path):
    return scorer_bundle(tmp_path / "bundle", "set", forms=("npz", "onnx"))


def refusal(folder, change=lambda model: None, content=None):
    """What is said of a bundle with another graph whose digest fits."""
    path = folder / "policy.onnx"
    model = onnx.load(str(path))
    change(model)
    path.write_bytes(content or model.SerializeToString())
    sign(folder)
    with pytest.raises(UserError) as error:
        Policy.load(folder, form="onnx")
    assert "\n" not in str(error.value)
    return str(error.value)


def tensor(model, name=None, kind=TensorProto.FLOAT):
    return next(one for one in model.graph.initializer if one.data_type == kind and name in (None, one.name))


def replaced(one, array):
    one.CopyFrom(numpy_helper.from_array(np.asarray(array), one.name))


def beside(*entries):
    def change(model):
        one = tensor(model)
        one.ClearField("raw_data")
        one.data_location = TensorProto.EXTERNAL
        for key, value in entries:
            entry = one.external_data.add()
            entry.key, entry.value = key, value
    return change


def large(length):
    def change(model):
        model.graph.initializer.append(numpy_helper.from_array(np.array([length, length], np.int64), "room"))
        model.graph.node.append(helper.make_node("ConstantOfShape", ["room"], ["large"]))
    return change


def large_constant(model):
    shape = numpy_helper.from_array(np.array([9_999, 9_999], np.int64))
    model.graph.node.append(helper.make_node("Constant", [], ["room"], value=shape))
    model.graph.node.append(helper.make_node("Expand", ["legal", "room"], ["large"]))


def nested(model):
    for _ in range(8):
        inner = helper.make_graph(list(model.graph.node), "inner", [], [])
        del model.graph.node[:]
        model.graph.node.append(helper.make_node("Loop", ["", "x"], ["y"], body=inner))


def claims(*dims):
    def change(model):
        one = tensor(model)
        del one.dims[:]
        one.dims.extend(dims)
    return change


@pytest.mark.parametrize("change, words", [
    (claims(536_870_912), "claims shape [536870912], more than the 67,108,864 bytes that it may have"),
    (claims(1 << 62, 1 << 62), "more than the 67,108,864 bytes"),
    (claims(-1), "claims shape [-1], more than"),
    (claims(*[1] * 10_000), "claims shape [1, 1, 1, 1, 1, 1, 1, 1], more than"),
    (claims(1000), "claims shape [1000], 1,000 numbers, and brings"),
    (lambda model: replaced(tensor(model), np.float32([np.nan, 1.0])), "weights that are not finite, in a tensor"),
    (lambda model: replaced(tensor(model), np.float32([-np.inf, 1.0])), "weights that are not finite, in a tensor"),
    (lambda model: replaced(tensor(model, kind=TensorProto.INT64), [1 << 40]), "beyond the lengths of any policy"),
    (lambda model: setattr(tensor(model), "data_type", 10), "of a kind of numbers that no policy has"),
    (lambda model: setattr(tensor(model), "data_type", 999), "of a kind of numbers that no policy has"),
    (lambda model: tensor(model).float_data.append(1.0), "a tensor's numbers are there in two forms"),
    (large(2_147_483_648), "whole numbers [2147483648, 2147483648] in a tensor 'room'"),
    (large(99_999), "makes an array of [99999, 99999] times what it has"),
    (large_constant, "makes an array of [9999, 9999] times what it has"),
    (beside(("location", "../manifest.json")), "keeps weights in '../manifest.json', which the manifest does not"),
    (beside(("offset", "0"), ("location", "/etc/hostname")), "keeps weights in '/etc/hostname', which the manifest"),
    (beside(("location", "../" * 80 + "x")), "keeps weights in '../../"),
    (beside(("location", "weights.npz"), ("location", "../x")), "keeps weights in '../x'"),
    (lambda model: setattr(model.graph.node[3], "op_type", "RandomNormalLike"), "'RandomNormalLike', which draws at"),
    (lambda model: setattr(model.graph.node[3], "domain", "com.microsoft"), "of the domain 'com.microsoft'"),
    (lambda model: model.functions.add(), "its model has a field 25"),
    (nested, "graphs within graphs, deeper than is run here"),
    (lambda model: model.ClearField("graph"), "holds 0 graphs; expected one"),
])
def test_what_is_refused(bundle, change, words):
    assert words in refusal(bundle, change)


@pytest.mark.parametrize("change, words", [
    (lambda content: content + content, "holds 2 graphs; expected one"),
    (lambda content: content[:len(content) // 2], "is damaged: it ends within a model"),
    (lambda content: content + b"\x08" + b"\xff" * 10, "a number in it does not end"),
    (lambda content: content + b"\x3d\x00\x00\x00\x00", "it holds 2 graphs"),
    (lambda content: content.replace(b"constant0", b"const\xff\xfe\xfdt0"), "which is no text"),
])
def test_bytes_that_are_no_graph(bundle, change, words):
    content = change((bundle / "policy.onnx").read_bytes())
    assert words in refusal(bundle, content=content)


def test_a_location_whose_value_comes_first_is_seen(bundle):
    """A message may have its fields in any order; ONNX Runtime reads either."""
    path = bundle / "policy.onnx"
    one = TensorProto(data_type=TensorProto.FLOAT, dims=[2], name="t", data_location=TensorProto.EXTERNAL)
    swapped = b"\x12\x04../x" + b"\x0a\x08location"
    content = one.SerializeToString() + bytes([13 << 3 | 2, len(swapped)]) + swapped
    graph = onnx.load(str(path)).graph.SerializeToString() + bytes([5 << 3 | 2, len(content)]) + content
    model = onnx.ModelProto()
    model.graph.ParseFromString(graph)
    assert model.graph.initializer[-1].external_data[0].value == "../x"
    path.write_bytes(b"\x3a" + _varint(len(graph)) + graph)
    assert check_graph(path) == ["../x"]


def _varint(value):
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def test_the_ends_of_slices_and_what_hides_are_no_lengths(tmp_path):
    graph = helper.make_graph([], "g", [], [], [
        numpy_helper.from_array(np.array([(1 << 63) - 1, -(1 << 63)], np.int64), "ends"),
        numpy_helper.from_array(np.float32(-np.inf), "hidden"),
        helper.make_tensor("typed", TensorProto.FLOAT, [2], [1.0, 2.0]),
        helper.make_tensor("whole", TensorProto.INT64, [3], [1, -1, 7]),
        helper.make_tensor("small", TensorProto.BOOL, [2], [True, False])])
    (tmp_path / "policy.onnx").write_bytes(helper.make_model(graph).SerializeToString())
    assert check_graph(tmp_path / "policy.onnx") == []


def test_another_mask_or_another_choice_is_found(bundle):
    """Where illegal, a graph says -1e8; and its action is the one that it prefers."""
    low = lambda model: replaced(next(  # noqa: E731
        one for one in model.graph.initializer if numpy_helper.to_array(one).ravel().tolist() == [np.float32(-1e8)]),
        np.float32(-0.9))
    assert "does not answer its reference vectors" in refusal(bundle, low)


def test_an_action_that_is_not_the_preferred_one_is_found(tmp_path):
    folder = scorer_bundle(tmp_path / "bundle", "logit", forms=("npz", "onnx"))

    def least(model):
        node = next(node for node in model.graph.node if node.op_type == "ArgMax")
        legal = next(one for one in model.graph.node if one.op_type == "Where").input[0]
        for made in (helper.make_node("Sigmoid", [node.input[0]], ["flat"]),
                     helper.make_node("Neg", ["flat"], ["back"]),
                     helper.make_node("Where", [legal, "back", node.input[0]], ["shown"])):
            model.graph.node.insert(list(model.graph.node).index(node), made)
        node.input[0] = "shown"
    assert "does not answer its reference vectors" in refusal(folder, least)


def test_values_of_another_shape_are_found(tmp_path):
    folder = parameter_bundle(tmp_path / "bundle", forms=("npz", "onnx"))

    def first_alone(model):
        last = model.graph.node[-1]
        last.output[0] = "every"
        model.graph.initializer.append(numpy_helper.from_array(np.array([0], np.int64), "first"))
        model.graph.node.append(helper.make_node("Gather", ["every", "first"], ["parameters"], axis=0))
        del model.graph.output[0].type.tensor_type.shape.dim[:]
        model.graph.output[0].type.tensor_type.ClearField("shape")
    assert "expected one for each" in refusal(folder, first_alone)
