"""Requests that can never meet their SLO on a cluster: told apart to the picosecond, whatever the policy does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ooco_gym.cli import main
from ooco_gym.metrics.chosen import counted
from ooco_gym.metrics.summary import infeasible_words
from ooco_gym.resources import load_yaml
from ooco_gym.scenario import Scenario
from ooco_gym.sim.state import FINISHED, PS_PER_S
from ooco_gym.simulation import Run, simulate
from ooco_gym.workload import Trace, write_trace

LAX = {"ttft_s": 1e4, "tpot_s": 100.0}
LONG = 100_000
POOLS = {**load_yaml("cluster", "pair_h100_8b"), "name": "mine", "pd_first_token": "prefill"}


def played(tmp_path: Any, prompts: list[int], policy: str, cluster: Any, slo: dict[str, float] = LAX, output: int = 30,
           **more: Any) -> Run:
    """Requests so far apart that each is alone."""
    columns = {name: more.pop(name) for name in ("ttft_slo_s", "tpot_slo_s", "session", "prefix_hashes", "class_id",
                                                 "class_names") if name in more}
    n = len(prompts)
    trace = Trace(200.0 * np.arange(n), np.array(prompts, np.int32), np.full(n, output, np.int32), **columns)
    write_trace(trace, tmp_path / "trace.parquet")
    return simulate(Scenario(workload=str(tmp_path / "trace.parquet"), cluster=cluster, slo=slo, **more), policy)


def never(run: Run) -> dict[str, Any]:
    return run.summary["online"].get("infeasible", {})


@pytest.mark.parametrize("timing", ["ooco", "extended"])
@pytest.mark.parametrize(("policy", "cluster"), [("ooco", POOLS), ("vllm_priority", "mixed_h100_8b"),
                                                 ("deadline", "mixed_l40s_8b")])
def test_a_request_that_needs_exactly_its_slo_can_meet_it(tmp_path: Any, policy: str, cluster: Any,
                                                          timing: str) -> None:
    """Through front end, host time and chunks: one picosecond less is too little on pools, which prefill as a whole."""
    for prompt in (5, 3_000, LONG):
        alone = played(tmp_path, [prompt], policy, cluster, timing=timing).requests[0]
        ttft_ps = int(alone["first_token_ps"] - alone["arrival_ps"])
        exactly = played(tmp_path, [prompt], policy, cluster, {**LAX, "ttft_s": ttft_ps / PS_PER_S}, timing=timing)
        assert not never(exactly), "it met its SLO"
        less = played(tmp_path, [prompt], policy, cluster, {**LAX, "ttft_s": (ttft_ps - 2) / PS_PER_S}, timing=timing)
        assert bool(never(less)) == (policy == "ooco")
    half = played(tmp_path, [LONG], policy, cluster, {**LAX, "ttft_s": 0.5 * ttft_ps / PS_PER_S}, timing=timing)
    assert never(half)["requests"] == 1 and 0.8 * ttft_ps / PS_PER_S < never(half)["ttft_s"] <= ttft_ps / PS_PER_S


@pytest.mark.parametrize(("policy", "cluster"), [("ooco", "pair_h100_8b"), ("vllm_priority", "mixed_h100_8b")])
def test_a_tpot_below_a_decode_step_alone_can_never_be_met(tmp_path: Any, policy: str, cluster: str) -> None:
    alone = played(tmp_path, [LONG], policy, cluster, output=2)
    step_s = int(alone.requests["finish_ps"][0] - alone.requests["first_decode_ps"][0]) / PS_PER_S
    slo = {**LAX, "tpot_min_tokens": 2, "tpot_from": "first_decode"}
    assert not never(played(tmp_path, [LONG], policy, cluster, {**slo, "tpot_s": step_s}, output=2))
    found = never(played(tmp_path, [LONG], policy, cluster, {**slo, "tpot_s": 0.99 * step_s}, output=2))
    assert found["requests"] == 1 and found["ttft_s"] is None and found["tpot_s"] == pytest.approx(step_s, rel=0.05)


def test_own_slos_and_classes_count(tmp_path: Any) -> None:
    own = np.array([np.nan, 0.5, np.nan, 60.0])
    run = played(tmp_path, [LONG, LONG, 800, LONG], "deadline", "mixed_h100_8b", ttft_slo_s=own)
    assert never(run)["requests"] == 1
    classes = {"chat": {"ttft_s": 2.0, "tpot_s": 1.0}, "slow": {"ttft_s": 60.0, "tpot_s": 1.0}}
    named = played(tmp_path, [LONG, LONG, 800], "deadline", "mixed_h100_8b", class_id=np.array([0, 1, 0], np.int8),
                   class_names=("chat", "slow"), classes=classes)
    assert never(named)["requests"] == 1 and never(named)["of"] == 3


def test_a_prompt_that_a_cache_may_hold_is_not_called_impossible(tmp_path: Any) -> None:
    """A second prompt of the same blocks, and a turn after a long one, meet an SLO that the first cannot."""
    blocks = np.arange(1, LONG // 512 + 1)
    hashes = (np.array([0, len(blocks), 2 * len(blocks)]), np.concatenate([blocks, blocks]))
    slo = {**LAX, "ttft_s": 2.0}
    for more in ({"prefix_hashes": hashes}, {"session": np.array([0, 0])}):
        run = played(tmp_path, [LONG, LONG + 300], "vllm_priority:prefix_caching=on", "mixed_h100_8b", slo, **more)
        late = run.requests["first_token_ps"] - run.requests["arrival_ps"] > 2 * PS_PER_S
        assert late.tolist() == [True, False] and never(run).get("requests", 0) <= 1
    assert never(played(tmp_path, [LONG, LONG], "vllm_priority", "mixed_h100_8b", slo))["requests"] == 2


@pytest.mark.parametrize("policy", ["ooco", "base_pd", "deadline", "vllm_fcfs", "vllm_priority", "sarathi",
                                    "hygen:latency_budget_s=0.05", "niyama", "conserve", "past_future", "echo"])
@pytest.mark.parametrize("timing", ["ooco", "extended"])
def test_no_request_is_faster_than_the_bound_under_any_policy(policy: str, timing: str) -> None:
    pools = policy in ("ooco", "base_pd")
    run = simulate(Scenario(cluster="pair_h100_8b" if pools else "mixed_h100_8b", workload="azure_code", timing=timing,
                            rate_scale=0.05, duration_s=120.0, warmup_s=10.0, drain_s=60.0), policy)
    assert run.least_ps is not None
    requests = run.requests
    done, began = requests["status"] == FINISHED, requests["generated_tokens"] > 0
    assert done.sum() > 50
    ttft_ps = requests["first_token_ps"] - requests["arrival_ps"]
    assert (ttft_ps >= run.least_ps[0])[began].all()
    assert (requests["finish_ps"] - requests["first_token_ps"] >= run.least_ps[1])[done].all()
    assert (ttft_ps < 1.5 * run.least_ps[0])[began].any(), "and it is near"


def test_the_share_that_can_be_met_stands_beside_that_of_all(tmp_path: Any) -> None:
    run = played(tmp_path, [LONG, 800, 800, 800], "deadline", "mixed_h100_8b", {**LAX, "ttft_s": 2.0})
    found, online = never(run), run.summary["online"]
    assert (online["violation_rate"], found["share"], found["violation_rate_of_others"]) == (0.25, 0.25, 0.0)
    assert len(counted(run, online=True)) == found["of"] == 4
    (words,) = infeasible_words(found)
    assert words.startswith("1 of 4 online requests can never meet their SLO") and "slo.ttft_s of 6." in words
    all_of_them = never(played(tmp_path, [LONG], "deadline", "mixed_h100_8b", {**LAX, "ttft_s": 2.0}))
    assert all_of_them["violation_rate_of_others"] is None and "others" not in infeasible_words(all_of_them)[0]
    assert infeasible_words(None) == [] and not never(played(tmp_path, [800], "deadline", "mixed_h100_8b"))


def heavy(tmp_path: Any) -> str:
    """A log of 20 requests, 4 of which no number of chips serves within 2 s."""
    rows = [f"{2.0 * i},{LONG if i % 5 == 0 else 800},20" for i in range(20)]
    (tmp_path / "log.csv").write_text("arrival_s,prompt_tokens,output_tokens\n" + "\n".join(rows) + "\n")
    return f"workload.path={tmp_path / 'log.csv'}"


def test_a_plan_does_not_search_in_vain(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """It tried all sizes and advised more chips."""
    from experiments.sizes import Planner

    sizes: list[int] = []
    best = Planner.best
    monkeypatch.setattr(Planner, "best", lambda self, count, rate: sizes.append(count) or best(self, count, rate))
    assert main(["plan", "policies=[deadline]", "slo.ttft_s=2", "seeds=[1]", "workers=1", "cache=false",
                 heavy(tmp_path), f"out={tmp_path / 'P'}"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "no number of instances is enough for 'deadline': 4 of 20 online requests" in said
    assert "slo.ttft_s of 6." in said
    assert sizes == [1]


@pytest.mark.parametrize("command", [
    ["simulate", "policy=deadline"], ["compare", "policies=[deadline,vllm_fcfs]", "seeds=[1]", "workers=1"],
    ["plan", "policies=[deadline]", "seeds=[1]", "workers=1", "frontier=1", "limits.violations=0.3", "search.last=0.3"],
    ["capacity", "policies=[deadline]", "baselines=[deadline]", "tune=[]", "seeds=[1]", "workers=1", "search.last=0.3",
     "limits.violations=0.3"]])
def test_every_command_says_how_many_can_never_meet_their_slo(tmp_path: Any, command: list[str], capsys: Any) -> None:
    assert main([*command, "slo.ttft_s=2", heavy(tmp_path), f"out={tmp_path / 'run'}"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "4 of 20 online requests can never meet their SLO" in printed
    page = (tmp_path / "run" / f"{command[0]}.html").read_text(encoding="utf-8")
    assert "online requests can never meet their SLO" in page
