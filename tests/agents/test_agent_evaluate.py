"""Evaluation: identical windows for all, feasibility before score, intervals that say what may be said."""

import csv
import json
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.environments import Window, windows
from agents.evaluation import evaluate, scoring
from agents.evaluation.heuristics import Heuristic
from agents.evaluation.players import play
from ooco_gym.errors import UserError
from ooco_gym.render.reading import evaluated
from tests.agents.composing import GATE
from tests.agents.gating_double import CONFIG, SHORT
from tests.html_pages import Page

SEEDS = [21, 22, 23, 24, 25, 26]
CARTPOLE = {"id": "CartPole-v1", "splits": {"test": [1, 2]}}
RULES = ["best", "ooco", "always", "never", "random"]


def config(out, **changes):
    return {"env": CONFIG, "policies": RULES, "episodes": 12, "seeds": SEEDS, "workers": 1,
            "out": str(out), **changes}


@pytest.fixture(scope="module")
def summary(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluation")
    return evaluate.main(config(folder)), folder


def of(summary, policy, metric):
    return next(r for r in summary["results"] if (r["policy"], r["metric"]) == (policy, metric))


def test_results_name_every_policy_and_metric(summary):
    result, _ = summary
    assert len(result["results"]) == len(RULES) * len(scoring.METRICS)
    for row in result["results"]:
        assert set(row) == {"policy", "env", "metric", "mean", "ci_low", "ci_high", "n_runs", "n_seeds", "n_windows"}
        assert (row["n_runs"], row["n_seeds"], row["n_windows"]) == (1, 6, 12)
        assert row["ci_low"] <= row["mean"] <= row["ci_high"]
    best = next(entry for entry in result["policies"] if entry["policy"] == "best")
    assert 0.0 < best["iqm"]["ci_low"] <= best["iqm"]["value"] <= best["iqm"]["ci_high"] < 1.0  # of ooco's service
    assert best["probability_of_improvement"]["value"] < 0.5 and result["normalised_by"] == "mean of ooco"


def test_files_hold_every_window_and_the_page_its_table(summary):
    _, folder = summary
    rows = list(csv.DictReader((folder / "episodes.csv").open()))
    assert len(rows) == 12 * len(RULES) and len({(row["seed"], row["window"]) for row in rows}) == 12
    kept = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))
    assert {name: len(some) for name, some in kept["records"]["none"].items()} == dict.fromkeys(RULES, 12)
    page = Page(folder / "evaluation.html")
    assert "ranked" in page.texts["th"] and "no: too many violations" in page.texts["td"]


def test_known_rules_come_out_in_the_known_order(summary):
    result, _ = summary
    reward = {policy: of(result, policy, "episode_reward")["mean"] for policy in RULES}
    assert reward["best"] > reward["ooco"] > reward["never"] == 0.0 > reward["always"]
    ranks = {entry["policy"]: entry["rank"] for entry in result["policies"]}
    assert (ranks["ooco"], ranks["best"], ranks["never"]) == (1, 2, 3)  # by service, not by reward
    assert ranks["always"] is None and ranks["random"] is None
    assert result["reference"] == "ooco"


def test_differences_are_paired_and_claim_only_what_the_interval_shows(summary):
    result, _ = summary
    rows = {(row["policy"], row["metric"]): row for row in result["paired"]}
    assert rows["best", "episode_reward"]["verdict"] == "better"
    assert rows["best", "violation_rate"]["verdict"] == "no difference shown"
    assert rows["best", "offline_reference_gpu_s_per_s"]["verdict"] == "worse"
    assert rows["always", "offline_reference_gpu_s_per_s"]["verdict"] == "not ranked"
    assert rows["always", "violation_rate"]["verdict"] == "worse"
    assert rows["never", "episode_reward"]["mean_difference"] == pytest.approx(
        of(result, "never", "episode_reward")["mean"] - of(result, "ooco", "episode_reward")["mean"])
    assert not any(row["policy"] == "ooco" for row in result["paired"])


@pytest.mark.parametrize("seeds, episodes", [([21], 1), ([21, 22], 4), (None, 3)])
def test_fewer_than_five_windows_call_nothing_better_or_worse(tmp_path, seeds, episodes):
    result = evaluate.main(config(tmp_path, seeds=seeds, episodes=episodes))  # null: the test split, of three
    said = f"too few windows for a verdict: {episodes}, at least 5"
    assert {row["verdict"] for row in result["paired"]} == {said, "not ranked"}


def test_processes_change_nothing(summary, tmp_path):
    again = evaluate.main(config(tmp_path, workers=2))
    assert again["results"] == summary[0]["results"]


def test_what_was_played_is_not_played_again_until_the_policy_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("OOCO_GYM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    counted = []

    def counting(*args, **options):
        counted.append(args)
        if len(counted) == 3:
            raise KeyboardInterrupt
        return play(*args, **options)

    monkeypatch.setattr(evaluate, "play", counting)
    rule, own = tmp_path / "rule.yaml", tmp_path / "own.py"
    rule.write_text("name: ooco\nslo_margin: 0.9\n")
    own.write_text("def act(observation):\n    return int(observation['action_mask'].argmax())\n")
    asked = config(tmp_path / "out", env=SHORT, policies=["ooco", "never", str(rule), "own.py:act"], seeds=None,
                   episodes=2, cache=True)
    with pytest.raises(KeyboardInterrupt):
        evaluate.main(asked)
    results = []
    for plays, margin in ((2, 0.9), (1, 0.9), (2, 0.5)):  # what was finished, all but own code, the rule's change
        counted[:] = [None] * 3
        rule.write_text(f"name: ooco\nslo_margin: {margin}\n")
        results.append(evaluate.main(asked)["results"])
        assert len(counted) - 3 == plays
    assert results[0] == results[1]
    assert results[2] == evaluate.main({**asked, "cache": False, "out": str(tmp_path / "fresh")})["results"]


def test_a_learned_run_and_its_export_are_the_same_policy(run_folder, tmp_path):
    pytest.importorskip("onnxruntime")
    from agents.policies import export

    bundle = tmp_path / "bundle"
    export.main({"policy": str(run_folder), "out": str(bundle), "checks": 50, "seed": 1})
    last = str(run_folder / "policy_last.zip")  # the last policy stands beside the best one
    result = evaluate.main(config(tmp_path / "e", policies=[str(run_folder), str(bundle), last, "ooco"], episodes=3))
    names = [run_folder.name, "bundle"]
    assert [(e["policy"], e["learned"]) for e in result["policies"]] == [
        *((name, True) for name in (*names, last)), ("ooco", False)]
    for metric in scoring.METRICS:
        first, second = ({**of(result, name, metric), "policy": ""} for name in names)
        assert first == second


def test_a_folder_of_training_runs_is_one_policy_crossed_with_the_windows(run_folder, tmp_path):
    import shutil

    group = tmp_path / "group"
    for seed in (2, 10):
        shutil.copytree(run_folder, group / f"seed_{seed}")
    single, both = (evaluate.main(config(tmp_path / name, policies=[str(folder), "ooco"], episodes=6))
                    for name, folder in (("one", run_folder), ("two", group)))
    assert [entry["runs"] for entry in both["policies"]] == [2, 1]
    for metric in scoring.METRICS:  # twins: the second run adds no spread, and no evidence
        one, two = of(single, run_folder.name, metric), of(both, "group", metric)
        assert (two["mean"], two["n_runs"], two["n_windows"]) == (pytest.approx(one["mean"]), 2, 6)
        assert two["ci_high"] - two["ci_low"] == pytest.approx(one["ci_high"] - one["ci_low"], rel=0.05)
    limits = [result["policies"][0]["violation_upper_limit"] for result in (single, both)]
    assert limits[1] == pytest.approx(limits[0], rel=0.05)
    rows = list(csv.DictReader((tmp_path / "two" / "episodes.csv").open()))
    assert [row["run"] for row in rows if row["policy"] == "group"] == ["seed_2"] * 6 + ["seed_10"] * 6


def test_shifts_are_suites_with_a_plain_word_on_the_budget(tmp_path):
    from ooco_gym.resources import load_yaml

    env = {**load_yaml("env", "prefillgate"), "shifts": {"light": {"rate_scale": 0.01}, "heavy": {"rate_scale": 0.25}}}
    result = evaluate.main({"env": env, "policies": ["ooco", "never"], "episodes": 6, "seeds": SEEDS, "workers": 1,
                            "window_s": 20.0, "warmup_s": 5.0, "shift": "all", "out": str(tmp_path)})
    assert [suite["shift"] for suite in result["suites"]] == [None, "light", "heavy"]
    assert result["results"] == result["suites"][0]["results"]
    heavy = result["suites"][2]
    assert heavy["budget"][0].startswith("ooco exceeds the violation budget of 3%")
    assert not any(entry["feasible"] for entry in heavy["policies"])
    one = evaluate.main({"env": env, "policies": ["ooco", "never"], "episodes": 6, "seeds": SEEDS, "workers": 1,
                         "window_s": 20.0, "warmup_s": 5.0, "shift": "light", "out": str(tmp_path)})
    assert one["shift"] == "light" and one["results"] == result["suites"][1]["results"]
    with pytest.raises(UserError, match="unknown shift 'hevy'"):
        evaluate.main({"env": env, "policies": ["ooco"], "episodes": 6, "shift": "hevy", "out": str(tmp_path)})


def test_records_keep_the_order_of_windows_however_many_run_side_by_side():
    games = windows([21, 22, 23], 6)
    one, many = (play(CONFIG, Heuristic("best"), games, side_by_side=n) for n in (1, 4))
    assert one == many and [(r["seed"], r["window"]) for r in one] == games


def test_windows_are_spread_evenly():
    assert windows([5, 6], 4) == [Window(5, 0), Window(6, 0), Window(5, 1), Window(6, 1)]
    assert windows([5, 6], 1) == [Window(5, 0)]
    with pytest.raises(UserError, match="multiple of 2"):
        windows([5, 6], 3)
    with pytest.raises(UserError, match="cannot spread 0 windows"):
        windows([5, 6], 0)


def test_equal_figures_share_a_rank():
    """`twin` serves what `first` does, to the last but a rounding; the next one comes after both."""
    served = {"first": 2.0, "twin": 2.0 + 1e-12, "other": 1.0}
    played = {name: records([0.0] * 6, offline_reference_gpu_s_per_s=[value] * 6, output_tokens_per_s=[1.0] * 6,
                            wasted_tokens_per_s=[0.0] * 6) for name, value in served.items()}
    result = scoring.score(played, "x", dict.fromkeys(played, False))
    assert {one["policy"]: one["rank"] for one in result["policies"]} == {"first": 1, "twin": 1, "other": 3}


def test_a_number_of_seeds_is_the_first_of_the_split(tmp_path):
    """As in every command: a count, a list or a range."""
    found = {asked: evaluate.main(config(tmp_path, seeds=asked, episodes=2))["seeds"] for asked in (1, 2, "21:23")}
    assert found == {1: [21], 2: [21, 22], "21:23": [21, 22]}
    with pytest.raises(UserError, match="the environment's split has 3 seeds"):
        evaluate.main(config(tmp_path, seeds=7, episodes=2))


def test_ranks_words_and_intervals_are_one_test():
    """`near` was tied by words and second by its rank; `behind` was tied by words, without 0 in its interval."""
    first = np.array([2.0, 2.1, 1.9, 2.2, 1.8, 2.0])
    served = {"first": first, "near": first + [1e-3, -1e-3, 1e-3, -1e-3, 1e-3, -1.5e-3], "behind": first - 0.01}
    played = {name: records([0.0] * 6, offline_reference_gpu_s_per_s=value.tolist(), output_tokens_per_s=[1.0] * 6,
                            wasted_tokens_per_s=[0.0] * 6) for name, value in served.items()}
    suite = {"shift": None, "notes": [], **scoring.score(played, "x", dict.fromkeys(played, False))}
    apart = {row["policy"]: row["ci_high"] < 0.0 for row in suite["paired"] if row["metric"] == scoring.HEADLINE}
    assert suite["reference"] == "first" and apart == {"near": False, "behind": True}
    assert {one["policy"]: one["rank"] for one in suite["policies"]} == {"first": 1, "near": 1, "behind": 3}
    answer = evaluated({"env": "x", **suite})[0].answer()
    assert "`first` and `near` complete most and are tied" in answer


def test_a_learned_policy_that_is_its_start_says_so(run_folder, tmp_path):
    import shutil

    begun = tmp_path / "begun"
    shutil.copytree(run_folder, begun)
    for timesteps, said in ((0, True), (64, False)):
        (begun / "summary.json").write_text(json.dumps({"command": "train", "best": {"timesteps": timesteps}}))
        result = evaluate.main(config(tmp_path / f"e{timesteps}", policies=[str(begun), "ooco"], episodes=2))
        words = "policy 'begun': it is still the initial policy, "
        assert any(note.startswith(words) for note in result["notes"]) == said


def records(rates, **more):
    return [{"seed": i, "window": 0, "reward": 0.0, "decisions": 1,
             "summary": {"violation_rate": rate, **{key: value[i] for key, value in more.items()}}}
            for i, rate in enumerate(rates)]


def test_violations_never_seen_are_not_violations_excluded():
    """With no violation among 50 requests the exact limit is 7.1 %: too few to call the policy feasible."""
    few, many = (scoring.upper_violation_limit(np.zeros((1, 5)), [0] * 5, [arrived] * 5) for arrived in (10, 1000))
    assert few == pytest.approx(0.0711, abs=1e-3) and many < scoring.VIOLATION_LIMIT
    assert scoring.upper_violation_limit(np.zeros((1, 1))) is None


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.floats(0.0, 0.1), st.floats(-5.0, 5.0)), min_size=1, max_size=6))
def test_the_budget_comes_first_then_the_gain_and_beyond_it_the_fewest_violations(policies):
    violations, gain = max(policies, key=lambda one: scoring.feasible_first(*one, 0.03))
    within = [one for one in policies if one[0] <= 0.03]
    assert gain == max(one[1] for one in within) if within else violations == min(one[0] for one in policies)
    assert (violations <= 0.03) == bool(within)


def best(played):
    return scoring.best_heuristic({name: scoring.Windows(one) for name, one in played.items()})


def test_the_best_heuristic_is_feasible_else_within_the_budget_else_has_the_fewest_violations():
    def played(rate, service):
        return records([rate, 0.0, rate, 0.0, rate], offline_reference_gpu_s_per_s=[service] * 5,
                       output_tokens_per_s=[1.0] * 5, wasted_tokens_per_s=[0.0] * 5)

    sure, likely, bad, worse = played(0.0, 1.0), played(0.04, 2.0), played(0.2, 3.0), played(0.3, 4.0)
    assert best({"worse": worse, "bad": bad}) == "bad"
    assert best({"worse": worse, "likely": likely, "bad": bad}) == "likely"
    assert best({"worse": worse, "likely": likely, "sure": sure}) == "sure"
    assert best({}) is None


def test_without_online_requests_there_is_no_violation_rate():
    idle = records([0.0] * 5, online_violated=[0] * 5, online_arrived=[0] * 5, offline_reference_gpu_s_per_s=[1.0] * 5,
                   output_tokens_per_s=[1.0] * 5, wasted_tokens_per_s=[0.0] * 5)
    assert scoring.Windows(idle).limit is None
    result = scoring.score({"ooco": idle, "never": idle}, "gating", {"ooco": False, "never": False})
    assert [of(result, name, "violation_rate")["mean"] for name in ("ooco", "never")] == [None, None]
    assert [entry["rank"] for entry in result["policies"]] == [None, None]
    (shown,) = evaluated({**result, "env": "prefillgate", "shift": None, "notes": []})
    assert "No online request arrived" in shown.answer()
    assert not any("0.00" in cell for row in shown.tables()[0].rows for cell in row[:2])


def test_interval_covers_the_spread_of_windows():
    random = np.random.default_rng(0)
    _, low, high = scoring.interval_of(random.normal(3.0, 1.0, (40, 1)))
    assert low is not None and high is not None and low < 3.0 < high
    assert high - low == pytest.approx(2 * 1.96 / np.sqrt(40), rel=0.25)
    assert scoring.interval_of(np.array([[2.0]])) == (2.0, None, None)


@pytest.mark.parametrize("change, words", [
    ({"policies": []}, "policies is empty"), ({"policies": ["."]}, "policy.zip is missing"),
    ({"policies": ["oco"]}, "'oco' is neither a heuristic of this environment (did you mean 'ooco'?) nor a run folder"),
    ({"policies": ["ooco", "ooco"]}, "policies names 'ooco' twice"),
    ({"env": "gatting.csv"}, "env=gatting.csv is not a configuration"),
    ({"seeds": ["x"]}, "seeds=['x'] must be a number of seeds"),
    ({"seeds": [21, 21]}, "has a seed twice"),
    ({"shift": []}, "shift=[] is empty"),
    ({"episodes": 7}, "cannot spread 7 windows over 6 seeds"),
    ({"env": {**CARTPOLE, "base_policy": "ooco"}}, "the environment 'CartPole-v1' takes no argument 'base_policy'"),
    ({"env": CARTPOLE, "episodes": 2, "seeds": None}, "cannot act in CartPoleEnv"),
    ({"env": CARTPOLE, "policies": [str(GATE)], "episodes": 2, "seeds": None}, "but the environment gives Box"),
])
def test_mistakes_are_named_in_one_sentence(tmp_path, change, words):
    with pytest.raises(UserError) as error:
        evaluate.main(config(tmp_path, **change))
    assert words in str(error.value) and "\n" not in str(error.value)


def test_windows_that_policies_have_learned_from_are_noted(tmp_path):
    with pytest.warns(UserWarning, match="seed 1 is of the training split"):
        noted = evaluate.main(config(tmp_path, seeds=[1, 21], episodes=2))
    assert len(noted["notes"]) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert evaluate.main(config(tmp_path, episodes=6))["notes"] == []


def test_windows_on_which_a_policy_was_trained_are_not_called_held_out(run_folder, tmp_path):
    """Whatever the splits of the environment on which it is evaluated say."""
    env = {**CONFIG, "splits": {"test": [3, 21]}}
    with pytest.warns(UserWarning, match=f"policy '{run_folder.name}' was trained on windows of seed 3, so "):
        result = evaluate.main(config(tmp_path, env=env, policies=[str(run_folder), "ooco"], seeds=None, episodes=2))
    (said,) = result["notes"]
    page = Page(tmp_path / "evaluation.html")
    assert said in page.text and "held-out" not in page.text


def test_a_policy_of_another_shape_is_refused(run_folder, tmp_path, monkeypatch):
    from tests.agents import gating_double

    monkeypatch.setattr(gating_double, "FC", 5)
    with pytest.raises(UserError, match="was trained on observations|does not fit the environment"):
        evaluate.main(config(tmp_path, policies=[str(run_folder)], episodes=3))
