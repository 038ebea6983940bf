"""Metrics of each instance of a run, and utilization of the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ooco_gym.metrics.chosen import SOME
from ooco_gym.metrics.quality import end_ps_of
from ooco_gym.sim.memory import PS_PER_US
from ooco_gym.sim.state import ROLE_NAMES

if TYPE_CHECKING:
    from ooco_gym.perf import ModelSpec
    from ooco_gym.simulation import Run


def instance_figures(run: Run) -> list[dict[str, Any]]:
    """Returns metrics of each instance over the whole run; data-parallel instances also have their
    `rank`.

    They are shares of simulated time, mean share of KV memory in use, and the prefix cache's hit
    rate on first admissions.
    """
    end_ps = end_ps_of(run)
    figures = []
    for spec in run.instances:
        kinds = {kind: float(spec[f"{kind}_ps"] / end_ps) for kind in ("online_prefill", "offline_prefill", "decode")}
        used = int(spec["total_blocks"] - spec["free_blocks"])
        block_us = used * (end_ps // PS_PER_US) - int(spec["kv_times_us"])
        figures.append({
            "role": ROLE_NAMES[spec["role"]],
            **({"rank": len(figures) - int(spec["first_rank"])} if spec["ranks"] else {}),
            "busy_share": sum(kinds.values()),
            "kv_mean_share": block_us / (int(spec["total_blocks"]) * (end_ps // PS_PER_US)),
            **{f"{kind}_share": share for kind, share in kinds.items()},
            "hit_rate": float(spec["cached_tokens"] / spec["looked_tokens"]) if spec["looked_tokens"] else None,
        })
    return figures


def utilization_figures(run: Run) -> dict[str, float | None]:
    """Returns the cluster's utilization.

    `compute_share` is the FLOPs of tokens computed in the window (`ModelSpec.flops`) over the
    chips' peak; None if these were not recorded. `busy_share` (time in which anything runs) and
    `kv_mean_share` (KV memory in use) are means over instances and the whole run.
    """
    figures = instance_figures(run)
    found: dict[str, float | None] = {"compute_share": None}
    for key in ("busy_share", "kv_mean_share"):
        found[key] = float(np.mean([one[key] for one in figures]))
    if run.computed is not None:
        deployments = [one for _, one in run.scenario.deployments]
        peak = sum(one.peak_flops_per_s for one in deployments) * (run.window_s[1] - run.window_s[0])
        found["compute_share"] = float(_flops(run.requests["cached_tokens"], run.computed,
                                              deployments[0].model).sum()) / peak
    return found


def _flops(cached_tokens: np.ndarray, computed: tuple[np.ndarray, np.ndarray], model: ModelSpec) -> np.ndarray:
    """Returns the FLOPs of each request in the window, float64[n], without cached tokens."""
    flops = np.empty(len(cached_tokens))
    for begin in range(0, len(flops), SOME):
        part = slice(begin, begin + SOME)
        held = np.maximum(cached_tokens[part], 0).astype(np.int64)
        flops[part] = model.flops(held + computed[0][part], held + computed[1][part])
    return flops


def offloading_figures(run: Run) -> dict[str, Any]:
    """Returns metrics of host memory as second tier of the prefix cache, over the whole run; empty without one."""
    if run.tier is None:
        return {}
    looked = int(run.instances["looked_tokens"].sum())
    return {"kv_offloading": {"host_blocks": int(run.tier["blocks"].sum()),
                              "loaded_tokens": int(run.tier["loaded_tokens"].sum()),
                              "hit_rate": int(run.tier["hits"].sum()) / looked if looked else None}}
