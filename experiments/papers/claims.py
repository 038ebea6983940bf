"""Claims of README and pages, with blocks of seeds that were fixed before the first simulation, or with their data."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.registry import Test, claim
from experiments.study import Study, by


@claim("Admission order of offline requests", "learned.md#admission-order-of-offline-requests",
        blocks=("9501:9576", "9601:9676"),
        found="5.6 % more [4.5, 6.8] than the best published order, 17.7 % [15.8, 19.7] than arrival, all tuned (48 "
            "windows)")
def admission_order(study: Study) -> Iterator[Test]:
    """Admitting the offline request with the fewest tokens to compute, with an uncached prefix's cost split among the
    requests that share it, serves more offline work than the best published order."""
    # The condition of Admission-v1 at its middle load; orders as they ship.
    runs = study.play({"policy.rule": ["shared_work", "lpm", "dfs_weight", "prefix", "arrival"]},
        scenario={"timing": "ooco", "cluster": "engine_7b", "workload": "sharegpt",
            "slo": {"ttft_s": 2.0, "tpot_s": 0.05},
            "offline": {"mode": "rate", "rate": 4.0, "lengths": "ooc",
                "sharing": {"form": "documents", "ratio": 0.8, "groups": 400}}, "rate_scale": 1.4, "duration_s": 600.0,
            "warmup_s": 120.0}, policy="admitter:offline_chunk=2048")
    work = runs["offline.reference_gpu_s_per_s"]
    study.show({"offline work": work, "late": runs["online.violation_rate"]})
    yield Test("over the best published order",
        work.log_ratio({"policy.rule": "shared_work"}, {"policy.rule": ["lpm", "dfs_weight", "prefix"]}),
        holds=(1.0, None))
    yield Test("over arrival", work.log_ratio({"policy.rule": "shared_work"}, {"policy.rule": "arrival"}),
        holds=(1.05, None))


@claim("Simulated latencies", "validity.md",
        found="mean absolute error 2.9 % on an A100, 3.4 % on an H100, 3.5 % on an H200 (`make validity`)",
        data="results/validity.json")
def clock(study: Study) -> Iterator[Test]:
    """Latencies of iterations of architectures held out of the fit are within a few per cent of measurements."""
    yield from ()


@claim("Learning under a violation budget", "learned.md#learning-under-a-budget",
        found="8.5 % more [7.1, 9.7] than OOCO at 2.84 % violations in OnlineTuning, five of five runs within 3 %; a "
            "constant setting is better", data="results/constraint.json")
def constraint(study: Study) -> Iterator[Test]:
    """PID-Lagrangian PPO comes closest to a violation budget that can be spent gradually."""
    yield from ()


@claim("deadline with offline work beyond capacity", "learned.md#what-deadline-serves",
        blocks=("9501:9576", "9601:9676"),
        found="1.25, 1.88 and 1.11 times on ooc, azure_conv and azure_code (20 seeds)")
def deadline_serves(study: Study) -> Iterator[Test]:
    """With more offline work than fits, default deadline serves more than the best published policy that meets the
    SLOs, on each of three workloads."""
    # Opponents: of nine policies the best that is late for at most 3 %, HyGen with the largest budget that keeps
    # it.
    runs = study.play({"workload": ["ooc", "azure_conv", "azure_code"],
        "policy": {"deadline": "deadline:offline_chunk=2048,chunk_efficiency=0.0,decode_share=0.8",
            "best published": by("workload",
                {"ooc": "conserve", "azure_conv": "hygen:latency_budget_s=0.0365",
                    "azure_code": "niyama:max_num_seqs=64,preempted=recompute"})}},
        scenario={"timing": "ooco", "cluster": "mixed_7b", "duration_s": 1200.0, "offline": {"mode": "backlog"}})
    work = runs["offline.reference_gpu_s_per_s"]
    late = runs["online.violation_rate"]
    study.show({"offline work": work, "late": late})
    yield Test("ooc", work.at(workload="ooc").log_ratio({"policy": "deadline"}, {"policy": "best published"}),
        holds=(1.0, None))
    yield Test("azure_conv",
        work.at(workload="azure_conv").log_ratio({"policy": "deadline"}, {"policy": "best published"}),
        holds=(1.0, None))
    yield Test("azure_code",
        work.at(workload="azure_code").log_ratio({"policy": "deadline"}, {"policy": "best published"}),
        holds=(1.0, None))
    yield Test("late where most", late.at(policy="deadline").value(take="most"), holds=(None, 0.03))


@claim("deadline on mixed instances", "field.md", blocks=("9301:9311", "9401:9411"),
        found="1.31, 1.41 and 1.10 times on ooc, azure_conv and azure_code (20 seeds)")
def field(study: Study) -> Iterator[Test]:
    """On mixed instances deadline sustains more offline work than the best published policy on each of three
    workloads, all tuned."""
    # As tuned on seeds 101 and 102 (docs/field.md): on each day the two published policies that sustained most
    # there.
    runs = study.play({
        "workload": {"ooc": {"workload": "ooc", "duration_s": 14400.0}, "azure_conv": "azure_conv",
            "azure_code": "azure_code"},
        "policy": {
            "deadline": by("workload",
                {
                    "ooc": "deadline:tpot_share=0.97,offline_share=1.0,offline_chunk=2048,chunk_efficiency=0.0,"
                        "decode_share=0.8",
                    "azure_conv": "deadline:tpot_share=0.97,offline_share=1.0,offline_chunk=2048,"
                        "chunk_efficiency=0.0,decode_share=0.8",
                    "azure_code": "deadline:offline_chunk=2048,chunk_efficiency=0.0,decode_share=0.8"}),
            "first": by("workload",
                {"ooc": "conserve", "azure_conv": "niyama:margin=1.0", "azure_code": "conserve:tbt_share=0.6"}),
            "second": by("workload",
                {"ooc": "vllm_priority:max_num_batched_tokens=2048", "azure_conv": "hygen:latency_budget_s=0.045",
                    "azure_code": "niyama:margin=1.0"})}},
        scenario={"timing": "ooco", "cluster": "mixed_7b", "duration_s": 3600.0},
        hold={"sustained": {"search": {"first": 0.4, "factor": 2.0, "last": 50.0, "precision": 0.08, "screen": 2}}})
    offline = runs["sustained.total_tokens_per_s"]
    study.show({"offline total tokens/s": offline, "late": runs["online.violation_rate"]})
    yield Test("ooc", offline.at(workload="ooc").ratio({"policy": "deadline"}, {"policy": ["first", "second"]}),
        holds=(1.0, None))
    yield Test("azure_conv",
        offline.at(workload="azure_conv").ratio({"policy": "deadline"}, {"policy": ["first", "second"]}),
        holds=(1.0, None))
    yield Test("azure_code",
        offline.at(workload="azure_code").ratio({"policy": "deadline"}, {"policy": ["first", "second"]}),
        holds=(1.0, None))


@claim("A learned gate for pools", "learned.md#what-learned_gate-sustains", blocks=("9301:9311", "9401:9411"))
def gate_sustains(study: Study) -> Iterator[Test]:
    """On pools one learned gate sustains more offline work than OOCO tuned for each of six conditions, in all but one
    (ooc with 7B, where bursts decide)."""
    runs = study.play({"cluster": {"7B": "pair_7b", "72B": "pair_72b"},
        "workload": {"ooc": {"workload": "ooc", "duration_s": 14400.0}, "azure_conv": "azure_conv",
            "azure_code": "azure_code"},
        "policy": {"learned_gate": "learned_gate",
            "OOCO, searched": "ooco:slo_margin=0.9814,pull_margin=0.06381,random_tries=38,max_pull=1,interrupt=never,"
                "gate_gain=0.2005,gate_window=12,prefill_tokens=6164",
            "OOCO, interrupts late ones alone": "ooco:interrupt=slack"}},
        scenario={"timing": "ooco", "duration_s": 3600.0},
        hold={"sustained": {"search": {"first": 0.4, "factor": 2.0, "last": 50.0, "precision": 0.06, "screen": 2}}})
    offline = runs["sustained.total_tokens_per_s"]
    study.show({"offline total tokens/s": offline, "late": runs["online.violation_rate"]})
    yield Test("azure_conv, 7B",
        offline.at(workload="azure_conv", cluster="7B").ratio({"policy": "learned_gate"},
            {"policy": ["OOCO, searched", "OOCO, interrupts late ones alone"]}), holds=(1.0, None))
    yield Test("azure_code, 7B",
        offline.at(workload="azure_code", cluster="7B").ratio({"policy": "learned_gate"},
            {"policy": ["OOCO, searched", "OOCO, interrupts late ones alone"]}), holds=(1.0, None))
    yield Test("ooc, 72B",
        offline.at(workload="ooc", cluster="72B").ratio({"policy": "learned_gate"},
            {"policy": ["OOCO, searched", "OOCO, interrupts late ones alone"]}), holds=(1.0, None))
    yield Test("azure_conv, 72B",
        offline.at(workload="azure_conv", cluster="72B").ratio({"policy": "learned_gate"},
            {"policy": ["OOCO, searched", "OOCO, interrupts late ones alone"]}), holds=(1.0, None))
    yield Test("azure_code, 72B",
        offline.at(workload="azure_code", cluster="72B").ratio({"policy": "learned_gate"},
            {"policy": ["OOCO, searched", "OOCO, interrupts late ones alone"]}), holds=(1.0, None))
    yield Test("ooc, 7B",
        offline.at(workload="ooc", cluster="7B").ratio({"policy": "learned_gate"},
            {"policy": ["OOCO, searched", "OOCO, interrupts late ones alone"]}))


@claim("Admission with expected growth", "learned.md#scarce-kv-memory-admission-with-expected-growth",
        blocks=("9501:9526", "9601:9626"),
        found="2.8 % more [1.2, 4.6]; no significant gain once all are tuned (72 windows each)")
def growth(study: Study) -> Iterator[Test]:
    """Where KV memory is scarce, default admitter serves more if it counts running requests at their expected length
    on admission."""
    runs = study.play({
        "workload": {"azure_conv": {"workload": "azure_conv", "rate_scale": 0.050765},
            "azure_code": {"workload": "azure_code", "rate_scale": 0.029431},
            "sharegpt": {"workload": "sharegpt", "rate_scale": 0.51}},
        "policy": {"growth": "admitter:growth=1,offline_chunk=2048", "as it ships": "admitter:offline_chunk=2048"}},
        scenario={"timing": "ooco", "cluster": "mixed_llama2_7b_40g", "offline": {"mode": "rate", "rate": 4.0},
            "duration_s": 600.0})
    work = runs["offline.reference_gpu_s_per_s"]
    study.show({"offline work": work, "late": runs["online.violation_rate"],
        "recomputed tokens/s": runs["offline.wasted_tokens_per_s"]})
    yield Test("offline work with over without", work.log_ratio({"policy": "growth"}, {"policy": "as it ships"}),
        holds=(1.0, None))


@claim("learned_deadline on its training chips", "learned.md#batching-on-mixed-instances",
        blocks=("9501:9521", "9601:9621"),
        found="2.6 % more [2.3, 2.8] in seven conditions (280 windows); 4.2 % less [-4.7, -3.9] on new chips")
def learned_deadline_known(study: Study) -> Iterator[Test]:
    """On its training chips learned_deadline serves more than deadline with the best single setting, in conditions
    unseen in training."""
    runs = study.play({
        "condition": {"ooc 0.7": {"workload": "ooc", "rate_scale": 0.025687},
            "azure_conv 0.7": {"workload": "azure_conv", "rate_scale": 0.072974},
            "azure_code 0.7": {"workload": "azure_code", "rate_scale": 0.027879},
            "sharegpt 0.7": {"workload": "sharegpt", "rate_scale": 3.115},
            "azure_conv_2023 1.0": {"workload": "azure_conv_2023", "rate_scale": 1.130117},
            "few_shot": {"workload": "few_shot", "online_rate": 6.6},
            "Llama-2-7B, azure_conv_2023 1.0": {"cluster": "mixed_llama2_7b_40g", "workload": "azure_conv_2023",
                "rate_scale": 0.3865}},
        "policy": {"learned_deadline": "learned_deadline",
            "setting 1": "deadline:chunk_efficiency=0.0,tpot_share=0.9371,ttft_share=0.6457,decode_share=1.269,"
                "offline_share=1.0,online_chunk=1484,offline_chunk=16384,least_iteration_s=0.01342,"
                "headroom_share=0.2261,chunk_efficiency=0.0",
            "setting 2": "deadline:chunk_efficiency=0.0,tpot_share=0.9662,ttft_share=0.8301,decode_share=1.015,"
                "offline_share=0.6064,online_chunk=1364,offline_chunk=2089,least_iteration_s=0.007219,"
                "headroom_share=0.237,chunk_efficiency=0.0",
            "setting 3": "deadline:chunk_efficiency=0.0,tpot_share=0.9578,ttft_share=0.7937,decode_share=1.164,"
                "offline_share=0.8592,online_chunk=957,offline_chunk=4146,headroom_share=0.1894,chunk_efficiency=0.0"}},
        scenario={"timing": "ooco", "cluster": "mixed_7b", "offline": {"mode": "backlog"}, "duration_s": 600.0,
            "warmup_s": 120.0})
    work = runs["offline.reference_gpu_s_per_s"]
    study.show({"offline work": work, "late": runs["online.violation_rate"]})
    yield Test("over setting 1", work.log_ratio({"policy": "learned_deadline"}, {"policy": "setting 1"}),
        holds=(1.0, None))
    yield Test("over setting 2", work.log_ratio({"policy": "learned_deadline"}, {"policy": "setting 2"}),
        holds=(1.0, None))
    yield Test("over setting 3", work.log_ratio({"policy": "learned_deadline"}, {"policy": "setting 3"}),
        holds=(1.0, None))


@claim("learned_deadline's sustained load", "learned.md#batching-on-mixed-instances", blocks=("9301:9311", "9401:9411"),
        found="+3.5, +5.6 and +2.0 %; -2.4 % on azure_conv (20 seeds)")
def learned_deadline_sustains(study: Study) -> Iterator[Test]:
    """On mixed instances learned_deadline sustains more offline work than deadline tuned for each condition, in three
    of four conditions."""
    runs = study.play({
        "condition": {"ooc, 7B": {"workload": "ooc", "cluster": "mixed_7b", "duration_s": 14400.0},
            "azure_code, 7B": {"workload": "azure_code", "cluster": "mixed_7b"},
            "ooc, 72B": {"workload": "ooc", "cluster": "mixed_72b", "duration_s": 14400.0},
            "azure_conv, 7B": {"workload": "azure_conv", "cluster": "mixed_7b"}},
        "policy": {"learned_deadline": "learned_deadline",
            "deadline": by("condition",
                {
                    "ooc, 7B": "deadline:chunk_efficiency=0.0,tpot_share=0.9371,ttft_share=0.6457,decode_share=1.269,"
                        "offline_share=1.0,online_chunk=1484,offline_chunk=16384,least_iteration_s=0.01342,"
                        "headroom_share=0.2261,chunk_efficiency=0.0",
                    "azure_code, 7B": "deadline:offline_chunk=2048,chunk_efficiency=0.0,decode_share=0.8",
                    "ooc, 72B": "deadline:tpot_share=0.97,offline_share=1.0,offline_chunk=2048,chunk_efficiency=0.0,"
                        "decode_share=0.8",
                    "azure_conv, 7B": "deadline:tpot_share=0.97,offline_share=1.0,offline_chunk=2048,"
                        "chunk_efficiency=0.0,decode_share=0.8"})}}, scenario={"timing": "ooco", "duration_s": 3600.0},
        hold={"sustained": {"search": {"first": 0.4, "factor": 2.0, "last": 50.0, "precision": 0.05, "screen": 2}}})
    offline = runs["sustained.total_tokens_per_s"]
    study.show({"offline total tokens/s": offline, "late": runs["online.violation_rate"]})
    yield Test("ooc, 7B", offline.at(condition="ooc, 7B").ratio({"policy": "learned_deadline"}, {"policy": "deadline"}),
        holds=(1.0, None))
    yield Test("azure_code, 7B",
        offline.at(condition="azure_code, 7B").ratio({"policy": "learned_deadline"}, {"policy": "deadline"}),
        holds=(1.0, None))
    yield Test("ooc, 72B",
        offline.at(condition="ooc, 72B").ratio({"policy": "learned_deadline"}, {"policy": "deadline"}),
        holds=(1.0, None))
    yield Test("azure_conv, 7B",
        offline.at(condition="azure_conv, 7B").ratio({"policy": "learned_deadline"}, {"policy": "deadline"}))


@claim("One learned gate for all pools", "learned.md#on-pools-free-kv-memory", blocks=("9501:9521", "9601:9621"),
        found="1.9 % more than slack [1.7, 2.1], level with memory_gate [-0.2, +0.1], in fifteen conditions (600 "
            "windows)")
def learned_gate(study: Study) -> Iterator[Test]:
    """One learned gate serves more offline work than slack with the one setting that an equally long search found, on
    known pools and new chips; a one-line rule does as well."""
    runs = study.play({
        "condition": {"7B, ooc": {"cluster": "pair_7b", "workload": "ooc", "rate_scale": 0.022018},
            "72B, azure_code": {"cluster": "pair_72b", "workload": "azure_code", "rate_scale": 0.006953},
            "Llama-2-7B, azure_conv_2023": {"cluster": "pair_llama2_7b_40g", "workload": "azure_conv_2023",
                "rate_scale": 0.3092},
            "H100": {"workload": "azure_conv", "online_rate": 21.2,
                "cluster": {"name": "h100_8b", "model": "llama_3_1_8b", "relaxed": [{"chip": "h100"}],
                    "strict": [{"chip": "h100"}], "block_tokens": 16, "max_batch": 1024, "slo": "chat"}},
            "A100 PCIe": {"workload": "sharegpt", "online_rate": 1.24,
                "cluster": {"name": "a100_14b", "model": "qwen2_5_14b", "relaxed": [{"chip": "a100_80g_pcie"}],
                    "strict": [{"chip": "a100_80g_pcie"}], "block_tokens": 16, "max_batch": 1024, "slo": "chat"}},
            "MI300X": {"workload": "azure_code", "online_rate": 16.8,
                "cluster": {"name": "mi300x_14b", "model": "qwen3_14b", "relaxed": [{"chip": "mi300x", "count": 2}],
                    "strict": [{"chip": "mi300x"}], "block_tokens": 16, "max_batch": 1024, "slo": "chat"}},
            "H20": {"workload": "azure_conv_2023", "online_rate": 7.97,
                "cluster": {"name": "h20_7b", "model": "qwen2_5_7b", "relaxed": [{"chip": "h20", "count": 2}],
                    "strict": [{"chip": "h20", "count": 2}], "block_tokens": 16, "max_batch": 1024, "slo": "chat"}}},
        "policy": {"learned_gate": "learned_gate",
            "slack": "slack:slo_margin=0.9733,pull_margin=0.0308,max_pull=40,slack_factor=1.463,gate_gain=0.09575,"
                "gate_window=1,prefill_tokens=7747,growth=0.6593,bank=1.14",
            "memory_gate": "memory_gate:slo_margin=0.9857,pull_margin=0.04993,max_pull=27,slack_factor=0.8115,"
                "prefill_tokens=7311,growth=0.3917,bank=0.5815,reserve=0.08969,gate_growth=0.2655"}},
        scenario={"timing": "ooco", "offline": {"mode": "backlog"}, "duration_s": 600.0, "warmup_s": 120.0})
    work = runs["offline.reference_gpu_s_per_s"]
    study.show({"offline work": work, "late": runs["online.violation_rate"]})
    yield Test("over slack", work.log_ratio({"policy": "learned_gate"}, {"policy": "slack"}), holds=(1.0, None))
    yield Test("over memory_gate", work.log_ratio({"policy": "learned_gate"}, {"policy": "memory_gate"}),
        holds=(0.98, 1.02))


@claim("Schedulers in a real vLLM", "sim_to_real.md",
        found="Kendall's tau 1.00, beyond the knee 0.80; on a CPU with a small random model",
        data="results/sim_to_real.json")
def live(study: Study) -> Iterator[Test]:
    """The simulator ranks five schedulers as a live vLLM does at three of four loads."""
    yield from ()


@claim("Admission order in a real vLLM", "learned.md#admission-order-of-offline-requests",
        found="1.56, 1.87 and 1.76 times (predicted 1.46, 1.73 and 1.89) (two repeats of 30 s)",
        data="results/sim_to_real_documents.json")
def live_order(study: Study) -> Iterator[Test]:
    """In a real vLLM shared_work serves more than deadline up to the knee, without SLO violations."""
    yield from ()


@claim("A one-line gate for scarce KV memory", "learned.md#on-pools-free-kv-memory", blocks=("9501:9576", "9601:9676"),
        found="4.3 % more [3.7, 4.9] than tuned OOCO and 29 % than slack, by a gate trained there; the rule is level "
            "with it (48 windows of 1,800 s)")
def memory_gate(study: Study) -> Iterator[Test]:
    """Where KV memory is scarce, memory_gate, a one-line rule, serves more offline work than OOCO tuned by a search
    and default slack."""
    # The condition of Colocation-v1; OOCO as its search came to.
    runs = study.play({
        "policy": {"memory_gate": "memory_gate",
            "OOCO": "ooco:slo_margin=0.7146,pull_margin=0.1675,random_tries=2,max_pull=3,interrupt=slack,"
                "slack_factor=1.378,gate_gain=0.08837,gate_window=1,prefill_tokens=1140", "slack": "slack"}},
        scenario={"timing": "ooco", "cluster": "pair_llama2_7b_40g", "workload": "azure_conv",
            "slo": {"ttft_s": 1.5, "tpot_s": 0.05}, "offline": {"mode": "rate", "rate": 1.0}, "rate_scale": 0.065,
            "duration_s": 1800.0, "warmup_s": 300.0})
    work = runs["offline.reference_gpu_s_per_s"]
    study.show({"offline work": work, "late": runs["online.violation_rate"]})
    yield Test("over OOCO", work.log_ratio({"policy": "memory_gate"}, {"policy": "OOCO"}), holds=(1.0, None))
    yield Test("over slack", work.log_ratio({"policy": "memory_gate"}, {"policy": "slack"}), holds=(1.0, None))


@claim("The reimplemented vLLM scheduler", "oracle.md",
        found="every step of eight runs of 1,500 requests, and of 200,000 random ones in each release from 0.12 on "
            "(`make test-oracle`)", data="results/oracle.json")
def oracle(study: Study) -> Iterator[Test]:
    """The reimplemented scheduler equals vLLM's at every step."""
    yield from ()


@claim("A learned router", "learned.md#routing-unequal-chips-stale-metrics-shared-prefixes",
        blocks=("950000:950013", "960000:960013"),
        found="31.5 % fewer violations [28.2, 34.7] in the first of the conditions (160 windows)")
def router(study: Study) -> Iterator[Test]:
    """On three mixes of chips and two workloads a learned score has fewer SLO violations than the best published
    router at the same offline service, all tuned by the same search."""
    # 95 % of the largest rates at which `router` as tuned violates 3 % (seeds 501 and 502). No search has met `h100
    # and l40s` or `a100 and l40s`. Left out: `sticky`, `requests` and `power_of_two`, which violate three, ten and
    # forty times as many in the first condition, tuned alike.
    runs = study.play({
        "condition": {
            "four unequal, documents": {"workload": "doc_qa", "online_rate": 5.33,
                "cluster": {"name": "four_unequal", "model": "qwen2_5_7b", "kv_fraction": 0.9, "block_tokens": 16,
                    "max_batch": 512, "slo": "chat",
                    "mixed": [{"chip": "h100", "count": 1}, {"chip": "a100_80g", "count": 1},
                        {"chip": "l40s", "count": 2}]}},
            "four unequal, chat": {"workload": "sharegpt", "online_rate": 17.5,
                "cluster": {"name": "four_unequal", "model": "qwen2_5_7b", "kv_fraction": 0.9, "block_tokens": 16,
                    "max_batch": 512, "slo": "chat",
                    "mixed": [{"chip": "h100", "count": 1}, {"chip": "a100_80g", "count": 1},
                        {"chip": "l40s", "count": 2}]}},
            "h100 and l40s, documents": {"workload": "doc_qa", "online_rate": 4.96,
                "cluster": {"name": "h100_l40s", "model": "qwen2_5_7b", "kv_fraction": 0.9, "block_tokens": 16,
                    "max_batch": 512, "slo": "chat",
                    "mixed": [{"chip": "h100", "count": 1}, {"chip": "l40s", "count": 3}]}},
            "h100 and l40s, chat": {"workload": "sharegpt", "online_rate": 16.4,
                "cluster": {"name": "h100_l40s", "model": "qwen2_5_7b", "kv_fraction": 0.9, "block_tokens": 16,
                    "max_batch": 512, "slo": "chat",
                    "mixed": [{"chip": "h100", "count": 1}, {"chip": "l40s", "count": 3}]}},
            "a100 and l40s, documents": {"workload": "doc_qa", "online_rate": 2.23,
                "cluster": {"name": "a100_l40s", "model": "qwen2_5_7b", "kv_fraction": 0.9, "block_tokens": 16,
                    "max_batch": 512, "slo": "chat",
                    "mixed": [{"chip": "a100_80g", "count": 2}, {"chip": "l40s", "count": 2}]}},
            "a100 and l40s, chat": {"workload": "sharegpt", "online_rate": 9.0,
                "cluster": {"name": "a100_l40s", "model": "qwen2_5_7b", "kv_fraction": 0.9, "block_tokens": 16,
                    "max_batch": 512, "slo": "chat",
                    "mixed": [{"chip": "a100_80g", "count": 2}, {"chip": "l40s", "count": 2}]}}},
        "policy": {"learned": "learned_router",
            "LMetric": "router:rule=lmetric,sent_weight=1.526,waiting_weight=1.8,speed_share=1.867,queue_weight=0.298",
            "latency": "router:rule=latency,sent_weight=1.239,drain=0.8746,decode_tokens=23.22"}},
        scenario={"timing": "ooco", "offline": {"mode": "rate", "rate": 4.0}, "duration_s": 600.0, "warmup_s": 120.0},
        change={"policy.lag_s": 2.0, "policy.prefix_caching": "on", "policy.offline_chunk": 2048})
    late = runs["online.violation_rate"]
    work = runs["offline.reference_gpu_s_per_s"]
    study.show({"late": late, "offline work": work, "P99 TTFT s": runs["online.ttft_p99_s"]})
    yield Test("violations over those of the best other",
        late.log_ratio({"policy": "learned"}, {"policy": ["LMetric", "latency"]}, best="low", floor=0.001),
        holds=(None, 0.95))
    yield Test("offline work over that of the best other in violations",
        work.log_ratio({"policy": "learned"}, {"policy": "LMetric"}), holds=(0.98, None))
