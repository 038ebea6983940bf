"""HyGen's SLO-aware profiler (arXiv 2501.14808, section 4.2): how much offline work an online SLO
allows.

An SLO is a metric of online service with a tolerance, by which it may exceed its value without
offline work. The profiler simulates the workload and finds by binary search the largest parameter
under which every SLO holds: HyGen's latency budget of an iteration, or HyGen*'s rate of offline
requests.

The paper does not say whether its profiler saw the measured hour. Here it does not. The test runs
have their own seeds, `profile_seed` and those after it, and windows of at most
`profile_duration_s`. An SLO must hold in each of `profile_windows` test runs.

A trace file is the same under every seed, so its test runs have other windows: those just before
the measured one, the nearest first, then those just after it, as far as the file goes. If there are
none, the test runs use the measured window, and a note reports it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.metrics import summarise
from ooco_gym.peak import title_of
from ooco_gym.perf import cost_table, decode_latency_ps, prefill_latency_ps
from ooco_gym.perf.table import PS_PER_S
from ooco_gym.policy.policy import Param, Policy
from ooco_gym.report.terminal import remark
from ooco_gym.simulation import simulate
from ooco_gym.study.search import bisected

if TYPE_CHECKING:
    from ooco_gym.scenario import ResolvedScenario, Scenario

Played = TypeVar("Played", "Scenario", "ResolvedScenario")
METRICS = {"mean_ttft": "ttft_mean_s", "p99_ttft": "ttft_p99_s", "mean_tbt": "itl_mean_s", "p99_tbt": "itl_p99_s"}
AUTO = -1.0  # of a parameter that the profiler finds
PROFILE_PARAMS = (
    Param("slo_metric", "metric of online service that the profiler protects", choices=tuple(METRICS)),
    Param("tolerance", "share by which slo_metric may exceed its value without offline work", 0.0, 1000.0),
    Param("second_metric", "metric of a second SLO (Figure 11)", choices=("none", *METRICS)),
    Param("second_tolerance", "tolerance of second_metric", 0.0, 1000.0),
    Param("profile_seed", "first seed of the profiler's test runs", 0, 2**31),
    Param("profile_windows", "number of test runs (one seed each); an SLO must hold in all", 1, 100),
    Param("profile_duration_s", "longest window of a test run, seconds", 1.0, 1e7),
    Param("profile_steps", "halvings of the profiler's search", 1, 40),
)
PROFILE_NAMES = frozenset(param.name for param in PROFILE_PARAMS)


def excess(metric: str, shared: Mapping[str, Any], quiet: Mapping[str, Any]) -> float:
    """Share by which a metric of one run's `online` metrics exceeds another's.

    It is infinite without a value, or if fewer requests finish than keep their SLO without offline
    work: metrics count only served requests, so starving some must not help. Requests that violate
    anyway may be unfinished, since a run ends once all others are done.

    Raises:
        UserError: the run without offline work has no value to compare with.
    """
    before, now = quiet[METRICS[metric]], shared[METRICS[metric]]
    if not before:
        raise UserError(f"HyGen's profiler cannot compare {metric}: the test run without offline work has none, as no "
                        "online request got so far; raise rate_scale or move the window (start_s, duration_s)")
    kept = quiet["arrived"] - round(quiet["arrived"] * quiet["violation_rate"])
    return math.inf if now is None or shared["finished"] < min(kept, quiet["finished"]) else now / before - 1.0


def keeps(values: Mapping[str, Any], shared: Mapping[str, Any], quiet: Mapping[str, Any]) -> bool:
    """Whether a run's `online` metrics keep a policy's SLOs, relative to a run without offline work."""
    return all(excess(values[f"{which}_metric"], shared, quiet) <= values[tolerance]
               for which, tolerance in (("slo", "tolerance"), ("second", "second_tolerance"))
               if values[f"{which}_metric"] != "none")


def search(values: Mapping[str, Any], highest: Callable[[Mapping[str, Any]], float],
           run: Callable[[Played, float], Mapping[str, Any]], trials: Sequence[Played]) -> float:
    """Finds by binary search the largest value of a parameter that keeps the SLOs; 0 allows no
    offline work.

    Args:
        values: of the policy: its SLOs and `profile_steps`.
        highest: returns the search's upper end from the summary of an unbounded run.
        run: returns the summary of a test run with the parameter at a value.
        trials: scenarios; an SLO must hold in all of them.
    """
    def holds(value: float) -> bool:
        return all(keeps(values, run(one, value)["online"], run(alone(one), math.inf)["online"]) for one in trials)

    low, high = 0.0, highest(run(trials[0], math.inf))
    if holds(math.inf) or holds(high):
        return high
    steps = iter(range(int(values["profile_steps"])))
    return bisected(holds, low, high, lambda *_: next(steps, None) is not None)[0]


def alone(scenario: Played) -> Played:
    """A scenario without its offline work, as reference for the SLOs."""
    return scenario.with_(offline={"mode": "rate", "rate": 0.0})


def trials_of(scenario: Played, values: Mapping[str, Any]) -> list[Played]:
    known = scenario.resolve()
    length_s = min(known.duration_s, float(values["profile_duration_s"]))
    shorter = scenario.with_(duration_s=length_s)
    first, count = int(values["profile_seed"]), int(values["profile_windows"])
    if not scenario.from_file:
        return [shorter.with_(seed=first + i) for i in range(count)]
    starts = windows_beside(known.workload, known.start_s, known.duration_s, length_s, count)
    if not starts:
        remark("HyGen's profiler test-runs the measured window: trace file of workload "
               f"'{title_of(known.given.workload)}' has no other of {length_s:g} s; a longer file, or a shorter "
               "window (duration_s, profile_duration_s), lets it look elsewhere")
        starts = [known.start_s] * count
    return [shorter.with_(seed=first + i, start_s=start) for i, start in enumerate(starts)]


def windows_beside(workload: Any, start_s: float, duration_s: float, length_s: float, most: int) -> list[float]:
    """Starts of up to `most` windows of `length_s` in which each trace file of a workload has a
    request.

    They lie back to back before the measured one (`start_s` from the first request, `duration_s`
    long), the nearest first, then after its end.
    """
    files = [part for part in workload.parts if part.source in workload.files]
    before, until_s = int(start_s // length_s), min(part.source.last_s - part.origin_s for part in files)
    behind = max(0, int((until_s - start_s - duration_s) // length_s))
    starts = [start_s - (i + 1) * length_s for i in range(before)]
    starts += [start_s + duration_s + i * length_s for i in range(behind)]
    found = []
    for start in starts:
        edges = np.array([start, start + length_s])
        if all(np.diff(part.counts_before(edges))[0] > 0 for part in files):
            found.append(start)
    return found[:most]


def test_run(scenario: Scenario | ResolvedScenario, policy: Policy) -> dict[str, Any]:
    """Summary of a test run, simulated once in a process for all SLOs."""
    unlike = {name: value for name, value in policy.values.items() if name not in PROFILE_NAMES}  # changes the run
    key = json.dumps([scenario.describe(), policy.name, unlike], sort_keys=True, default=str)
    if key not in _RUNS:
        _RUNS[key] = summarise(simulate(scenario, policy, sample_s=1e7))
    return _RUNS[key]


_RUNS: dict[str, dict[str, Any]] = {}


def profile_budget(policy: Policy, scenario: ResolvedScenario) -> dict[str, float]:
    """HyGen: the latency budget of an iteration, in seconds, if it is not given."""
    return _profile(policy, scenario, "latency_budget_s", lambda _: longest_iteration_s(policy, scenario))


def profile_rate(policy: Policy, scenario: ResolvedScenario) -> dict[str, float]:
    """HyGen*: the rate of offline requests that an instance admits, per second, if it is not given."""
    return _profile(policy, scenario, "offline_qps", served_rate)


def _profile(policy: Policy, scenario: ResolvedScenario, name: str,
             highest: Callable[[Mapping[str, Any]], float]) -> dict[str, float]:
    if policy.values[name] != AUTO:
        return {}
    return {name: search(policy.values, highest, lambda one, value: test_run(one, policy.with_values({name: value})),
                         trials_of(scenario, policy.values))}


def served_rate(summary: Mapping[str, Any]) -> float:
    """One and a half times the offline requests that a run served per second and instance."""
    return 1.5 * summary["offline"]["finished"] / summary["window_s"] / len(summary["instances"])


def longest_iteration_s(policy: Policy, scenario: Scenario | ResolvedScenario) -> float:
    """Latency of an iteration without a budget, in seconds: a full chunk beside decodes that fill
    the memory."""
    known, longest = scenario.resolve(), 0
    cluster = known.cluster
    for deployment in dict.fromkeys(one for _, one in known.deployments):
        table, chunk = cost_table(deployment, cluster.max_batch, 1), int(policy.values["chunk_size"])
        memory, batch = table.kv_blocks * cluster.block_tokens, int(policy.values["max_num_seqs"])
        decodes = decode_latency_ps(table, min(batch, cluster.max_batch), memory)
        longest = max(longest, decodes + prefill_latency_ps(table, [(chunk, 4 * chunk)]))
    return longest / PS_PER_S
