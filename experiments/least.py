"""`ooco-gym capacity least.find=true`: the fewest instances that keep the online promises.

Echo's least resources (arXiv 2504.03651, 5.4), step 1: a short time around the peak, and resources from the smallest to
the largest until the SLOs are met, without offline work. The clusters found are written as files, so that `ooco-gym
capacity cluster=FILE` is its step 2: what offline work they carry besides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from experiments.common.output import rounded, write_texts
from experiments.common.policies import seeds_of
from experiments.common.runner import Jobs
from ooco_gym.cluster import Cluster
from ooco_gym.commands.simulate import say_played
from ooco_gym.errors import UserError
from ooco_gym.peak import label, short_name
from ooco_gym.policy import get_policy
from ooco_gym.report import Column, Table, console, percent
from ooco_gym.scenario import Scenario
from ooco_gym.workload import workload_mean_rate

SCHEMA = "ooco-gym/least/1"
ROLES = ("relaxed", "strict", "mixed")
Size = Mapping[str, int]


def sizes(cluster: Cluster, most: int) -> Iterator[Sequence[Size]]:
    """Instances by role, fewest first: for each number of them, all ways to part it between the cluster's roles."""
    if cluster.mixed:
        yield from ([{"mixed": count}] for count in range(1, most + 1))
        return
    for count in range(2, most + 1):
        yield [{"relaxed": count - strict, "strict": strict} for strict in range(1, count)]


def sized(scenario: Scenario, size: Size) -> dict[str, Any]:
    """The scenario's cluster with so many instances of each role, as a cluster file holds it."""
    cluster = scenario.load_cluster()
    values = {name: value for name, value in vars(cluster).items() if name not in ROLES}
    values["twin"] = None  # of other hardware now
    pools = {role: [vars(replace(getattr(cluster, role)[0], count=count))] for role, count in size.items()}
    return {**values, **pools, "name": f"{cluster.name}_{'_'.join(map(str, size.values()))}"}


def fewest(scenario: Scenario, policy: str, jobs: Jobs, seeds: Sequence[int], limit: float,
           most: int) -> list[dict[str, Any]]:
    """What each number of instances comes to, in its best division, up to the first that keeps the promises.

    Args:
        scenario: the online load and the time; offline work is left out.
        policy: who schedules, on clusters of its kind.
        jobs: where simulations run.
        seeds: of the arrivals; the mean over them counts.
        limit: largest share of online requests that may violate.
        most: instances at most.

    Raises:
        UserError: `most` instances are too few, or a role has instances of several kinds.
    """
    cluster, rows = scenario.load_cluster(), []
    for role in ROLES:
        if len(getattr(cluster, role)) > 1:
            raise UserError(f"cluster '{cluster.name}': pool '{role}' has groups of different instances; expected one, "
                            "of which least.find can take more or fewer")
    for divisions in sizes(cluster, most):
        asked = [[jobs.submit(scenario.with_(cluster=sized(scenario, size), seed=seed, offline_rate=0.0), policy)
                  for seed in seeds] for size in divisions]
        shares = [float(np.mean([one.result()["online"]["violation_rate"] or 0.0 for one in runs])) for runs in asked]
        best = int(np.argmin(shares))
        rows.append({"policy": policy, "instances": sum(divisions[best].values()), **divisions[best],
                     "violation_rate": shares[best], "kept": shares[best] <= limit})
        if rows[-1]["kept"]:
            return rows
    raise UserError(f"least.most={most} instances of cluster '{cluster.name}' are too few under '{policy}': "
                    f"{percent(rows[-1]['violation_rate'])} of the online requests violate, more than "
                    f"{percent(limit)}; raise least.most, or lower rate_scale")


def main(scenario: Scenario, options: Mapping[str, Any], policies: Sequence[str], jobs: Jobs) -> dict[str, Any]:
    """Finds them for each policy, prints a table, writes the clusters; returns the command's summary."""
    least, seeds = options["least"], seeds_of(options["seeds"])
    scale = scenario.rate_scale if scenario.rate_scale is not None or scenario.online_rate is not None else 1.0
    scenario = scenario.with_(duration_s=float(least["window_s"]), rate_scale=scale)
    say_played(scenario)
    limit, out, found = float(options["limits"]["violations"]), Path(options["out"]), []
    for policy in policies:
        mine = scenario.on_kind(get_policy(policy).mixed)
        rows = fewest(mine, policy, jobs, seeds, limit, int(least["most"]))
        cluster = sized(mine, {role: rows[-1][role] for role in ROLES if role in rows[-1]})
        file = out / f"least_{re.sub(r'[^a-z0-9.]+', '_', policy)}.yaml"
        write_texts({file: yaml.safe_dump(rounded(cluster), sort_keys=False)})
        found.append({**rows[-1], "cluster": str(file), "tried": rows})
    where = (f"{short_name(scenario.workload)} at its peak, {least['window_s']:g} s, "
             f"{scenario.online_scale() * workload_mean_rate(scenario.workload):.3g} requests/s in the day's mean")
    columns = (Column("policy", "policy", align="l"), Column("instances", "instances"),
               *(Column(role, lambda row, role=role: row.get(role, 0)) for role in ROLES),
               Column("violations", "violation_rate", percent),
               Column("with one fewer", lambda row: percent(row["tried"][-2]["violation_rate"])
                      if len(row["tried"]) > 1 else "–"), Column("cluster", "cluster", align="l"))
    Table.of(columns, found, f"fewest instances that keep the SLO: {where}",
             f"at most {percent(limit)} of the online requests violate, in the mean over {len(seeds)} seeds, without "
             "offline work").show(console(), unbroken=2)
    return {"schema": SCHEMA, "workload": label("workload", scenario.workload), "window_s": float(least["window_s"]),
            "seeds": list(seeds), "limit": limit, "results": found, "simulations": jobs.different,
            "simulated_anew": jobs.simulated}
