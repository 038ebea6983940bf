"""Mistakes in a scenario's mappings are named where they stand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ooco_gym.cluster import Cluster
from ooco_gym.envs.config import episode_config
from ooco_gym.errors import UserError
from ooco_gym.scenario import Scenario
from ooco_gym.schema import check_keys

POOL = {"chip": "ascend_910c"}


@pytest.mark.parametrize(("load", "message"), [
    (lambda: Cluster.load({"relaxed": [POOL], "strict": [POOL]}), "cluster 'custom': model is missing"),
    (lambda: episode_config("prefillgate", scenario={"sed": 1}),
     "env scenario: unknown key 'sed' (did you mean 'seed'?)"),
    (lambda: check_keys("hydra", ["hydra.foo"], ["hydra.job", "hydra.run"]),
     "hydra: unknown key 'hydra.foo'; expected one of hydra.job, hydra.run|"),
    (lambda: check_keys("all", ["hydro.jib"], ["hydra.job"]), "all: unknown key 'hydro.jib' (did you mean 'hydra.job'"),
])
def test_an_unknown_key_is_named_with_the_nearest(load: Callable[[], Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        load()
    assert f"{caught.value}|".startswith(message)


def test_a_window_begins_at_the_time_asked_for_even_before_the_warm_up_would():
    """Midnight has a day before it: the window's own requests are those of that time of day."""
    import numpy as np

    from ooco_gym.simulation import requests_of
    from ooco_gym.workload import generate

    scenario = Scenario(workload="azure_conv", rate_scale=0.05, start_s=0.0, duration_s=900.0, seed=3)
    trace, (start_s, end_s) = requests_of(scenario)
    inside = trace.online & (trace.arrival_s >= start_s) & (trace.arrival_s < end_s)
    day = generate("azure_conv", start_s=86_400.0, duration_s=900.0, seed=3, rate_scale=0.05)
    assert np.array_equal(trace.prompt_tokens[inside], day.prompt_tokens)
    assert trace.arrival_s[inside] - start_s == pytest.approx(day.arrival_s - 86_400.0, abs=1e-6)
    assert not scenario.from_file
    assert Scenario(workload="ooc+week.csv").from_file
    assert Scenario(workload={"path": "week.csv"}).from_file


def test_a_trace_file_is_measured_from_its_first_request_on(tmp_path):
    """Nothing precedes a trace, so a window at its start has no warm-up, and loses nothing to one."""
    from ooco_gym.simulation import requests_of

    path = tmp_path / "short.csv"
    rows = "\n".join(f"{i}.5,100,10,online" for i in range(60))
    path.write_text(f"arrival_s,prompt_tokens,output_tokens,class\n{rows}\n")
    trace, (start_s, end_s) = requests_of(Scenario(workload=str(path), start_s=0.0, duration_s=60.0))
    counted = trace.online & (trace.arrival_s >= start_s) & (trace.arrival_s < end_s)
    assert (start_s, int(counted.sum())) == (0.0, 60)
    later, (start_s, _) = requests_of(Scenario(workload=str(path), start_s=20.0, duration_s=20.0))
    assert start_s == 20.0
    assert int((later.online & (later.arrival_s >= 20.0) & (later.arrival_s < 40.0)).sum()) == 20


def test_a_tighter_promise_keeps_the_load_of_the_clusters_preset():
    preset = Scenario(workload="ooc").online_scale()
    assert Scenario(workload="ooc", slo={"ttft_s": 1.7, "tpot_s": 0.043}).online_scale() == preset


def test_mixed_instances_carry_the_load_of_their_twin():
    twins = {kind: Scenario(cluster=name) for kind, name in ((False, "pair_7b"), (True, "mixed_7b"))}
    assert twins[True].online_scale() == twins[False].online_scale()
    assert Scenario(cluster="mixed_7b", rate_scale=0.05).online_scale() == 0.05
    for kind, mine in twins.items():
        assert mine.on_kind(kind) is mine
        other = mine.on_kind(not kind)
        assert bool(other.load_cluster().mixed) is not kind
        assert other.load_slo() == mine.load_slo() and other.online_scale() == mine.online_scale()


def test_a_twin_has_equal_hardware():
    mixed = {"name": "mine", "model": "qwen2_5_7b", "mixed": [POOL], "twin": "pair_7b"}
    with pytest.raises(UserError, match="cluster 'mine': its twin 'pair_7b' must have relaxed and strict inst"):
        Scenario(cluster=mixed).online_scale()
    with pytest.raises(UserError, match="names no twin with relaxed and strict instances"):
        Scenario(cluster={**mixed, "twin": None}, rate_scale=1.0).on_kind(mixed=False)
    with pytest.raises(UserError, match="no peak factor is stored.*'ooco-gym capacity only_peak=true"):
        Scenario(cluster={**mixed, "twin": None}).online_scale()
    with pytest.raises(UserError, match="cluster 'mine': twin: unknown cluster 'pair_8b' .did you mean 'pair_7b'"):
        Scenario(cluster={**mixed, "twin": "pair_8b"}).load_cluster()


def test_a_first_token_that_no_instance_can_give_in_time_is_refused():
    import ooco_gym

    fits = Scenario(slo={"ttft_s": 0.04, "tpot_s": 0.05})
    assert fits.load_slo().ttft_s == 0.04
    with pytest.raises(UserError, match=r"slo\.ttft_s=0\.02 cannot be met.*one prompt token takes 0\.03.* s on this"):
        ooco_gym.simulate(Scenario(slo={"ttft_s": 0.02, "tpot_s": 0.05}, rate_scale=0.01, duration_s=10.0))
    # It is the instance that prefills that counts, and a faster one is enough.
    mixed = {"name": "mixed", "model": "qwen2_5_7b", "relaxed": [POOL, {"chip": "h200"}], "strict": [POOL]}
    assert Scenario(cluster=mixed, slo={"ttft_s": 0.01, "tpot_s": 0.05}).load_slo().ttft_s == 0.01


def test_an_offline_dataset_in_the_workload_becomes_the_offline_load():
    scenario = Scenario(workload="ooc+arxiv_summarization", offline={"mode": "backlog", "rate": 2.0})
    assert scenario.workload == "ooc" and scenario.offline["name"] == "arxiv_summarization"
    assert (scenario.offline["mode"], scenario.offline["rate"]) == ("backlog", 2.0)
    assert scenario.resolve().offline.notes == ("offline.rate=2 is not used: offline.mode=backlog has no rate",)
    assert scenario.online_scale() == Scenario(workload="ooc").online_scale(), "the peak factor of the online part"
    again = scenario.with_(seed=2, offline_rate=5.0)
    assert again.offline == {**scenario.offline, "rate": 5.0} and again.workload == "ooc"
    other = Scenario(offline={"mode": "rate", "rate": 1.0, "dataset": "mmlu"})
    assert other.offline["sharing"]["groups"] == 57
    with pytest.raises(UserError, match="names 2 offline datasets"):
        Scenario(workload="ooc+mmlu+bros_be")
    with pytest.raises(UserError, match="without an online workload"):
        Scenario(workload="mmlu")


@pytest.mark.parametrize("workload", ["azure_conv", "azure_conv_2023", "ooc+0.5*bros_sharegpt"])
@pytest.mark.parametrize("start_s", [None, 3600.0])
def test_the_online_rate_is_that_of_the_window(workload: str, start_s: float | None):
    """Of generators in the mean: drifting and bursting rates have their own in each window."""
    from ooco_gym.workload import load_workload, resolve_workload

    scenario = Scenario(workload=workload, online_rate=3.0, duration_s=7200.0, start_s=start_s)
    begin_s = resolve_workload(workload).peak_start_s(7200.0) if start_s is None else start_s
    counts = [len(load_workload(workload, start_s=begin_s, duration_s=7200.0, seed=seed,
                                rate_scale=scenario.online_scale())) for seed in range(6)]
    assert sum(counts) / 6 / 7200.0 == pytest.approx(3.0, rel=0.06)
    assert scenario.describe()["rate_scale"] == scenario.online_scale()


def test_the_online_rate_of_a_trace_file_samples_t_times_q_requests(tmp_path):
    from ooco_gym.workload import load_workload

    path = tmp_path / "trace.csv"
    rows = "\n".join(f"{i / 5.0},100,10" for i in range(5000))
    path.write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}\n")
    scenario = Scenario(workload=str(path), online_rate=2.0, start_s=100.0, duration_s=800.0)
    assert scenario.online_scale() == pytest.approx(0.4)
    sampled = load_workload(str(path), start_s=100.0, duration_s=800.0, seed=1, rate_scale=scenario.online_scale())
    assert len(sampled) == pytest.approx(1600, rel=0.05)
    with pytest.raises(UserError, match="online_rate=2: workload '.*trace.csv' has no online request to be scaled"):
        Scenario(workload=str(path), online_rate=2.0, start_s=5000.0, duration_s=10.0).online_scale()


def test_rate_scale_and_online_rate_exclude_each_other():
    with pytest.raises(UserError, match="rate_scale=1 and online_rate=2 both set the online load"):
        Scenario(rate_scale=1.0, online_rate=2.0)
    with pytest.raises(UserError, match="online_rate=1000000000.0 must be a number of requests a second from 0 to"):
        Scenario(online_rate=1e9).online_scale()
    scenario = Scenario(workload="bros_lmsys", cluster="mixed_7b", online_rate=10.0)
    assert scenario.online_scale() == pytest.approx(10.0)
    assert scenario.with_(rate_scale=scenario.online_scale()).online_scale() == pytest.approx(10.0)
    assert scenario.with_(seed=3).online_rate == 10.0
    assert episode_config("prefillgate", scenario={"online_rate": 0.5}).scenario.rate_scale is None


def test_timing_is_a_name_a_mapping_or_a_file(tmp_path):
    """`causal_factor` reaches every instance; a wrong key is named."""
    path = tmp_path / "mine.yaml"
    path.write_text("{name: ooco, causal_factor: 0.75}")

    def deployment(timing: Any) -> Any:
        cluster = {"model": "llama_3_1_8b", "mixed": [{"chip": "rtx4090", "count": 2}]}
        scenario = Scenario(cluster=cluster, timing=timing, rate_scale=1.0, slo={"ttft_s": 10.0, "tpot_s": 1.0})
        (_, one), (_, other) = scenario.resolve().deployments
        assert one == other
        return one

    assert deployment("extended").timing == "extended" and deployment(str(path)).causal_factor == 0.75
    assert deployment({"name": "ooco", "causal_factor": 0.5}).causal_factor == 0.5
    with pytest.raises(UserError, match="timing: unknown key 'causal_fact'"):
        deployment({"name": "ooco", "causal_fact": 0.5})
