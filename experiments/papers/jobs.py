"""Claims of agents' jobs (docs/workloads.md)."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.plays import jobs_to_end
from experiments.registry import Test, claim
from experiments.study import Study

# Jobs on two H100s with 64 seats each (docs/workloads.md): 70 and 95 % of capacity, and more than is served.
ROLLOUTS = {"weights": [1.0], "sigma": [1.0], "clip": [16, 8192]}
PROMPTS = {"weights": [1.0], "mu": [6.0], "sigma": [0.6], "clip": [32, 4096]}
TWO_ROLLOUTS = {"name": "two_rollouts", "mean_rate_per_s": 1.0, "sharing": {"form": "rollouts"},
    "lengths": {"prompt": PROMPTS, "output": {**ROLLOUTS, "mu": [5.3]}}, "clients": [
        {"share": share, "lengths": {"prompt": PROMPTS, "output": {**ROLLOUTS, "mu": [mu]}}}
        for share, mu in ((0.7, 5.3), (0.3, 6.9))]}
JOBS = {f"{workload if isinstance(workload, str) else 'two_rollouts'}, {rate:g}/s": {"workload": workload,
    "rate_scale": rate, "duration_s": duration_s} for workload, rate, duration_s in (("agents", 1.47, 900.0),
        ("agents", 2.0, 900.0), ("agents", 2.6, 300.0), ("rollouts", 1.16, 900.0), ("rollouts", 1.58, 900.0),
        ("rollouts", 2.1, 300.0), (TWO_ROLLOUTS, 2.1, 300.0))}


@claim("Whose job goes first", "workloads.md#whose-job-goes-first", blocks=("9511:9521", "9611:9621"))
def job_orders(study: Study) -> Iterator[Test]:
    """Where jobs of two kinds arrive faster than they are served, the service that a job is expected to need takes a
    tenth or more off FCFS' mean completion; at 95 % of capacity an order that knows it takes less than that."""
    orders = {name: f"admitter:rule={rule},refresh_s=0,max_num_seqs=64" for name, rule in (("FCFS", "arrival"),
        ("first job", "first_job"), ("attained", "attained"), ("expected", "job_expected"), ("bound", "job_left"))}
    runs = study.play({"load": JOBS, "policy": {**orders,
        "vLLM": "vllm_priority:prefix_caching=on,max_num_seqs=64",
        "Autellix": "autellix:max_num_seqs=64,max_num_batched_tokens=8192"}},
        scenario={"cluster": "mixed_h100_8b", "start_s": 0.0}, play=jobs_to_end)
    mean, p99 = runs["completion_mean_s"], runs["completion_p99_s"]
    study.show({"mean s": mean, "P99 s": p99, "slow-down": runs["slowdown_mean"]})
    for load in JOBS:
        yield Test(f"{load}: FCFS, mean s", mean.at(load=load, policy="FCFS").value())
        yield Test(f"{load}: FCFS, P99 s", p99.at(load=load, policy="FCFS").value())
        for name in ("vLLM", "first job", "attained", "Autellix", "expected", "bound"):
            holds = ((None, 0.9) if (name, load) == ("expected", "two_rollouts, 2.1/s") else
                (0.9, 1.0) if name == "bound" and load in ("agents, 2/s", "rollouts, 1.58/s") else None)
            for what, metric in (("mean", mean), ("P99", p99)):
                yield Test(f"{load}: {name} over FCFS, {what}", metric.at(load=load).ratio({"policy": name},
                    {"policy": "FCFS"}), holds=holds if what == "mean" else None)
