"""Explaining: shuffles find what a policy looks at."""

import json

import numpy as np
import pytest
from composing import GATE
from gating_double import CONFIG, FC, FIXED, SHORT, A, D, F, K

from agents import explaining as explain
from agents.environments import Window, windows
from agents.evaluation.players import LearnedPolicy, load_learned
from agents.explaining import Recording, importances, record
from ooco_gym.errors import UserError

NAMES = {"cluster": [f"cluster_{i}" for i in range(FC)], "candidates": [f"candidates_{i}" for i in range(F)]}
CHANGES = {"episodes": 3, "decisions": 400, "repeats": 2, "seed": 1, "env": None}


def synthetic(rule, count=600, cluster=FC, features=F, seed=0):
    """Decisions of kind 0 with random observations, answered by `rule(cluster, candidates, mask)`."""
    random = np.random.default_rng(seed)
    observed = (random.random((count, cluster), np.float32), random.random((count, K, features), np.float32),
                (random.random((count, A)) < 0.7).astype(np.int8))
    observed[2][:, :FIXED + 1] = 1
    decision = np.tile(np.eye(D, dtype=np.float32)[0], (count, 1))

    def decide(cluster, candidates, mask, decision):
        return rule(cluster, candidates, mask)

    return LearnedPolicy(decide, {}, ()), Recording(
        "gate", NAMES, *observed, decision, decide(*observed, decision))


def smallest(feature, patience=0.4):
    """Holds where the cluster's first feature is small, else takes the candidate with the least of one feature."""
    def rule(cluster, candidates, mask):
        key = np.where(mask[:, FIXED:] > 0, candidates[:, :, feature], np.inf)
        return np.where(cluster[:, 0] <= patience, 0, FIXED + key.argmin(axis=1))
    return rule


# --- Importance -----------------------------------------------------------------------------------------------------
def test_only_what_a_policy_looks_at_is_important():
    policy, recording = synthetic(smallest(2))
    found = {(one["part"], one["feature"]): one["changed"] for one in importances(policy, recording, 3, 1)}
    assert {key for key, changed in found.items() if changed > 0} == {("cluster", "cluster_0"),
                                                                      ("candidates", "candidates_2")}
    assert len(found) == FC + F
    assert found["cluster", "cluster_0"] == pytest.approx(2 * 0.4 * 0.6, abs=0.08)  # two draws on different sides


# --- Recording ------------------------------------------------------------------------------------------------------
def test_recording_keeps_what_was_asked():
    def decide(cluster, candidates, mask, decision):
        return np.ones(len(mask), int)

    games = windows([2000, 2001], 2)
    gate, = record(SHORT, LearnedPolicy(decide, {}, ()), games, 40, 1)
    assert gate.name == "gate" and 20 < len(gate.actions) <= 40
    assert (gate.cluster != 0).any(axis=1).all()
    again, = record(SHORT, LearnedPolicy(decide, {}, ()), games, 40, 1)
    assert np.array_equal(again.cluster, gate.cluster)


# --- The command ----------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def explained(run_folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("explained")
    return explain.main({**CHANGES, "policy": str(run_folder), "out": str(out)}), out


def test_the_command_writes_what_it_says(explained, run_folder):
    summary, out = explained
    assert sorted(path.name for path in out.iterdir()) == sorted(summary["files"])
    result = json.loads((out / "explain.json").read_text())
    assert result["schema"] == "ooco-gym/explanation/6"
    assert all(0.0 <= row["changed"] <= 1.0 for row in result["importance"])
    assert sum(result["held_out"]["decisions"].values()) > 0
    html = (out / "explain.html").read_text()
    assert "What moves" in html and "<script src" not in html


def test_a_bundle_is_explained_as_its_run(run_folder, tmp_path):
    pytest.importorskip("onnxruntime")
    from agents.policies.export import main as export

    export({"policy": str(run_folder), "out": str(tmp_path), "checks": 20})
    run, bundle = load_learned(str(run_folder)), load_learned(str(tmp_path))
    games = [Window(21, 0), Window(22, 1)]
    (first, *_), (second, *_) = (record(CONFIG, thinker, games, 30, 1) for thinker in (run, bundle))
    assert np.array_equal(first.actions, second.actions)
    assert bundle.env["id"] == run.env["id"]


@pytest.mark.parametrize("change, match", [
    ({"policy": "nowhere"}, "'nowhere' does not exist"),
    ({"repeats": 0}, "repeats must be a whole number of at least 1"),
    ({"episodes": 0}, "episodes must be a whole number"),
    ({"env": SHORT}, "leave env=null for its own"),
])
def test_mistakes_are_named(run_folder, tmp_path, change, match):
    out = tmp_path / "out"
    with pytest.raises(UserError, match=match):
        explain.main({**CHANGES, "policy": str(run_folder), "out": str(out), **change})
    assert not out.exists()


def test_an_exported_policy_is_explained_and_not_on_decisions_that_it_never_learned(tmp_path):
    short = {**CHANGES, "policy": str(GATE), "window_s": 10.0, "warmup_s": 5.0, "episodes": 1,
             "decisions": 40, "repeats": 1, "out": str(tmp_path / "out")}
    with pytest.raises(UserError, match="not those of ooco_gym/Eviction-v1; leave env=null"):
        explain.main({**short, "env": "eviction"})
    with pytest.raises(UserError, match="policy folder 'nowhere' does not exist; expected the 'out'"):
        explain.main({**short, "policy": "nowhere"})
    assert not (tmp_path / "out").exists()
    assert explain.main(short)["policy"] == "gate_network"
