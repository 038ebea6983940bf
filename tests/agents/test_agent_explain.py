"""Explaining: shuffles find what a policy looks at, a distilled rule is the rule it came from, and plays as one."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from composing import GATE
from gating_double import CONFIG, FC, FIXED, SHORT, A, D, F, K
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.dummy import DummyClassifier

from agents import explaining as explain
from agents.environments import Window, windows
from agents.evaluation.players import BatchPlayer, LearnedPolicy, load_learned, play
from agents.explaining import (
    ANOTHER,
    NO,
    PARTNER,
    UNKNOWN,
    Recording,
    agreement,
    best_candidate,
    decide,
    distilled,
    fitted_tree,
    importances,
    record,
    whether_names,
)
from ooco_gym.envs.buffers import PARTNER_ACTION
from ooco_gym.envs.features import CANDIDATE_SIZE, CLUSTER_SIZE, DECISIONS
from ooco_gym.errors import UserError

CHANGES = {"fit_windows": 2, "episodes": 3, "decisions": 400, "repeats": 2, "leaves": 6, "seed": 1,
           "env": None, "heuristics": None}


def synthetic(rule, count=600, cluster=FC, features=F, seed=0):
    """Decisions of kind 0 with random observations, answered by `rule(cluster, candidates, mask)`."""
    random = np.random.default_rng(seed)
    observed = (random.random((count, cluster), np.float32), random.random((count, K, features), np.float32),
                (random.random((count, A)) < 0.7).astype(np.int8))
    observed[2][:, :FIXED + 1] = 1
    decision = np.tile(np.eye(D, dtype=np.float32)[0], (count, 1))

    def decide(cluster, candidates, mask, decision):
        return rule(cluster, candidates, mask)

    return LearnedPolicy(decide, {}, ()), Recording(0, *observed, decision, np.arange(count) % 4,
                                                    np.full(count, UNKNOWN), decide(*observed, decision))


def leaf(says):
    """A tree that always says the same."""
    return DummyClassifier(strategy="constant", constant=says).fit([[0]], [says])


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


# --- The rule -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("feature", range(F))
def test_a_simple_policy_is_distilled_to_itself(feature):
    rule, lines = distilled(synthetic(smallest(feature))[1], 4, 1)
    assert agreement(rule, synthetic(smallest(feature), seed=9)[1]).mean() > 0.98
    root = rule["whether"].tree_
    assert root.feature[0] == 0 and root.threshold[0] == pytest.approx(0.4, abs=0.02)
    assert (rule["which"], rule["most"]) == (f"candidates_{feature}", False)
    assert "|   |--- no: start nothing" in lines[2] or lines[2].startswith("|   |--- no")
    assert lines[-1] == f"another candidate: that with the least candidates_{feature}"


def test_a_policy_that_is_the_partner_becomes_one_leaf():
    _, recording = synthetic(lambda cluster, candidates, mask: np.ones(len(cluster), int))
    assert distilled(recording, 8, 1)[0]["whether"].classes_.tolist() == [PARTNER]


def test_what_does_the_same_as_the_partner_counts_as_the_partner():
    _, recording = synthetic(smallest(0))
    recording = replace(recording, partner=recording.actions.copy())
    assert distilled(recording, 8, 1)[0]["whether"].classes_.tolist() == [PARTNER]
    assert (recording.canonical(recording.actions) == PARTNER_ACTION).all()
    assert agreement({"whether": leaf(PARTNER)}, recording).all()


def test_settings_get_a_tree_a_parameter():
    random = np.random.default_rng(0)
    cluster = random.random((400, FC), np.float32)
    actions = np.stack([(cluster[:, 1] > 0.5) * 2, np.ones(400, int)], axis=1)
    recording = Recording(6, cluster, np.zeros((400, 5, F), np.float32), np.ones((400, 5), np.int8),
                          np.tile(np.eye(7, dtype=np.float32)[6], (400, 1)), np.zeros(400, int), np.full(400, UNKNOWN),
                          actions)
    rule, lines = distilled(recording, 4, 1, {"margin": [0.8, 0.9, 1.0], "tries": [1, 2]})
    assert agreement(rule, recording).mean() > 0.98
    assert np.array_equal(decide({"control": rule}, recording.cluster, recording.candidates, recording.mask,
                                 recording.decision), actions)
    assert "margin:" in lines and "|   |--- 1" in lines and lines[-2:] == ["tries:", "|--- 2"]


def test_windows_are_not_learned_by_heart():
    """The answer hangs on the window, and one feature tells windows apart: no rule of it holds elsewhere."""
    _, recording = synthetic(smallest(0), 800)
    window = np.arange(800) % 8
    cluster = recording.cluster.copy()
    cluster[:, 0] = window / 8
    actions = np.where(np.isin(window, (1, 2, 4, 7)), 0, PARTNER_ACTION)
    rule, _ = distilled(replace(recording, cluster=cluster, actions=actions, window=window), 8, 1)
    assert rule["whether"].get_n_leaves() == 1


def test_a_tree_plays_windows_of_unequal_length_side_by_side():
    rules = {"gate": {"whether": leaf(PARTNER)}}
    config = {"id": "ooco_gym/Gating-v0", "window_s": 20.0, "warmup_s": 10.0}
    records = play(config, BatchPlayer("its rule", partial(decide, rules)), [Window(one, 0) for one in (1, 2, 3)])
    assert len({one["decisions"] for one in records}) > 1, "they end one after the other"


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000), st.sampled_from([NO, PARTNER, ANOTHER]))
def test_a_rule_never_answers_illegally(seed, said):
    random = np.random.default_rng(seed)
    mask = (random.random((20, A)) < 0.3).astype(np.int8)
    mask[np.arange(20), random.integers(0, A, 20)] = 1
    candidates = random.random((20, K, CANDIDATE_SIZE), np.float32)
    rule = {"whether": leaf(said), "which": "tokens", "most": True}
    actions = decide({DECISIONS[0]: rule}, random.random((20, CLUSTER_SIZE), np.float32), candidates, mask,
                     np.eye(7)[[0] * 20])
    assert (mask[np.arange(20), actions] == 1).all()
    wanted = {NO: 0, PARTNER: 1}.get(said)
    if wanted is not None:
        assert (actions[mask[:, wanted] == 1] == wanted).all()


def test_the_candidate_is_the_legal_one_with_the_most_or_least_and_the_first_of_equals():
    candidates = np.zeros((1, 4, F), np.float32)
    candidates[0, :, 1] = [2, 5, 5, 9]
    legal = np.array([[True, True, True, False]])
    for most, place in ((True, 1), (False, 0)):
        assert best_candidate({"which": "candidates_1", "most": most}, candidates, legal)[0] == place


def test_text_has_meanings_and_units():
    table, window = np.array([[0.0, 0.4], [0.2, 0.4], [0.2, 0.6]]), np.zeros(3)
    lines = "\n".join(fitted_tree(table, np.array([NO, PARTNER, ANOTHER]), window, 3, 1, [
        "push_waiting", "least tokens"], {NO: "no: wait", PARTNER: "as the partner"})[1])
    assert "no: wait" in lines and "as the partner" in lines and "class" not in lines
    assert "push_waiting is no" in lines and "least tokens > 180 tokens" in lines  # exp(0.5 ln(32769)) - 1
    assert len(whether_names(CLUSTER_SIZE, CANDIDATE_SIZE)) == CLUSTER_SIZE + 1 + 3 * CANDIDATE_SIZE


# --- Recording ------------------------------------------------------------------------------------------------------
def test_recording_keeps_what_was_asked_and_what_the_partner_would_do():
    def decide(cluster, candidates, mask, decision):
        return np.ones(len(mask), int)

    games = windows([2000, 2001], 2)
    (gate,), records = record(SHORT, LearnedPolicy(decide, {}, ()), games, 40, 1)
    assert gate.name == "gate" and set(gate.window) == {0, 1} and len(gate.actions) <= 40
    assert [one["window"] for one in records] == [game.number for game in games]
    assert (gate.mask[np.arange(len(gate.actions)), gate.partner] == 1).all()
    assert (gate.cluster != 0).any(axis=1).all()
    again, _ = record(SHORT, LearnedPolicy(decide, {}, ()), games, 40, 1)
    assert np.array_equal(again[0].cluster, gate.cluster)
    partner = play(SHORT, BatchPlayer("x", decide), games)
    assert partner == records


# --- The command ----------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def explained(run_folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("explained")
    return explain.main({**CHANGES, "policy": str(run_folder), "out": str(out)}), out


def test_the_command_writes_what_it_says(explained, run_folder):
    summary, out = explained
    assert sorted(path.name for path in out.iterdir()) == sorted(summary["files"])
    result = json.loads((out / "explain.json").read_text())
    assert result["schema"] == "ooco-gym/explanation/5"
    policies = {row["policy"] for row in result["scores"]["results"]}
    assert {run_folder.name, "its rule", "ooco"} <= policies
    assert all(0.0 <= row["agreement"] <= 1.0 for row in result["fidelity"])
    html = (out / "explain.html").read_text()
    assert "Played on the same held-out windows" in html and "<script src" not in html


def test_a_bundle_is_explained_as_its_run(run_folder, tmp_path):
    pytest.importorskip("onnxruntime")
    from agents.policies.export import main as export

    export({"policy": str(run_folder), "out": str(tmp_path), "checks": 20})
    run, bundle = load_learned(str(run_folder)), load_learned(str(tmp_path))
    games = [Window(21, 0), Window(22, 1)]
    (first, second), (third, fourth) = (record(CONFIG, thinker, games, 30, 1)[0] for thinker in (run, bundle))
    for one, other in ((first, third), (second, fourth)):
        assert np.array_equal(one.actions, other.actions)
    assert bundle.env["id"] == run.env["id"]


@pytest.mark.parametrize("change, match", [
    ({"policy": "nowhere"}, "'nowhere' does not exist"),
    ({"leaves": 1}, "leaves must be a whole number of at least 2"),
    ({"episodes": 0}, "episodes must be a whole number"),
    ({"env": SHORT}, "leave env=null for its own"),
])
def test_mistakes_are_named(run_folder, tmp_path, change, match):
    out = tmp_path / "out"
    with pytest.raises(UserError, match=match):
        explain.main({**CHANGES, "policy": str(run_folder), "out": str(out), **change})
    assert not out.exists()


def test_an_exported_policy_is_explained_and_not_on_decisions_that_it_never_learned(tmp_path):
    short = {**CHANGES, "policy": str(GATE), "window_s": 10.0, "warmup_s": 5.0, "fit_windows": 1, "episodes": 1,
             "decisions": 40, "repeats": 1, "heuristics": [], "out": str(tmp_path / "out")}
    with pytest.raises(UserError, match="'gate_network' was never asked to evict, only to gate"):
        explain.main({**short, "env": "eviction"})
    with pytest.raises(UserError, match="policy folder 'nowhere' does not exist; expected the 'out'"):
        explain.main({**short, "policy": "nowhere"})
    assert not (tmp_path / "out").exists()
    assert explain.main(short)["policy"] == "gate_network"
