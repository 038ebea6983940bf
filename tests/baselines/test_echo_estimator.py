"""Echo's estimator (arXiv 2504.03651, 5.3): the memory that is left free for bursts of online requests."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines import echo_estimator as e
from ooco_gym.compile import jit
from ooco_gym.sim import state as s
from tests.sim.harness import Episode, Setup


@jit
def note(state, time_ps, blocks):
    state.clock.now_ps = time_ps
    e.remember(state, 0, blocks)
    return e.expected_blocks(state, 0)


@jit
def reserve_of(state, held):
    return e.reserved_for_bursts(state, 0, held)


def episode(**values: object) -> Episode:
    return Episode(Setup(((0.0, 100, 50, True),), relaxed=(), strict=(), mixed=(("ascend_910c", 1),), policy="echo",
                         values=tuple({"max_num_seqs": 32, **values}.items())))


# --- Memory of bursts to come (5.3) ---------------------------------------------------------------------------------
@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.floats(0.0, 40.0), st.integers(0, 500)), min_size=2, max_size=40))
def test_mean_and_deviation_of_the_history(calls: list[tuple[float, int]]) -> None:
    """Over the newest quarter and the three before it, by the time that each level lasted."""
    one = episode(history_s=40.0, reserve_sigmas=1.5)
    at_s, levels = 0.0, [(0.0, 0)]
    for gap_s, blocks in calls:
        at_s += gap_s
        found = note(one.state, round(at_s * s.PS_PER_S), blocks)
        levels.append((at_s, blocks))
    first_s = max(0.0, (np.floor(np.nextafter(at_s, 0.0) / 10.0) - 3) * 10.0)
    edges = np.array([max(time_s, first_s) for time_s, _ in levels])
    lasted = np.diff(edges)
    if lasted.sum() < 1e-6:
        return
    held = np.array([blocks for _, blocks in levels[:-1]], float)
    mean = (held * lasted).sum() / lasted.sum()
    deviation = np.sqrt(max(0.0, (held**2 * lasted).sum() / lasted.sum() - mean**2))
    assert found == pytest.approx(mean + 1.5 * deviation, rel=1e-3, abs=1e-2)


def test_what_is_left_free() -> None:
    """Half the time 100 blocks, half 300: mean 200, deviation 100; expected 400 with two of them."""
    one = episode(history_s=4000.0)
    one.state.memory[0, e.USED] = 100.0
    for second, blocks in enumerate((300, 100, 300, 0), start=1):
        note(one.state, second * s.PS_PER_S, blocks)
    assert reserve_of(one.state, 300) == 100
    assert reserve_of(one.state, 450) == 0
    one.state.params[e.P.reserve] = 0
    assert reserve_of(one.state, 0) == 0
