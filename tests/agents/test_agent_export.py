"""The exported graph decides as the trained policy does, and says what its numbers mean."""

import json

import numpy as np
import pytest
from sb3_contrib import MaskablePPO

from agents.environments import OBSERVATION_KEYS, make_env
from agents.learning import train
from agents.policies import export
from agents.policies.runs import load_run
from agents.search.optimisers import CMA, CMA_LINEAR
from ooco_gym.errors import UserError
from ooco_gym.resources import load_yaml, names
from ooco_gym.runtime import Policy
from tests.agents.composing import composed
from tests.agents.gating_double import FC, A, D, F, K, train_config


@pytest.fixture(scope="module")
def bundle(run_folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("bundle")
    return out, export.main({"policy": str(run_folder), "out": str(out), "checks": 1000, "seed": 3})


def test_export_agrees_on_a_thousand_random_observations(bundle, run_folder):
    out, summary = bundle
    assert summary["checks"] == 1000 and summary["action_agreement"] > 0.99
    assert summary["max_logit_error"] < 1e-4
    policy, run = Policy.load(out), load_run(run_folder)
    observation = dict(zip(OBSERVATION_KEYS, export.random_observations(run, 1000, seed=9), strict=True))
    mask = observation["action_mask"]
    exported = policy.decide_batch(observation)
    model = MaskablePPO.load(run_folder / "policy.zip", device="cpu")
    trained, _ = model.predict(observation, deterministic=True, action_masks=mask.astype(bool))
    assert np.array_equal(exported, trained) and len(set(exported.tolist())) > 3
    assert (mask[np.arange(1000), exported] == 1).all()
    singles = [policy.decide({key: part[i] for key, part in observation.items()}) for i in range(50)]
    assert singles == exported[:50].tolist()


def test_manifest_names_inputs_actions_versions_and_origin(bundle):
    out, _ = bundle
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["schema"] == "ooco-gym/policy-bundle/4" and manifest["decisions"] == []
    assert manifest["inputs"]["cluster"]["shape"] == [FC] and manifest["inputs"]["candidates"]["shape"] == [K, F]
    assert manifest["inputs"]["decision"]["shape"] == [D] and manifest["inputs"]["action_mask"]["shape"] == [A]
    assert len(manifest["inputs"]["candidates"]["features"]) == F
    assert {"name", "low", "high"} <= set(manifest["inputs"]["cluster"]["features"][0])
    assert manifest["actions"][:3] == ["decline", "take the base policy's action", "take candidate 0"]
    assert len(manifest["actions"]) == A
    assert manifest["versions"]["torch"] and manifest["training"]["seed"] == 1
    assert "out" not in manifest["training"]["config"]
    assert manifest["training"]["data"]["scenario"]["timing"] == "ooco"


def test_graph_carries_no_paths_of_this_machine(bundle):
    data = (bundle[0] / "policy.onnx").read_bytes()
    assert b".py" not in data and b"site-packages" not in data


def test_a_graph_that_disagrees_is_not_written(run_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "compare", lambda *_: {
        "checks": 10, "action_agreement": 0.9, "max_logit_error": 0.5})
    with pytest.raises(UserError, match="disagree with the policy"):
        export.main({"policy": str(run_folder), "out": str(tmp_path), "checks": 10, "seed": 1})
    assert not list(tmp_path.iterdir())


def test_what_has_learned_with_a_clairvoyant_cache_is_not_exported(run_folder, tmp_path, monkeypatch):
    run = load_run(run_folder)
    scenario = {"cluster": {**load_yaml("cluster", "mixed_7b"), "retention": "belady"}}
    run.config = {**run.config, "env": {**run.config["env"], "scenario": scenario}}
    monkeypatch.setattr(export, "load_run", lambda _: run)
    with pytest.raises(UserError, match="retention=belady, a bound that no engine can implement"):
        export.main({"policy": str(run_folder), "out": str(tmp_path), "checks": 10, "seed": 1})
    assert not list(tmp_path.iterdir())


def test_export_of_no_run_says_what_is_missing(tmp_path):
    with pytest.raises(UserError, match="policy.zip is missing"):
        export.main({"policy": str(tmp_path), "out": str(tmp_path / "out"), "checks": 10, "seed": 1})


# --- All that trains --------------------------------------------------------------------------------------------------
SMALL = {"hidden": 8, "n_envs": 4, "n_steps": 10, "batch_size": 20, "n_epochs": 1, "scale_decisions": 20,
         "imitate": None}


def exported(out, env, agent):
    """A run of two updates on an environment, and its bundle."""
    own = {**load_yaml("env", env), "window_s": 30.0, "warmup_s": 10.0}
    config = {**train_config(out / "run", agent=dict(agent)), "env": own, "total_timesteps": 80,
              "validation": {"windows": 0}, "checkpoint_every_steps": None}
    train.main({**config, "agent": agent} if agent.get("name") == "dqn" else config)
    summary = export.main({"policy": str(out / "run"), "out": str(out / "bundle"), "checks": 200, "seed": 1})
    assert summary["action_agreement"] > 0.98
    return own, load_run(out / "run"), Policy.load(out / "bundle")


def same_on_the_way(env_config, run, policy):
    """Plays an episode, the run and its bundle side by side; returns what was answered."""
    env, answers = make_env(env_config), []
    observation, _ = env.reset(seed=2000, options={"window": 0})
    over = False
    while not over:
        action = policy.decide(observation)
        assert np.array_equal(action, run.decide_batch(*(observation[key][None] for key in OBSERVATION_KEYS))[0])
        answers.append(action)
        observation, _, _, over, _ = env.step(action)
    return answers


# One configuration of each algorithm.
AGENTS = {agent["name"]: name for name in names("agent")
          if (agent := composed("train", f"agent={name}")["agent"])["name"] not in (CMA, CMA_LINEAR)}


@pytest.mark.parametrize("name", sorted(AGENTS.values()))
def test_what_any_algorithm_learns_is_exported_and_decides_alike(name, tmp_path):
    agent = composed("train", f"agent={name}")["agent"]
    small = {key: value for key, value in SMALL.items() if key in agent or name != "dqn"}
    env_config, run, policy = exported(tmp_path, "interruption", {**agent, **small})
    answers = same_on_the_way(env_config, run, policy)
    assert policy.parts == [] and policy.fixed == 2 and set(answers) <= {0, 1, 2}


def test_a_vector_of_levels_is_exported_with_what_each_part_means(tmp_path):
    env_config, run, policy = exported(tmp_path, "onlinetuning", SMALL)
    answers = same_on_the_way(env_config, run, policy)
    assert [part["name"] for part in policy.parts] == list(env_config["controls"])
    assert {one.shape for one in answers} == {(6,)} and policy.fixed == 0
    assert policy.manifest["action_space"] == {"kind": "MultiDiscrete", "n": [5, 5, 5, 5, 5, 3]}
    assert len(policy.actions) == 28 and policy.actions[-1] == "interrupt=never"
    env = make_env(env_config)
    tuned = policy.settings(env.unwrapped.base_action())  # type: ignore[attr-defined]
    assert tuned == {"slo_margin": 0.9, "pull_margin": 0.05, "random_tries": 8.0, "max_pull": 8.0, "gate_gain": 1.0,
                     "interrupt": "always"}, "the parameters as the base policy ships"
    with pytest.raises(UserError, match="is not one level for each of slo_margin, pull_margin"):
        policy.settings([0, 0])
