"""The learned policies of conf/policy answer alike as torch, graph, arrays and C on 10,000 states of real episodes, and
as the compiled rule itself does there."""

import ctypes
import json
from functools import cache

import numpy as np
import pytest
from numba import types

from baselines.adaptive_deadline import engine_features
from ooco_gym.compile import jit
from ooco_gym.errors import UserError
from ooco_gym.policy import get_policy, list_policies
from ooco_gym.runtime import Policy
from ooco_gym.runtime.manifest import read_arrays
from ooco_gym.sim.state import state_at

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

STATES = 10_000


def shipped():
    """The policies of conf/policy whose rule has a file of weights that an engine can run: none has pools."""
    return [name for name in list_policies() if get_policy(name).linear and get_policy(name).values.get("weights")]


def exported(name, out, **changes):
    from agents.policies.export import main as export

    return export({"policy": name, "out": str(out), "checks": 1000, "seed": 1, **changes})


def asked(scenario, policy, point):
    """Plays episodes of one seed after the other; yields each decision of a point as it opens, with what answers it."""
    from ooco_gym.simulation import Simulation

    for seed in range(4000, 4100):
        simulation = Simulation(scenario.with_(seed=seed), policy, outside=(point,))
        while simulation.advance():
            answer = cache(simulation.rule_answer)  # a rule that is asked twice notes twice what it sends
            yield simulation, simulation.state.pending, answer
            simulation.answer(answer())


@jit(types.void(types.int64, types.int64, types.float64[::1]))
def features_of(handle, instance, row):
    engine_features(state_at(handle), instance, row)


def recorded_looks(count):
    """Features of engines under `learned_deadline`, and the parameters that the compiled rule sets by them."""
    from baselines import adaptive_deadline as ad
    from ooco_gym.policy.engine_features import ROW
    from ooco_gym.runtime.features import ENGINE
    from ooco_gym.scenario import Scenario

    features, values, row = [], [], np.zeros(ROW)
    scenario = Scenario(cluster="mixed_7b", workload="azure_conv", duration_s=120.0, warmup_s=20.0,
                        offline={"mode": "backlog"})
    for simulation, pending, answer in asked(scenario, "learned_deadline:interval_s=0", "compose"):
        instance = int(pending.instance)
        features_of(simulation.handle.address, instance, row)
        features.append(row[: len(ENGINE)].astype(np.float32))
        answer()
        values.append(simulation.state.memory[instance, ad.SET : ad.SET + len(ad.ADJUSTED)].copy())
        if len(features) == count:
            break
    return np.array(features), np.array(values)


def in_torch(arrays, x):
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(x.shape[-1], len(arrays["bias"]), dtype=torch.float64)
    layer.load_state_dict({key: torch.as_tensor(arrays[key]) for key in ("weight", "bias")})
    with torch.inference_mode():
        return layer(torch.as_tensor(x, dtype=torch.float64))


@pytest.mark.slow
def test_all_forms_of_learned_deadline_set_the_same_parameters(tmp_path):
    from tests.runtime.c_double import COMPILERS, library

    out = tmp_path / "bundle"
    exported("learned_deadline", out)
    features, values = recorded_looks(STATES)
    policy = Policy.load(out, form="npz")
    answers = {"npz": policy.decide_batch(features), "onnx": Policy.load(out, form="onnx").decide_batch(features)}
    z, answers["torch"] = in_torch(read_arrays(out / "weights.npz"), features).numpy(), np.empty_like(values)
    for place, one in enumerate(policy.manifest["parameters"]):
        moved = one["step"] * z[:, place]
        value = one["base"] * np.exp(moved) if one["scale"] == "log" else one["base"] + moved
        answers["torch"][:, place] = np.clip(value, one["low"], one["high"])
    if COMPILERS:
        held, answers["c"] = library(out, "policy", tmp_path), np.empty_like(values)
        for x, value in zip(np.ascontiguousarray(features), answers["c"], strict=True):
            assert held.learned_deadline_decide(x.ctypes.data_as(ctypes.c_void_p),
                                                value.ctypes.data_as(ctypes.c_void_p)) == 0
    for form, answered in answers.items():
        error = (np.abs(answered - values) / np.maximum(np.abs(values), 1.0)).max()
        # The compiled rule rounds what is on a logarithmic scale to single precision (ooco_gym/rounding.py).
        assert error <= 1e-6, f"{form}: parameters differ from those that the compiled rule sets by {error:.1e}"
    assert (np.ptp(values, axis=0) > 0).sum() >= 5, "parameters that never move compare nothing"
    low, high = policy_bounds(policy)
    assert ((features >= low) & (features <= high)).all()


def policy_bounds(policy, key="cluster"):
    rows = policy.manifest["inputs"][key]["features"]
    return np.array([[row[end] for row in rows] for end in ("low", "high")])


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_policy_with_weights_says_what_it_is(name, tmp_path):
    """Whatever conf/policy ships is exported by its name, in all forms, and says where it comes from."""
    summary = exported(name, tmp_path / "bundle")
    manifest = json.loads((tmp_path / "bundle" / "manifest.json").read_text())
    assert summary["forms"] == ["onnx", "npz", "c"]
    for part in manifest["inputs"].values():
        for row in part.get("features", ()):
            assert row.keys() >= {"name", "low", "high", "meaning"} and row["low"] < row["high"]
    assert manifest["training"]["seeds"] and manifest["training"]["data"] and manifest["scores"]
    assert manifest["trained_for"]["slo"] and manifest["trained_for"]["loads"] and manifest["reference"]
    assert manifest["files"].keys() >= {"policy.onnx", "weights.npz", "policy.c", "reference.npz"}
    again = exported(str(tmp_path / "bundle"), tmp_path / "again", forms=["npz"])
    assert again["forms"] == ["npz"]


def test_other_weights_take_nothing_from_the_shipped_ones(tmp_path):
    from ooco_gym.policy.weights import write_weights

    layout = get_policy("learned_deadline").layout
    write_weights(tmp_path / "mine.npz", layout, np.full(layout.size, 0.5))
    exported(f"learned_deadline:weights={tmp_path / 'mine.npz'}", tmp_path / "bundle", forms=["npz"])
    manifest = json.loads((tmp_path / "bundle" / "manifest.json").read_text())
    assert manifest["training"] == {"data": {}, "seeds": []} and manifest["scores"] == []
    own = tmp_path / "mine.yaml"
    own.write_text("extends: learned_deadline\nname: mine\nweights: mine.npz\n"
                   "card:\n  training: {seeds: [7], data: {a: b}}\n")
    exported(str(own), tmp_path / "own", forms=["npz"])
    manifest = json.loads((tmp_path / "own" / "manifest.json").read_text())
    assert manifest["training"]["seeds"] == [7] and manifest["scores"] == [] and manifest["name"] == "mine"
    own.write_text("extends: learned_deadline\nweights: mine.npz\ncard: {trainning: {}}\n")
    with pytest.raises(UserError, match="card has 'trainning'"):
        exported(str(own), tmp_path / "wrong")


def test_a_bundle_says_the_constants_that_are_not_the_rules_own(tmp_path):
    own = get_policy("deadline").values["chunk_efficiency"]
    exported("learned_deadline", tmp_path / "shipped", forms=["npz"])
    exported(f"learned_deadline:chunk_efficiency={own}", tmp_path / "alike", forms=["npz"])
    shipped, alike = (json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("shipped", "alike"))
    assert shipped["constants"] == {"chunk_efficiency": 0.0} and "constants" not in alike


@pytest.mark.parametrize(("name", "said"), [("deadline", "has no weights, so an engine needs no bundle"),
                                            ("learned_gate", "no engine can run a bundle of its weights"),
                                            ("learned_router", "no engine can run a bundle of its weights"),
                                            ("adaptive_deadline", "names no weights file"),
                                            ("learned_dead", "learned_dead")])
def test_what_has_no_weights_is_not_exported(name, said, tmp_path):
    with pytest.raises(UserError, match=said):
        exported(name, tmp_path / "bundle")


@pytest.mark.parametrize("name", shipped())
def test_the_rule_takes_what_its_shipped_bundle_says(tmp_path, name):
    """Whole parameters without their fraction, as the compiled rule reads them."""
    from ooco_gym.vllm.rules import make_rule

    exported(name, tmp_path / "bundle")
    policy = Policy.load(tmp_path / "bundle")
    rule, fractions = make_rule(policy.rule), 0
    for row in read_arrays(tmp_path / "bundle" / "reference.npz")["cluster"]:
        said = policy.decide(row)
        rule.adjust(said)
        for key, value in said.items():
            fractions += value != int(value)
            assert rule.values[key] == (np.int64(value) if isinstance(rule.values[key], int) else value)
    assert fractions > 0 and isinstance(rule.values["online_chunk"], int)
