"""Where the restated scheduler lies, and the real one where its Python is named."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from ooco_gym.calibrate.measure.interpreter import VARIABLE
from ooco_gym.sim.engine_versions import engine_version_of
from ooco_gym.workload import Trace
from tests.oracle import schedulers
from tests.oracle.cases import Case
from tests.oracle.schedulers import Oracle, pythons


@pytest.fixture(scope="session")
def tables() -> dict:
    one = Case(Trace([0.0], [1], [1]), "vllm_fcfs", 10)
    return schedulers.tables_of(schedulers.episode(one)[0])


@pytest.fixture(scope="session", params=(os.environ.get(VARIABLE) or "none").split(","))
def oracle(request: pytest.FixtureRequest, tables: dict) -> Iterator[Oracle]:
    """The real scheduler of each Python that is named: one process for all tests."""
    if not os.environ.get(VARIABLE):
        pytest.skip(f"needs a Python with vLLM: `make test-oracle`, or ${VARIABLE}")
    with Oracle(pythons(request.param)[0], tables) as running:
        yield running


@pytest.fixture(scope="session")
def version(oracle: Oracle) -> str:
    """Whose schedule ours follows beside it."""
    return engine_version_of(oracle.version)
