"""The whole way on the real gate: train through the front door, evaluate beside heuristics, export, decide."""

import csv
import json

import pytest

pytest.importorskip("sb3_contrib")
pytest.importorskip("onnxruntime")

SHORT = ["env.window_s=60", "env.warmup_s=20", "env.scenario.offline.rate=4"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    from ooco_gym.cli import main

    root = tmp_path_factory.mktemp("gate")
    train = ["train", "env=prefillgate", "agent=maskable_ppo", *SHORT, "window_s=60", "total_timesteps=256",
             "agent.n_envs=4", "agent.n_steps=32", "agent.batch_size=64", "agent.imitate.decisions=256",
             "validation.windows=2", "validation.every_steps=200", f"out={root / 'run'}"]
    assert main(train) == 0
    assert main(["export", f"policy={root / 'run'}", "checks=50", f"out={root / 'gate'}"]) == 0
    policies = f"policies=[{root / 'run'},{root / 'gate'},ooco,never]"
    assert main(["evaluate", "env=prefillgate", *SHORT, policies, "episodes=3", "workers=1", f"out={root / 'e'}"]) == 0
    return root


def test_every_step_leaves_its_summary(folders):
    names = ("run", "gate", "e")
    schemas = {name: json.loads((folders / name / "summary.json").read_text())["schema"] for name in names}
    assert schemas == {"run": "ooco-gym/train/1", "gate": "ooco-gym/export/1", "e": "ooco-gym/evaluate/1"}


def test_run_and_export_decide_alike_and_heuristics_see_the_same_windows(folders):
    summary = json.loads((folders / "e" / "summary.json").read_text())
    means = {(row["policy"], row["metric"]): row["mean"] for row in summary["results"]}
    for metric in ("episode_reward", "offline_reference_gpu_s_per_s", "violation_rate"):
        assert means["run", metric] == means["gate", metric]
    assert means["ooco", "offline_reference_gpu_s_per_s"] > means["never", "offline_reference_gpu_s_per_s"]
    windows = {}
    with (folders / "e" / "episodes.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            windows.setdefault((row["seed"], row["window"]), set()).add(row["online_arrived"])
    assert len(windows) == 3 and all(len(counts) == 1 for counts in windows.values())


def test_manifest_names_the_features_and_the_runtime_takes_them_by_name(folders):
    from ooco_gym.runtime import Policy

    policy = Policy.load(folders / "gate")
    inputs = policy.manifest["inputs"]
    assert inputs["cluster"]["features"][0]["name"] == "resident_decodes"
    assert {"unit", "low", "high", "meaning"} <= set(inputs["candidates"]["features"][1])
    assert [feature["name"] for feature in inputs["decision"]["features"]] == ["gate"]
    assert policy.decisions == ["gate"] and policy.actions[0] == "hold: decode the residents"
    assert policy.actions[policy.fixed] == "candidate 0: start the prefill of this request"
    cluster = {feature["name"]: 0.5 for feature in inputs["cluster"]["features"]}
    candidate = {feature["name"]: 0.5 for feature in inputs["candidates"]["features"]}
    observation, mask = policy.observation(cluster, [candidate, candidate])
    assert policy.decide(observation, mask) in range(4)
    observation, mask = policy.observation(cluster, [candidate, candidate], fixed_legal=[False, False])
    assert policy.decide(observation, mask) in (2, 3)
