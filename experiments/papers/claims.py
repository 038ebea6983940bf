"""Claims of README and pages, with blocks of seeds that were fixed before the first simulation, or with their data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from experiments.papers import fleets, jobs  # noqa: F401 (their claims)
from experiments.registry import Range, Test, claim, measured
from experiments.study import Study, by
from ooco_gym.policy.registry import spelled
from ooco_gym.study.table import Metric

DAYS = {"ooc": {"workload": "ooc", "duration_s": 14400.0}, "azure_conv": "azure_conv", "azure_code": "azure_code"}
# `deadline` as tuned on seeds 101 and 102 (docs/field.md), and as one search found it on ooc.
DEADLINE_CODE = "deadline:offline_chunk=2048,chunk_efficiency=0.0,decode_share=0.8"
DEADLINE_CONV = "deadline:tpot_share=0.97,offline_share=1.0,offline_chunk=2048,chunk_efficiency=0.0,decode_share=0.8"
DEADLINE_OOC = ("deadline:tpot_share=0.9371,ttft_share=0.6457,decode_share=1.269,offline_share=1.0,online_chunk=1484,"
                "offline_chunk=16384,least_iteration_s=0.01342,headroom_share=0.2261,chunk_efficiency=0.0")
# `deadline` as it ships, and `admitter` with the setting for chips without tuning (docs/learned.md).
DEADLINE_SHIPPED = ("deadline:tpot_share=0.9,ttft_share=0.8,decode_share=1.0,offline_share=0.5,online_chunk=4096,"
                    "offline_chunk=2048,chunk_efficiency=0.95,headroom_share=0.05,growth=0.0,give_up_share=0.0")
ADMITTER = ("admitter:prefix_caching=on,waiting_order=prefix,refresh_s=1.0,chunk_efficiency=1.0,tpot_share=0.9661,"
            "ttft_share=0.7982,decode_share=1.458,offline_share=0.4969,online_chunk=1817,offline_chunk=4930,"
            "headroom_share=0.1261,give_up_share=0.005838")
# Two searches over Admission-v2's conditions: of one order with its weight of predicted outputs, and of an index.
SINGLE = {"policy.rule": "shared_work", "policy.output_weight": 0.1992}
INDEX = {"policy.rule": "index", "policy.output_weight": 0.5366, "policy.w_output": -0.7226, "policy.w_spread": -0.4847,
    "policy.w_work": 1.539, "policy.w_shared": 0.09391, "policy.w_age": 0.0938, "policy.w_output_memory": 1.293,
    "policy.w_output_waiting": -0.01118}
SEEDS = ("9501:9576", "9601:9676")
WINDOW = {"duration_s": 600.0, "warmup_s": 300.0}
ENGINE = {"cluster": "engine_7b", "workload": "sharegpt", "slo": {"ttft_s": 2.0, "tpot_s": 0.05}, "rate_scale": 1.4}
# Offline requests of Admission-v2's first condition, which share documents.
SHARED = {"mode": "rate", "rate": 4.0, "lengths": "ooc", "sharing": {"form": "documents", "ratio": 0.8, "groups": 400}}


def _serves(study: Study, axes: Mapping[str, Any], scenario: Mapping[str, Any], **more: Any) -> tuple[Metric, Metric]:
    """Plays and shows a condition; returns offline work and late online requests."""
    runs = study.play(axes, scenario={"timing": "ooco", **scenario}, **more)
    work, late = runs["offline.reference_gpu_s_per_s"], runs["online.violation_rate"]
    study.show({"offline work": work, "late": late})
    return work, late


def _sustains(study: Study, axes: Mapping[str, Any], precision: float, **scenario: Any) -> Metric:
    """Plays and shows sustained rates, within a precision; returns the offline tokens per second that are sustained."""
    search = {"first": 0.4, "factor": 2.0, "last": 50.0, "precision": precision, "screen": 2}
    runs = study.play(axes, scenario={"timing": "ooco", "duration_s": 3600.0, **scenario},
        hold={"sustained": {"search": search}})
    offline = runs["sustained.total_tokens_per_s"]
    study.show({"offline total tokens/s": offline, "late": runs["online.violation_rate"]})
    return offline


def _batch(study: Study, axes: Mapping[str, Any], **more: Any) -> dict[str, Metric]:
    """Plays and shows a batch beside chat; returns when its mean request ends, and its last one starts and ends."""
    runs = study.play(axes, scenario={"timing": "ooco", **ENGINE, "duration_s": 2400.0, "warmup_s": 0.0,
        "drain_s": 1200.0, "offline": {"mode": "jobs", "jobs": 1500, "lengths": "ooc", "deadline_s": 1500.0}}, **more)
    found = {"mean completion": runs["offline.jobs.mean_completion_s"], "last start": runs["offline.age_max_s"],
        "makespan": runs["offline.jobs.makespan_s"]}
    study.show({**found, "left": runs["offline.jobs.left"], "late": runs["online.violation_rate"]})
    return found


def _clients(*shares: tuple[float, float]) -> dict[str, Any]:
    """Offline work of clients with like prompts: each one's share, and the log of its outputs' median."""
    prompts = {"weights": [1.0], "mu": [7.0], "sigma": [0.6], "clip": [64, 8192]}
    return {"mode": "rate", "rate": 4.0, "clients": [{"share": share, "lengths": {"prompt": prompts,
        "output": {"weights": [1.0], "mu": [mu], "sigma": [0.5], "clip": [4, 4096]}}} for share, mu in shares]}


def _over(what: str, metric: Metric, axis: str, a: Any, b: Any, holds: Range | None = (1.0, None), **more: Any) -> Test:
    """Tests a metric at a label of an axis over the best of other labels."""
    return Test(what, metric.log_ratio({axis: a}, {axis: b}, **more), holds=holds)


def _cluster(name: str, model: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "model": model, "block_tokens": 16, "max_batch": 1024, "slo": "chat", **more}


def _chips(**counts: int) -> list[dict[str, Any]]:
    return [{"chip": chip, "count": count} for chip, count in counts.items()]


@claim("Admission order of offline requests", "learned.md#admission-order-of-offline-requests", blocks=SEEDS)
def admission_order(study: Study) -> Iterator[Test]:
    """Admitting the offline request with the fewest tokens to compute, with an uncached prefix's cost split among the
    requests that share it, serves more offline work than the best published order."""
    # Admission-v2's first condition; orders as they ship.
    work, _ = _serves(study, {"policy.rule": ["shared_work", "lpm", "dfs_weight", "prefix", "arrival"]},
        {**ENGINE, "offline": SHARED, "duration_s": 600.0, "warmup_s": 120.0}, policy="admitter:offline_chunk=2048")
    yield _over("over the best published order", work, "policy.rule", "shared_work", ["lpm", "dfs_weight", "prefix"])
    yield _over("over arrival", work, "policy.rule", "shared_work", "arrival", (1.05, None))


@claim("One index for the order of offline requests", "learned.md#what-is-worth-deciding",
        blocks=("9501:9508", "9601:9608"))
def admission_index(study: Study) -> Iterator[Test]:
    """In twelve conditions that no search has seen, one index whose weights CMA-ES found on Admission-v2's eight serves
    more offline work than the best single order that an equally long search found there."""
    chat, clients = {"mode": "rate", "rate": 10.0, "lengths": "sharegpt"}, _clients((0.5, 3.5), (0.5, 6.5))
    small = {"cluster": "mixed_llama2_7b_40g", "workload": "azure_conv"}
    few_shot = {"rate": 8.0, "lengths": "mmlu", "sharing": {"form": "few_shot", "ratio": 0.83, "groups": 57}}
    short = {"rate": 3.0, "lengths": "loogle_short", "sharing": {"form": "documents", "ratio": 0.9, "groups": 50}}

    def documents(groups: int) -> dict[str, Any]:
        return {**SHARED, "sharing": {**SHARED["sharing"], "groups": groups}}

    conditions = {
        "200 documents": {"rate_scale": 1.2, "offline": documents(200)},
        "50 documents, light": {"rate_scale": 0.6, "offline": documents(50)},
        "short documents": {"rate_scale": 1.4, "offline": {"mode": "rate", **short}},
        "summaries": {"rate_scale": 1.0, "offline": {"mode": "rate", "rate": 2.0, "lengths": "arxiv_summarization"}},
        "few-shot prompts": {"rate_scale": 1.4, "offline": {"mode": "rate", **few_shot}},
        "chat, light": {"rate_scale": 0.8, "offline": chat},
        "two clients": {"rate_scale": 1.2, "offline": clients},
        "two clients, few long": {"rate_scale": 1.4, "offline": _clients((0.8, 4.0), (0.2, 7.5))},
        "two clients, heavy": {"rate_scale": 1.8, "offline": _clients((0.6, 4.0), (0.4, 7.0))},
        "40 GB, chat": {**small, "rate_scale": 0.06, "offline": {**chat, "rate": 6.0}},
        "40 GB, two clients": {**small, "rate_scale": 0.05, "offline": clients},
        "40 GB, documents": {**small, "rate_scale": 0.05, "offline": documents(200)}}
    work, late = _serves(study, {"condition": conditions,
        "order": {"index": INDEX, "best single": SINGLE, "arrival": {"policy.rule": "arrival"}}},
        {**ENGINE, "duration_s": 600.0, "warmup_s": 120.0}, policy="admitter",
        change={"lengths": {"predictor": "lognormal", "error": 0.6}})
    yield _over("all conditions: index over the best single order", work, "order", "index", "best single")
    yield _over("all conditions: index over arrival", work, "order", "index", "arrival")
    for condition in conditions:
        yield _over(condition, work.at(condition=condition), "order", "index", "best single", None)
    yield Test("late where most", late.at(order="index").value(take="most"))


@claim("Order of a batch, and predicted outputs", "learned.md#what-is-worth-deciding", blocks=SEEDS)
def batch_order(study: Study) -> Iterator[Test]:
    """Shortest predicted work first ends the mean request of a batch and starts its last one sooner, but does not end
    the batch sooner, as longest predicted output first does; counting predicted outputs as prompt tokens serves more
    where documents are shared, and less where the outputs of two clients differ in length."""
    orders = {"arrival": {"policy.rule": "arrival"}, "longest": {"policy.rule": "index", "policy.w_output": -1},
        **{f"weight {one}": {"policy.rule": "shared_work", "policy.output_weight": one} for one in (0, 1, 30)}}
    more = {"policy": ADMITTER, "change": {"lengths": {"predictor": "lognormal", "error": 0.6}}}
    batch = _batch(study, {"order": {name: orders[name] for name in ("arrival", "longest", "weight 30")}}, **more)
    for order, what, holds in (("weight 30", "mean completion", (None, 0.7)), ("weight 30", "last start", (None, 0.85)),
            ("weight 30", "makespan", (0.99, None)), ("longest", "mean completion", (1.0, None)),
            ("longest", "makespan", (None, 0.9))):
        yield _over(f"batch: {what}, {order} over arrival", batch[what], "order", order, "arrival", holds)
    # Admission-v2's first condition, and clients with like prompts whose median outputs have 55 and 1,097 tokens.
    loads = {"documents": SHARED, "two clients": _clients((0.6, 4.0), (0.4, 7.0))}
    work, late = _serves(study, {"load": {load: {"offline": loads[load]} for load in loads},
        "order": {name: orders[name] for name in ("arrival", "weight 0", "weight 1")}}, {**ENGINE, **WINDOW}, **more)
    for load, holds in (("documents", (1.1, None)), ("two clients", (None, 0.95))):
        for other, range_ in (("weight 0", holds), ("arrival", None)):
            yield _over(f"{load}: weight 1 over {other}", work.at(load=load), "order", "weight 1", other, range_)
    yield Test("late where most", late.value(take="most"), holds=(None, 0.03))


measured("clock", "Simulated latencies", "validity.md",
    "Latencies of iterations of architectures held out of the fit are within a few per cent of measurements.",
    "mean absolute error 2.9 % on an A100, 3.4 % on an H100, 3.5 % on an H200 (`make validity`)",
    "results/validity.json")

measured("constraint", "Learning under a violation budget", "learned.md#learning-under-a-budget",
    "PID-Lagrangian PPO comes closest to a violation budget that can be spent gradually.",
    "8.5 % more [7.1, 9.7] than OOCO at 2.84 % violations in OnlineTuning, five of five runs within 3 %; a constant "
    "setting is better", "results/constraint.json")


@claim("deadline with offline work beyond capacity", "learned.md#what-deadline-serves", blocks=SEEDS)
def deadline_serves(study: Study) -> Iterator[Test]:
    """With more offline work than fits, default deadline serves more than the best published policy that meets the
    SLOs, on each of three workloads."""
    # Opponents: of nine policies the best that is late for at most 3 %, HyGen with the largest budget that keeps it.
    work, late = _serves(study, {"workload": list(DAYS),
        "policy": {"deadline": DEADLINE_CODE,
            "best published": by("workload", {"ooc": "conserve", "azure_conv": "hygen:latency_budget_s=0.0365",
                "azure_code": "niyama:max_num_seqs=64,preempted=recompute"})}},
        {"cluster": "mixed_7b", "duration_s": 1200.0, "offline": {"mode": "backlog"}})
    for day in DAYS:
        yield _over(day, work.at(workload=day), "policy", "deadline", "best published")
    yield Test("late where most", late.at(policy="deadline").value(take="most"), holds=(None, 0.03))


@claim("Larger shares of deadline", "learned.md#what-is-worth-deciding", blocks=SEEDS)
def deadline_shares(study: Study) -> Iterator[Test]:
    """With larger shares for offline prefill and of the TPOT SLO deadline ends a batch sooner than as it ships, and
    serves more on an H100 under a TPOT SLO of 20 ms, but not under one of 50 ms, which does not bind there."""
    larger = spelled(DEADLINE_SHIPPED, {"offline_share": 1.0, "tpot_share": 0.95})
    axes = {"policy": {"ships": DEADLINE_SHIPPED, "larger": larger}}
    for what, metric in _batch(study, axes).items():
        yield _over(f"batch: {what}", metric, "policy", "larger", "ships", (None, 0.98))
    slos = {"50 ms": {"ttft_s": 2.0, "tpot_s": 0.05}, "20 ms": {"ttft_s": 1.0, "tpot_s": 0.02}}
    work, late = _serves(study, {"limit": {slo: {"slo": slos[slo]} for slo in slos}, **axes},
        {"timing": "extended", "cluster": "mixed_h100_8b", "workload": "azure_conv", "online_rate": 14.0,
            "offline": {"mode": "backlog", "lengths": "ooc"}, **WINDOW})
    for slo, holds in (("50 ms", (0.98, 1.0)), ("20 ms", (1.03, None))):
        yield _over(f"H100, {slo}: offline work", work.at(limit=slo), "policy", "larger", "ships", holds)
    yield Test("H100: late where most", late.value(take="most"), holds=(None, 0.03))


@claim("deadline on mixed instances", "field.md", blocks=("9301:9311", "9401:9411"),
        found="1.31, 1.41 and 1.10 times on ooc, azure_conv and azure_code (20 seeds)")
def field(study: Study) -> Iterator[Test]:
    """On mixed instances deadline sustains more offline work than the best published policy on each of three
    workloads, all tuned."""
    # As tuned on seeds 101 and 102: on each day the two published policies that sustained most there.
    offline = _sustains(study, {"workload": DAYS,
        "policy": {"deadline": by("workload", {"ooc": DEADLINE_CONV, "azure_conv": DEADLINE_CONV,
                "azure_code": DEADLINE_CODE}),
            "first": by("workload", {"ooc": "conserve", "azure_conv": "niyama:margin=1.0",
                "azure_code": "conserve:tbt_share=0.6"}),
            "second": by("workload", {"ooc": "vllm_priority:max_num_batched_tokens=2048",
                "azure_conv": "hygen:latency_budget_s=0.045", "azure_code": "niyama:margin=1.0"})}}, 0.08,
        cluster="mixed_7b")
    for day in DAYS:
        yield Test(day, offline.at(workload=day).ratio({"policy": "deadline"}, {"policy": ["first", "second"]}),
            holds=(1.0, None))


@claim("A learned gate for pools", "learned.md#what-learned_gate-sustains", blocks=("9301:9311", "9401:9411"))
def gate_sustains(study: Study) -> Iterator[Test]:
    """On pools one learned gate sustains more offline work than OOCO tuned for each of six conditions, in all but one
    (ooc with 7B, where bursts decide)."""
    offline = _sustains(study, {"cluster": {"7B": "pair_7b", "72B": "pair_72b"}, "workload": DAYS,
        "policy": {"learned_gate": "learned_gate",
            "OOCO, searched": "ooco:slo_margin=0.9814,pull_margin=0.06381,random_tries=38,max_pull=1,interrupt=never,"
                "gate_gain=0.2005,gate_window=12,prefill_tokens=6164",
            "OOCO, interrupts late ones alone": "ooco:interrupt=slack"}}, 0.06)
    for day, size in (("azure_conv", "7B"), ("azure_code", "7B"), ("ooc", "72B"), ("azure_conv", "72B"),
                      ("azure_code", "72B"), ("ooc", "7B")):
        over = offline.at(workload=day, cluster=size).ratio({"policy": "learned_gate"},
            {"policy": ["OOCO, searched", "OOCO, interrupts late ones alone"]})
        yield Test(f"{day}, {size}", over, holds=None if (day, size) == ("ooc", "7B") else (1.0, None))


@claim("Admission with expected growth", "learned.md#scarce-kv-memory-admission-with-expected-growth",
        blocks=("9501:9526", "9601:9626"))
def growth(study: Study) -> Iterator[Test]:
    """Where KV memory is scarce, default admitter serves more if it counts running requests at their expected length
    on admission."""
    runs = study.play({"workload": {"azure_conv": {"workload": "azure_conv", "rate_scale": 0.050765},
            "azure_code": {"workload": "azure_code", "rate_scale": 0.029431},
            "sharegpt": {"workload": "sharegpt", "rate_scale": 0.51}},
        "policy": {"growth": "admitter:growth=1,offline_chunk=2048", "as it ships": "admitter:offline_chunk=2048"}},
        scenario={"timing": "ooco", "cluster": "mixed_llama2_7b_40g", "offline": {"mode": "rate", "rate": 4.0},
            "duration_s": 600.0})
    work = runs["offline.reference_gpu_s_per_s"]
    study.show({"offline work": work, "late": runs["online.violation_rate"],
        "recomputed tokens/s": runs["offline.wasted_tokens_per_s"]})
    yield _over("offline work with over without", work, "policy", "growth", "as it ships")


@claim("learned_deadline on its training chips", "learned.md#batching-on-mixed-instances",
        blocks=("9501:9521", "9601:9621"))
def learned_deadline_known(study: Study) -> Iterator[Test]:
    """On its training chips learned_deadline serves more than deadline with the best single setting, in conditions
    unseen in training."""
    settings = {"setting 1": DEADLINE_OOC,
        "setting 2": "deadline:tpot_share=0.9662,ttft_share=0.8301,decode_share=1.015,offline_share=0.6064,"
            "online_chunk=1364,offline_chunk=2089,least_iteration_s=0.007219,headroom_share=0.237,chunk_efficiency=0.0",
        "setting 3": "deadline:tpot_share=0.9578,ttft_share=0.7937,decode_share=1.164,offline_share=0.8592,"
            "online_chunk=957,offline_chunk=4146,headroom_share=0.1894,chunk_efficiency=0.0"}
    work, _ = _serves(study, {"condition": {"ooc 0.7": {"workload": "ooc", "rate_scale": 0.025687},
            "azure_conv 0.7": {"workload": "azure_conv", "rate_scale": 0.072974},
            "azure_code 0.7": {"workload": "azure_code", "rate_scale": 0.027879},
            "sharegpt 0.7": {"workload": "sharegpt", "rate_scale": 3.115},
            "azure_conv_2023 1.0": {"workload": "azure_conv_2023", "rate_scale": 1.130117},
            "few_shot": {"workload": "few_shot", "online_rate": 6.6},
            "Llama-2-7B, azure_conv_2023 1.0": {"cluster": "mixed_llama2_7b_40g", "workload": "azure_conv_2023",
                "rate_scale": 0.3865}}, "policy": {"learned_deadline": "learned_deadline", **settings}},
        {"cluster": "mixed_7b", "offline": {"mode": "backlog"}, "duration_s": 600.0, "warmup_s": 120.0})
    for setting in settings:
        yield _over(f"over {setting}", work, "policy", "learned_deadline", setting)


@claim("learned_deadline's sustained load", "learned.md#batching-on-mixed-instances", blocks=("9301:9311", "9401:9411"),
        found="+3.5, +5.6 and +2.0 %; -2.4 % on azure_conv (20 seeds)")
def learned_deadline_sustains(study: Study) -> Iterator[Test]:
    """On mixed instances learned_deadline sustains more offline work than deadline tuned for each condition, in three
    of four conditions."""
    tuned = {"ooc, 7B": DEADLINE_OOC, "azure_code, 7B": DEADLINE_CODE, "ooc, 72B": DEADLINE_CONV,
        "azure_conv, 7B": DEADLINE_CONV}
    offline = _sustains(study, {"condition": {"ooc, 7B": {**DAYS["ooc"], "cluster": "mixed_7b"},
            "azure_code, 7B": {"workload": "azure_code", "cluster": "mixed_7b"},
            "ooc, 72B": {**DAYS["ooc"], "cluster": "mixed_72b"},
            "azure_conv, 7B": {"workload": "azure_conv", "cluster": "mixed_7b"}},
        "policy": {"learned_deadline": "learned_deadline", "deadline": by("condition", tuned)}}, 0.05)
    for condition in tuned:
        over = offline.at(condition=condition).ratio({"policy": "learned_deadline"}, {"policy": "deadline"})
        yield Test(condition, over, holds=None if condition == "azure_conv, 7B" else (1.0, None))


@claim("One learned gate for all pools", "learned.md#on-pools-free-kv-memory", blocks=("9501:9521", "9601:9621"))
def learned_gate(study: Study) -> Iterator[Test]:
    """One learned gate serves more offline work than slack with the one setting that an equally long search found, on
    known pools and new chips; a one-line rule does as well."""
    h100, a100 = [{"chip": "h100"}], [{"chip": "a100_80g_pcie"}]
    work, _ = _serves(study, {
        "condition": {"7B, ooc": {"cluster": "pair_7b", "workload": "ooc", "rate_scale": 0.022018},
            "72B, azure_code": {"cluster": "pair_72b", "workload": "azure_code", "rate_scale": 0.006953},
            "Llama-2-7B, azure_conv_2023": {"cluster": "pair_llama2_7b_40g", "workload": "azure_conv_2023",
                "rate_scale": 0.3092},
            "H100": {"workload": "azure_conv", "online_rate": 21.2,
                "cluster": _cluster("h100_8b", "llama_3_1_8b", relaxed=h100, strict=h100)},
            "A100 PCIe": {"workload": "sharegpt", "online_rate": 1.24,
                "cluster": _cluster("a100_14b", "qwen2_5_14b", relaxed=a100, strict=a100)},
            "MI300X": {"workload": "azure_code", "online_rate": 16.8,
                "cluster": _cluster("mi300x_14b", "qwen3_14b", relaxed=_chips(mi300x=2), strict=[{"chip": "mi300x"}])},
            "H20": {"workload": "azure_conv_2023", "online_rate": 7.97,
                "cluster": _cluster("h20_7b", "qwen2_5_7b", relaxed=_chips(h20=2), strict=_chips(h20=2))}},
        "policy": {"learned_gate": "learned_gate",
            "slack": "slack:slo_margin=0.9733,pull_margin=0.0308,max_pull=40,slack_factor=1.463,gate_gain=0.09575,"
                "gate_window=1,prefill_tokens=7747,growth=0.6593,bank=1.14",
            "memory_gate": "memory_gate:slo_margin=0.9857,pull_margin=0.04993,max_pull=27,slack_factor=0.8115,"
                "prefill_tokens=7311,growth=0.3917,bank=0.5815,reserve=0.08969,gate_growth=0.2655"}},
        {"offline": {"mode": "backlog"}, "duration_s": 600.0, "warmup_s": 120.0})
    yield _over("over slack", work, "policy", "learned_gate", "slack")
    yield _over("over memory_gate", work, "policy", "learned_gate", "memory_gate", (0.98, 1.02))


measured("live", "Schedulers in a real vLLM", "sim_to_real.md",
    "The simulator ranks five schedulers as a live vLLM does at three of four loads.",
    "Kendall's tau 1.00, beyond the knee 0.80; on a CPU with a small random model", "results/sim_to_real.json")

measured("live_order", "Admission order in a real vLLM", "learned.md#admission-order-of-offline-requests",
    "In a real vLLM shared_work serves more than deadline up to the knee, without SLO violations.",
    "1.56, 1.87 and 1.76 times (predicted 1.46, 1.73 and 1.89) (two repeats of 30 s)",
    "results/sim_to_real_documents.json")


@claim("A one-line gate for scarce KV memory", "learned.md#on-pools-free-kv-memory", blocks=SEEDS)
def memory_gate(study: Study) -> Iterator[Test]:
    """Where KV memory is scarce, memory_gate, a one-line rule, serves more offline work than OOCO tuned by a search
    and default slack."""
    # The condition of Colocation-v1; OOCO as its search came to.
    work, _ = _serves(study, {"policy": {"memory_gate": "memory_gate",
            "OOCO": "ooco:slo_margin=0.7146,pull_margin=0.1675,random_tries=2,max_pull=3,interrupt=slack,"
                "slack_factor=1.378,gate_gain=0.08837,gate_window=1,prefill_tokens=1140", "slack": "slack"}},
        {"cluster": "pair_llama2_7b_40g", "workload": "azure_conv", "slo": {"ttft_s": 1.5, "tpot_s": 0.05},
            "offline": {"mode": "rate", "rate": 1.0}, "rate_scale": 0.065, "duration_s": 1800.0, "warmup_s": 300.0})
    for other in ("OOCO", "slack"):
        yield _over(f"over {other}", work, "policy", "memory_gate", other)


measured("routing_from_nothing", "A router learned from nothing", "learned.md#from-nothing-in-minutes",
    "A network that Maskable PPO trained from random weights in minutes has fewer SLO violations than LMetric tuned as "
    "long, at the same offline service.",
    "0.41 and 0.43 % of online requests (three networks) instead of 0.57 and 0.59 %: 0.16 points [0.02, 0.31] and 0.15 "
    "[0.01, 0.29] less, in two blocks of 75 windows", "results/routing_from_nothing.json")

measured("oracle", "The reimplemented vLLM scheduler", "oracle.md",
    "The reimplemented scheduler equals vLLM's at every step.",
    "every step of eight runs of 1,500 requests, and of 200,000 random ones in each release from 0.12 on "
    "(`make test-oracle`)", "results/oracle.json")


@claim("Which block of the prefix cache gives way", "learned.md#what-is-worth-deciding", blocks=SEEDS)
def retention(study: Study) -> Iterator[Test]:
    """Beside offline work that shares nothing, an engine serves more of it, with fewer violations, if offline blocks
    leave the prefix cache first, and still more if those of ended sessions do, by hints of which a tenth is wrong."""
    # 70 % of conversations go on, after 60 s. `turns` has the two best settings of twelve on seeds 21 to 23.
    retained, hints, right = "cluster.retention", "ended:hint_error=0.1", "ended:hint_error=0.0"
    turns = ["turns:turn_s=30,token_s=0", "turns:turn_s=30,token_s=30"]
    chips = [{"chip": "ascend_910c", "tp": 1, "pp": 1, "count": 1, "kv_blocks": 30_000}]
    lengths = {kind: {"weights": [1.0], "mu": [mu], "sigma": [0.8], "clip": clip}
        for kind, mu, clip in (("prompt", 8.0, [64, 16000]), ("output", 5.0, [4, 2000]))}
    works, late = _serves(study, {"offline.lengths": ["ooc", "arxiv_summarization"],
        retained: ["lru", "offline_first", hints, right, *turns, "belady"]},
        {"cluster": _cluster("one", "qwen2_5_7b", mixed=chips, kv_fraction=0.9, kv_link_bytes_per_s=25e9),
            "workload": {"name": "chat", "mean_rate_per_s": 1.0, "lengths": lengths,
                "sharing": {"form": "chat", "ratio": 0.7, "think_s": 60.0, "correlation": 0.9}},
            "rate_scale": 1.6, "slo": ENGINE["slo"], "offline": {"mode": "rate", "rate": 3.0}, **WINDOW},
        policy=spelled(DEADLINE_SHIPPED, {"prefix_caching": "on"}))
    for load in works.labels("offline.lengths"):
        work = works.where({"offline.lengths": load})
        for rule, least in (("offline_first", 1.05), (hints, 1.15), (right, 1.15), ("belady", 1.15)):
            yield _over(f"{load}: {rule} over lru", work, retained, rule, "lru", (least, None))
            yield _over(f"{load}: {rule} over turns", work, retained, rule, turns)
        yield _over(f"{load}: belady over {hints}", work, retained, "belady", hints)
    for rule, most in (("offline_first", 0.9), (hints, 0.5)):
        yield _over(f"violations: {rule} over lru", late, retained, rule, "lru", (None, most), floor=0.001)


@claim("A learned router", "learned.md#routing-unequal-chips-stale-metrics-shared-prefixes",
        blocks=("950000:950013", "960000:960013"))
def router(study: Study) -> Iterator[Test]:
    """On three mixes of chips and two workloads a learned score has fewer SLO violations than the best published
    router at the same offline service, all tuned by the same search."""
    # 95 % of the largest rates at which `router` as tuned violates 3 % (seeds 501 and 502), of documents and of chat.
    # No search has met `h100 and l40s` or `a100 and l40s`. Left out: `sticky`, `requests` and `power_of_two`, which
    # violate three, ten and forty times as many in the first condition, tuned alike.
    conditions = {}
    for title, name, mixed, rates in (
            ("four unequal", "four_unequal", _chips(h100=1, a100_80g=1, l40s=2), (5.33, 17.5)),
            ("h100 and l40s", "h100_l40s", _chips(h100=1, l40s=3), (4.96, 16.4)),
            ("a100 and l40s", "a100_l40s", _chips(a100_80g=2, l40s=2), (2.23, 9.0))):
        cluster = _cluster(name, "qwen2_5_7b", kv_fraction=0.9, max_batch=512, mixed=mixed)
        for load, workload, rate in zip(("documents", "chat"), ("doc_qa", "sharegpt"), rates, strict=True):
            conditions[f"{title}, {load}"] = {"workload": workload, "online_rate": rate, "cluster": cluster}
    runs = study.play({"condition": conditions,
        "policy": {"learned": "learned_router",
            "LMetric": "router:rule=lmetric,sent_weight=1.526,waiting_weight=1.8,speed_share=1.867,queue_weight=0.298",
            "latency": "router:rule=latency,sent_weight=1.239,drain=0.8746,decode_tokens=23.22"}},
        scenario={"timing": "ooco", "offline": {"mode": "rate", "rate": 4.0}, "duration_s": 600.0, "warmup_s": 120.0},
        change={"policy.lag_s": 2.0, "policy.prefix_caching": "on", "policy.offline_chunk": 2048})
    late, work = runs["online.violation_rate"], runs["offline.reference_gpu_s_per_s"]
    study.show({"late": late, "offline work": work, "P99 TTFT s": runs["online.ttft_p99_s"]})
    yield _over("violations over those of the best other", late, "policy", "learned", ["LMetric", "latency"],
        (None, 0.95), best="low", floor=0.001)
    yield _over("offline work over that of the best other in violations", work, "policy", "learned", "LMetric",
        (0.98, None))
