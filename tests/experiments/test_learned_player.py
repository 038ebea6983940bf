"""Learned policies in their seats: the rest is the partner's, and the sustainable rate is searched with them."""


import numpy as np
import pytest
import yaml

from agents.evaluation.players import LearnedPolicy
from experiments.capacity import main as capacity
from experiments.common import policies
from experiments.common.policies import Team, policy_identity, team_of
from experiments.common.runner import run_of
from ooco_gym.errors import UserError
from ooco_gym.scenario import Scenario

SCENARIO = Scenario(workload="azure_conv", cluster="pair_7b", offline={"mode": "rate", "rate": 3.0}, duration_s=60.0,
                    start_s=50_000.0, warmup_s=30.0, drain_s=60.0, rate_scale=0.085, seed=3)
SHAPES = {"cluster": (36,), "candidates": (8, 17), "action_mask": (10,), "decision": (7,)}


def simulate_summary(scenario, policy):
    return run_of(policy)(scenario, policy)


def seated(monkeypatch, action, *decisions):
    """A network that always takes one action, in the seats of some decisions."""
    asked = []

    def decide(cluster, candidates, mask, decision):
        asked.append(int(np.argmax(decision[0])))
        return np.full(len(cluster), action)

    one = LearnedPolicy(decide, SHAPES, decisions)
    monkeypatch.setattr(policies, "team_of", lambda policy: Team("ooco", dict.fromkeys(decisions, one), {}))
    return asked


@pytest.mark.parametrize("decisions", [("gate",), ("evict", "pull"), ("gate", "evict", "interrupt", "pull", "pack")])
def test_whoever_does_what_the_partner_would_is_the_partner_in_every_figure(monkeypatch, decisions):
    asked = seated(monkeypatch, 1, *decisions)
    learned = simulate_summary(SCENARIO, "learned:x")
    partner = "ooco:gate_window=64" if "gate" in decisions else "ooco"  # a gate that is asked sees more candidates
    plain = simulate_summary(SCENARIO, partner)
    for part in ("online", "offline"):
        assert learned[part] == pytest.approx(plain[part], nan_ok=True)
    assert asked or "gate" not in decisions


def test_a_policy_of_other_observations_is_refused(monkeypatch):
    one = LearnedPolicy(lambda *parts: np.ones(1), {**SHAPES, "candidates": (4, 17), "action_mask": (6,)}, ("gate",))
    other = LearnedPolicy(lambda *parts: np.ones(1), SHAPES, ("evict",))
    monkeypatch.setattr(policies, "team_of", lambda policy: Team("ooco", {"gate": one, "evict": other}, {}))
    with pytest.raises(UserError, match="trained to gate expects observations"):
        simulate_summary(SCENARIO, "learned:x")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs of a few decisions, of a gate and of evictions."""
    pytest.importorskip("sb3_contrib")
    from agents.learning.train import main
    from ooco_gym.resources import conf_root, load_yaml

    folder = tmp_path_factory.mktemp("zoo")
    settings = yaml.safe_load((conf_root() / "train.yaml").read_text(encoding="utf-8"))
    del settings["defaults"]
    agent = {**load_yaml("agent", "maskable_ppo"), "n_envs": 2, "n_steps": 32, "batch_size": 64, "n_epochs": 1,
             "scale_decisions": 64}
    agent["imitate"] = {**agent["imitate"], "rule": None}
    for name in ("gating", "eviction"):
        env = {**load_yaml("env", name), "window_s": 10.0, "warmup_s": 5.0}
        main({**settings, "env": env, "agent": agent, "logger": {"name": "none"}, "total_timesteps": 64,
              "window_s": 10.0, "validation": {"windows": 0}, "out": str(folder / name)})
    return folder


def test_runs_are_joined_by_the_decisions_that_they_were_trained_on(runs):
    name = f"learned:{runs / 'gating'}+{runs / 'eviction'}"
    assert set(team_of(name).seats) == {"gate", "evict"} and policies.base_policy(name).name == "ooco"
    summary = simulate_summary(SCENARIO, name)
    assert summary["online"]["arrived"] > 0
    identity = policy_identity(name)
    assert identity != policy_identity("ooco") and identity != policy_identity(f"learned:{runs / 'gating'}")
    other = f"{name}@ooco:interrupt=slack"
    assert team_of(other).partner == "ooco:interrupt=slack" and set(team_of(other).seats) == {"gate", "evict"}
    assert policies.base_policy(other).values["interrupt"] != policies.base_policy(name).values["interrupt"]
    assert policy_identity(name)["learned"] == policy_identity(other)["learned"]
    with pytest.raises(UserError, match="two of its policies were trained to gate"):
        team_of(f"learned:{runs / 'gating'}+{runs / 'gating'}")


def test_the_sustainable_rate_is_searched_with_learned_policies(runs, tmp_path):
    from omegaconf import OmegaConf

    from ooco_gym.resources import conf_root, load_yaml

    name = f"learned:{runs / 'gating'}"
    settings = OmegaConf.load(conf_root() / "capacity.yaml")
    changes = {"workload": {"name": "azure_conv", **load_yaml("workload", "azure_conv")},
               "cluster": {"name": "pair_7b", **load_yaml("cluster", "pair_7b")},
               "slo": {"ttft_s": 1.0, "tpot_s": 0.05},
               "offline": {"mode": "rate", "rate": 1.0}, "policies": [name], "tpot_from": "first_token",
               "seeds": 1, "duration_s": 60.0, "rate_scale": 0.05, "workers": 1, "cache": False, "out": str(tmp_path),
               "search": {"first": 0.5, "factor": 4.0, "last": 0.5, "precision": 0.5, "beyond": 0},
               "tuning": {"policies": None}}
    config = OmegaConf.merge({key: value for key, value in settings.items() if key != "defaults"}, changes)
    found = capacity(config)  # type: ignore[arg-type]
    assert [row["policy"] for row in found["results"]] == [name]
    assert all(row["rate"] >= 0.0 for row in found["results"])


def test_an_exported_policy_plays_as_its_run_does_beside_the_same_partner(runs, tmp_path):
    pytest.importorskip("onnxruntime")
    from agents.policies.export import main as export

    export({"policy": str(runs / "gating"), "out": str(tmp_path / "bundle"), "checks": 100, "seed": 1})
    run, bundle = (f"learned:{folder}" for folder in (runs / "gating", tmp_path / "bundle"))
    assert team_of(bundle).partner == team_of(run).partner
    assert simulate_summary(SCENARIO, bundle)["offline"] == pytest.approx(simulate_summary(SCENARIO, run)["offline"])
