"""Runs of vLLM's real scheduler, recorded by `tests/oracle/record.py`: ours makes the same steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ooco_gym.sim.engine_versions import (
    CHUNK_MUST_FIT,
    ENGINE_VERSIONS,
    FREED_IN_ORDER,
    SELF_PREEMPTION_ENDS_PASS,
)
from tests.oracle import schedulers
from tests.oracle.cases import LOADS, POLICIES
from tests.oracle.compare import agreement
from tests.oracle.fuzz import GROUPS, LARGEST, fuzz_case
from tests.oracle.record import SMALL, SMALL_ASYNC, TABLES, read_arrays, read_run, read_small
from tests.oracle.restated import restate
from tests.oracle.schedulers import Oracle

FOLDER = Path(__file__).parent / "recorded"
VERSIONS = ("0.33.0", *(ENGINE_VERSIONS[last] for last in (
    SELF_PREEMPTION_ENDS_PASS, FREED_IN_ORDER, CHUNK_MUST_FIT)))
RUNS = [f"{load}-{policy}" for load in LOADS for policy in POLICIES]
PER_REQUEST = ("first_token_ps", "finish_ps", "cached_tokens", "preemptions")


@pytest.mark.parametrize("name", RUNS)
def test_our_schedule_is_the_recorded_one(name: str) -> None:
    case, real = read_run(FOLDER / f"{name}.npz")
    mine = schedulers.simulate(case, read_arrays(FOLDER / TABLES))
    assert agreement(real, mine).first == ""
    for key in PER_REQUEST:
        assert np.array_equal(real[key], mine[key]), key


@pytest.mark.parametrize("name", RUNS)
def test_the_restatement_makes_the_recorded_steps(name: str) -> None:
    case, real = read_run(FOLDER / f"{name}.npz")
    assert agreement(real, restate(case, read_arrays(FOLDER / TABLES))).first == ""


@pytest.mark.parametrize("version", VERSIONS)
def test_small_cases_are_as_recorded(version: str) -> None:
    """Many cases with ties, few seats and hardly any memory: our schedule and the restatement's."""
    tables = read_arrays(FOLDER / TABLES)
    for case, real in read_small(FOLDER / SMALL.format(version)):
        for mine in (schedulers.simulate(case, tables), restate(case, tables)):
            for key, value in real.items():
                assert np.array_equal(value, mine[key]), (case.trace.name, key)


def test_small_asynchronous_cases_are_as_recorded() -> None:
    """The same cases where an iteration is scheduled while the one before it runs."""
    tables, later = read_arrays(FOLDER / TABLES), 0
    synchronous = read_small(FOLDER / SMALL.format("0.32.0"))
    for (case, real), (_, other) in zip(read_small(FOLDER / SMALL_ASYNC.format("0.32.0")), synchronous, strict=True):
        mine = schedulers.simulate(case, tables)
        for key, value in real.items():
            assert np.array_equal(value, mine[key]), (case.trace.name, key)
        later += not np.array_equal(real["finish_ps"], other["finish_ps"])
    assert later > len(synchronous) / 2, "it is another schedule"


def test_each_rule_that_changed_is_in_the_small_cases() -> None:
    """The releases on both sides of each change: what a change is about differs, and nothing else does."""
    runs = {version: read_small(FOLDER / SMALL.format(version)) for version in VERSIONS}
    changes = {("0.33.0", "0.32.0"): {(True, False), (True, True)}, ("0.32.0", "0.23.0"): {(True, True), (False, True)},
               ("0.23.0", "0.18.1"): {(priority, caching) for priority in (False, True) for caching in (False, True)}}
    for (new, old), allowed in changes.items():
        differ = {(case.policy == "vllm_priority", case.prefix_caching)
                  for (case, one), (_, other) in zip(runs[new], runs[old], strict=True)
                  if any(not np.array_equal(one[key], other[key]) for key in one)}
        assert differ and differ <= allowed, (new, old, differ)


def test_the_recorded_runs_are_worth_it() -> None:
    """Memory binds where it should, and prefixes are found, lost and found again."""
    runs = {name: read_run(FOLDER / f"{name}.npz") for name in RUNS}
    for name, (case, real) in runs.items():
        assert (len(real["preempted_slot"]) > 20) == ("saturated" in name)
        assert (real["cached_tokens"].sum() > 0.3 * case.trace.prompt_tokens.sum()) == case.prefix_caching
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 400_000


@pytest.mark.oracle
@pytest.mark.parametrize("name", RUNS)
def test_recorded_runs_can_be_made_again(oracle: Oracle, version: str, tables: dict, name: str) -> None:
    case, real = read_run(FOLDER / f"{name}.npz")
    if version != case.engine_version:
        pytest.skip(f"recorded with vLLM {case.engine_version}; this is {oracle.version}")
    oracle.use(read_arrays(FOLDER / TABLES))
    again = oracle.play(case)
    oracle.use(tables)
    assert sorted(again) == sorted(real)
    for key, value in real.items():
        assert np.array_equal(again[key], value), key


# --- Random cases of the fuzz (`--fuzz-steps`): ours and the restatement make the same steps, by release -------------
CASES = 3


@pytest.mark.parametrize("version", ["0.33.0", "0.32.0", "0.23.0", "0.18.1"])
def test_ours_and_the_restatement_agree(version: str) -> None:
    tables, preempted = schedulers.tables_of(schedulers.episode(LARGEST)[0]), 0
    for place, (policy, caching) in enumerate(GROUPS):
        for number in range(CASES):
            case = fuzz_case((7, ENGINE_VERSIONS.index(version), place, number), policy, caching, version)
            mine, restated = schedulers.simulate(case), restate(case, tables)
            assert agreement(restated, mine).first == "", case.trace.name
            for key in ("first_token_ps", "finish_ps", "cached_tokens"):
                assert np.array_equal(mine[key], restated[key]), (case.trace.name, key)
            preempted += len(mine["preempted_slot"])
    assert preempted > 10, "memory binds in some of them"


def test_a_case_is_made_by_its_seeds_alone() -> None:
    one, again = (fuzz_case((1, 2, 3), "vllm_fcfs", True) for _ in range(2))
    assert one.settings() == again.settings()
    assert all(np.array_equal(value, again.columns()[key]) for key, value in one.columns().items())
    assert fuzz_case((1, 2, 4), "vllm_fcfs", True).settings() != one.settings()
