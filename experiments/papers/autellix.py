"""Figures of Autellix (arXiv 2502.13965).

Its testbed (6.1, 6.2): LLaMA-3.1-8B on one A100-SXM4-80GB, PCIe 4.0 x16; ShareGPT's conversations as programs, 6.66
calls in the mean, each of 256 fresh prompt tokens and 277 answered ones, whose next call follows at once; programs
arrive as a Poisson process. Ours: lengths are lognormal and the number of calls geometric, at most 40. Not published:
the largest batch (here 256 requests, the default of vLLM 0.6), and the parameters that `baselines/autellix.py` names.
Programs of a window are played to the end of all.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from experiments.plays import jobs_to_end
from experiments.registry import Paper, Test, figure
from experiments.study import Study
from ooco_gym.study.table import Answer, Metric

CHAT = {"name": "sharegpt_programs", "mean_rate_per_s": 1.0,
    "lengths": {"prompt": {"weights": [1.0], "mu": [5.0], "sigma": [1.04], "clip": [8, 8192]},
        "output": {"weights": [1.0], "mu": [5.3], "sigma": [0.8], "clip": [4, 4096]}},
    "sharing": {"form": "agents", "turns": 6.66, "tool_s": 0.0, "tool_sigma": 0.0, "fork_share": 0.0,
        "head_blocks": 0}}
CLUSTER = {"name": "autellix_llama31_8b", "model": "llama_3_1_8b", "mixed": [{"chip": "a100_80g", "count": 1}],
    "kv_fraction": 0.9, "block_tokens": 16, "max_batch": 1024, "slo": "chat", "kv_link_bytes_per_s": 25e9,
    "host_gib": 170.0, "host_link_bytes_per_s": 25e9}
PAPER = Paper("Autellix (arXiv 2502.13965)", {"cluster": CLUSTER, "workload": CHAT, "start_s": 0.0,
    "duration_s": 1800.0}, seeds=5, quick={"scenario": {"duration_s": 600.0}, "seeds": 2})
SEATS = "max_num_seqs=256"
POLICIES = {"Autellix": f"autellix:{SEATS}", "MLFQ": f"autellix:rule=mlfq,{SEATS}", "vLLM-opt": f"vllm_fcfs:{SEATS}"}
LATENCIES_S = (0.05, 0.1, 0.2, 0.4)  # a generated token, at which throughputs are compared


def _throughput(latency: Metric, policy: str, at_s: float) -> np.ndarray:
    """Returns the rate by seed up to which a policy's mean latency stays below `at_s`, between the rates played."""
    mine = latency.at(policy=policy)
    rates = [float(point["rate_scale"]) for point in mine.points]
    return np.array([np.interp(at_s, np.maximum.accumulate(values), rates) for values in mine.values.T])


def _most_over(latency: Metric, policy: str, other: str) -> Answer:
    """Returns the ratio of two policies' throughputs at the latency where it is most."""
    ratios = np.array([_throughput(latency, policy, at_s) / _throughput(latency, other, at_s) for at_s in LATENCIES_S])
    return Answer(ratios[int(ratios.mean(axis=1).argmax())], latency.seeds)


@figure(PAPER, "Latency of programs by their rate, ShareGPT", "Figure 12, first row, LLaMA-3.1-8B",
        "section 6.3: up to 8 times vLLM's throughput, twice vLLM-opt's and 1.5 times MLFQ's at the same latency",
        why="Quanta and largest batch are not published; vLLM 0.6 computes conversations anew, at half the pace.")
def fig12(study: Study) -> Iterator[Test]:
    """At the same program-level latency a token, Autellix serves up to 8 times the programs of vLLM, twice those of
    vLLM with chunked prefill and prefix caching, and 1.5 times those of MLFQ."""
    runs = study.play({"rate_scale": study.either([0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6, 2.0, 2.6, 3.2],
            [0.1, 0.2, 0.4, 0.8, 1.2, 1.6, 2.4, 3.2]), "policy": {**POLICIES, "vLLM": "vllm_v0:max_num_seqs=256"}},
        play=jobs_to_end)
    latency = runs["token_latency_s"]
    study.show({"latency, s a token": latency, "completion s": runs["completion_mean_s"],
        "P99 s": runs["completion_p99_s"]}, kind="lines", x="rate_scale", y="latency, s a token", series="policy")
    yield Test("Autellix over vLLM-opt, where that is most", _most_over(latency, "Autellix", "vLLM-opt"), (1.5, 2.6),
        (1.1, None))
    yield Test("Autellix over MLFQ, where that is most", _most_over(latency, "Autellix", "MLFQ"), (1.2, 2.0),
        (1.0, None))
    yield Test("Autellix over vLLM, where that is most", _most_over(latency, "Autellix", "vLLM"), (5.0, 12.0),
        (1.5, None))


@figure(PAPER, "Time to serve a batch of programs", "Figure 16", "section 6.5.1: 10 to 40 % less; bars without values",
        why="Both FCFS and Autellix serve all first calls first, so a conversation's KV memory is gone when "
            "its next call comes (of 1,000 programs 13 and 16 % of the prompts are found in the cache); MLFQ puts that "
            "call first (42 %). Swapping, which stops the paper's MLFQ at 4,000 programs, costs it little here.")
def fig16(study: Study) -> Iterator[Test]:
    """Where all programs come at once, Autellix is done with them 10 to 40 % earlier than the others."""
    runs = study.play({"rate_scale": [1000.0, 2000.0, 4000.0], "policy": POLICIES}, play=jobs_to_end,
        scenario={"duration_s": 1.0}, change={"duration_s": 1.0})
    makespan = runs["makespan_s"]
    study.show({"makespan s": makespan, "hit rate": runs["hit_rate"]}, kind="bars", x="rate_scale",
        y="makespan s", series="policy")
    for other in ("vLLM-opt", "MLFQ"):
        yield Test(f"makespan over {other}'s", makespan.ratio({"policy": "Autellix"}, {"policy": other}), (0.6, 0.9),
            (0.5, 1.0))


@figure(PAPER, "Schedulers beside the best order", "Figure 18", "section 6.5.3; lines without values, of a simulator "
        "whose steps take equally long; round robin is not played")
def fig18(study: Study) -> Iterator[Test]:
    """Autellix' latency is below that of MLFQ and of FCFS, and a gap remains to the order that knows what is left."""
    runs = study.play({"rate_scale": [1.2, 1.6, 2.0], "policy": {**POLICIES, "SRPT": f"autellix:rule=srpt,{SEATS}"}},
        play=jobs_to_end)
    latency = runs["token_latency_s"]
    study.show({"latency, s a token": latency}, kind="lines", x="rate_scale", y="latency, s a token", series="policy")
    yield Test("share of neighbours in the paper's order", latency.order("policy", ["vLLM-opt", "MLFQ", "Autellix",
        "SRPT"]), (0.9, 1.0), (0.6, 1.0))
    yield Test("Autellix over SRPT", latency.ratio({"policy": "Autellix"}, {"policy": "SRPT"}), (1.1, None),
        (1.0, None))
