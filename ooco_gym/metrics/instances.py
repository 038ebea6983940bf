"""Metrics of each instance of a run, and utilization of the cluster."""

from __future__ import annotations

from typing import Any

import numpy as np

from ooco_gym.metrics.chosen import SOME
from ooco_gym.perf import ModelSpec
from ooco_gym.run import RunRecord
from ooco_gym.sim.edges import KINDS
from ooco_gym.sim.memory import PS_PER_US
from ooco_gym.sim.state import PS_PER_S, ROLE_NAMES

PARTS = 24  # of a window, of an elastic fleet over time


def instance_metrics(run: RunRecord) -> list[dict[str, Any]]:
    """Returns metrics of each instance in the window; data-parallel instances also have their
    `rank`.

    They are the tokens that its KV memory holds, shares of the window's time, mean share of KV
    memory in use, and the prefix cache's hit rate on first admissions. None where not recorded.
    """
    rows = []
    for index, spec in enumerate(run.instances):
        rows.append({
            "role": ROLE_NAMES[spec["role"]],
            **({"rank": index - int(spec["first_rank"])} if spec["ranks"] else {}),
            "kv_tokens": int(spec["total_blocks"]) * run.scenario.cluster.block_tokens,
            **_shares(run, index)})
    return rows


def _shares(run: RunRecord, index: int) -> dict[str, float | None]:
    kinds = [f"{kind}_share" for kind in KINDS]
    if run.done is None:
        return dict.fromkeys(("busy_share", "kv_mean_share", *kinds, "hit_rate"))
    window_ps = round((run.window_s[1] - run.window_s[0]) * PS_PER_S)
    busy = [int(each_ps) / window_ps for each_ps in run.done.busy_ps[index]]
    looked, cached = map(int, run.done.prefix_tokens[index])
    blocks = int(run.instances["total_blocks"][index])
    return {"busy_share": sum(busy), "kv_mean_share": int(run.done.block_us[index]) / (blocks * window_ps / PS_PER_US),
            **dict(zip(kinds, busy, strict=True)), "hit_rate": cached / looked if looked else None}


def utilization_metrics(run: RunRecord) -> dict[str, float | None]:
    """Returns the cluster's utilization in the window; None if not recorded.

    `compute_share` is the FLOPs of computed tokens (`ModelSpec.flops`) over the chips' peak.
    `busy_share` (time in which anything runs) and `kv_mean_share` (KV memory in use) are means over
    instances.
    """
    if run.done is None or run.start_tokens is None:
        return dict.fromkeys(("compute_share", "busy_share", "kv_mean_share"))
    deployments = [one for _, one in run.scenario.deployments]
    peak = sum(deployment.peak_flops_per_s for deployment in deployments) * (run.window_s[1] - run.window_s[0])
    flops = _flops(run.requests["cached_tokens"], run.start_tokens, run.done.computed_tokens, deployments[0].model)
    rows = instance_metrics(run)
    found: dict[str, float | None] = {"compute_share": float(flops.sum()) / peak}
    for key in ("busy_share", "kv_mean_share"):
        found[key] = float(np.mean([row[key] for row in rows]))
    return found


def _flops(cached_tokens: np.ndarray, before: np.ndarray, computed: np.ndarray, model: ModelSpec) -> np.ndarray:
    """Returns the FLOPs of each request in the window, float64[n], without cached tokens."""
    flops = np.empty(len(cached_tokens))
    for begin in range(0, len(flops), SOME):
        part = slice(begin, begin + SOME)
        held = np.maximum(cached_tokens[part], 0).astype(np.int64)
        held += before[part]
        flops[part] = model.flops(held, held + computed[part])
    return flops


def fleet_metrics(run: RunRecord) -> dict[str, Any]:
    """Returns what an elastic fleet has used in the window, under `fleet`; empty for a fixed one.

    `chips` is the mean number that is paid for, from starts to ends of drains; `per_hour` is their price, with
    `price_per_chip_hour` of every group. Where a rule says how many instances are relaxed, `roles` has their mean, and
    by how many their number changed.
    """
    pools = run.scenario.cluster.mixed
    if run.done is None or not run.done.used_ps.size:
        return {}
    if not pools and run.tides is not None:
        ends_s = run.scenario.cluster.scale_interval_s * np.arange(1, 1 + run.tides.shape[1])
        relaxed = run.tides[4][(ends_s > run.window_s[0]) & (ends_s <= run.window_s[1])]
        return {"roles": {"relaxed": float(relaxed.mean()), "changes": int(np.abs(np.diff(relaxed)).sum())}} if (
            relaxed.size) else {}
    chips = np.array([one.tp * one.pp for _, one in run.scenario.deployments])
    used_s, window_s = run.done.used_ps / PS_PER_S, run.window_s[1] - run.window_s[0]
    starts, reclaims = run.done.changes.sum(axis=0)
    found = {"chips": float((chips * used_s).sum()) / window_s, "chip_s": float((chips * used_s).sum()),
             "most_chips": int(chips.sum()), "starts": int(starts), "reclaims": int(reclaims)}
    prices = [pool.price_per_chip_hour for pool in pools for _ in range(pool.ranks)]
    if None not in prices:
        found["per_hour"] = float((np.array(prices) * chips * used_s).sum()) / window_s
    return {"fleet": {**found, "over_time": _over_time(run, found["chip_s"])}}


def _over_time(run: RunRecord, chip_s: float) -> dict[str, list[float]]:
    """Returns by equal parts of the window, of a day by hours: its begin, the chips paid for, online arrivals. Inside
    of a scaling rule's interval, chips are its mean."""
    assert run.tides is not None
    (start_s, end_s), interval_s = run.window_s, run.scenario.cluster.scale_interval_s
    edges_s = np.linspace(start_s, end_s, 1 + PARTS)
    known_s = interval_s * np.arange(1 + run.tides.shape[1])
    used_s = np.append(0.0, run.tides[4])[known_s < end_s]
    known_s = known_s[known_s < end_s]
    used_s = np.append(used_s, np.interp(start_s, known_s, used_s) + chip_s)
    used_s = np.interp(edges_s, np.append(known_s, end_s), used_s)
    arrivals_s = run.requests["arrival_ps"][run.requests["online"] == 1] / PS_PER_S
    return {"t_s": (edges_s[:-1] - start_s).tolist(), "chips": (np.diff(used_s) / np.diff(edges_s)).tolist(),
            "online_per_s": (np.histogram(arrivals_s, edges_s)[0] / np.diff(edges_s)).tolist()}


def offloading_metrics(run: RunRecord) -> dict[str, Any]:
    """Returns metrics of host memory as second tier of the prefix cache, in the window; empty without one."""
    if run.host_blocks is None or run.done is None:
        return {}
    looked = int(run.done.prefix_tokens[:, 0].sum())
    loaded, hits = map(int, run.done.loaded.sum(axis=0))
    return {"kv_offloading": {"host_blocks": run.host_blocks, "loaded_tokens": loaded,
                              "hit_rate": hits / looked if looked else None}}
