"""`python -m tests.oracle study|record|overlay`: vLLM's real scheduler and ours, step by step (docs/oracle.md)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ooco_gym.errors import UserError
from ooco_gym.files import atomic_write, write_json
from ooco_gym.report import Table, minus
from ooco_gym.sim.engine_versions import engine_version_of
from tests.oracle.cases import LOADS, POLICIES
from tests.oracle.compare import LATENCIES, report
from tests.oracle.fuzz import LARGEST, fuzz
from tests.oracle.overlay import lay_over
from tests.oracle.record import record
from tests.oracle.schedulers import CHIP, MODEL, TIMING, Oracle, episode, pythons, simulate, tables_of

SCHEMA = "ooco-gym/oracle_vllm/2"
_HEADER = ("load", "policy", "steps", "identical", "preemptions", "from the cache", "TTFT s", "P99", "TPOT ms", "P99",
           "makespan s", "largest difference")
_FUZZ_HEADER = ("policy", "prefix caching", "asynchronous", "cases", "steps", "identical", "preemptions", "seconds")


def study(plan: argparse.Namespace) -> dict[str, Any]:
    """Plays loads under policies, or random cases; writes `oracle.md` and `summary.json`.

    Raises:
        UserError: no interpreter with vLLM, or an engine that fails or is too old.
    """
    pages, engines = [], []
    for python in pythons(plan.python):
        found = (fuzzed(python, plan.fuzz_steps, plan.seed, plan.capped, plan.aborts) if plan.fuzz_steps else
                 compare_all(python, plan.loads, plan.policies, plan.requests, plan.seed))
        pages.append(f"vLLM {found['vllm']}\n\n{markdown(found)}\n")
        engines.append(found)
        for line in map(_fuzz_line, found["fuzz"]) if "fuzz" in found else map(_line, found["results"]):
            print(f"vLLM {found['vllm']}: {line}")
    plan.out.mkdir(parents=True, exist_ok=True)
    with atomic_write(plan.out / "oracle.md") as path:
        path.write_text("\n".join(pages), encoding="utf-8")
    summary = {"schema": SCHEMA, "chip": CHIP, "model": MODEL, "timing": TIMING, "seed": plan.seed,
               "identical": all(one["identical"] for one in engines), "engines": engines}
    write_json(plan.out / "summary.json", summary)
    return summary


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


def fuzzed(python: Path, steps: int, seed: int, capped: bool, aborts: bool) -> dict[str, Any]:
    """Returns `vllm`, `engine_version`, `identical`, `steps`, `identical_steps`, `seconds`, and groups in `fuzz`."""
    with Oracle(python, tables_of(episode(LARGEST)[0])) as oracle:
        version = engine_version_of(oracle.version)
        rows = fuzz(oracle, steps, seed, version, capped, aborts)
        return {"vllm": oracle.version, "engine_version": version,
                "identical": all(row["identical_cases"] == row["cases"] for row in rows),
                **{key: sum(row[key] for row in rows) for key in ("steps", "identical_steps", "seconds")},
                "fuzz": rows}


def markdown(found: dict[str, Any]) -> str:
    if "fuzz" in found:
        return Table("", _FUZZ_HEADER, [_fuzz_cells(row) for row in found["fuzz"]]).markdown()
    return Table("", _HEADER, [_cells(row) for row in found["results"]]).markdown()


def _fuzz_cells(row: dict[str, Any]) -> list[str]:
    share = 100 * row["identical_steps"] / max(1, row["steps"])
    return [row["policy"], "on" if row["prefix_caching"] else "off", "yes" if row["async"] else "no",
            f"{row['cases']:,}", f"{row['steps']:,}",
            "all" if row["identical_cases"] == row["cases"] else f"{share:.3f} %", f"{row['preemptions_real']:,}",
            f"{row['seconds']:.0f}"]


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
    how = ", asynchronously" if row["async"] else ""
    told = (f"{row['policy']} {caching} prefix caching{how}: {row['identical_steps']:,} of {row['steps']:,} steps of "
            f"{row['cases']:,} random cases identical, {row['preemptions_real']:,} preemptions")
    return f"{told}; first difference in {row['first_difference']}" if row["first_difference"] else told


def _number(least: int) -> Any:
    def whole(word: str) -> int:
        if (value := int(word)) < least:
            raise argparse.ArgumentTypeError(f"expected a whole number of at least {least}")
        return value

    return whole


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.oracle", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("study", help="both schedulers on the same requests, step by step")
    one.add_argument("--loads", nargs="+", choices=LOADS, default=list(LOADS), help="traces")
    one.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    one.add_argument("--requests", type=_number(1), default=1500, help="of each trace")
    one.add_argument("--seed", type=_number(0), default=1, help="of the traces")
    one.add_argument("--fuzz-steps", type=_number(0), default=0, help="above 0: random requests and settings instead")
    one.add_argument("--capped", action="store_true", help="those with a long_prefill_token_threshold in two of three")
    one.add_argument("--aborts", action="store_true", help="those of which one request in three leaves")
    one.add_argument("--out", type=Path, default=Path("outputs/oracle"), help="folder of oracle.md and summary.json")
    two = commands.add_parser("record", help="write the real scheduler's steps down for tests that have no vLLM")
    two.add_argument("folder", type=Path)
    three = commands.add_parser("overlay", help="lay another release's Python sources over an installed engine")
    three.add_argument("version")
    three.add_argument("folder", type=Path)
    for command in (one, two, three):
        command.add_argument("--python", help="interpreters with vLLM, with commas between them")
    return parser


def main(words: Sequence[str]) -> int:
    """Runs a command; returns its exit code."""
    plan = _parser().parse_args(words)
    try:
        if plan.command == "study":
            study(plan)
        elif plan.command == "record":
            for path in record(plan.folder, pythons(plan.python)):
                print(f"{path}: {path.stat().st_size:,} bytes")
        else:
            print(lay_over(plan.version, plan.folder, pythons(plan.python)[0]))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
