"""simulate, compare and capacity from the front door, on minutes of simulated time."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from pyarrow import parquet

from ooco_gym.cli import main
from ooco_gym.report import number
from ooco_gym.resources import load_yaml
from tests.html_pages import Page

LOAD = ["workload=azure_conv", "rate_scale=0.05", "duration_s=200", "protocol=brief.yaml"]
RESULT = {"policy", "workload", "cluster", "seeds", "max_offline_rate", "offline_total_tokens_per_s", "violation_rate",
          "ratio", "tpot_from"}


@pytest.fixture(autouse=True)
def brief(own_folder):
    """A protocol with a short warm-up and drain."""
    brief = {**load_yaml("protocol", "default"), "warmup_s": 20.0, "drain_s": 30.0}
    Path("brief.yaml").write_text(yaml.safe_dump(brief))


def summary(folder):
    return json.loads((Path(folder) / "summary.json").read_text())


def test_simulate_writes_the_same_bytes_twice(capsys):
    for folder in ("a", "b"):
        assert main(["simulate", "policy=ooco", *LOAD, "seed=1", f"out={folder}"]) == 0
    assert Path("a/requests.parquet").read_bytes() == Path("b/requests.parquet").read_bytes()
    rows, found = parquet.read_table("a/requests.parquet").to_pylist(), summary("a")
    online = [row for row in rows if row["class"] == "online"]
    assert found["schema"] == "ooco-gym/simulate/2"
    assert found["online"]["arrived"] == len(online) > 100
    assert found["online"]["violation_rate"] == sum(row["violated"] for row in online) / len(online)
    assert "SLO violations" in capsys.readouterr().out


def test_a_key_that_a_cluster_leaves_at_its_default_can_be_set(capsys):
    words = ["policy=vllm_fcfs", "policy.prefix_caching=on", "cluster=mixed_7b", *LOAD]
    assert main(["simulate", *words, "cluster.kv_offloading_gib=2", "out=two"]) == 0
    assert summary("two")["kv_offloading"]["host_blocks"] == 2 * (2 * 2**30 // (16 * 57_344))
    assert "hits in host memory only (%)" in capsys.readouterr().out
    assert main(["simulate", "-m", *words, "cluster.host_gib=1,2", "out=swept"]) == 0
    assert sorted(path.name for path in Path("swept").iterdir() if path.is_dir()) == [
        "++cluster.host_gib=1", "++cluster.host_gib=2"], "with Hydra's sign that its YAML has no such key"
    assert main(["simulate", *words, "cluster.kv_offloading_gib=a"]) == 2
    assert "cluster 'mixed_7b': kv_offloading_gib='a' must be a number" in capsys.readouterr().err


def test_without_online_requests_there_is_nothing_to_rank(capsys):
    idle = ["rate_scale=0", *(item for item in LOAD if "rate_scale" not in item)]
    assert main(["simulate", *idle, "out=idle"]) == 0
    assert summary("idle")["online"]["violation_rate"] is None
    printed = capsys.readouterr().out
    assert "no online request" in printed and "0.00 %" not in printed.split("TTFT")[0]
    assert main(["compare", "policies=[ooco,base_pd]", "seeds=1", "workers=1", *idle, "out=compared"]) == 0
    assert not any(row["feasible"] for row in summary("compared")["results"])
    assert "no policy is ranked" in " ".join(capsys.readouterr().out.split())
    assert main(["capacity", "policies=[ooco]", "seeds=1", "workers=1", "tuning.policies={}", *idle, "out=cap"]) == 2
    assert "no online request arrives in the window of seed 1" in capsys.readouterr().err


def test_compare_pairs_policies_on_seeds():
    arguments = ["compare", "policies=[ooco,base_pd]", "seeds=2", *LOAD, "workers=1"]
    assert main([*arguments, "out=first"]) == 0
    assert main([*arguments, "out=again"]) == 0
    first, again = summary("first"), summary("again")
    assert first["seeds"] == [1, 2]
    assert first["results"] == again["results"]
    metrics = {row["metric"] for row in first["results"]}
    assert {"online.violation_rate", "offline.output_tokens_per_s"} <= metrics
    assert len(first["results"]) == 2 * len(metrics)


def test_compare_tunes_each_policy_on_other_seeds_and_shows_both():
    words = ["compare", "tune=true", "policies=[vllm_fcfs,base_pd]", "seeds=[1]", "cluster=mixed_7b", "workers=1",
             *LOAD, "tuning.policies={vllm_fcfs: [{max_num_seqs: 1}, {max_num_batched_tokens: 1024}]}"]
    assert main([*words, "tuning.seeds=[101]", "offline.rate=6", "out=tuned"]) == 0
    found = summary("tuned")
    best = found["tuned"]["vllm_fcfs"]
    assert list(found["tuned"]) == ["vllm_fcfs"] and "max_num_seqs=1" not in best.split(":")[-1].split(",")
    assert list(dict.fromkeys(row["policy"] for row in found["results"])) == list(dict.fromkeys(
        ["vllm_fcfs", best, "base_pd"]))
    assert any("tuned on seeds 101: vllm_fcfs " in note and "base_pd not tuned (no candidates" in note
               for note in found["notes"])
    assert main([*words, "tuning.seeds=[1]", "out=no"]) == 2


def test_a_trace_is_tuned_on_its_first_part_and_measured_on_the_rest():
    rows = "".join(f"{i / 2},500,30,{'online' if i % 2 else 'offline'}\n" for i in range(800))
    Path("week.csv").write_text(f"arrival_s,prompt_tokens,output_tokens,class\n{rows}")
    words = ["compare", "tune=true", "policies=[vllm_priority]", "seeds=1", "workload.path=week.csv", "workers=1"]
    assert main([*words, "tuning.part=0.25", "out=tuned"]) == 0
    found = summary("tuned")
    assert found["scenario"]["start_s"] == 100 and found["scenario"]["duration_s"] == 300
    assert found["runs"]["vllm_priority"][0]["online"]["arrived"] == 300
    assert any("tuned on the first 25 % of the trace and tested on the rest" in note for note in found["notes"])
    assert main([word.replace("tune=true", "tune=false") for word in words] + ["out=plain"]) == 0
    assert summary("plain")["scenario"]["duration_s"] == 400


def test_compare_says_what_holds_of_some_policies_alone():
    words = ["compare", "policies=[vllm_fcfs:prefix_caching=off,vllm_fcfs]", "seeds=1", "cluster=mixed_7b", "workers=1",
             "cluster.kv_offloading_gib=2", "offline.rate=0.5", *LOAD, "out=two"]
    assert main(words) == 0
    assert summary("two")["notes"][-1] == (
        "vllm_fcfs:prefix_caching=off, seed 1: kv_offloading_gib=2 is not used: it is memory for a prefix cache, and "
        "policy 'vllm_fcfs' has none here (prefix_caching).")


def test_capacity_of_one_policy_runs_its_baselines(capsys):
    arguments = ["capacity", "policies=[ooco]", *LOAD, "seeds=[1]", "workers=1", "search.first=2", "search.factor=4",
                 "search.precision=0.6", "search.last=8", "tuning.seeds=[101]", "tuning.policies={}",
                 "limits.kept_up=0.3"]
    assert main([*arguments, "out=cap"]) == 0
    found = summary("cap")
    assert [row["tpot_from"] for row in found["results"]] == ["first_token"]
    for row in found["results"]:
        assert set(row) >= RESULT
        assert row["policy"] == "ooco" and row["best_baseline"] in ("base_pd", "online_priority")
        assert row["rate"] > 0
        assert row["violation_rate"] <= 0.03
    cells = [cell for row in Page("cap/capacity.html").tables[0] for cell in row]
    assert all(any(cell.startswith(number(row["rate"])) for cell in cells) for row in found["results"])
    assert main([*arguments, "out=cached"]) == 0
    assert summary("cached")["simulated_anew"] == 0
    assert summary("cached")["simulations"] == summary("cap")["simulations"]
    assert summary("cached")["results"] == found["results"]
    assert found["window_s"] == 200
    assert [note.split(" is ")[0] for note in found["notes"]] == [
        found["notes"][0].split(" is ")[0], "the window of 200 s", "1 seed"]
    assert "at least 30 % of the requests are completed in it" in found["notes"][0]
    assert "the window of 200 s is shorter than the protocol's 14400 s" in " ".join(capsys.readouterr().out.split())


def test_capacity_of_several_cells_by_the_papers_protocol():
    """Its settings count where none were given; base P/D alone is the baseline; one page and one file of figures."""
    Path("brief_paper.yaml").write_text("extends: paper\nwarmup_s: 20.0\ndrain_s: 30.0\n")
    assert main(["capacity", "protocol=brief_paper.yaml", "cells=[azure_conv, {workload: azure_code}]", "load=0.5",
                 "rate_scale=0.1", "duration_s=120", "seeds=2", "workers=1", "tpot_from=first_token", "search.first=1",
                 "search.factor=4", "search.last=4", "search.precision=0.8", "out=cap"]) == 0
    found = summary("cap")
    assert {row["policy"] for row in found["results"]} == {"ooco", "base_pd", "online_priority:at_cap=wait"}
    assert {row["condition"] for row in found["results"]} == {"azure_conv on pair_7b", "azure_code on pair_7b"}
    assert {row["best_baseline"] for row in found["results"]} == {"base_pd"}
    assert {row["limited_by"] for row in found["results"]} <= {"TTFT", "TPOT", "none"}, "no backlog is too long"
    assert {peak["ttft_s"] for peak in found["peaks"]} == {1.0} and found["load"] == 0.5
    assert all(set(row) >= {"policy", "condition", "rate", "ci_low", "ci_high", "total_tokens_per_s", "violation_rate",
                            "n_seeds"} for row in found["results"])
    assert {row["n_seeds"] for row in found["results"]} == {2}


def test_a_plan_holds_and_one_instance_fewer_does_not(capsys):
    """Echo's two questions (5.4): the fewest that keep the promises; what they carry. The file written is a cluster."""
    trial = ["plan", "policies=[base_pd,vllm_priority]", "workload=azure_conv", "rate_scale=0.2", "protocol=brief.yaml",
             "duration_s=60", "seeds=[1]", "workers=1", "frontier=1", "search.precision=0.5",
             "limits={kept_up:0.8,kept_up_service:0.3}"]
    assert main([*trial, "offline.rate=0", "out=alone"]) == 0
    assert main([*trial, "offline.rate=4", "price_per_chip_hour=2", "out=both"]) == 0
    alone, both = ({row["policy"]: row for row in summary(name)["results"]} for name in ("alone", "both"))
    for name, row in both.items():
        assert row["holds"] and row["violations"]["mean"] <= 0.03
        assert row["one_fewer"] is None or not row["one_fewer"]["holds"]
        assert row["chips"] >= alone[name]["chips"] == row["online_alone_chips"]
        assert row["cost_per_hour"] == 2 * row["chips"] and row["cost_per_million_offline_total_tokens"] >= 0.0
        assert row["carried_rate"] >= 4.0
    pools = alone["base_pd"]
    assert pools["relaxed"] + pools["strict"] == pools["instances"]
    assert main(["simulate", "policy=base_pd", "workload=azure_conv", "rate_scale=0.2", "duration_s=60", "seed=1",
                 "offline.rate=0", "protocol=brief.yaml", f"cluster={pools['cluster_file']}", "out=again"]) == 0
    assert summary("again")["online"]["violation_rate"] == pytest.approx(pools["violations"]["mean"], abs=1e-6)
    assert main(["plan", "policies=[base_pd]", *trial[2:], "offline.rate=0", "chips=8", "out=given"]) == 0
    assert summary("given")["results"][0]["chips"] == 8
    assert main([*trial, "offline.rate=0", "most=2", "out=no"]) == 2
    assert "most=2 instances are too few for 'base_pd'" in capsys.readouterr().err
    for most, words in ((0, "most=0 must be a whole number from 1 to"), (1, "most=1: 'base_pd' needs 2 instances")):
        assert main([*trial, f"most={most}", "out=no"]) == 2 and words in capsys.readouterr().err


def test_a_plan_of_an_elastic_fleet_stands_beside_the_fewest_chips_always_on(capsys):
    """The fleet costs what it pays for, and one chip fewer than those always on breaks the SLOs."""
    group = "{chip: h100, count: 2, min: 1, max: 4, start_s: 5}"
    Path("fleet.yaml").write_text(f"{{name: fleet, model: llama_3_1_8b, scale_interval_s: 5, mixed: [{group}]}}")
    trial = ["plan", "elastic=true", "workload=azure_code", "protocol=brief.yaml", "workers=1", "seeds=[1]",
             "policies=['deadline:scale=token_velocity,scale.utilization=0.3']", "start_s=43200", "duration_s=240",
             "limits={kept_up:0.0,kept_up_service:0.0}", "offline.rate=0"]
    assert main([*trial, "rate_scale=1.3", "cluster=fleet.yaml", "price_per_chip_hour=2", "out=P"]) == 0
    (row,) = summary("P")["results"]
    assert row["holds"] and row["static_violations"]["mean"] <= 0.03 and row["starts_per_day"] > 0.0
    assert row["cost_per_day"] == pytest.approx(48 * row["chips"], rel=1e-5)
    assert row["static_cost_per_day"] == 48 * row["static_chips"]
    assert np.mean(row["over_time"]["chips"]) == pytest.approx(row["chips"]) and len(set(row["over_time"]["chips"])) > 1
    fewer = f"policies=['deadline:scale=static,scale.instances={round(row['static_chips']) - 1}']"
    assert row["static_chips"] > 1 and main(["compare", *trial[2:6], fewer, *trial[7:9], "rate_scale=1.3",
                                             "offline.rate=0", "cluster=fleet.yaml", "out=fewer"]) == 0
    late = next(one for one in summary("fewer")["results"] if one["metric"] == "online.violation_rate")
    assert late["mean"] > 0.03
    page = Page("P/plan.html")
    assert [line[0] for line in page.tables[1][1:3]] == ["12:00", "12:00"] and len(page.tables[1]) == 25
    for more, said in ((["rate_scale=1.3"], "no group of cluster 'pair_7b' has min and max"),
                       (["cluster=fleet.yaml", "rate_scale=1.3", "chips=4"], "chips=4 is of fleets that do not scale")):
        assert main([*trial, *more, "out=no"]) == 2
        assert said in capsys.readouterr().err


def test_capacity_measures_each_policy_on_the_cluster_of_its_kind():
    """Mixed instances against the pools of their twin, at the pools' peak factor."""
    trial = [item for item in LOAD if "rate_scale" not in item]
    assert main(["capacity", "policies=[vllm_priority,base_pd]", "cluster=mixed_7b", *trial, "seeds=[1]", "workers=1",
                 "search.first=1", "search.factor=4", "search.precision=0.8", "search.last=4", "tuning.policies={}",
                 "limits={violations:0.5,kept_up:0.3,kept_up_service:0.3}", "out=cap"]) == 0
    found = summary("cap")
    assert {(row["policy"], row["cluster"]) for row in found["results"]} == {
        ("vllm_priority", "mixed_7b"), ("base_pd", "pair_7b")}
    assert {peak["cluster"] for peak in found["peaks"]} == {"pair_7b"}
    assert all(row["rate"] > 0 for row in found["results"])


@pytest.mark.parametrize(("arguments", "sentence"), [
    (["simulate", *LOAD, "slo.tpot_s=0.001"], "slo.tpot_s=0.001 cannot be met: a decode step"),
    (["compare", "policies=[ooco,base_p]", *LOAD], "did you mean 'base_pd'"),
    (["compare", "policies=[ooco]", "metrics=[online.violations]", "seeds=1", "workers=1", *LOAD], "online.violation"),
    (["capacity", "policies=[ooco]", "tpot_from=first_tokn", *LOAD], "did you mean 'first_token'"),
    (["capacity", "policies=[ooco]", "limits.violation=0.1", *LOAD], "limits.violations"),
])
def test_mistakes_are_one_sentence(arguments, sentence, capsys):
    assert main([*arguments, "out=bad"]) == 2
    error = capsys.readouterr().err.strip()
    assert sentence in error
    assert [line for line in error.splitlines() if not line.startswith("note: chip ")] == [error.splitlines()[-1]]
    assert not Path("bad/summary.json").exists()


def test_the_prefix_cache_is_in_table_summary_comparison_and_page(capsys):
    few = ["workload=few_shot", *LOAD[1:], "cluster=mixed_7b", "seed=1"]
    for folder, caching in (("on", "on"), ("off", "off")):
        assert main(["simulate", "policy=vllm_fcfs", f"policy.prefix_caching='{caching}'", *few, f"out={folder}"]) == 0
        printed, online = capsys.readouterr().out, summary(folder)["online"]
        assert ("online hit rate (%)" in printed) == (caching == "on")
        if caching == "on":
            looked, missed = online["looked_up_prompt_tokens"], online["missed_prompt_tokens"]
            assert 0 < missed < looked and online["hit_rate"] == 1 - missed / looked
            assert f"│ {100 * online['hit_rate']:.2f} " in printed
    hits = ["online hit rate (%)", f"{100 * summary('on')['online']['hit_rate']:.2f}"]
    assert hits in Page("on/simulate.html").tables[0] and hits[0] not in Page("off/simulate.html").text
    policies = "policies=[\"vllm_fcfs:prefix_caching='on'\",base_pd]"
    assert main(["compare", policies, "seeds=1", "workers=1", *few[:-1], "out=compared"]) == 0
    rows = {(row["metric"], row["policy"]): row["mean"] for row in summary("compared")["results"]}
    hits = rows["online.hit_rate", "vllm_fcfs:prefix_caching='on'"]
    assert hits == summary("on")["online"]["hit_rate"] and rows["online.hit_rate", "base_pd"] is None
    assert rows["offline.prompt_tokens_per_s", "base_pd"] > 0


@pytest.mark.parametrize(("offline", "said", "unsaid"), [
    (["offline.rate=0"], "offline.rate=1.0 adds one request a second", "backlog"),
    (["offline.mode=backlog", "offline.jobs=2"], "the whole offline backlog was completed before the", "offline.rate"),
])
def test_no_offline_work_is_explained_by_its_mode(offline, said, unsaid, capsys):
    assert main(["simulate", "policy=base_pd", *LOAD, *offline, "out=out"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert said in printed and unsaid not in printed
