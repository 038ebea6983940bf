"""Short runs of every policy: on its kinds of cluster, under three workloads, and under special conditions."""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from ooco_gym import Scenario, simulate
from ooco_gym.resources import load_yaml
from tests.golden.digests import Digests, digest

WALL = ("wall_s",)  # of a summary, what another machine changes
LEFT = ("versions", "host", "files_sha256", "content_sha256")  # likewise, and digests of files and of times
SHORT: dict[str, Any] = {"timing": "ooco", "duration_s": 120.0, "warmup_s": 30.0, "drain_s": 30.0, "seed": 3}
# One test run of a minute is enough to see that HyGen's profiler finds the same budget.
PROFILED = "profile_duration_s=60,profile_windows=1,profile_steps=3"
GIVEN = {"hygen": "latency_budget_s=0.05", "hygen_star": "offline_qps=0.5"}

POOL_POLICIES = ("always", "base_pd", "learned_gate", "least_urgent", "memory_gate", "never",
                 "online_priority", "ooco", "ooco_lengths", "ooco_xllm", "random", "slack")
MIXED_POLICIES = ("adaptive_deadline", "admitter", "autellix", "bros", "conserve", "deadline", "echo", "echo_bs",
                  "echo_bs_e", "echo_bs_e_s", "hygen", "hygen_star", "learned_deadline", "learned_router", "niyama",
                  "past_future", "round_robin", "router", "sarathi", "sarathi_pp", "sglang", "vllm_fcfs", "vllm_lcf",
                  "vllm_priority", "vllm_v0", "vllm_v0_priority")
OPTIONS = {  # policies with parameters that take another way through the rules
    "pools": ("ooco:gate=always", "ooco:gate=never", "ooco:interrupt=slack,max_pull=1", "ooco:layer_resume=1",
              "ooco:slo_margin=0.6,gate_gain=8.0", "ooco:evict=longest", "ooco:overload=sacrifice"),
    "mixed": ("vllm_fcfs:prefix_caching=on", "vllm_priority:prefix_caching=on", "sarathi:prefix_caching=on",
              "hygen:latency_budget_s=0.05,prefix_caching=on", "hygen:latency_budget_s=0.05,waiting_order=prefix",
              f"hygen:{PROFILED}", "echo:reserve=off", "echo:selection=fcfs", "echo:kv_priority=lru",
              "past_future:lengths=exact,outputs_by_class=off",
              "conserve:preemption=always,preempted_kv=swap", "niyama:preempted=recompute,due_from=arrival",
              "vllm_lcf:preempt=least_computed_of_class", "bros:bidirectional=off", "bros:late=last",
              "deadline:prefix_caching=on,waiting_order=prefix,preempted=swap",
              "deadline:give_up_share=0.02,headroom_share=0.1,growth=0.5", "vllm_fcfs:max_num_batched_tokens=256",
              "router:rule=sticky,lag_s=2,prefix_caching=on", "admitter:rule=shared_work,refresh_s=0,affinity=0.5"),
}


class Load(NamedTuple):
    """An online workload at a scale that fits a cluster of two chips, and the rate of offline requests."""

    workload: Any
    rate_scale: float
    offline_rate: float


# By cluster: three workloads at loads under which most of what a policy can do is done.
POOLS = {
    "pair_7b": (Load("azure_conv", 0.1, 4.0), Load("ooc", 0.07, 3.0), Load("sharegpt", 3.0, 6.0)),
    "pair_llama2_7b_40g": (Load("azure_conv", 0.065, 1.0), Load("azure_code", 0.06, 1.0), Load("ooc", 0.02, 1.0)),
    "pair_72b": (Load("azure_conv", 0.03, 1.0), Load("ooc", 0.05, 2.0), Load("lmsys", 3.0, 3.0)),
}
MIXED = {
    "mixed_7b": (Load("azure_conv", 0.1, 4.0), Load("few_shot", 0.5, 6.0), Load("sharegpt", 3.0, 6.0)),
    "mixed_llama2_7b_40g": (Load("azure_conv", 0.065, 1.0), Load("doc_qa", 0.1, 1.0), Load("ooc", 0.02, 1.0)),
    "bros_opt_30b": (Load("bros_sharegpt", 1.0, 4.0), Load("azure_conv", 0.05, 2.0), Load("few_shot", 0.5, 3.0)),
}
BIG = {"fleet_16": Load("azure_conv", 1.05, 20.0), "a40_yi_34b": Load("azure_conv", 0.006, 1.0),
       "a40_yi_34b_lanes": Load("azure_conv", 0.03, 1.0), "echo_llama31_8b": Load("echo_sharegpt", 1.0, 3.0),
       "a100_mistral_7b": Load("mooncake", 0.02, 0.5), "bros_llama3_70b": Load("bros_lmsys", 1.0, 3.0)}


class Case(NamedTuple):
    """One run: its name, and how it comes to its summary and its table of requests."""

    name: str
    play: Callable[[], tuple[Mapping[str, Any], Mapping[str, Any]]]


def cases() -> list[Case]:
    return [*_grid(), *_conditions(), *_commands()]


def _grid() -> Iterator[Case]:
    for policies, clusters in ((POOL_POLICIES, POOLS), (MIXED_POLICIES, MIXED)):
        for policy in policies:
            for cluster, loads in clusters.items():
                for load in loads:
                    yield _case(_given(policy), cluster, load)


def _conditions() -> Iterator[Case]:
    """Every policy under what the grid leaves out."""
    for kind, policies, clusters in (("pools", POOL_POLICIES, POOLS), ("mixed", MIXED_POLICIES, MIXED)):
        first, second, _ = clusters
        load, tight = clusters[first][0], clusters[second][0]
        pressed = Load("azure_conv", 0.04, 2.0)
        for policy in policies:
            given = _given(policy)
            yield _case(given, first, load, "bulk off", bulk=False)
            yield _case(given, first, load, "jitter", jitter=0.1)
            yield _case(given, _made("few_blocks", kind, kv_blocks=1500), pressed, "KV pressure", seed=5)
            yield _case(given, second, tight, "backlog", offline={"mode": "backlog"})
        for policy in OPTIONS[kind]:
            yield _case(policy, first, clusters[first][1])
            yield _case(policy, second, tight, "bulk off", bulk=False)
    tiered = {**_made("tiered", "mixed", kv_blocks=1500), "kv_offloading_gib": 2}
    for policy in (one for one in OPTIONS["mixed"] if "prefix_caching=on" in one):
        yield _case(policy, tiered, Load("few_shot", 0.5, 1.0))
    for policy, cluster in (("ooco", "pair_7b"), ("vllm_priority", "mixed_7b"), ("online_priority", "pair_7b")):
        load = (POOLS | MIXED)[cluster][0]
        yield _case(policy, cluster, load, "biased", predictor={"name": "biased", "factor": 1.1, "noise": 0.05})
        yield _case(policy, {**load_yaml("cluster", cluster), "engine_clock": {"schedule_s": 0.002}}, load,
                    "decision time")
        yield _case(policy, cluster, load, "first decode", slo={
            "ttft_s": 1.0, "tpot_s": 0.03, "tpot_from": "first_decode", "gap_s": 0.2})
        yield _case(policy, cluster, load, "jobs", offline={"mode": "jobs", "jobs": 60})
        yield _case(policy, cluster, load, "ooco_xllm", timing="ooco_xllm")
        yield _case(policy, _made("a100s", kind_of(cluster), chip="a100_80g"), load, "extended", timing="extended")
    mix = Load("azure_conv+arxiv_summarization", 0.05, 1.0)
    yield _case("ooco", "pair_7b", mix, "mix")
    yield _case("vllm_fcfs", "mixed_7b", mix, "mix")
    for cluster, load in BIG.items():
        mixed = cluster != "fleet_16"
        for policy in ("bros", "echo", "vllm_priority", "vllm_v0", "sarathi_pp") if mixed else POOL_POLICIES:
            yield _case(_given(policy), cluster, load)


def _commands() -> Iterator[Case]:
    """Runs through the command line: what it composes, and the files that it writes."""
    common = ["duration_s=60", "warmup_s=20", "seed=4"]
    for words in (
            ["policy=ooco", "rate_scale=0.1", "workload=azure_conv", "offline.rate=3"],
            ["policy=ooco", "policy.slo_margin=0.8", "cluster=pair_llama2_7b_40g", "online_rate=0.7"],
            ["policy=vllm_priority", "policy.prefix_caching=on", "cluster=mixed_7b", "workload=few_shot",
             "rate_scale=0.3"],
            ["policy=online_priority", "workload=azure_conv+mmlu", "rate_scale=0.05", "jitter=0.05", "slo.tpot_s=0.04"],
            ["policy=echo", "cluster=mixed_7b", "workload=doc_qa", "offline=loogle_short", "rate_scale=0.2",
             "slo=echo"]):
        yield Case("ooco-gym simulate " + " ".join(words), lambda words=words: _command([*words, *common]))


def _given(policy: str) -> str:
    """A policy with what it would otherwise look for in test runs of an hour."""
    return f"{policy}:{GIVEN[policy]}" if policy in GIVEN else policy


def kind_of(cluster: str) -> str:
    """Whether a cluster has pools or mixed instances."""
    return "mixed" if cluster.startswith("mixed") else "pools"


def _made(name: str, kind: str, **chip: Any) -> dict[str, Any]:
    """A cluster of two or three chips that no file describes."""
    of_one = {"chip": "ascend_910c", "tp": 1, "pp": 1, **chip}
    pools = {"pools": {"relaxed": [{**of_one, "count": 1}], "strict": [{**of_one, "count": 2}]},
             "mixed": {"mixed": [{**of_one, "count": 2}]}}[kind]
    return {"name": f"{name}_{kind}", "model": "qwen2_5_7b", **pools, "kv_fraction": 0.9, "block_tokens": 16,
            "kv_link_bytes_per_s": 25e9, "max_batch": 1024, "slo": "chat"}


def _case(policy: str, cluster: Any, load: Load, condition: str = "", bulk: bool = True, **changes: Any) -> Case:
    fields = {"cluster": cluster, "workload": load.workload, "rate_scale": load.rate_scale,
              "offline": {"mode": "rate", "rate": load.offline_rate}, **SHORT, **changes}
    shown = cluster if isinstance(cluster, str) else cluster["name"]
    name = f"{policy} on {shown}, {load.workload}" + (f", {condition}" if condition else "")
    return Case(name, lambda: _simulated(policy, Scenario(**fields), bulk))


def _simulated(policy: str, scenario: Scenario, bulk: bool) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The summary and the columns of the table of requests of one run."""
    from ooco_gym.metrics import requests_table

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        run = simulate(scenario, policy, bulk=bulk)
    return {**run.summary, "params": run.params}, columns_of(requests_table(run))


def _command(words: list[str]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """What `ooco-gym simulate` writes for some words."""
    from pyarrow import parquet

    from ooco_gym.cli import main

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        with redirect_stdout(StringIO()):
            code = main(["simulate", *words, f"out={out}"])
        if code != 0:
            return {"exit code": code}, {}
        summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
        return summary, columns_of(parquet.read_table(out / "requests.parquet"))


def columns_of(table: Any) -> dict[str, Any]:
    """The columns of an Arrow table: arrays of numbers where none is null, else lists."""
    columns = {}
    for name in table.column_names:
        column = table.column(name)
        plain = column.null_count == 0 and str(column.type) not in ("string", "dictionary")
        columns[name] = column.to_numpy() if plain else column.to_pylist()
    return columns


def digests_of(case: Case) -> dict[str, str]:
    """A digest for each key of a run's summary and each column of its requests."""
    summary, columns = case.play()
    kept = {key: value for key, value in summary.items() if key not in WALL and key not in LEFT}
    return {**{f"summary.json {key}": digest(value) for key, value in kept.items()},
            **{f"requests {name}": digest(column) for name, column in columns.items()}}


def group(every: int = 1) -> Digests:
    """The digests of every n-th run."""
    return {case.name: digests_of(case) for case in cases()[::every]}
