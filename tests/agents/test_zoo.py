"""The zoo: what is planned, what is made and made again, and what is shipped with which card."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("sb3_contrib")
pytest.importorskip("onnxruntime")
pytest.importorskip("optuna")
import ooco_gym.zoo as shelf
from agents.environments import make_env
from agents.evaluation import evaluate
from agents.learning.runs import load_run
from agents.search import tune
from agents.zoo import command as zoo
from ooco_gym.errors import UserError
from ooco_gym.resources import load_yaml, names

SHORT = {"window_s": 30.0, "warmup_s": 30.0}
SMALL = {"hidden": 8, "n_envs": 2, "n_steps": 20, "batch_size": 40, "n_epochs": 1, "scale_decisions": 20,
         "imitate": {"decisions": 100, "epochs": 1}}


def config(out, **changes):
    """A zoo of seconds: two runs and one search on one environment."""
    base = load_yaml("", "zoo")
    entry = {**base["environments"]["preemption"], "seeds": [1, 2],
             "train": {"total_timesteps": 80, "window_s": 30.0, "agent": SMALL,
                       "env": {**SHORT, "partner": "tuned:ooco"},
                       "validation": {"windows": 2, "every_steps": 40}, "checkpoint_every_steps": 40},
             "tune": {"policies": ["ooco"], "env": SHORT, **SHORT, "windows": 2, "trials": 2,
                      "params": ["interrupt"], "validation": {"windows": 2}}, "tried": ["a wider network"]}
    return {**base, "environments": {"preemption": entry}, "workers": 1, "out": str(out), **changes}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("zoo")
    return out, zoo.main(config(out))


@pytest.fixture(scope="module")
def shipped(made, tmp_path_factory):
    into = tmp_path_factory.mktemp("package")
    summary = zoo.main(config("", ship=True, zoo=str(made[0]), into=str(into), episodes=2))
    return into / "preemption-ppo-v1", summary


# --- The plan -----------------------------------------------------------------------------------------------------
def test_the_plan_that_ships_is_of_all_environments_with_ten_seeds_each():
    plan = load_yaml("", "zoo")
    entries = zoo.chosen(plan)
    jobs = zoo.planned(plan, entries, Path("ZOO"))
    assert sorted(entries) == names("env")
    for name, entry in entries.items():
        mine = [job for job in jobs if job.env == name]
        assert sum(job.label.startswith("seed_") for job in mine) >= 10 and any(job.kind == zoo.TUNE for job in mine)
        assert all(job.config["trials"] == 200 for job in mine if job.kind == zoo.TUNE), "one budget for all"
        assert {"name", "agent", "tried"} <= set(entry)
    assert len({entry["name"] for entry in entries.values()}) == len(entries)


def test_what_names_nothing_is_refused_before_anything_is_made(tmp_path):
    plan = config(tmp_path)
    with pytest.raises(UserError, match="names no environment"):
        zoo.main({**plan, "envs": []})
    plan["environments"]["preemption"]["agent"] = "maskable_pop"
    with pytest.raises(UserError, match="maskable_ppo"):
        zoo.main(plan)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is a file"):
        zoo.main(config("", ship=True, zoo=str(tmp_path), into=str(tmp_path / "file")))


@pytest.mark.parametrize(("changes", "words"), [
    ({"envs": "evicton"}, "unknown environment of the zoo 'evicton'"),
    ({"seeds": [1, 1]}, "names 1 twice"),
    ({"trials": 0}, "trials must be a whole number of at least 1"),
    ({"workers": 0}, "workers must be a whole number of at least 1"),
    ({"environments": {"gating": {"agents": "x"}}}, "environments.gating: unknown key 'agents'"),
    ({"environments": {"gating": {"agent": "maskable_ppo", "seeds": [1], "train": {"total_timestep": 1}}}},
     "environments.gating.train: unknown key 'total_timestep'"),
    ({"ship": True, "zoo": "nowhere"}, "zoo=nowhere does not exist"),
])
def test_mistakes_are_named_in_one_sentence(tmp_path, changes, words):
    with pytest.raises(UserError, match=words):
        zoo.main(config(tmp_path / "out", **changes))


def test_parts_of_a_zoo_can_be_asked_for(tmp_path):
    plan = load_yaml("", "zoo")
    jobs = zoo.planned({**plan, "seeds": 7, "total_timesteps": 5, "trials": 3}, zoo.chosen({**plan, "envs": "control"}),
                       tmp_path)
    assert [job.label for job in jobs[:2]] == ["tuned/ooco", "seed_7"]
    assert len(jobs) == 2
    assert (jobs[0].config["trials"], jobs[1].config["total_timesteps"]) == (3, 5)
    asked = jobs[1].config
    assert asked["agent"]["imitate"]["rule"] == "partner" and asked["agent"]["imitate"]["epochs"] > 0
    assert asked["env"]["partner"] == "tuned:ooco" and jobs[1].resolved() == jobs[1], "nothing is tuned yet"
    only = zoo.planned({**plan, "seeds": []}, zoo.chosen({**plan, "envs": "gating"}), tmp_path)
    assert {job.kind for job in only} == {zoo.TUNE}


@pytest.mark.parametrize("name", names("agent"))
def test_a_run_is_asked_for_as_train_would_compose_it(name, tmp_path):
    plan = {**load_yaml("", "zoo"), "environments": {"gating": {"agent": name, "seeds": [1]}}}
    (job,) = zoo.planned(plan, zoo.chosen(plan), tmp_path)
    own = zoo.composed("train", "env=gating", f"agent={name}")
    assert job.config == {**own, "seed": 1, "out": str(job.folder)} and own["agent"]["name"]
    assert job.config["overwrite"] is False and "overwrite" not in job.asked
    with pytest.raises(UserError, match="agent=nosuch"):
        zoo.composed("train", "agent=nosuch")


# --- Making it ----------------------------------------------------------------------------------------------------
def test_what_is_made_lies_where_the_table_looks_for_it(made):
    out, summary = made
    assert set(summary["made"]) == {"preemption tuned/ooco", "preemption seed_1", "preemption seed_2"}
    for name in ("seed_1", "seed_2"):
        assert load_run(out / "preemption" / name).config["seed"] == int(name[-1])
        assert json.loads((out / "preemption" / name / "summary.json").read_text())["best"]
    assert (out / "preemption" / "tuned" / "ooco" / "policy.yaml").is_file()


def test_training_begins_where_the_search_ended(made):
    out, _ = made
    tuned = tune.read_tuned(out / "preemption" / "tuned" / "ooco" / tune.POLICY_FILE)["policy"]
    assert load_run(out / "preemption" / "seed_1").config["env"]["partner"] == tuned


def test_only_what_is_not_complete_is_made_again(made):
    out, _ = made
    stamps = {path: path.stat().st_mtime_ns for path in out.rglob("summary.json")}
    assert zoo.main(config(out))["made"] == {} and zoo.main(config(out))["skipped"] == 3
    lost = out / "preemption" / "seed_2" / "summary.json"
    lost.unlink()  # as a run that was killed
    again = zoo.main(config(out))
    assert set(again["made"]) == {"preemption seed_2"} and again["skipped"] == 2
    assert {path for path in stamps if path.stat().st_mtime_ns != stamps[path]} == {lost}
    jobs = zoo.planned({**config(out), "total_timesteps": 81}, zoo.chosen(config(out)), out)
    assert [job.complete() for job in jobs] == [True, False, False], "another budget is another run"


def test_a_job_that_fails_is_named_and_the_others_are_made(tmp_path):
    broken = config(tmp_path, seeds=[1])
    broken["environments"]["preemption"]["train"]["agent"] = {**SMALL, "network": "nosuch"}
    with pytest.raises(UserError, match=r"1 of 2 jobs failed; the first, preemption seed_1: unknown agent.network"):
        zoo.main(broken)
    assert (tmp_path / "preemption" / "tuned" / "ooco" / "policy.yaml").is_file()


# --- Shipping it --------------------------------------------------------------------------------------------------
def test_the_best_on_validation_is_shipped_with_its_card(made, shipped):
    folder, summary = shipped
    assert {path.name for path in folder.iterdir()} == {"manifest.json", "policy.onnx", "weights.npz", "reference.npz",
                                                         "card.json", "card.md"}
    card = shelf.read_card(folder)
    runs = card["training"]["validation_of_all"]
    feasible = {name: one for name, one in runs.items() if one["violation_rate"] <= 0.03} or runs
    assert card["training"]["run"] in feasible
    assert runs[card["training"]["run"]]["reward"] == max(one["reward"] for one in feasible.values())
    assert summary["policies"]["preemption-ppo-v1"]["run"] == card["training"]["run"]
    scores = card["scores"]
    assert scores["best_heuristic"] in scores["heuristics"] and scores["all_seeds"]
    assert card["tried"] == ["a wider network"] and card["training"]["seeds"] == [1, 2] and scores["n_windows"] == 2
    assert [one["shift"] for one in card["shifts"]] == list(load_yaml("env", "preemption")["shifts"])
    for one in card["shifts"]:
        assert one["words"].startswith(f"Under '{one['shift']}': ")
        assert (one["words"] in card["not_for"]) == (not one["holds_budget"] or one["behind"])
    text = (folder / "card.md").read_text()
    upper = card["scores"]["this_policy"]["violation_rate"]["upper_limit"]
    doubtful = upper is None or upper > 0.03
    assert any("on its own held-out windows" in one for one in card["not_for"]) == doubtful, "two windows prove little"
    assert all(one in text for one in card["not_for"]) and "ooco-gym zoo 'envs=[preemption]' 'seeds=[1,2]'" in text
    assert " environments.preemption.train.total_timesteps=80 " in text, "what the zoo was told is in its command"
    assert str(made[0]) not in text + (folder / "card.json").read_text() + (folder / "manifest.json").read_text()


def test_a_shipped_policy_is_loaded_by_name_and_decides_as_the_run_it_is_from(made, shipped, monkeypatch):
    folder, _ = shipped
    monkeypatch.setattr(shelf, "_HERE", folder.parent)
    assert shelf.names() == ["preemption-ppo-v1"]
    policy = shelf.load_policy("preemption-ppo-v1")
    run = load_run(made[0] / "preemption" / policy.card["training"]["run"])
    env = make_env(run.config["env"])
    observation, _ = env.reset(seed=3000, options={"window": 0})
    over = False
    while not over:
        action = policy.decide(observation)
        assert action == run.decide(observation)
        observation, _, _, over, _ = env.step(action)


def test_evaluate_plays_a_policy_of_the_zoo_by_its_name(shipped, monkeypatch, tmp_path):
    monkeypatch.setattr(shelf, "_HERE", shipped[0].parent)
    own = {**load_yaml("env", "preemption"), **SHORT}
    summary = evaluate.main({**load_yaml("", "evaluate"), "env": own, "policies": ["partner", "preemption-ppo-v1"],
                             "episodes": 2, "workers": 1, "out": str(tmp_path)})
    assert [row["policy"] for row in summary["policies"] if row["learned"]] == ["preemption-ppo-v1"]
