"""The study of one policy for every condition: what it learns plays, and its claims are those of its windows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from baselines.adaptive_deadline import ADJUSTED, LAYOUT
from experiments.studies import generalist as study
from experiments.studies.generalist_learn import (
    Context,
    base_of,
    choose_figures,
    constants,
    setting_of,
    shared_values,
    spelled_setting,
    within_reach,
)
from ooco_gym.cli.main import main
from ooco_gym.errors import UserError
from ooco_gym.policy import get_policy
from ooco_gym.simulation import simulate

SHORT = ("generalist.duration_s=30", "generalist.warmup_s=5")
SMALL = ("seeds=[1]", "single_generations=1", "population=4", "each_first=4", "each_first_elite=2",
         "each_generations=1", "each_population=3", "each_elite=2", "refine_generations=1", "ascent.steps=1",
         "ascent.validation_seeds=[2]", "ascent.every_s=12", "ascent.horizon_s=8")
LEARN = ("generalist.part=learn", *(f"generalist.learn.{one}" for one in SMALL),
         "generalist.learn.conditions=[{name: a, cluster: mixed_7b, workload: azure_conv, load: 0.3},"
         "{name: b, cluster: mixed_7b, workload: ooc, load: 0.3}]")


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("generalist")
    for name in ("first", "second"):
        assert main(["experiment", "generalist", *SHORT, *LEARN, f"out={out / name}"]) == 0
    return out


def test_two_searches_with_the_same_seed_give_the_same_bytes(learned: Path) -> None:
    for name in ("single.npz", "regressed.npz", "settings.npz", "ascent.npz", "both.npz", "single_ascent.npz",
                 "learned.npz", "learning.json"):
        assert (learned / "first" / name).read_bytes() == (learned / "second" / name).read_bytes()


def test_both_sides_have_as_many_windows(learned: Path) -> None:
    had = json.loads((learned / "first" / "learning.json").read_text())["windows"]
    assert 0 <= had["single"] - had["learned"] <= 2 * 5  # a generation more at most: 5 candidates, 2 conditions


def test_the_one_setting_knows_no_context_and_the_learned_policy_does(learned: Path) -> None:
    single, found = (get_policy(str(learned / "first" / f"{name}.yaml")).weights for name in ("single", "learned"))
    assert single is not None and found is not None
    assert not single.reshape(len(LAYOUT.rows), -1)[:, :-1].any()
    assert found.reshape(len(LAYOUT.rows), -1)[:, :-1].any()


def test_claims_are_those_of_the_windows(learned: Path, tmp_path: Path) -> None:
    files = {name: learned / "first" / f"{name}.yaml" for name in ("single", "learned")}
    policies = ",".join(f"{{title: {name}, policy: '{file}', name: my {name}}}" for name, file in files.items())
    assert main(["experiment", "generalist", *SHORT, f"out={tmp_path}", "generalist.seeds=[5,6]",
                 f"generalist.policies=[{{title: deadline, policy: deadline}},{policies}]",
                 "generalist.cache=false", "generalist.workers=1",
                 "generalist.conditions=[{name: c, group: g, cluster: mixed_7b, workload: azure_conv, online_rate: 2}]",
                 "generalist.each_from=null", "generalist.also=[single]"]) == 0
    found = json.loads((tmp_path / "learned.json").read_text())["claims"]
    single, ours = "my single", "my learned"
    pairs = (("generalist", ours, single), ("rule", single, ours))
    assert [(one["kind"], one["group"], one["learned"], one["opponent"]) for one in found] == [
        (kind, group, policy, opponent) for kind, policy, other in pairs
        for group in ("all", "g") for opponent in ("deadline", other)]
    for one in found:
        assert one["n_windows"] == 2 and one["window_s"] == 30.0
        assert one["ci_low"] <= one["mean"] <= one["ci_high"]
        assert one["relative"] == pytest.approx(np.expm1(one["mean"]), rel=1e-4, abs=1e-9)
    assert "| c |" in (tmp_path / "generalist.md").read_text()


def test_a_mean_over_conditions_counts_them_alike() -> None:
    mean, low, high = study.over_conditions([np.array([0.1] * 40), np.array([0.3, 0.3])])
    assert (mean, low, high) == (pytest.approx(0.2), pytest.approx(0.2), pytest.approx(0.2))


def test_regression_finds_settings_that_follow_a_figure() -> None:
    random = np.random.default_rng(1)
    sampled = random.random((60, len(LAYOUT.columns) - 1))
    condition = np.repeat(np.arange(6), 10)
    context = Context(["kv_free", "offline_work"], sampled, condition)
    truth = random.normal(size=(len(ADJUSTED), 3))
    settings = np.c_[context.by_condition, np.ones(6)] @ truth.T
    found = context.regress(settings, np.ones_like(settings), 1e-9)
    assert np.allclose(found, truth, atol=1e-5)
    weights = context.weights(found).reshape(len(ADJUSTED), -1)
    figures = np.r_[sampled[0], 1.0]
    scaled = (sampled[0, context.places] - context.mean) / context.deviation
    assert np.allclose(weights @ figures, truth @ np.r_[scaled, 1.0], atol=1e-4)


def test_figures_are_chosen_that_explain_hardware_left_out() -> None:
    """Settings follow two figures; all others are noise."""
    random = np.random.default_rng(4)
    by_condition = random.random((24, len(LAYOUT.columns) - 1))
    sampled, condition = np.repeat(by_condition, 3, axis=0), np.repeat(np.arange(24), 3)
    truth = random.normal(size=(2, len(ADJUSTED)))
    places = [LAYOUT.columns.index(name) for name in ("offline_work", "kv_free")]
    settings = 10.0 * by_condition[:, places] @ truth + 0.05 * random.normal(size=(24, len(ADJUSTED)))
    groups = [f"chip {one // 3}" for one in range(24)]
    chosen = choose_figures(sampled, condition, groups, settings, np.full_like(settings, 0.15), 0.1, 5)
    assert set(chosen[:2]) == {"offline_work", "kv_free"}
    assert len(choose_figures(sampled, condition, groups, settings, np.full_like(settings, 0.15), 0.1, 1)) == 1


@pytest.mark.parametrize(("policy", "pools"), [("vllm_priority", {}), ("slack", {"relaxed": 2, "strict": 1})])
def test_the_load_that_instances_carry_is_where_the_engine_alone_begins_to_violate(policy: str, pools: dict[str, int]
                                                                                   ) -> None:
    options = {"duration_s": 60.0, "warmup_s": 0.0,
               "loads": {"policy": policy, "seed": 3, "duration_s": 60.0, "violations": 0.01}}
    condition = {"chip": "l40s", "model": "llama_3_1_8b", "workload": "azure_conv", **pools}
    rate = study.carried(condition, options)
    scenario = study.scenario_of({**condition, "online_rate": rate}, options).with_(
        seed=3, offline={"mode": "rate", "rate": 0.0})
    # A summary counts, besides, what misses after the window.
    runs = [simulate(scenario.with_(online_rate=factor * rate), policy).summary for factor in (0.9, 1.5)]
    assert runs[0]["online"]["violation_rate"] <= 0.01 < runs[1]["online"]["violation_rate"]
    assert len(scenario.load_cluster().relaxed) == len(pools) // 2


def test_a_setting_is_spelled_as_deadline_with_its_values() -> None:
    setting = np.zeros(len(ADJUSTED))
    assert get_policy(spelled_setting(setting, {})).values == get_policy("deadline").values
    setting[0], setting[4] = 1.0, -1.0
    assert setting_of(get_policy(spelled_setting(setting, {}))) == pytest.approx(setting, abs=1e-3)
    found = get_policy(spelled_setting(setting, {})).values
    assert found["tpot_share"] == pytest.approx(0.95) and found["online_chunk"] == round(4096 * np.exp(-0.7))
    far = within_reach(np.full(len(ADJUSTED), 100.0))
    assert get_policy(spelled_setting(far, {})).values["offline_share"] == 1.0
    assert constants(setting).reshape(len(ADJUSTED), -1)[:, -1].tolist() == setting.tolist()


def test_what_no_weights_move_is_shared_by_all_candidates() -> None:
    settings = {"base": "adaptive_deadline:chunk_efficiency=0.8"}
    shared = shared_values(settings)
    assert shared == {"chunk_efficiency": 0.8}
    assert get_policy(spelled_setting(np.zeros(len(ADJUSTED)), shared)).values["chunk_efficiency"] == 0.8
    for wrong in ("deadline", "adaptive_deadline:tpot_share=0.8"):
        with pytest.raises(UserError, match=r"generalist.learn.base='\S+' must be 'adaptive_deadline'"):
            base_of({"base": wrong})
