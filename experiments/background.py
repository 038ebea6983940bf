"""What the demo runs in a process of its own: compiling, and the comparison, while the main process trains."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

from experiments.jobs import _end_with_the_parent

if TYPE_CHECKING:
    from ooco_gym.render import Record
    from ooco_gym.scenario import Scenario


@contextlib.contextmanager
def process() -> Iterator[ProcessPoolExecutor]:
    """One process that begins afresh; what it has not begun is dropped when the block fails."""
    pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"), initializer=_end_with_the_parent)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def warm_up(scenario: Scenario, policies: Sequence[str], env: Mapping[str, Any]) -> None:
    """Compiles, for every process, what the comparison and the environment need: plays a minute of each policy, and
    makes one environment.

    Raises:
        UserError: a scenario that cannot be played, or no such environment.
    """
    from agents.environments import make_env
    from ooco_gym.sim.driver import simulate

    for policy in policies:
        simulate(scenario.with_(duration_s=60.0, warmup_s=0.0, drain_s=0.0), policy=policy)
    made = make_env(env)
    made.reset(seed=0)
    made.close()


def simulate_record(scenario: Scenario, policy: str) -> Record:
    """Simulates one scenario and keeps what the report needs of it."""
    from ooco_gym.render import record_of
    from ooco_gym.sim.driver import simulate

    return record_of(simulate(scenario, policy=policy), policy)


def import_learning() -> None:
    """Imports what training needs while the other process compiles."""
    for package in ("torch", "sb3_contrib"):
        with contextlib.suppress(ImportError):
            __import__(package)
