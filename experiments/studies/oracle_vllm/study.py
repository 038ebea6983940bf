"""The study: every load under every policy, through the real scheduler and through ours, step by step."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from baselines.vllm_v1 import engine_version_of
from experiments.common.output import write_texts
from experiments.studies.oracle_vllm.cases import LOADS, POLICIES, load_named
from experiments.studies.oracle_vllm.compare import LATENCIES, report
from experiments.studies.oracle_vllm.fuzz import LARGEST, fuzz
from experiments.studies.oracle_vllm.schedulers import CHIP, MODEL, TIMING, Oracle, episode, simulate, tables_of
from ooco_gym.errors import UserError, unknown
from ooco_gym.report import Table, minus

if TYPE_CHECKING:
    from omegaconf import DictConfig

SCHEMA = "ooco-gym/oracle_vllm/2"
_HEADER = ("load", "policy", "steps", "identical", "preemptions", "from the cache", "TTFT s", "P99", "TPOT ms", "P99",
           "makespan s", "largest difference")
_FUZZ_HEADER = ("policy", "prefix caching", "cases", "steps", "identical", "preemptions", "seconds")


def main(cfg: DictConfig) -> dict[str, Any]:
    """Plays the loads of `cfg.oracle_vllm` under its policies, or random cases; writes `oracle.md`.

    Raises:
        UserError: an unknown load or policy, no interpreter with vLLM, or an engine that fails or is too old.
    """
    plan = cfg.oracle_vllm
    loads, policies = list(plan.loads), list(plan.policies)
    for name, least in (("requests", 1), ("fuzz_steps", 0)):
        if not isinstance(plan[name], int) or plan[name] < least:
            raise UserError(f"oracle_vllm.{name}={plan[name]}: expected a whole number of at least {least}")
    for policy in policies:
        if policy not in POLICIES:
            raise unknown("policy with a counterpart in the engine", policy, POLICIES)
    for load in loads:
        load_named(load)
    pages, engines = [], []
    for python in pythons(cfg.engine.python):
        found = (fuzzed(python, plan.fuzz_steps, int(plan.seed)) if plan.fuzz_steps else
                 compare_all(python, loads, policies, plan.requests, int(plan.seed)))
        pages.append(f"vLLM {found['vllm']}\n\n{markdown(found)}\n")
        engines.append(found)
        _print(found)
    page = Path(cfg.out) / "oracle.md"
    write_texts({page: "\n".join(pages)})
    return {"schema": SCHEMA, "chip": CHIP, "model": MODEL, "timing": TIMING, "seed": int(plan.seed),
            "identical": all(one["identical"] for one in engines), "engines": engines, "page": str(page)}


def pythons(given: str | None) -> list[Path]:
    """The interpreters that are named, with commas between them, by `engine.python` or the environment.

    Raises:
        UserError: one of them is none.
    """
    from ooco_gym.calibrate.measure.interpreter import VARIABLE, find_python

    names = (given or os.environ.get(VARIABLE) or "").split(",")
    return [find_python(name or None) for name in names]


def compare_all(python: Path, loads: Sequence[str], policies: Sequence[str], requests: int,
                seed: int) -> dict[str, Any]:
    """Returns `vllm`, `engine_version`, `identical`, and in `results` the `report` of each load under each policy."""
    rows = []
    first = LOADS["light"].case(policies[0], 1, seed)
    with Oracle(python, tables_of(episode(first)[0])) as oracle:
        version = engine_version_of(oracle.version)
        for load in loads:
            for policy in policies:
                case = LOADS[load].case(policy, requests, seed, version)
                rows.append({"load": load, "policy": policy, "prefix_caching": case.prefix_caching,
                             "kv_blocks": case.kv_blocks, **report(case, oracle.play(case), simulate(case))})
        return {"vllm": oracle.version, "engine_version": version,
                "identical": all(row["identical"] for row in rows), "results": rows}


def fuzzed(python: Path, steps: int, seed: int) -> dict[str, Any]:
    """Returns `vllm`, `engine_version`, `identical`, `steps`, `identical_steps`, `seconds`, and groups in `fuzz`."""
    with Oracle(python, tables_of(episode(LARGEST)[0])) as oracle:
        version = engine_version_of(oracle.version)
        rows = fuzz(oracle, steps, seed, version)
        return {"vllm": oracle.version, "engine_version": version,
                "identical": all(row["identical_cases"] == row["cases"] for row in rows),
                **{key: sum(row[key] for row in rows) for key in ("steps", "identical_steps", "seconds")},
                "fuzz": rows}


def markdown(found: dict[str, Any]) -> str:
    """The results as a table."""
    if "fuzz" in found:
        return Table("", _FUZZ_HEADER, [_fuzz_cells(row) for row in found["fuzz"]], align="").markdown()
    return Table("", _HEADER, [_cells(row) for row in found["results"]], align="").markdown()


def _fuzz_cells(row: dict[str, Any]) -> list[str]:
    share = 100 * row["identical_steps"] / max(1, row["steps"])
    return [row["policy"], "on" if row["prefix_caching"] else "off", f"{row['cases']:,}", f"{row['steps']:,}",
            "all" if row["identical_cases"] == row["cases"] else f"{share:.3f} %", f"{row['preemptions_real']:,}",
            f"{row['seconds']:.0f}"]


def _print(found: dict[str, Any]) -> None:
    from rich.console import Console

    console = Console()
    lines = map(_fuzz_line, found["fuzz"]) if "fuzz" in found else map(_line, found["results"])
    for line in lines:
        console.print(f"vLLM {found['vllm']}: {line}", highlight=False, markup=False, soft_wrap=True)


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


def _fuzz_line(row: dict[str, Any]) -> str:
    caching = "with" if row["prefix_caching"] else "without"
    told = (f"{row['policy']} {caching} prefix caching: {row['identical_steps']:,} of {row['steps']:,} steps of "
            f"{row['cases']:,} random cases identical, {row['preemptions_real']:,} preemptions")
    return f"{told}; first difference in {row['first_difference']}" if row["first_difference"] else told
