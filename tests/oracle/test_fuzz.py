"""Random cases of the fuzz (`--fuzz-steps`): ours and the restatement make the same steps, by release."""

from __future__ import annotations

import numpy as np
import pytest

from ooco_gym.sim.engine_versions import ENGINE_VERSIONS
from tests.oracle import schedulers
from tests.oracle.compare import agreement
from tests.oracle.fuzz import GROUPS, LARGEST, fuzz_case
from tests.oracle.restated import restate

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
