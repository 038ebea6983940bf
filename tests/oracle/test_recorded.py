"""Runs of vLLM's real scheduler, recorded by `experiments/studies/oracle_vllm/record.py`: ours makes the same steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from restated import restate

from experiments.studies.oracle_vllm import schedulers
from experiments.studies.oracle_vllm.cases import LOADS, POLICIES
from experiments.studies.oracle_vllm.record import SMALL, TABLES, read_arrays, read_run, read_small
from experiments.studies.oracle_vllm.schedulers import Oracle
from experiments.studies.oracle_vllm.study import agreement

FOLDER = Path(__file__).parent / "recorded"
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


def test_small_cases_are_as_recorded() -> None:
    """Many cases with ties, few seats and hardly any memory: our schedule and the restatement's."""
    tables = read_arrays(FOLDER / TABLES)
    for case, real in read_small(FOLDER / SMALL):
        for mine in (schedulers.simulate(case, tables), restate(case, tables)):
            for key, value in real.items():
                assert np.array_equal(value, mine[key]), (case.trace.name, key)


def test_the_recorded_runs_are_worth_it() -> None:
    """Memory binds where it should, and prefixes are found, lost and found again."""
    runs = {name: read_run(FOLDER / f"{name}.npz") for name in RUNS}
    for name, (case, real) in runs.items():
        assert (len(real["preempted_slot"]) > 20) == ("saturated" in name)
        assert (real["cached_tokens"].sum() > 0.3 * case.trace.prompt_tokens.sum()) == case.prefix_caching
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 300_000


@pytest.mark.oracle
@pytest.mark.parametrize("name", RUNS)
def test_recorded_runs_can_be_made_again(oracle: Oracle, tables: dict, name: str) -> None:
    case, real = read_run(FOLDER / f"{name}.npz")
    oracle.use(read_arrays(FOLDER / TABLES))
    again = oracle.play(case)
    oracle.use(tables)
    assert sorted(again) == sorted(real)
    for key, value in real.items():
        assert np.array_equal(again[key], value), key
