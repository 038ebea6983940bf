"""Search for a peak factor: the idle floor, then the largest load that a cluster sustains alone (OOCO 5.2).

The load is what base P/D sustains without offline work on the cluster, or, for mixed instances, on
their twin. For mixed instances without a twin it is what vLLM's own scheduler sustains.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.files import cache_path
from ooco_gym.peak import (
    FILE_NAME,
    PROTOCOL,
    digest,
    key_of,
    label,
    shipped_file,
    store_entry,
    stored_entry,
    title_of,
)
from ooco_gym.protocol import VIOLATION_BUDGET, Predictor
from ooco_gym.scenario import Scenario
from ooco_gym.study.options import seeds_of
from ooco_gym.study.runs import Jobs
from ooco_gym.study.search import bisected, walked
from ooco_gym.study.sustain import late_at_most, settling

MOST_FACTOR = 1e4  # of a load


@dataclass(frozen=True)
class PeakPlan:
    """Parameters of a search for a peak factor.

    Attributes:
        over_floor: violations may exceed the idle floor by this (docs/protocol.md: 0.5 points).
        budget: violations allowed to policies (OOCO: 3 %); a floor above a third of it is an error.
        first_rate: online requests per second to begin with, on one instance of each kind.
        precision: bisection ends when the bracket is this share of its upper end.
    """

    over_floor: float = 0.005
    budget: float = VIOLATION_BUDGET
    first_rate: float = 0.05
    precision: float = 0.01


def reference_policy(scenario: Scenario) -> str:
    """Returns the policy that defines a cluster's online-only capacity, the plain one of its kind; what the cluster
    does not state was fixed when the first factors were stored, so that peaks do not depend on later defaults."""
    cluster = scenario.load_cluster()
    budget, seats = cluster.max_num_batched_tokens or 2048, cluster.max_num_seqs or 256
    return f"vllm_fcfs:max_num_batched_tokens={budget},max_num_seqs={seats},prefix_caching='off'" if (
        cluster.mixed) else "base_pd"


def peak_entry(scenario: Scenario, jobs: Jobs, seeds: tuple[int, ...], plan: PeakPlan, find: bool = False,
               write: bool = False) -> dict[str, Any]:
    """Returns the peak factor of a scenario's workload, cluster and SLO: given by the user, stored, or searched now.

    Args:
        scenario: to scale; its own `rate_scale` or `online_rate` is used unchanged.
        jobs: runs simulations.
        seeds: paired seeds.
        plan: parameters of the search.
        find: search even if a factor is stored. A factor found under the protocol is stored for every run; one found
            under other conditions (window, seeds, parameters) only for the same conditions.
        write: store it in the shipped file, too, not only in the user's cache folder.

    Returns:
        A mapping with `workload`, `cluster` (for mixed instances their twin), `tpot_from`, the SLO,
        `factor`, `floor`, `violation_rate` (both None for a given factor), `rate_per_s` and
        `seeds`.

    Raises:
        UserError: the idle floor exceeds a third of the violation budget, or no load is small enough.
    """
    if scenario.online_rate is not None or (scenario.from_file and not find):
        scenario = scenario.with_(rate_scale=scenario.online_scale())
    scenario = scenario.peak_factor_scenario()
    slo = scenario.load_slo()
    key = key_of(label("workload", scenario.workload), label("cluster", scenario.cluster), asdict(slo), slo.tpot_from)
    if scenario.rate_scale is not None:
        return {**key, "factor": scenario.rate_scale, "floor": None, "violation_rate": None,
                "rate_per_s": scenario.rates()[0], "seeds": list(seeds)}
    conditions = conditions_of(scenario, seeds, plan)
    entry = None if find else stored_entry(key, conditions)
    if entry is None:
        alone = scenario.with_(rate_scale=1.0).online_alone()
        entry = {**key, **find_peak(alone, jobs, seeds, plan), "conditions": conditions}
        _keep(entry, {**key, "conditions": conditions})
    if write:
        store_entry({name: value for name, value in entry.items() if name != "conditions"}, shipped_file(), key)
    return entry


def _keep(entry: Mapping[str, Any], key: Mapping[str, Any]) -> None:
    """Stores a factor for later runs; a folder that cannot be written only causes a warning."""
    path = cache_path(FILE_NAME)
    if path is None:
        return
    try:
        store_entry(entry, path, key)
    except (OSError, UserError) as error:
        warnings.warn(f"the peak factor cannot be stored in '{path}' ({' '.join(str(error).split())})",
                      UserWarning, stacklevel=3)


def conditions_of(scenario: Scenario, seeds: tuple[int, ...], plan: PeakPlan) -> str:
    """Returns a digest of what a factor depends on besides its key; `protocol` if all is the protocol's."""

    def values(one: Scenario) -> dict[str, Any]:
        return {"duration_s": float(one.window()[1]), "start_s": one.start_s, "protocol": asdict(one.load_protocol()),
                "timing": _timing_of(one), "jitter": one.jitter,
                "predictor": asdict(Predictor.load(one.predictor)), "gap_s": one.load_slo().gap_s,
                **({} if one.classes is None else {"classes": [asdict(each) for each in one.load_classes()]})}

    mine = {**values(scenario), "seeds": list(seeds), "plan": asdict(plan)}
    usual = {**values(Scenario()), "seeds": list(seeds_of(None)), "plan": asdict(PeakPlan())}
    return PROTOCOL if mine == usual else digest(mine)


def _timing_of(scenario: Scenario) -> str:
    """Returns the timing form if it differs from the chips' own, else an empty text."""
    own = scenario.load_cluster().default_timing()
    return "" if scenario.timing in (None, own) else label("timing", scenario.timing)


def find_peak(scenario: Scenario, jobs: Jobs, seeds: tuple[int, ...], plan: PeakPlan) -> dict[str, Any]:
    """Searches for the largest factor at which the reference policy stays within `plan.over_floor`: doubling upwards,
    then bisection."""
    where, slo = f"'{title_of(scenario.workload)}' on '{scenario.load_cluster().name}'", scenario.load_slo()
    reference, cluster, mean_rate = reference_policy(scenario), scenario.load_cluster(), scenario.rates()[0]
    first = plan.first_rate * sum(pool.count for pool in cluster.relaxed + cluster.mixed)

    def played(factor: float) -> list[dict[str, Any]]:
        return jobs.all([settling(scenario).with_(seed=seed, rate_scale=factor) for seed in seeds], reference)

    floor = float(np.mean([one["online"].get("infeasible", {}).get("share", 0.0) for one in played(first / mean_rate)]))
    if floor > plan.budget / 3:
        raise UserError(f"{100 * floor:.2f} % of the requests of {where} violate their SLOs even on an idle cluster, "
                        f"more than a third of the {100 * plan.budget:g} % allowed: raise slo.ttft_s={slo.ttft_s:g} or "
                        f"slo.tpot_s={slo.tpot_s:g}, or take faster chips")
    shares: dict[float, float] = {}

    def holds(factor: float) -> bool:
        shares[factor] = float(np.mean([late_at_most(one, slo.tpot_from) for one in played(factor)]))
        return shares[factor] <= floor + plan.over_floor

    doubled = (first / mean_rate * 2.0**n for n in itertools.count())
    best, failed = walked(holds, itertools.takewhile(lambda factor: factor < MOST_FACTOR, doubled))
    if best is None:
        raise UserError(f"no load of {where} is light enough: even {first:g} requests a second "
                        f"have more than {100 * (floor + plan.over_floor):.2f} % violations without offline work; "
                        "give rate_scale=… or online_rate=… instead of a peak")
    factor, _ = bisected(holds, best, failed or 2 * best, lambda low, high: high - low > plan.precision * high)
    return {"factor": round(factor, 6), "floor": round(floor, 6), "violation_rate": round(shares[factor], 6),
            "rate_per_s": round(factor * mean_rate, 4), "seeds": list(seeds), "duration_s": scenario.window()[1]}
