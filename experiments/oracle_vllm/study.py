"""The study: every load under every policy, through the real scheduler and through ours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.oracle_vllm import ours
from experiments.oracle_vllm.case import POLICIES
from experiments.oracle_vllm.compare import LATENCIES, report
from experiments.oracle_vllm.loads import LOADS, load_named
from experiments.oracle_vllm.oracle import Oracle
from experiments.validity.markdown import minus, table
from ooco_gym.errors import UserError, unknown
from ooco_gym.files import atomic_write

if TYPE_CHECKING:
    from omegaconf import DictConfig

SCHEMA = "ooco-gym/oracle_vllm/1"
_HEADER = ("load", "policy", "steps", "identical", "preemptions", "from the cache", "TTFT s", "P99", "TPOT ms", "P99",
           "makespan s", "largest difference")


def main(cfg: DictConfig) -> dict[str, Any]:
    """Plays the loads of `cfg.oracle_vllm` under its policies; writes `oracle.md`.

    Raises:
        UserError: an unknown load or policy, no interpreter with vLLM, or an engine that fails.
    """
    from rich.console import Console

    from ooco_gym.calibrate.measure.interpreter import find_python

    plan = cfg.oracle_vllm
    loads, policies, requests = list(plan.loads), list(plan.policies), plan.requests
    if not isinstance(requests, int) or requests < 1:
        raise UserError(f"oracle_vllm.requests={requests}: expected a whole number of at least 1")
    for policy in policies:
        if policy not in POLICIES:
            raise unknown("policy with a counterpart in the engine", policy, POLICIES)
    for load in loads:
        load_named(load)
    version, rows = compare_all(find_python(cfg.engine.python), loads, policies, requests, int(plan.seed))
    page = Path(cfg.out) / "oracle.md"
    with atomic_write(page) as temporary:
        Path(temporary).write_text(markdown(rows) + "\n", encoding="utf-8")
    console = Console()
    for row in rows:
        console.print(_line(row), highlight=False, markup=False, soft_wrap=True)
    return {"schema": SCHEMA, "vllm": version, "chip": ours.CHIP, "model": ours.MODEL, "timing": ours.TIMING,
            "identical": all(row["identical"] for row in rows), "results": rows, "page": str(page)}


def compare_all(python: Path, loads: Sequence[str], policies: Sequence[str], requests: int,
                seed: int) -> tuple[str, list[dict[str, Any]]]:
    """Returns vLLM's version, and `compare.report` of each load under each policy."""
    rows = []
    first = LOADS["light"].case(policies[0], 1, seed)
    with Oracle(python, ours.tables_of(ours.episode(first)[0])) as oracle:
        for load in loads:
            for policy in policies:
                case = LOADS[load].case(policy, requests, seed)
                rows.append({"load": load, "policy": policy, "prefix_caching": case.prefix_caching,
                             "kv_blocks": case.kv_blocks, **report(case, oracle.play(case), ours.simulate(case))})
        return oracle.version, rows


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The results as a table."""
    return table(_HEADER, [_cells(row) for row in rows])


def _cells(row: dict[str, Any]) -> list[str]:
    real, both = row["real"], (row["preemptions_real"], row["preemptions_ours"])
    return [row["load"], row["policy"], f"{row['steps']:,}", _share(row),
            f"{both[0]:,}" if both[0] == both[1] else f"{both[0]:,}, ours {both[1]:,}",
            f"{100 * real['cached_share']:.1f} %" if row["prefix_caching"] else "off",
            f"{real['ttft_mean_s']:.3f}", f"{real['ttft_p99_s']:.3f}", f"{1e3 * real['tpot_mean_s']:.2f}",
            f"{1e3 * real['tpot_p99_s']:.2f}", f"{real['makespan_s']:.1f}", _largest(row)]


def _share(row: dict[str, Any]) -> str:
    share = 100 * row["identical_steps"] / max(1, row["steps"])
    return "all" if row["identical"] else f"{share:.3f} %"


def _largest(row: dict[str, Any]) -> str:
    if row["identical"]:
        return "none"
    key = max(LATENCIES, key=lambda name: abs(row["difference_percent"][name]))
    return minus(f"{row['difference_percent'][key]:+.3f} %") + f" ({key.replace('_s', '').replace('_', ' ')})"


def _line(row: dict[str, Any]) -> str:
    told = (f"{row['load']} under {row['policy']}: {row['identical_steps']:,} of {row['steps']:,} steps identical, "
            f"{row['preemptions_real']:,} preemptions")
    return told if row["identical"] else f"{told}; first difference at {row['first_difference']}"
