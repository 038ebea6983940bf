"""An engine's token budget and seats are one fact: its batches and its KV memory follow it, wherever it is said."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ooco_gym.cli import main
from ooco_gym.errors import UserError
from ooco_gym.policy import get_policy
from ooco_gym.resources import load_yaml
from ooco_gym.scenario import Scenario
from ooco_gym.simulation import Simulation, simulate
from ooco_gym.study.population import Candidate, Population
from tests.html_pages import Page

H100 = {**load_yaml("cluster", "mixed_h100_8b"), "name": "mine", "kv_fraction": 0.9}


def scenario(**cluster: Any) -> Scenario:
    return Scenario(cluster={**H100, **cluster}, workload="azure_conv", rate_scale=0.01, duration_s=20.0, warmup_s=5.0,
                    drain_s=20.0)


def engine(policy: str, **cluster: Any) -> tuple[int, int, int]:
    """KV tokens of an instance, and the token budget and seats that its batches have."""
    state = Simulation(scenario(**cluster), policy).state
    return (int(state.instances["total_blocks"][0]) * 16, int(state.config.max_num_batched_tokens),
            int(state.config.max_num_seqs))


def test_a_policys_options_and_the_clusters_are_the_same_engine() -> None:
    """The policy's left the account at 421,168 tokens, the cluster's left the batches at 8,192 tokens."""
    assert engine("vllm_priority") == (421_168, 8192, 1024)
    mine = engine("vllm_priority:max_num_batched_tokens=4096,max_num_seqs=256")
    assert mine == (450_288, 4096, 256)
    assert engine("vllm_priority", max_num_batched_tokens=4096, max_num_seqs=256) == mine
    assert engine("vllm_fcfs:max_num_seqs=256", max_num_batched_tokens=4096) == mine
    assert engine("vllm_priority:max_num_seqs=64", max_num_seqs=64)[2] == 64


def test_a_rules_limits_are_within_the_engines() -> None:
    default = engine("vllm_priority")[0]
    assert engine("deadline") == (default, 4096, 256)
    assert engine("deadline", max_num_batched_tokens=4096, max_num_seqs=256) == (450_288, 4096, 256)


@pytest.mark.parametrize(("policy", "cluster", "said"), [
    ("vllm_priority:max_num_seqs=256", {"max_num_seqs": 512}, "max_num_seqs=512 .* has max_num_seqs=256"),
    ("vllm_fcfs:max_num_batched_tokens=8192", {"max_num_batched_tokens": 4096}, "4096 .* has .*=8192"),
    ("deadline", {"max_num_seqs": 128}, "max_num_seqs=128 is how the engine is started, and policy 'deadline' has")])
def test_two_engines_are_refused(policy: str, cluster: dict[str, int], said: str) -> None:
    with pytest.raises(UserError, match=said):
        simulate(scenario(**cluster), policy)


def test_a_known_number_of_blocks_stays_and_other_accounts_do_not_change() -> None:
    known = {"mixed": [{"chip": "h100", "kv_blocks": 20_000}]}
    assert engine("vllm_priority:max_num_seqs=256", **known)[0] == 320_000
    shares = [engine(f"vllm_priority:max_num_seqs={seats}", memory="fraction")[0] for seats in (64, 1024)]
    assert shares[0] == shares[1]


def test_a_search_gives_each_candidate_its_own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates that differ in the token budget alone began in one state."""
    made: list[int] = []
    population = Population([scenario().resolve()], threads=1)
    names = [f"vllm_priority:max_num_seqs=256,max_num_batched_tokens={tokens}" for tokens in (512, 16_384)]
    population.play([Candidate(get_policy(name)) for name in names])
    for simulation in population.windows[0]._templates.values():
        made.append(int(simulation.state.instances["total_blocks"][0]) * 16)
    assert made == [engine(name)[0] for name in names] and made[0] > made[1]


def test_summary_and_page_name_the_kv_tokens_of_an_instance(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    load = ["cluster=mixed_h100_8b", "workload=azure_conv", "rate_scale=0.01", "duration_s=20", "warmup_s=5"]
    assert main(["simulate", "policy=vllm_priority", "policy.max_num_seqs=256", *load, "out=S"]) == 0
    tokens = {one["kv_tokens"] for one in json.loads((tmp_path / "S/summary.json").read_text())["instances"]}
    assert len(tokens) == 1 and f"{tokens.pop():,}" in (tmp_path / "S/simulate.html").read_text(encoding="utf-8")
    assert main(["compare", "policies=[vllm_priority,'vllm_priority:max_num_seqs=256']", "seeds=[1]", "workers=1",
                 *load, "out=C"]) == 0
    rows = [row for table in Page(tmp_path / "C/compare.html").tables for row in table]
    for name, (one,) in json.loads((tmp_path / "C/summary.json").read_text())["runs"].items():
        assert [f"KV tokens of an instance {name}", f"{one['instances'][0]['kv_tokens']:,}"] in rows
