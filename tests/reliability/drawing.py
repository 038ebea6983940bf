"""What the fuzz draws at random: JSON cases, each with everything in it that its episode hangs on."""

from __future__ import annotations

import math
from functools import cache
from random import Random
from typing import Any

from ooco_gym.envs import ENVIRONMENTS
from ooco_gym.policy import get_policy, list_policies
from ooco_gym.policy.policy import Param
from ooco_gym.resources import load_yaml

Case = dict[str, Any]
CLOCKS = ({}, {"async_scheduling": True}, {"async_scheduling": True, "schedule_s": 0.02, "decode_s": 0.001},
          {"schedule_s": 60.0, "frontend_s": 0.01, "sequence_s": 1e-4})
KINDS = ("episode", "scenario", "environment")
SHARES = (80, 14, 6)  # of each kind, percent: the last ones take longer
CHIPS = (("ascend_910c", 1), ("ascend_910c", 2), ("h800", 1), ("a100_40g_sxm", 1), ("rtx4090", 2))
POINTS = ("route", "interrupt", "gate", "compose", "evict", "pull")
# What a policy would otherwise look for in test runs of hours, and what costs time alone.
GIVEN = {"latency_budget_s": (0.0, 0.5), "offline_qps": (0.0, 50.0)}
FITTED = ("echo",)
LEFT = ("profile_windows", "profile_steps", "profile_duration_s", "profile_seed")
WORKLOADS = ("azure_conv", "azure_code", "ooc", "sharegpt", "few_shot", "doc_qa", "lmsys", "mooncake")
POOLS = {"pair_7b": 0.5, "pair_llama2_7b_40g": 0.2, "fleet_16": 1.5}  # most of azure_conv's rate
ENGINES = {"mixed_7b": 0.5, "engine_7b": 0.25, "mixed_llama2_7b_40g": 0.2}
NEEDS_OOCO = ("OnlineTuning", "Packing", "Colocation")  # a packing margin, or parameters that are turned
OPEN_BASES = ("deadline", "deadline:prefix_caching=on", "deadline:offline_chunk=16,preempted=swap")
# Of another workload for about the same load.
RATE_OF = {"ooc": 0.3, "sharegpt": 40.0, "lmsys": 40.0, "few_shot": 8.0, "doc_qa": 3.0, "mooncake": 0.5}


def draw(seed: int, index: int) -> Case:
    """Case number `index` of a seed."""
    random = Random(f"{seed}/{index}")
    kind = random.choices(KINDS, SHARES)[0]
    return {"kind": kind, **{"episode": episode, "scenario": scenario, "environment": environment}[kind](random)}


@cache
def policies(mixed: bool) -> list[str]:
    """Names of the policies of pools, or of mixed instances."""
    return [name for name in list_policies() if get_policy(name).mixed == mixed]


def policy_of(random: Random, mixed: bool) -> str:
    """A policy; of those that are fitted before they play, which takes longest, three of four are drawn again."""
    drawn = random.choice(policies(mixed))
    return random.choice(policies(mixed)) if drawn.startswith(FITTED) and random.random() < 0.75 else drawn


def values_of(random: Random, policy: str, max_batch: int) -> dict[str, Any]:
    """Values of some of a policy's parameters: choices, bounds, anything between."""
    found: dict[str, Any] = {}
    share = random.choice((0.1, 0.5, 1.0))
    for param in get_policy(policy).params:
        if param.name in GIVEN:
            found[param.name] = round(random.uniform(*GIVEN[param.name]), 3)
        elif param.name == "max_num_seqs":  # must be below what the cluster batches
            found[param.name] = min(max_batch, random.choice((1, 2, max_batch // 2, max_batch)))
        elif param.name == "reserved_blocks" and random.random() < 0.95:
            found[param.name] = random.randint(0, 3)
        elif param.name not in LEFT and not param.file and random.random() < share:
            found[param.name] = value_of(random, param)
    return found


def value_of(random: Random, param: Param) -> Any:
    """A value that a parameter may have; beside its bounds most are small."""
    if param.choices:
        return random.choice(param.choices)
    low, high = max(param.low, -1e15), min(param.high, 1e15)
    near = param.default if isinstance(param.default, (int, float)) else low
    kind = random.random()
    if kind < 0.15:
        value = low
    elif kind < 0.25:
        value = high
    elif kind < 0.6:
        value = near * random.choice((0.5, 0.9, 1.1, 2.0))
    else:
        value = low + (math.exp(random.uniform(0.0, math.log1p(min(high - low, 1e6)))) - 1.0)
    value = min(high, max(low, value))
    return round(value) if param.whole else float(f"{value:.6g}")


def rows_of(random: Random, most: int = 60) -> list[list[Any]]:
    """Requests [arrival_s, prompt, output, online, group, blocks shared with the group]: bursts, equal times, extremes.
    """
    rows = []
    for _ in range(random.randint(1, 6)):
        at, gap = random.choice((0.0, 0.25, 1.0, 2.0, 5.0, 11.0)), random.choice((0.0, 0.0, 0.013, 0.11))
        prompt = random.choice((1, 15, 16, 17, 200, 511, 512, 900, 2500, 9000))
        output = random.choice((1, 1, 2, 15, 16, 40, 150, 700))
        online, spread, shared = random.random() < 0.5, random.randint(0, 40), random.choice((0, 0, 1, 4))
        for i in range(random.randint(1, most // 6)):
            rows.append([round(at + i * gap, 6), prompt + spread * (i % 3), max(1, output - spread * (i % 2)),
                         online, random.randint(0, 2), shared])
    return sorted(rows, key=lambda row: row[0])


def episode(random: Random) -> Case:
    """Hand-made requests on a few instances, under a policy with random parameters and some random rules."""
    mixed = random.random() < 0.5
    policy = policy_of(random, mixed)
    pool = lambda most: [list(random.choice(CHIPS)) for _ in range(random.randint(1, most))]  # noqa: E731
    machines = {"mixed": pool(3)} if mixed else {"relaxed": pool(3), "strict": pool(3)}
    rules: dict[str, Any] = {
        "max_batch": random.choice((4, 12, 64)), "tpot_s": random.choice((0.02, 0.03, 0.05, 0.1, 9e5)),
        "ttft_s": random.choice((0.05, 0.2, 2.0, 9e5)), "tpot_min_tokens": random.choice((2, 16)),
        "tpot_from": ("first_token", "first_decode")[random.random() < 0.5],
        "kv_link_bytes_per_s": random.choice((25e9, 3e8, 1e6, 1e15)),
        "block_tokens": random.choice((16, 16, 16, 1))}
    memory = (64, 300, 800) if rules["block_tokens"] == 1 else (64, 800, 2800, 6000, 20_000)
    if random.random() < 0.3:
        rules |= {"decode_first_token": True, "handover_s": random.choice((0.0, 0.11, 60.0))}
    if random.random() < 0.3:
        rules["offloading_bytes"] = random.choice((1e7, 2.0**28, 2.0**33))
    if random.random() < 0.3:
        rules |= {"jitter": random.choice((0.0, 0.1, 1.0)), "belief_noise": random.choice((0.0, 0.1, 1.0)),
                  "belief_factor": random.choice((0.01, 1.0, 1.3, 100.0)),
                  "engine_clock": random.choice(CLOCKS), "gap_s": random.choice((None, 0.02, 5.0)),
                  "gate_poll_s": random.choice((0.01, 0.1, 3.0)), "host_bytes": random.choice((0.0, 2.0**26, 2.0**33)),
                  "host_link_bytes_per_s": random.choice((1e6, 25e9, 1e15))}
    outside = random.sample(POINTS, random.randint(1, 6)) if random.random() < 0.15 else []
    return {"policy": policy, "values": values_of(random, policy, rules["max_batch"]), **machines, "rules": rules,
            "random": [] if mixed or random.random() < 0.7 else sorted(random.sample(POINTS, random.randint(1, 6))),
            "outside": sorted(outside), "kv_tokens": None if random.random() < 0.05 else random.choice(memory),
            "seed": random.randint(0, 2**40), "window_s": random.choice(([0.0, 20.0], [0.2, 3.0])),
            "stops": sorted(round(random.uniform(0.0, 15.0), 3) for _ in range(random.randint(2, 5))),
            "rows": rows_of(random)}


def load_of(random: Random, limits: dict[str, float]) -> dict[str, Any]:
    """A cluster with an online and an offline load that it may or may not carry, and what is believed of them."""
    cluster, workload = random.choice(sorted(limits)), random.choice(WORKLOADS)
    fields: dict[str, Any] = {
        "cluster": cluster, "workload": workload, "seed": random.randint(0, 2**40),
        "rate_scale": float(f"{random.choice((0.1, 1.0)) * limits[cluster] * RATE_OF.get(workload, 1.0):.4g}"),
        "slo": {"ttft_s": random.choice((0.4, 2.0, 5.0)), "tpot_s": random.choice((0.04, 0.06, 0.1)),
                "tpot_from": random.choice(("first_token", "first_decode"))},
        "offline": random.choice(({"mode": "rate", "rate": 0.0}, {"mode": "rate", "rate": 0.5},
                                  {"mode": "rate", "rate": 5.0}, {"mode": "jobs", "jobs": 30}, {"mode": "backlog"}))}
    if random.random() < 0.3:
        fields["offline"] = {**fields["offline"], "dataset": random.choice(("mmlu", "cnn_dailymail", "loogle_short"))}
    if random.random() < 0.3:
        fields["predictor"] = {"name": "biased", "factor": random.choice((0.01, 0.9, 1.2, 100.0)),
                               "noise": random.choice((0.0, 0.1, 1.0))}
    if random.random() < 0.3:
        fields["lengths"] = random.choice(({"predictor": "true"}, {"predictor": "lognormal", "error": 0.6},
                                           {"predictor": "lognormal", "error": 10.0},
                                           {"predictor": "rank", "tau": 0.5}))
    if random.random() < 0.2:
        fields["jitter"] = random.choice((0.05, 1.0))
    return fields


def cluster_of(random: Random, mixed: bool, extended: bool) -> dict[str, Any]:
    """A cluster that no file describes."""
    chips = ("a100_80g", "h100", "rtx4090") if extended else ("ascend_910c", "h800", "a100_40g_sxm", "mi300x", "l40s")

    def pool(most: int) -> list[dict[str, Any]]:
        return [{"chip": random.choice(chips), "tp": random.choice((1, 2)), "pp": random.choice((1, 1, 2)),
                 "count": random.randint(1, 2), "kv_blocks": random.choice((None, None, 40, 400, 4000))}
                for _ in range(random.randint(1, most))]

    pools = {"mixed": pool(2)} if mixed else {"relaxed": pool(2), "strict": pool(2)}
    return {"name": "drawn", "model": random.choice(("qwen2_5_7b", "llama_2_7b", "qwen3_8b")), **pools,
            "kv_fraction": 0.9, "block_tokens": random.choice((16, 16, 1, 64)),
            "max_batch": random.choice((2, 64, 1024)),
            "kv_link_bytes_per_s": random.choice((25e9, 1e6, 1e15)), "host_gib": random.choice((0.0, 4.0, 1000.0)),
            "pd_first_token": "prefill" if mixed else random.choice(("prefill", "decode")),
            "pd_handover_s": random.choice((0.0, 0.11, 60.0)),
            "kv_offloading_gib": random.choice((0.0, 0.0, 0.1, 64.0)),
            "retention": random.choice((None, "lru", "ttl:ttl_s=2", "turns:turn_s=100", "offline_first", "s3fifo",
                                        "belady")),
            "host_link_bytes_per_s": random.choice((25e9, 1e6)), "slo": "chat"}


def scenario(random: Random) -> Case:
    """A scenario by its names, with drawn arrivals or a trace file, in bulk and step by step."""
    mixed = random.random() < 0.5
    policy = policy_of(random, mixed)
    fields = load_of(random, ENGINES if mixed else POOLS)
    max_batch = 1024
    long = 1.0 if fields["cluster"] == "fleet_16" else 4.0
    fields |= {"duration_s": random.choice((2.0, 5.0)) * long, "warmup_s": random.choice((0.0, 1.0, 3.0)) * long,
               "drain_s": random.choice((0.0, 30.0)), "start_s": random.choice((0.0, 30_000.0, 86_390.0))}
    if random.random() < 0.4:
        fields["timing"] = random.choice(("ooco_xllm", "extended", "ooco"))
        fields["cluster"] = cluster_of(random, mixed, fields["timing"] == "extended")
        max_batch = fields["cluster"]["max_batch"]
    case: Case = {"policy": policy, "values": values_of(random, policy, max_batch), "fields": fields}
    if random.random() < 0.25:  # as a trace file, whose window begins with the file
        fields |= {"rate_scale": 1.0, "start_s": 0.0, "warmup_s": 0.0}
        case |= {"rows": rows_of(random), "format": random.choice(("csv", "jsonl", "parquet"))}
    if random.random() < 0.2:
        fields["classes"] = {"agent": {"ttft_s": random.choice((0.5, 6.0)), "tpot_s": 0.1, "weight": 0.5},
                             "batch": {"online": False, "deadline_s": random.choice((5.0, 3600.0))}}
    return case


def environment(random: Random) -> Case:
    """An environment with random arguments, played at random."""
    name = random.choice(sorted(ENVIRONMENTS))
    mixed = any(part in name for part in ("Batching", "Admission", "PreemptionVictim", "Routing", "Jobs",
                                             "Retention", "Serving"))
    if mixed:
        base_policy, limits = random.choice((*OPEN_BASES, "echo", "sarathi_pp", "vllm_priority", "niyama",
                                             "hygen:latency_budget_s=0.04")), ENGINES
        if "Routing" in name:  # which needs several
            base_policy, limits = random.choice(("router", "router:rule=sticky")), {"mixed_7b": ENGINES["mixed_7b"]}
        if "Admission" in name:  # whose weights are set
            base_policy = "admitter:rule=index"
        if "Jobs" in name or "Retention" in name:  # which need prefix caches
            base_policy = "deadline:prefix_caching=on"
    else:
        base_policy, limits = random.choice(("ooco", "ooco_xllm", "online_priority", "slack",
                                         "ooco:max_pull=1,interrupt=slack")), POOLS
    if any(part in name for part in NEEDS_OOCO):
        base_policy = random.choice(("ooco", "ooco:slo_margin=0.5"))
    if "Gating-v2" in name:  # whose `reserve` is set
        base_policy = random.choice(("memory_gate", "memory_gate:interrupt=always,gate_growth=0.3"))
    fields = load_of(random, limits)
    del fields["seed"]
    if "Scaling" in name or "Retention" in name:  # whose clusters ask
        config = load_yaml("env", name[9:-3].lower())
        fields |= {"cluster": config["scenario"]["cluster"], "online_rate": None}
        base_policy = str(config["base_policy"])
    short = 0.3 if fields["cluster"] == "fleet_16" else 1.0
    arguments: dict[str, Any] = {
        "scenario": fields, "base_policy": base_policy, "candidates": random.randint(1, 20),
        "interval_s": random.choice((0.1, 1.0, 7.0)), "window_s": random.choice((2.0, 10.0)) * short,
        "warmup_s": random.choice((0.0, 5.0)) * short,
        "reward": random.choice(("penalty", "constrained", {"service": 1.0, "waste": 3.0, "ttft": 0.5}))}
    if "Batching" in name and random.random() < 0.5:
        arguments["action"] = "box"
    return {"id": name, "arguments": arguments, "seed": random.randint(0, 2**31 - 1), "window": random.randint(0, 999),
            "actions": random.randint(0, 2**31 - 1), "illegal": random.random() < 0.2, "vector": random.randint(0, 3)}
