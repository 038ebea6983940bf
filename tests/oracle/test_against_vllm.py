"""Random traces through vLLM's real scheduler, ours, and the restatement: the same steps (`make test-oracle`)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracle import schedulers
from tests.oracle.cases import Case
from tests.oracle.compare import Played, agreement
from tests.oracle.fuzz import ASYNCHRONOUS
from tests.oracle.restated import restate
from tests.oracle.schedulers import Oracle
from tests.oracle.strategies import PROFILE, cases

pytestmark = pytest.mark.oracle


def same(real: Played, mine: Played) -> None:
    """Every step, every preemption, every time, what was found in memory, and which content would give way next."""
    assert agreement(real, mine).first == ""
    for key in ("start_ps", "end_ps", "first_token_ps", "finish_ps", "cached_tokens", *({"kept"} & mine.keys())):
        assert np.array_equal(real[key], mine[key]), key


@PROFILE
@given(case=cases(caching=False))
def test_our_schedule_is_the_real_one(oracle: Oracle, version: str, case: Case) -> None:
    same(oracle.play(case), schedulers.simulate(replace(case, engine_version=version)))


@PROFILE
@given(case=cases(caching=True))
def test_our_schedule_with_prefix_caching_is_the_real_one(oracle: Oracle, version: str, case: Case) -> None:
    retention = case.retention if version in ASYNCHRONOUS else "lru"  # our class knows no older releases
    case = replace(case, engine_version=version, retention=retention)
    same(oracle.play(case), schedulers.simulate(case))


@PROFILE
@given(case=st.booleans().flatmap(cases))
def test_our_asynchronous_schedule_is_the_real_one(oracle: Oracle, version: str, case: Case) -> None:
    """An iteration is scheduled while the one before it runs, as in `EngineCore.step_with_batch_queue`."""
    if version not in ASYNCHRONOUS:
        pytest.skip(f"ours follows the asynchronous scheduling of vLLM {' and '.join(ASYNCHRONOUS)}")
    case = replace(case, engine_version=version, asynchronous=True)
    same(oracle.play(case), schedulers.simulate(case))


@PROFILE
@given(case=st.booleans().flatmap(cases).map(lambda case: replace(case, retention="lru")))
def test_the_restatement_is_the_real_one(oracle: Oracle, version: str, tables: dict, case: Case) -> None:
    same(oracle.play(case), restate(replace(case, engine_version=version), tables))
