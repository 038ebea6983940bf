"""Policies that set the parameters of a rule: what is written is what decides, without anything but numpy."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooco_gym.documents import file_digest
from ooco_gym.errors import UserError
from ooco_gym.runtime import ParameterPolicy, Policy, write_parameters_bundle
from ooco_gym.runtime.features import ENGINE
from ooco_gym.runtime.manifest import signed, write_arrays
from ooco_gym.runtime.networks import Scales

PARAMETERS = [
    {"name": "tpot_share", "base": 0.9, "scale": "log", "step": 0.3, "low": 0.1, "high": 2.0},
    {"name": "offline_share", "base": 0.5, "scale": "linear", "step": 0.2, "low": 0.0, "high": 1.0},
]
F = len(ENGINE)


def written(folder, weights=None, **changes):
    table = np.random.default_rng(1).normal(size=(2, F + 1)) if weights is None else weights
    given = {"weights": table, "parameters": PARAMETERS, "features": ENGINE, "interval_s": 2.0, **changes}
    return write_parameters_bundle(folder, **given)


def resigned(folder, change):
    """The bundle with a changed manifest that says so of itself, and with the digests of the files as they are."""
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"] = {name: {"sha256": file_digest(folder / name), "bytes": (folder / name).stat().st_size}
                         for name in manifest["files"]}
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(signed(manifest)))
    return folder


def test_values_are_those_of_the_formula(tmp_path):
    weights = np.random.default_rng(2).normal(size=(2, F + 1)) * 0.3
    policy = Policy.load(written(tmp_path, weights))
    assert isinstance(policy, ParameterPolicy) and policy.form == "npz"
    assert (policy.names, policy.interval_s, policy.rule) == (("tpot_share", "offline_share"), 2.0, "deadline")
    for x in np.random.default_rng(3).uniform(-1, 1, (200, F)).astype(np.float32):
        z = weights @ np.append(x.astype(np.float64), 1.0)
        wanted = {"tpot_share": min(2.0, max(0.1, 0.9 * np.exp(0.3 * z[0]))),
                  "offline_share": min(1.0, max(0.0, 0.5 + 0.2 * z[1]))}
        assert policy.decide(x) == pytest.approx(wanted, rel=1e-12)
        assert policy.decide({"cluster": x, "candidates": None}) == policy.decide(x)


def test_weights_of_zero_leave_the_rule_as_it_was_tuned(tmp_path):
    policy = Policy.load(written(tmp_path, np.zeros((2, F + 1))))
    assert policy.decide(np.ones(F)) == {"tpot_share": 0.9, "offline_share": 0.5}, "exactly"


@given(base=st.floats(1e-6, 1e6), z=st.floats(-1e6, 1e6), step=st.floats(-5, 5),
       scale=st.sampled_from(["linear", "log"]))
@settings(max_examples=200)
def test_values_stay_within_their_bounds_whatever_the_network_says(base, z, step, scale):
    low, high = base / 3, base * 2
    value = Scales([{"name": "x", "base": base, "scale": scale, "step": step, "low": low, "high": high}])
    assert low <= value(np.array([z]))[0] <= high
    assert value(np.array([0.0]))[0] == base


@pytest.mark.parametrize("given, words", [
    (np.zeros(F - 1), f"shape ({F - 1},); expected ({F},), last axis: online_decodes"),
    (np.full(F, np.nan), "not finite: feature 'online_decodes'"),
    ({"candidates": [1]}, "not an array of numbers of shape (44,)"),
    ("text", "not an array of numbers of shape (44,)"),
])
def test_an_observation_that_is_none_is_named(tmp_path, given, words):
    policy = Policy.load(written(tmp_path))
    with pytest.raises(UserError) as error:
        policy.decide(given)
    assert words in str(error.value)


@pytest.mark.parametrize("changes, words", [
    ({"weights": np.zeros((3, F + 1))}, "weights have shape (3, 45); expected (2, 45)"),
    ({"weights": np.full((2, F + 1), np.nan)}, "not finite"),
    ({"weights": np.zeros(4)}, "(parameters, features + 1)"),
    ({"parameters": [{**PARAMETERS[0], "base": 3.0}, PARAMETERS[1]]}, "base of parameter 'tpot_share' is 3.0"),
    ({"parameters": [{**PARAMETERS[0], "scale": "cubic"}, PARAMETERS[1]]}, "'cubic' is not one of ['linear', 'log']"),
    ({"seen": np.zeros((2, 3))}, "expected (2, 44)"),
    ({"forms": ["npz", "fortran"]}, "unknown form 'fortran'"),
    ({"features": [{"name": "x"}] * F}, "lacks 'low'"),
])
def test_what_does_not_fit_is_not_written(tmp_path, changes, words):
    with pytest.raises(UserError) as error:
        written(tmp_path / "bundle", **changes)
    assert words in str(error.value)


def test_every_change_of_a_bundle_is_one_sentence(tmp_path):
    folder = written(tmp_path)
    with pytest.raises(UserError, match="expected one of: npz, onnx"):
        Policy.load(folder, form="c++")
    with pytest.raises(UserError, match="does not hold the policy as onnx"):
        Policy.load(folder, form="onnx")
    text = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(text.replace('"base": 0.9', '"base": 0.8'))
    with pytest.raises(UserError, match="was changed after it was written"):
        Policy.load(folder)
    (folder / "manifest.json").write_text(text)
    with pytest.raises(UserError, match="does not reproduce its reference vectors"):
        Policy.load(resigned(folder, lambda one: one["parameters"][0].update(base=0.8)))
    write_arrays(folder / "weights.npz", {"weight": np.zeros((2, F)), "bias": np.zeros(2)})
    with pytest.raises(UserError, match="SHA-256 differs"):
        Policy.load(folder)
    with pytest.raises(UserError, match="does not reproduce its reference vectors"):
        Policy.load(resigned(folder, lambda _: None))
