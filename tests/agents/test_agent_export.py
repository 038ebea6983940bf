"""The exported graph decides as the trained policy does, and says what its numbers mean."""

import json

import numpy as np
import pytest
from gating_double import FC, A, D, F, K, train_config

from agents import export, train
from agents.environments import OBSERVATION_KEYS
from agents.load import load_run
from ooco_gym.errors import UserError
from ooco_gym.runtime import Policy


@pytest.fixture(scope="module")
def bundle(run_folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("bundle")
    return out, export.main({"policy": str(run_folder), "out": str(out), "checks": 1000, "seed": 3})


def test_export_agrees_on_a_thousand_random_observations(bundle, run_folder):
    out, summary = bundle
    assert (summary["checks"], summary["disagreements"], summary["illegal_actions"]) == (1000, 0, 0)
    assert summary["max_logit_error"] < 1e-4
    policy, run = Policy.load(out), load_run(run_folder)
    observation = dict(zip(OBSERVATION_KEYS, export.random_observations(run, 1000, seed=9), strict=True))
    mask = observation["action_mask"]
    exported = policy.decide_batch(observation)
    trained, _ = run.model.predict(observation, deterministic=True, action_masks=mask.astype(bool))
    assert np.array_equal(exported, trained) and len(set(exported.tolist())) > 3
    assert (mask[np.arange(1000), exported] == 1).all()
    singles = [policy.decide({key: part[i] for key, part in observation.items()}) for i in range(50)]
    assert singles == exported[:50].tolist()


def test_manifest_names_inputs_actions_versions_and_origin(bundle):
    out, _ = bundle
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["schema"] == "ooco-gym/policy-bundle/2" and manifest["decisions"] == []
    assert manifest["inputs"]["cluster"]["shape"] == [FC] and manifest["inputs"]["candidates"]["shape"] == [K, F]
    assert manifest["inputs"]["decision"]["shape"] == [D] and manifest["inputs"]["action_mask"]["shape"] == [A]
    assert len(manifest["inputs"]["candidates"]["features"]) == F
    assert {"name", "low", "high"} <= set(manifest["inputs"]["cluster"]["features"][0])
    assert manifest["actions"][:3] == ["the decision's own no", "do what the partner would do", "take candidate 0"]
    assert len(manifest["actions"]) == A
    assert manifest["versions"]["torch"] and manifest["training"]["seed"] == 1
    assert "out" not in manifest["training"]["config"]


def test_graph_carries_no_paths_of_this_machine(bundle):
    data = (bundle[0] / "policy.onnx").read_bytes()
    assert b".py" not in data and b"site-packages" not in data


def test_mlp_exports_too(tmp_path):
    train.main(train_config(tmp_path / "run", total_timesteps=75, agent={"network": "mlp"}))
    summary = export.main({"policy": str(tmp_path / "run"), "out": str(tmp_path / "out"), "checks": 100, "seed": 1})
    assert summary["disagreements"] == 0


def test_a_graph_that_disagrees_is_not_written(run_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "compare", lambda *_: {
        "checks": 10, "action_agreement": 0.9, "disagreements": 1, "max_logit_error": 0.5})
    with pytest.raises(UserError, match="disagrees with the policy"):
        export.main({"policy": str(run_folder), "out": str(tmp_path), "checks": 10, "seed": 1})
    assert not list(tmp_path.iterdir())


def test_export_of_no_run_says_what_is_missing(tmp_path):
    with pytest.raises(UserError, match="policy.zip is missing"):
        export.main({"policy": str(tmp_path), "out": str(tmp_path / "out"), "checks": 10, "seed": 1})
