"""One content in three forms: the graph that is written from arrays answers as the arrays do."""

import numpy as np
import pytest

from ooco_gym.runtime import Policy
from ooco_gym.runtime.networks import sizes_of
from tests.runtime.c_double import NETWORKS, observations, parameter_bundle, scorer_bundle

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


@pytest.mark.parametrize("name", NETWORKS)
def test_graph_and_arrays_answer_alike(tmp_path, name):
    folder = scorer_bundle(tmp_path, name, forms=("npz", "onnx"))
    arrays, graph = (Policy.load(folder, form=form) for form in ("npz", "onnx"))
    assert Policy.load(folder).form == "npz" and graph.form == "onnx"
    parts = observations(sizes_of(arrays.manifest), 2000, 3)
    seen = dict(zip(("cluster", "candidates", "action_mask", "decision"), parts, strict=True))
    (mine, ours), (theirs, logits) = arrays.preferences(seen), graph.preferences(seen)
    legal = parts[2] > 0
    np.testing.assert_allclose(ours[legal], logits[legal], rtol=1e-5, atol=1e-5)
    assert np.mean(mine == theirs) > 0.999
    one = {key: part[0] for key, part in seen.items()}
    assert np.array_equal(arrays.decide(one), mine[0]) and np.array_equal(graph.decide(one), mine[0])


def test_a_graph_that_sets_parameters_sets_those_of_the_arrays(tmp_path):
    folder = parameter_bundle(tmp_path, forms=("npz", "onnx"))
    arrays, graph = (Policy.load(folder, form=form) for form in ("npz", "onnx"))
    x = np.random.default_rng(0).uniform(-1, 1, (500, 6)).astype(np.float32)
    np.testing.assert_allclose(graph.decide_batch(x), arrays.decide_batch(x), rtol=1e-9)
    assert graph.decide(x[0]) == pytest.approx(arrays.decide(x[0]), rel=1e-9)
