"""A bundle that was damaged, or made by another hand, gives one clear sentence and never an illegal action."""

import copy
import json

import numpy as np
import onnx
import pytest
from c_double import sign
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import external_data_helper, helper, numpy_helper
from test_runtime_policy import good, write_bundle

from ooco_gym.errors import UserError
from ooco_gym.runtime import Policy
from ooco_gym.runtime.manifest import signed

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


def with_scale(value):
    """Multiplies the raw scores, and no longer masks them by a large number but by adding a small one."""
    def change(model):
        graph = model.graph
        graph.initializer.append(numpy_helper.from_array(np.float32(value), "scale"))
        graph.node.insert(6, helper.make_node("Mul", ["raw", "scale"], ["scaled"]))
        next(node for node in graph.node if node.op_type == "Where").input[1] = "scaled"
    return change


def never_masked(model):
    """As a network whose illegal logits are beyond those of legal actions."""
    next(one for one in model.graph.initializer if one.name == "low").CopyFrom(
        numpy_helper.from_array(np.float32(1e30), "low"))


def test_weights_that_are_not_finite_are_refused(tmp_path):
    for value in (float("nan"), float("inf")):
        with pytest.raises(UserError, match="weights that are not finite"):
            Policy.load(rewritten(write_bundle(tmp_path / str(value)), with_scale(value)))


def test_an_illegal_answer_is_refused_by_every_way_to_ask(tmp_path):
    policy = Policy.load(rewritten(write_bundle(tmp_path), never_masked))
    assert policy.decide(good(), [1] * 5) == 3
    mask = np.array([[1, 1, 1, 0, 1]])
    parts = {key: np.array([part], np.float32) for key, part in good().items()}
    for ask in (lambda: policy.decide(good(), mask[0]), lambda: policy.decide_batch(parts, mask),
                lambda: policy.preferences(parts, mask),
                lambda: policy.decide_unchecked(parts["cluster"], parts["candidates"], mask.astype(np.int8),
                                                parts["decision"])):
        with pytest.raises(UserError, match="an action that is not legal here"):
            ask()


def places(node, path=()):
    """Every place in a document."""
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
        with pytest.raises(UserError, match=r"manifest.json' (is not valid JSON|must hold)"):
            Policy.load(folder)


def external(folder):
    """Moves the weights of a bundle into a file beside the model."""
    def change(model):
        model.graph.initializer.append(numpy_helper.from_array(np.ones(2000, np.float32), "weights"))
        model.graph.node.append(helper.make_node("Identity", ["weights"], ["unused"]))
        external_data_helper.convert_model_to_external_data(model, location="policy.data", size_threshold=1024)
        for tensor in model.graph.initializer:
            if external_data_helper.uses_external_data(tensor):
                external_data_helper.save_external_data(tensor, str(folder))
                tensor.ClearField("raw_data")
    return rewritten(folder, change)


def test_weights_in_another_file_are_covered_by_a_digest(tmp_path):
    folder = external(write_bundle(tmp_path))
    assert (folder / "policy.data").stat().st_size >= 8000
    with pytest.raises(UserError, match=r"keeps weights in 'policy.data', which the manifest does not describe"):
        Policy.load(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["policy.data"] = {}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    sign(folder)
    assert Policy.load(folder).decide(good(), [1] * 5) == 3
    (folder / "policy.data").write_bytes(b"x" + (folder / "policy.data").read_bytes()[1:])
    with pytest.raises(UserError, match=r"policy.data' is not the file that its manifest describes"):
        Policy.load(folder)
