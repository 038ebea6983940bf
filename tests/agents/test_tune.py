"""Tuning: what is searched, that it goes on where it stood, and that what it keeps is played by the same names."""

from __future__ import annotations

import csv
import os
import platform
import shutil

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("optuna")
from agents.environments import Window
from agents.evaluation.heuristics import play_heuristic
from agents.search import tune
from agents.search.space import ranges_of
from ooco_gym.errors import Terminated, UserError
from ooco_gym.policy import get_policy, list_policies, spelled
from ooco_gym.resources import load_yaml


def config(out, env="interruption", **changes):
    """A search of seconds."""
    own = {**load_yaml("env", env), "window_s": 60.0, "warmup_s": 60.0}
    return {**load_yaml("", "tune"), "env": own, "trials": 6, "windows": 2, "window_s": 60.0, "warmup_s": 60.0,
            "validation": {"windows": 2, "finalists": 2}, "params": ["interrupt", "slack_factor"], "out": str(out),
            **changes}


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    out = tmp_path_factory.mktemp("tune")
    return out, tune.main(config(out))


# --- What is searched ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", [name for name in list_policies() if get_policy(name).params])
def test_ranges_lie_within_bounds_and_hold_the_default(name):
    policy = get_policy(name)
    found, left = ranges_of(policy, 20.0, fixed=load_yaml("", "tune")["fixed"])
    params = {param.name: param for param in policy.params}
    assert {one.name for one in found} | set(left) == set(params)
    for one in found:
        for end in one.choices or (one.low, one.high):
            params[one.name].number(end, name)
        assert one.holds(one.default) or (one.default == 0 and params[one.name].usual), "0: found by itself"
        assert one.steps() and one.default not in one.steps() and all(map(one.holds, one.steps()))


@given(value=st.floats(0.045, 2.0), kind=st.sampled_from(["always", "slack", "never"]), tries=st.integers(1, 160))
@settings(max_examples=20, deadline=None)
def test_what_is_spelled_is_read_back(value, kind, tries):
    name = spelled("ooco", {"slo_margin": value, "interrupt": kind, "random_tries": tries})
    read = get_policy(name).values
    assert (read["slo_margin"], read["interrupt"], read["random_tries"]) == (pytest.approx(value), kind, tries)


def test_a_given_range_takes_the_place_of_the_usual_one():
    (one, two), left = ranges_of(get_policy("ooco"), 20.0, ["slo_margin", "interrupt"],
                                 space={"slo_margin": [0.5, 1.2], "interrupt": ["always", "slack"]})
    assert (one.low, one.high, one.log) == (0.5, 1.2, False) and two.choices == ("always", "slack")
    assert left["gate"] == "not among those asked for"


def test_what_the_simulator_reads_is_the_partners_where_decisions_are_asked():
    asked, left = ranges_of(get_policy("ooco"), 20.0, asked=True)
    seated, _ = ranges_of(get_policy("ooco"), 20.0)
    names = {one.name for one in seated} - {one.name for one in asked}
    assert names == {"gate_window", "prefill_tokens", "layer_resume"} <= set(left)


@pytest.mark.parametrize(("wrong", "words"), [
    ({"policy": "decline", "env": "eviction", "params": None}, "no parameters"),
    ({"policy": "shortest", "env": "prefillgate", "params": None}, "no parameters"),
    ({"policy": "oocoo"}, "did you mean 'ooco'"),
    ({"params": ["slo_margn"]}, "did you mean 'slo_margin'"),
    ({"space": {"slack_factor": [2, 1]}}, r"must be \[low, high\]"),
    ({"space": {"interrupt": [0.5]}}, "is not one of always"),
    ({"trials": 0}, "trials must be a whole number of at least 1"),
    ({"windows": 1}, "windows must be a whole number of at least 2"),
    ({"storage": "nosuchdb:///x"}, "storage=nosuchdb:///x cannot be opened"),
    ({"policy": "ooco:interrupt=slack,slack_factor=1.2"}, "nothing to tune here"),
])
def test_mistakes_are_named_in_one_sentence(tmp_path, wrong, words):
    wrong = dict(wrong)
    with pytest.raises(UserError, match=words) as error:
        tune.main(config(tmp_path / "out", wrong.pop("env", "interruption"), **wrong))
    assert "\n" not in str(error.value)


# --- The search ---------------------------------------------------------------------------------------------------
def test_files_say_what_is_kept_and_how_it_came_about(searched):
    out, report = searched
    origin, tuned = report["provenance"], get_policy(str(out / "policy.yaml"))
    assert tuned.name == "ooco" and tuned.values == get_policy(report["policy"]).values
    assert origin["trials"] == 6 and set(origin["searched"]) == {"interrupt", "slack_factor"}
    assert origin["training"]["seeds"] == [1000, 1001] and origin["validation"]["seeds"] == [2000, 2001, 2002, 2003]
    assert str(out) not in (out / "policy.yaml").read_text()
    rows = list(csv.DictReader((out / "trials.csv").open()))
    assert len(rows) == 6 and (rows[0]["interrupt"], rows[0]["slack_factor"]) == ("always", "1.2")
    held = origin["validation"]
    assert held["tuned"]["violation_upper_limit"] <= 0.03 or held["default"]["violation_upper_limit"] > 0.03
    assert held["tuned"]["service"] >= held["default"]["service"]


def test_one_parameter_is_changed_at_a_time_before_any_are_drawn(searched):
    out, report = searched
    rows = list(csv.DictReader((out / "trials.csv").open()))
    searched_ = list(report["provenance"]["searched"])
    for row in rows[1:1 + len(searched_)]:
        assert sum(row[name] != rows[0][name] for name in searched_) == 1


def test_trials_and_evaluation_play_the_same_episode(searched):
    """The search goes past Gymnasium; whoever plays the policy by its name gets the same figures."""
    config_ = config("")["env"]
    games = [Window(1000, 0), Window(1001, 0)]
    policy = "ooco:interrupt=slack,slack_factor=0.8"
    seen = play_heuristic(config_, policy, games)
    kept = tune.Windows(config_, games)
    for _ in range(2):  # from the bank, too
        assert [one["summary"] for one in kept.play(policy)] == [one["summary"] for one in seen]


def test_a_search_goes_on_where_it_was_stopped(searched, tmp_path, monkeypatch):
    """Ctrl-C within the fourth trial; what comes then is as if nothing had happened."""
    out, report = searched
    true, calls = tune.Windows.play, []

    def interrupted(self, policy):
        calls.append(policy)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return true(self, policy)

    settings_ = config(tmp_path, storage=f"sqlite:///{tmp_path / 'tune.db'}")
    monkeypatch.setattr(tune.Windows, "play", interrupted)
    stopped = tune.main(settings_)
    monkeypatch.undo()
    assert stopped["stopped_by"] == "interrupt" and 0 < stopped["trials"] < 6
    finished = tune.main(settings_)
    assert finished["stopped_by"] == "trials" and finished["policy"] == report["policy"]
    assert (tmp_path / "trials.csv").read_text() == (out / "trials.csv").read_text()
    assert yaml.safe_load((tmp_path / "policy.yaml").read_text()) == yaml.safe_load((out / "policy.yaml").read_text())


@pytest.mark.parametrize(("trial", "signal"), [(1, KeyboardInterrupt), (4, Terminated)])
def test_ctrl_c_before_the_first_trial_is_over_and_sigterm_end_a_search(trial, signal, searched, tmp_path, monkeypatch):
    """There is nothing to judge yet, or no time for it; the same command goes on."""
    out, _ = searched
    true, calls = tune.Windows.play, []

    def interrupted(self, policy):
        calls.append(policy)
        if len(calls) == trial:
            raise signal
        return true(self, policy)

    monkeypatch.setattr(tune.Windows, "play", interrupted)
    with pytest.raises(signal):
        tune.main(config(tmp_path))
    monkeypatch.undo()
    assert len(calls) == trial and not (tmp_path / "policy.yaml").exists()
    assert tune.main(config(tmp_path))["stopped_by"] == "trials"
    assert (tmp_path / "trials.csv").read_text() == (out / "trials.csv").read_text()


def test_many_processes_search_by_one_journal(tmp_path, monkeypatch):
    """While one plays a trial another searches to the end: no trial is played twice, none is lost, none is one too
    many; and a trial of a process that is gone is played again."""
    settings_ = config(tmp_path, storage=str(tmp_path / "tune.journal"))
    one, other = tune._Search(settings_), tune._Search(settings_)
    true = tune.Windows.play

    def meanwhile(self, policy):
        monkeypatch.setattr(tune.Windows, "play", true)
        monkeypatch.setattr(tune, "_worker", lambda: [platform.node(), os.getppid()])  # another process, and alive
        assert not other.run() and len(other.done()) == 5 and len(other.open_or_done()) == 6
        monkeypatch.undo()
        return self.play(policy)

    monkeypatch.setattr(tune.Windows, "play", meanwhile)
    assert not one.run() and len(one.done()) == 6
    policies = [trial.user_attrs["policy"] for trial in one.done()]
    assert len(set(policies[: len(one.starts)])) == min(6, len(one.starts)), "each begins with another one"
    one.study.ask().set_user_attr("worker", [platform.node(), 2**22 + 1])  # no process has this number
    more = tune._Search({**settings_, "trials": 7})
    assert len(more.open_or_done()) == 7 and not more.run() and len(more.done()) == 7


def test_a_torn_journal_loses_its_last_line_alone(tmp_path):
    journal = tmp_path / "tune.journal"
    settings_ = config(tmp_path, storage=str(journal), trials=2)
    assert not tune._Search(settings_).run()
    whole = journal.read_bytes()
    journal.write_bytes(whole + whole.splitlines()[-1][:-9])
    more = tune._Search({**settings_, "trials": 3})
    assert journal.read_bytes().startswith(whole) and len(more.done()) == 2
    assert not more.run() and len(tune._Search({**settings_, "trials": 3}).done()) == 3, "what came after is read"


def test_no_policy_is_played_twice_on_the_training_windows(tmp_path, monkeypatch):
    """Also where a search goes on: what was played before is known from its trials."""
    calls = []
    settings_ = config(tmp_path, trials=3, params=["interrupt"], space={"interrupt": ["always", "slack"]},
                       storage=f"sqlite:///{tmp_path / 'tune.db'}")
    tune.main(settings_)
    true = tune.Windows.play

    def counted(self, policy):
        calls.append(policy)
        return true(self, policy)

    monkeypatch.setattr(tune.Windows, "play", counted)
    search = tune._Search({**settings_, "trials": 6})
    assert not search.run() and len(search.done()) == 6 and not calls
    monkeypatch.setattr(tune._Search, "_order", lambda self, found: (False, 0.0))  # all alike: it stays as it ships
    report = search.report(False)
    assert report["policy"] == report["default"] == "ooco"
    assert calls.count("ooco") == 2 and len(calls) == 1 + 1 + 2  # training; validation, there beside two finalists


def test_where_only_the_clock_asks_the_policy_takes_the_partners_seat(tmp_path):
    report = tune.main(config(tmp_path, "packing", trials=3, params=["slo_margin"], space={"slo_margin": [0.2, 0.5]}))
    assert report["provenance"]["plays"] == "as the partner"
    rows = list(csv.DictReader((tmp_path / "trials.csv").open()))
    assert len({row["service"] for row in rows}) > 1, "the margin of the partner makes a difference"


def test_a_storage_that_was_damaged_is_refused_in_a_sentence(tmp_path, searched):
    shutil.copytree(searched[0], tmp_path / "copy")
    path = tmp_path / "copy" / "study.db"
    content = bytearray(path.read_bytes())
    content[4096:] = bytes(len(content) - 4096)  # pages that were never written
    path.write_bytes(content)
    with pytest.raises(UserError, match="study.db") as refused:
        tune.main(config(tmp_path / "copy"))
    assert "\n" not in str(refused.value)
