"""The runtime needs no torch, and names what is wrong with a bundle or an observation."""

import json
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ooco_gym import runtime
from ooco_gym.errors import UserError
from ooco_gym.runtime import Policy
from ooco_gym.runtime.manifest import signed

K, F, FC, D, A = 3, 2, 2, 2, 5


def write_bundle(folder, **changes):
    """A hand-made policy: logits are cluster[0], decision[1], and each candidate's first feature."""
    shapes = {"cluster": ["batch", FC], "candidates": ["batch", K, F], "action_mask": ["batch", A],
              "decision": ["batch", D]}
    inputs = [helper.make_tensor_value_info(key, TensorProto.INT8 if key == "action_mask" else TensorProto.FLOAT, shape)
              for key, shape in shapes.items()]
    outputs = [helper.make_tensor_value_info("action", TensorProto.INT64, ["batch"]),
               helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", A])]
    constants = [numpy_helper.from_array(np.array(value, dtype), name) for name, value, dtype in (
        ("first", 0, np.int64), ("second", 1, np.int64), ("axis", [1], np.int64), ("low", -1e8, np.float32))]
    nodes = [
        helper.make_node("Gather", ["cluster", "first"], ["hold_flat"], axis=1),
        helper.make_node("Unsqueeze", ["hold_flat", "axis"], ["hold"]),
        helper.make_node("Gather", ["decision", "second"], ["base_flat"], axis=1),
        helper.make_node("Unsqueeze", ["base_flat", "axis"], ["base_policy"]),
        helper.make_node("Gather", ["candidates", "first"], ["score"], axis=2),
        helper.make_node("Concat", ["hold", "base_policy", "score"], ["raw"], axis=1),
        helper.make_node("Cast", ["action_mask"], ["legal"], to=TensorProto.BOOL),
        helper.make_node("Where", ["legal", "raw", "low"], ["logits"]),
        helper.make_node("ArgMax", ["logits"], ["action"], axis=1, keepdims=0),
    ]
    graph = helper.make_graph(nodes, "gate", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    random, mask = np.random.default_rng(5), np.ones((8, A), np.int8)
    cluster, candidates, decision = (random.normal(size=(8, *shape)).astype(np.float32)
                                     for shape in ((FC,), (K, F), (D,)))
    logits = np.concatenate([cluster[:, :1], decision[:, 1:], candidates[:, :, 0]], axis=1)
    reference = {"cluster": cluster, "candidates": candidates, "action_mask": mask, "decision": decision,
                 "logits": logits}
    manifest = {
        "kind": "candidates", "decisions": ["gate"], "decision_point": {"name": "gate", "meaning": "a test"},
        "environment": "test/Test-v0", "history": 1, "outputs": {}, "licence": "Apache-2.0", "scores": [],
        "training": {"data": {}, "seeds": []}, "trained_for": {"slo": {}, "loads": []},
        "actions": ["hold", "base_policy", *(f"start candidate {k}" for k in range(K))],
        "action_space": {"kind": "Discrete", "n": A},
        "inputs": {"cluster": {"shape": [FC], "features": features("load", "kv_free")},
                   "candidates": {"shape": [K, F], "features": features("prompt_tokens", "age_s")},
                   "decision": {"shape": [D], "features": features("gate", "evict")},
                   "action_mask": {"shape": [A]}}, **changes}
    return runtime.write_bundle(folder, manifest, None, reference, ["onnx"],
                                model.SerializeToString())


def features(*names):
    return [{"name": name, "low": -9.0, "high": 9.0} for name in names]


def rewritten(folder, **changes):
    """The bundle with another manifest, whose digest fits; a key that is None is left out."""
    manifest = {**json.loads((folder / "manifest.json").read_text()), **changes}
    kept = signed({key: value for key, value in manifest.items() if value is not None})
    (folder / "manifest.json").write_text(json.dumps(kept))
    return folder


@pytest.fixture
def policy(tmp_path):
    return Policy.load(write_bundle(tmp_path / "bundle"))


def good():
    return {"cluster": [0.5, 0.0], "candidates": [[0.1, 0], [0.9, 0], [0.7, 0]], "decision": [1.0, 0.0]}


def test_decide_returns_the_preferred_legal_action(policy):
    assert policy.decide(good(), [1, 1, 1, 1, 1]) == 3
    assert policy.decide(good(), [1, 1, 1, 0, 1]) == 4
    assert policy.decide(good(), np.array([True, True, True, False, False])) == 0
    assert policy.decide({**good(), "decision": [0.0, 1.0]}, [1, 1, 1, 1, 1]) == 1
    assert policy.decide({**good(), "action_mask": [0, 0, 1, 0, 0]}) == 2
    assert policy.actions[policy.decide(good(), [1, 1, 1, 1, 1])] == "start candidate 1"
    assert (policy.fixed, policy.decisions) == (2, ["gate"])


def test_batches_agree_with_single_decisions(policy):
    random = np.random.default_rng(0)
    parts = {"cluster": random.normal(size=(200, FC)), "candidates": random.normal(size=(200, K, F)),
             "decision": random.random((200, D))}
    mask = random.random((200, A)) < 0.5
    mask[:, 0] |= ~mask.any(axis=1)
    actions = policy.decide_batch(parts, mask)
    assert actions.shape == (200,) and mask[np.arange(200), actions].all()
    for i in range(200):
        assert policy.decide({key: part[i] for key, part in parts.items()}, mask[i]) == actions[i]


def test_candidates_may_come_row_by_row_as_environments_give_them(policy):
    random, legal = np.random.default_rng(1), np.ones((50, A), np.int8)
    parts = {"cluster": random.normal(size=(50, FC)), "candidates": random.normal(size=(50, K, F)),
             "decision": random.random((50, D))}
    rows = {**parts, "candidates": parts["candidates"].reshape(50, K * F)}
    expected = policy.decide_batch(parts, legal)
    assert np.array_equal(policy.decide_batch(rows, legal), expected) and len(np.unique(expected)) > 2
    assert policy.decide({key: part[0] for key, part in rows.items()}, legal[0]) == expected[0]
    known = (*(rows[key].astype(np.float32) for key in ("cluster", "candidates")), legal,
             rows["decision"].astype(np.float32))
    assert np.array_equal(policy.decide_unchecked(*known), expected)


def test_named_features_become_arrays_in_the_bundles_order(policy):
    observation, mask = policy.observation({"kv_free": 0.25, "load": 0.5}, [{"age_s": 3.0, "prompt_tokens": 0.9}])
    np.testing.assert_allclose(observation["cluster"], [0.5, 0.25])
    np.testing.assert_allclose(observation["candidates"], [[0.9, 3.0], [0, 0], [0, 0]], rtol=1e-6)
    assert observation["decision"].tolist() == [1.0, 0.0]
    assert mask.tolist() == [1, 1, 1, 0, 0] and policy.decide(observation, mask) == 2
    _, mask = policy.observation({"kv_free": 0.25, "load": 0.5}, [], fixed_legal=[True, False])
    assert mask.tolist() == [1, 0, 0, 0, 0]
    with pytest.raises(UserError, match="fixed_legal has 1 flags; expected 2: hold, base_policy"):
        policy.observation({"kv_free": 1, "load": 1}, [], fixed_legal=[True])
    with pytest.raises(UserError, match="unknown decision 'evict'.*expected one of: gate"):
        policy.observation({"kv_free": 1, "load": 1}, [], "evict")
    with pytest.raises(UserError, match=r"cluster features: unknown key 'kvfree' \(did you mean 'kv_free'\?\)"):
        policy.observation({"kvfree": 1, "load": 1}, [])
    with pytest.raises(UserError, match="candidates lacks the feature 'age_s'"):
        policy.observation({"kv_free": 1, "load": 1}, [{"prompt_tokens": 1.0}])
    with pytest.raises(UserError, match="4 candidates given, but this policy takes at most 3"):
        policy.observation({"kv_free": 1, "load": 1}, [{"prompt_tokens": 1.0, "age_s": 1.0}] * 4)


def test_settings_refuses_what_is_no_vector_of_levels(policy):
    with pytest.raises(UserError, match="not one level for each of no parts"):
        policy.settings([0])


def test_observation_needs_the_decision_where_a_policy_has_several(tmp_path):
    joint = Policy.load(write_bundle(tmp_path / "joint", decisions=["gate", "evict"]))
    with pytest.raises(UserError, match="unknown decision 'None'.*expected one of: evict, gate"):
        joint.observation({"kv_free": 1, "load": 1}, [])
    assert joint.observation({"kv_free": 1, "load": 1}, [], "evict")[0]["decision"].tolist() == [0.0, 1.0]


@pytest.mark.parametrize("change, mask, words", [
    ({"cluster": [1.0]}, [1] * 5, "observation 'cluster' has shape (1,); expected (2,), last axis: load, kv_free"),
    ({"candidates": np.zeros((2, F))}, [1] * 5, "observation 'candidates' has shape (2, 2); expected (3, 2)"),
    ({"candidates": np.zeros(K * F + 1)}, [1] * 5, "observation 'candidates' has shape (7,); expected (3, 2)"),
    ({"cluster": [1.0, float("nan")]}, [1] * 5, "observation 'cluster' is not finite: feature 'kv_free'"),
    ({"cluster": ["a", "b"]}, [1] * 5, "observation 'cluster' is not an array of numbers"),
    ({"decision": [1.0]}, [1] * 5, "observation 'decision' has shape (1,); expected (2,), last axis: gate, evict"),
    ({}, [1, 1, 1], "mask has shape (3,); expected (5,)"),
    ({}, [0, 0, 0, 0, 0], "mask allows no action"),
    ({}, None, "no mask given"),
])
def test_an_invalid_observation_is_refused(policy, change, mask, words):
    with pytest.raises(UserError) as error:
        policy.decide({**good(), **change}, mask)
    assert words in str(error.value)


def test_a_missing_part_of_the_observation_is_refused(policy):
    with pytest.raises(UserError, match="must be a mapping with .*; it has: cluster, candidate, decision"):
        policy.decide({"cluster": [0, 0], "candidate": [], "decision": [1, 0]}, [1] * 5)
    with pytest.raises(UserError, match="must be a mapping"):
        policy.decide([1, 2, 3], [1] * 5)
    with pytest.raises(UserError, match="must be a mapping"):
        policy.decide_batch(np.zeros(3), [1] * 5)


def test_an_invalid_bundle_is_refused(tmp_path):
    with pytest.raises(UserError, match="manifest.json is missing"):
        Policy.load(tmp_path / "nowhere")
    folder = write_bundle(tmp_path / "bundle")
    whole = json.loads((folder / "manifest.json").read_text())["inputs"]
    for version in (1, 2, 3):
        with pytest.raises(UserError, match=f"schema '.*/{version}'; this ooco-gym reads .*/4: export"):
            Policy.load(rewritten(folder, schema=f"ooco-gym/policy-bundle/{version}"))
    rewritten(folder, schema=runtime.SCHEMA)
    with pytest.raises(UserError, match="'action_space' is a required property; export the policy again"):
        Policy.load(rewritten(folder, action_space=None))
    with pytest.raises(UserError, match="has schema 'None'"):
        Policy.load(rewritten(folder, schema=None))
    with pytest.raises(UserError, match="inputs: 'decision' is a required property"):
        Policy.load(rewritten(folder, schema=runtime.SCHEMA, action_space={"kind": "Discrete", "n": A},
                              inputs={key: part for key, part in whole.items() if key != "decision"}))
    folder = write_bundle(tmp_path / "changed")
    (folder / "policy.onnx").write_bytes((folder / "policy.onnx").read_bytes() + b"x")
    with pytest.raises(UserError, match="SHA-256 differs"):
        Policy.load(folder)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(UserError, match="is not valid JSON: line 1"):
        Policy.load(folder)


def test_runs_without_torch_and_imports_without_onnxruntime(tmp_path):
    folder = write_bundle(tmp_path / "bundle")
    script = f"""
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in ('torch', 'stable_baselines3', 'sb3_contrib', 'onnx', 'agents'):
            raise ImportError(name)
sys.meta_path.insert(0, Block())
from ooco_gym.runtime import Policy
assert 'onnxruntime' not in sys.modules
policy = Policy.load({str(folder)!r})
print(policy.decide({good()!r}, [1] * 5))
"""
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=120,
                          cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "3"
