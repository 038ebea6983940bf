"""Every cluster that is shipped: it fits, its SLO can be met, its twin is its equal, and the docs say what it holds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ooco_gym.cluster import Cluster
from ooco_gym.resources import names
from ooco_gym.scenario import Scenario
from ooco_gym.workload import workload_mean_rate

PAGE = Path(__file__).parents[1] / "docs" / "workloads.md"
PAPERS = {"a100_llama2_7b": 1, "a100_mistral_7b": 1, "a40_qwen_14b": 1, "a40_yi_34b": 4, "echo_llama31_8b": 1,
          "bros_opt_13b": 2, "bros_opt_30b": 4, "bros_llama3_70b": 8}


@pytest.mark.parametrize("name", names("cluster"))
def test_a_cluster_serves_its_model_and_the_docs_say_how(name: str) -> None:
    cluster = Cluster.load(name)
    _, _, page = PAGE.read_text(encoding="utf-8").partition("## The machines of the papers")
    row = re.search(rf"^\| `{name}` \|.*$", page, re.MULTILINE)
    assert row, f"{PAGE.name} says nothing of conf/cluster/{name}.yaml"
    cells = [cell.strip() for cell in row.group().strip("|").split("|")]
    held = {deployment.kv_tokens for _, deployment in cluster.deployments("ooco")}
    assert held == {int(cells[3].replace(",", ""))}
    assert cells[1] == f"`{cluster.model}`" and cells[4] == f"`{cluster.slo}`"
    assert cells[5] == (f"`{cluster.twin}`" if cluster.twin else "")
    for pool in (*cluster.relaxed, *cluster.strict, *cluster.mixed):
        assert str(pool.chip) in cells[2] and f"tp {pool.tp}" in cells[2]
    Scenario(cluster=name, rate_scale=1.0).load_slo()


@pytest.mark.parametrize("name", [name for name in names("cluster") if Cluster.load(name).twin])
def test_twins_name_each_other(name: str) -> None:
    cluster = Cluster.load(name)
    twin = Scenario(cluster=name, rate_scale=1.0).on_kind(not cluster.mixed).load_cluster()
    assert twin.twin == name and twin.hardware() == cluster.hardware()


@pytest.mark.parametrize(("name", "chips"), PAPERS.items())
def test_a_papers_machine_has_its_chips(name: str, chips: int) -> None:
    pools = Cluster.load(name).mixed
    assert sum(pool.count * pool.tp * pool.pp for pool in pools) == chips and len(pools) == 1


def test_the_lanes_of_a_pipeline_share_its_memory() -> None:
    whole, lanes = (Cluster.load(name).deployments("ooco") for name in ("a40_yi_34b", "a40_yi_34b_lanes"))
    assert sum(lane.kv_blocks for _, lane in lanes) == sum(one.kv_blocks for _, one in whole)
    assert len(lanes) == whole[0][1].pp


@pytest.mark.parametrize(("workload", "name", "rate"), re.findall(
    r"^\| `(\w+)` \| `(\w+)` \| ([\d.]+)", PAGE.read_text(encoding="utf-8").partition("## Online load")[2],
    re.MULTILINE))
def test_the_load_that_the_docs_state_is_the_stored_one(workload: str, name: str, rate: str) -> None:
    found = Scenario(workload=workload, cluster=name).online_scale() * workload_mean_rate(workload)
    assert found == pytest.approx(float(rate), rel=0.006)
