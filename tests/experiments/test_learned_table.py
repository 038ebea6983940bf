"""The learned table end to end on a tiny zoo, and what its figures say."""

import json
import shutil

import numpy as np
import pytest
import yaml

from experiments.common.store import code_of
from experiments.studies import learned_table
from experiments.studies import learned_table_page as page
from experiments.studies.learned_table import Setting
from experiments.studies.learned_table import evaluate as main
from ooco_gym.errors import UserError
from ooco_gym.resources import conf_root, load_yaml

pytest.importorskip("sb3_contrib")
ID = "ooco_gym/Gating-v0"


def train(folder, seed):
    from agents.learning.train import main as train_main

    settings = yaml.safe_load((conf_root() / "train.yaml").read_text(encoding="utf-8"))
    del settings["defaults"]
    agent = {**load_yaml("agent", "maskable_ppo"), "n_envs": 2, "n_steps": 64, "batch_size": 64, "n_epochs": 1}
    agent["imitate"] = {**agent["imitate"], "rule": None}
    agent["scale_decisions"] = 64
    env = {**load_yaml("env", "gating"), "window_s": 10.0, "warmup_s": 5.0}
    train_main({**settings, "env": env, "agent": agent, "logger": {"name": "none"}, "seed": seed,
                "total_timesteps": 128, "window_s": 10.0, "validation": {"windows": 0}, "out": str(folder)})


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("zoo")
    for seed in (1, 2):
        train(folder / "gating" / f"seed_{seed}", seed)
    train(folder / "gating" / "variants" / "history_4", 1)
    tuned = folder / "gating" / "tuned" / "ooco_xllm" / "policy.yaml"
    tuned.parent.mkdir(parents=True)
    tuned.write_text("policy: 'ooco_xllm:stop_share=0.9'\nprovenance: {trials: 3}\n", encoding="utf-8")
    return folder


def config(zoo, out, **table):
    settings = yaml.safe_load((conf_root() / "preset" / "learned_table.yaml").read_text(encoding="utf-8"))["table"]
    gating = {**settings["environments"]["gating"], "window_s": 10.0, "warmup_s": 5.0, "every": 40, "honest_every": 80,
              "samples": 1}
    settings = {**settings, "episodes": 6, "validation_episodes": 4, "shift_episodes": 2, "rollout_episodes": 5,
                **table, "environments": {"gating": gating}}
    return {"zoo": str(zoo), "table": settings, "out": str(out), "workers": 1}


@pytest.fixture(scope="module")
def table(zoo, tmp_path_factory):
    out = tmp_path_factory.mktemp("table")
    return main(config(zoo, out)), out


def test_every_kind_of_policy_has_its_row(table):
    one = table[0]["environments"][ID]
    kinds = {row["kind"] for row in one["rows"]}
    assert kinds == {"random", "heuristic", "tuned", "learned", "honest", "clairvoyant", "bound"}
    rows = {row["policy"]: row for row in one["rows"]}
    assert {"partner", "shortest", "ooco_xllm:stop_share=0.9", "learned", "fluid bound"} <= set(rows)
    assert (one["n_seeds"], one["n_windows"], rows["learned"]["runs"]) == (2, 6, 2)
    for row in one["rows"]:
        if row["kind"] != "bound":
            assert {"service", "violation_rate", "reward", "waste", "feasible", "minus_best_tuned"} <= set(row)
            assert set(row["violation_rate"]) == {"mean", "ci_low", "ci_high", "upper_limit"}
            assert row["service"]["mean"] <= rows["fluid bound"]["service"]["mean"]
    assert one["best_tuned"] in rows and rows[one["best_tuned"]]["minus_best_tuned"]["service"]["mean"] == 0.0
    difference = rows["learned"]["service"]["mean"] - rows[one["best_tuned"]]["service"]["mean"]
    assert one["learned_minus_best_tuned"]["mean"] == pytest.approx(difference)
    assert {"ci_low", "ci_high"} <= set(one["learned_minus_best_tuned"])
    searched = one["searched"]
    assert searched["policy"] == "ooco_xllm:stop_share=0.9"
    assert searched["learned_minus"]["mean"] == pytest.approx(
        rows["learned"]["service"]["mean"] - rows[searched["policy"]]["service"]["mean"])
    assert isinstance(one["no_headroom"], bool)
    looked = ("honest", "clairvoyant", "bound")
    assert {row["n_windows"] for row in one["rows"] if row["kind"] in looked} == {5}
    assert {row["n_windows"] for row in one["rows"] if row["kind"] not in looked} == {6}
    recipe, variant = one["variants"]
    assert (recipe["variant"], variant["variant"], variant["n_windows"]) == ("the recipe", "history_4", 4)
    assert variant["minus_recipe"]["mean"] == 0.0, "it was trained as the recipe was, with the same seed"
    assert [shift["shift"] for shift in one["shifts"]] == ["rate", "lengths", "chip", "burst"]
    assert all("budget" in shift["words"] for shift in one["shifts"])


def test_the_table_is_written_for_people_and_for_programs(table):
    summary, out = table
    kept = json.loads((out / "learned_table.json").read_text())
    assert kept["environments"][ID]["learned_minus_best_tuned"] == summary["environments"][ID][
        "learned_minus_best_tuned"]
    page = (out / "learned_table.md").read_text()
    assert page.startswith("# Learned policies on held-out windows") and "**learned** (2 runs)" in page
    assert "Under 'burst'" in page


def test_what_was_played_is_not_played_again_but_for_a_policy_that_is_new(table, zoo, tmp_path, monkeypatch):
    seen = []

    def noted(kind, play):
        return lambda task: seen.append((kind, task.player)) or play(task)

    monkeypatch.setattr(learned_table, "_PLAY", {kind: noted(kind, play) for kind, play in learned_table._PLAY.items()})
    again = main(config(zoo, tmp_path / "again"))
    assert seen == [] and again["environments"][ID]["rows"] == table[0]["environments"][ID]["rows"]
    other = tmp_path / "zoo"
    shutil.copytree(zoo, other)
    shutil.rmtree(other / "gating" / "seed_2")
    train(other / "gating" / "seed_2", 9)
    learned_table._digest_of.cache_clear()
    main(config(other, tmp_path / "other"))
    assert {kind for kind, _ in seen} == {"learned"} and all("seed_2" in player for _, player in seen)


def test_other_code_plays_again_unless_it_is_trusted(table, zoo, tmp_path, monkeypatch):
    monkeypatch.setattr(learned_table, "code_of", lambda kind, env: "other")
    trusted = main(config(zoo, tmp_path, trust_cache=True, rollouts=False, bound=False, shift_episodes=0))
    assert trusted["environments"][ID]["windows_by_other_code"] > 0
    assert "played by another version" in (tmp_path / "learned_table.md").read_text()

    def refuse(task):
        raise RuntimeError("it is played")

    monkeypatch.setitem(learned_table._PLAY, "heuristic", refuse)
    with pytest.raises(RuntimeError, match="it is played"):
        main(config(zoo, tmp_path, rollouts=False, bound=False))


def test_what_is_said_about_code_is_no_code():
    one = code_of('"""Says."""\n\ndef f(x):\n    """Adds."""\n    return x + 1  # one\n')
    assert one == code_of("def f(x):\n\n    return x + 1\n") != code_of("def f(x):\n    return x + 2\n")


def test_a_run_that_was_stopped_is_no_run_yet(zoo, tmp_path):
    other = tmp_path / "zoo"
    shutil.copytree(zoo, other)
    (other / "gating" / "seed_2" / "job.yaml").write_text("kind: train\n")
    table = config(other, tmp_path)["table"]
    assert list(Setting.of("gating", other / "gating", table).runs) == ["seed_1"]
    (other / "gating" / "seed_2" / "summary.json").write_text("{}")
    assert list(Setting.of("gating", other / "gating", table).runs) == ["seed_1", "seed_2"]


@pytest.mark.parametrize(("changes", "words"), [
    ({"weights": 1.0}, "weights"), ({"honest_every": 0}, "honest_every"), ({"also": "ooco"}, "also"),
    ({"progress": "x"}, "progress"), ({"rollout_episodes": 1}, "rollout_episodes"),
    ({"validation_episodes": 5}, "table.validation_episodes=5: cannot spread 5 windows over 4 seeds"),
    ({"episodes": 13}, "table.episodes=13: cannot spread"), ({"shift_episodes": 13}, "table.shift_episodes=13: ")])
def test_settings_that_are_none_are_refused(zoo, tmp_path, changes, words):
    asked = config(zoo, tmp_path)
    asked["table"]["environments"]["gating"].update(changes)
    with pytest.raises(UserError, match=words):
        main(asked)


def test_what_would_be_ignored_is_refused_before_anything_is_played(zoo, tmp_path):
    with pytest.raises(UserError, match="episodes, shift are not for the learned table"):
        main({**config(zoo, tmp_path), "episodes": 10, "shift": "all"})
    with pytest.raises(UserError, match="workers"):
        main({**config(zoo, tmp_path), "workers": "two"})


def test_few_windows_of_look_ahead_take_no_verdict_from_those_who_played_more():
    played = {"best": records([1.0, 1.1, 0.9, 1.0, 1.2, 1.0]), "learned": records([1.3, 1.4, 1.2, 1.3, 1.5, 1.3]),
              "clairvoyant rollout": records([1.5, 1.6, 1.4])}
    one = page.compared(played, "best", "learned", None)
    assert one["verdict"] == "better" and one["no_headroom"] is None and "too few" in one["no_headroom_reason"]


def records(service, rate=0.0, runs=(None,)):
    return [{"seed": w, "window": 0, "run": run, "reward": value,
             "summary": {"offline_reference_gpu_s_per_s": value, "violation_rate": rate, "wasted_tokens_per_s": 0.0,
                         "online_arrived": 1000, "online_violated": round(1000 * rate)}}
            for run in runs for w, value in enumerate(service)]


def played(learned, clairvoyant, rates=(0.01, 0.01)):
    base = np.random.default_rng(1).normal(1.0, 0.2, 24)
    noise = np.random.default_rng(2).normal(0.0, 0.01, 24)
    return {"partner": records(base, 0.01), "learned": records(base + noise + learned, rates[0], ("a", "b")),
            "clairvoyant rollout": records(base + 2 * noise + clairvoyant, rates[1])}


def test_the_gap_that_is_closed_and_the_verdict():
    found = page.compared(played(0.02, 0.06), "partner", "learned", None)
    assert found["verdict"] == "better" and found["no_headroom"] is False
    share = found["share_of_gap_closed"]
    assert share["ci_low"] < 1 / 3 < share["ci_high"] and share["mean"] == pytest.approx(1 / 3, abs=0.1)
    assert page.compared(played(-0.02, 0.06), "partner", "learned", None)["verdict"] == "worse"
    assert page.compared(played(0.0, 0.06), "partner", "learned", None)["verdict"] == "no difference shown"
    over = page.compared(played(0.02, 0.06, (0.05, 0.01)), "partner", "learned", None)
    assert over["verdict"].startswith("over the violation budget")


def test_a_window_without_a_bound_leaves_the_bound_out():
    bounds = np.full((1, 24), 2.0)
    assert 0.0 < page.compared(played(0.02, 0.06), "partner", "learned", bounds)["of_bound"]["iqm"]["mean"] < 1.0
    bounds[0, 3] = np.nan
    assert page.row_of("fluid bound", "bound", None, None, bounds)["service"]["mean"] is None
    assert page.compared(played(0.02, 0.06), "partner", "learned", bounds)["of_bound"]["optimality_gap"][
        "mean"] is None


def test_no_headroom_where_the_clairvoyant_gain_touches_zero_and_no_verdict_where_it_is_bought():
    touches = page.compared(played(0.02, 0.0), "partner", "learned", None)
    assert touches["no_headroom"] is True and touches["share_of_gap_closed"] is None
    bought = page.compared(played(0.02, 0.06, (0.01, 0.04)), "partner", "learned", None)
    assert bought["no_headroom"] is None and "more violations" in bought["no_headroom_reason"]
    without = {name: some for name, some in played(0.02, 0.06).items() if not name.startswith("clairvoyant")}
    assert page.compared(without, "partner", "learned", None)["no_headroom"] is None


@pytest.mark.parametrize("rate, words", [
    (0.001, "it holds the violation budget"), (0.2, "Do not use it under 'x'"), (0.029, "is not shown to hold")])
def test_shifts_are_said_plainly(rate, words):
    mine, other = (records([1.0, 2.0, 1.5, 1.2, 1.3], one) for one in (rate, 0.0))
    assert words in page.shifted("x", mine, other, "ooco")["words"]


@pytest.mark.parametrize("less, rate, words", [
    (0.5, 0.001, "Do not use it there: it serves less than ooco: -0.5000"), (0.5, 0.2, "And it serves less than ooco"),
    (0.0, 0.001, None)])
def test_a_shift_under_which_it_serves_less_is_said_too(less, rate, words):
    other = np.random.default_rng(3).normal(2.0, 0.3, 12)
    found = page.shifted("x", records(other - less, rate), records(other, 0.0), "ooco")
    assert found["behind"] == (words is not None)
    assert words is None or words in found["words"]


def test_each_run_is_judged_by_itself_and_those_are_counted_that_break_the_budget():
    some = played(0.02, 0.06)
    base = np.array([one["summary"]["offline_reference_gpu_s_per_s"] for one in some["partner"]])
    mixed = [*records(base + 0.02, 0.001, ("a",)), *records(base, 0.04, ("b",))]
    found = page.compared({**some, "learned": mixed}, "partner", "learned", None)
    assert [(one["run"], one["feasible"], one["verdict"]) for one in found["each_run"]] == [
        ("a", True, "better"), ("b", False, "over the violation budget, or not shown to be within it")]
    assert page.verdict_of(found).endswith("; 1 of 2 runs hold the budget")


@pytest.mark.parametrize("change, words", [
    ({"zoo": "nowhere"}, "zoo folder 'nowhere' does not exist"),
    ({"table": None}, "zoo and table belong together"),
    ({"table": {"only": "gatin", "environments": {"gating": {}}}}, "unknown environment 'gatin'"),
    ({"table": {"environments": {"eviction": {}}}}, "has no folder eviction"),
])
def test_mistakes_are_named(zoo, tmp_path, change, words):
    with pytest.raises(UserError) as error:
        main({**config(zoo, tmp_path), **change})
    assert words in str(error.value) and "\n" not in str(error.value)
