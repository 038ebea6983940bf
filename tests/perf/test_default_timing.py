"""The clock of a run that names none: the chips' own kernels where all were measured; what is frozen keeps its own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.peaks import PeakPlan, conditions_of
from ooco_gym import Scenario
from ooco_gym.cluster import Cluster
from ooco_gym.envs.config import episode_config
from ooco_gym.perf import Deployment, list_chips, load_chip, load_model
from ooco_gym.perf.deployment import default_timing
from ooco_gym.perf.engine_clock import EngineClock, clock_line
from ooco_gym.resources import conf_root, load_yaml
from ooco_gym.run_notes import say_clock

MEASURED = {name for name in list_chips() if load_yaml("chip", name).get("extended")}
H100, ASCEND = "pair_h100_8b", "pair_7b"


@settings(deadline=None)
@given(names=st.lists(st.sampled_from(list_chips()), min_size=1, max_size=4))
def test_measured_kernels_count_where_all_chips_have_them(names: list[str]) -> None:
    assert default_timing(map(load_chip, names)) == ("extended" if set(names) <= MEASURED else "ooco")
    cluster = {"model": "llama_3_1_8b", "mixed": [{"chip": name, "tp": 8} for name in names]}
    asked = Cluster.load(cluster).deployments(None)
    assert asked == Cluster.load(cluster).deployments(default_timing(map(load_chip, names)))


def test_a_scenario_says_the_form_that_it_has() -> None:
    run = Scenario(cluster=H100, rate_scale=0.1).resolve()
    assert {one.timing for _, one in run.deployments} == {"extended"} and run.describe()["timing"] == "extended"
    for changed, form in ((run.with_(cluster=ASCEND), "ooco"), (run.with_(timing="ooco"), "ooco"),
                          (run.with_(timing={"name": "ooco", "causal_factor": 0.5}), "ooco")):
        assert {one.timing for _, one in changed.deployments} == {form}
        assert changed.describe()["timing"] == (changed.given.timing or form)


def test_the_chips_own_form_is_the_protocols() -> None:
    def found(timing: Any, cluster: str) -> str:
        return conditions_of(Scenario(cluster=cluster, timing=timing), (1, 2, 3), PeakPlan())

    assert found(None, H100) == found("extended", H100) == found(None, ASCEND) == found("ooco", ASCEND) == "protocol"
    assert "protocol" not in (found("ooco", H100), found("ooco_xllm", ASCEND))


def test_environments_figures_and_claims_keep_the_papers_form() -> None:
    for scenario in ({"cluster": H100}, Scenario(cluster=H100)):
        assert episode_config("prefillgate", scenario=scenario).scenario.timing == "ooco"
    assert episode_config("prefillgate", cluster=H100).scenario.timing == "ooco"
    assert episode_config("prefillgate", scenario={"timing": "extended"}).scenario.timing == "extended"
    for group in ("figure", "claim"):
        for path in (conf_root() / group).rglob("*.yaml"):
            spec = load_yaml(group, path)
            assert "axes" not in spec or spec["scenario"]["timing"] == "ooco", path
    assert all(load_yaml("preset", path)["timing"] == "ooco" for path in (conf_root() / "preset").glob("*.yaml"))


@pytest.mark.parametrize(("chip", "timing", "clock", "said"), [
    ("h100", "extended", None, r"clock: timing=extended, engine clock none; h100: iterations \d\.\d % off on average, "
                               r"replay of vLLM 0\.32\.0 TTFT −\d+ %, TPOT −\d+ % \(docs/validity\.md\)"),
    ("h100", "extended", "vllm_eager_async", r".*engine clock vllm_eager_async; .*TTFT [+−]\d+ %, TPOT \+\d+ %.*"),
    ("h100", "extended", {"decode_s": 0.001}, r".*engine clock custom; .*, not validated on an engine with .*"),
    ("rtx4090", "extended", None, r".*; rtx4090: MAPE 3\.4 %.*, replay of vLLM 0\.19\.0 TTFT −3 %, TPOT −4 %.*"),
    ("ascend_910c", "ooco", None, r".*: not validated on measured iterations, not validated on an engine.*"),
    ("h800", "extended", None, r".*h800: not validated on measured iterations.*")])
def test_a_command_says_which_clock_and_how_far_off_it_is(chip: str, timing: str, clock: Any, said: str) -> None:
    deployment = Deployment(load_chip(chip), load_model("llama_3_1_8b"), timing=timing)
    assert re.fullmatch(said, clock_line([deployment, deployment], EngineClock.load(clock)))


def test_simulate_prints_it_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ooco_gym.cli import main

    words = ["cluster=mixed_h100_8b", "policy=vllm_fcfs", "rate_scale=0.01", "duration_s=20", "warmup_s=0", "drain_s=0"]
    assert main(["simulate", *words, "cluster.engine_clock=vllm_eager_sync", f"out={tmp_path / 'run'}"]) == 0
    assert capsys.readouterr().out.count("clock: timing=extended, engine clock vllm_eager_sync; h100: ") == 1


def test_what_vllm_served_is_not_said_of_a_policy_of_another_engine(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = Scenario(cluster="mixed_h100_8b")
    say_clock(cluster, policies=["sglang"])
    said = capsys.readouterr().out
    assert "served" not in said and "sglang: another engine, for which this latency model was not validated" in said
    say_clock(cluster, policies=["sglang", "vllm_fcfs"])
    assert "published runs TTFT" in (said := capsys.readouterr().out) and "sglang: another engine" in said
    say_clock(cluster, policies=["vllm_fcfs"])
    assert "another engine" not in capsys.readouterr().out
