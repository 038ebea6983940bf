"""A bundle that was damaged, or made by another hand, gives one clear sentence and never an illegal action."""

import contextlib
import copy
import json

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from ooco_gym.errors import UserError
from ooco_gym.runtime import Policy
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
