"""Echo's estimator (arXiv 2504.03651, section 5): hand-worked figures, deadlines, the memory left free."""

from __future__ import annotations

import numpy as np
import pytest
from harness import Episode, Setup
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines import echo_estimator as e
from ooco_gym.compile import jit
from ooco_gym.sim import state as s


@jit
def time_of(state, contexts, chunks):
    load = e.nothing()
    for i in range(contexts.size):
        load = e.with_decode(state, load, contexts[i])
    for i in range(chunks.shape[0]):
        load = e.with_chunk(state, load, chunks[i, 0], chunks[i, 1], chunks[i, 1], 1)
    return e.batch_time(state, load)


@jit
def slack_of(state, slot):
    return e.slack(state, slot)


@jit
def note(state, time_ps, blocks):
    state.clock.now_ps = time_ps
    e.remember(state, 0, blocks)
    return e.expected_blocks(state, 0)


@jit
def reserve_of(state, held):
    return e.reserved_for_bursts(state, 0, held)


def episode(policy: str = "echo", rows: tuple[tuple[float, int, int, bool], ...] = ((0.0, 100, 50, True),),
            **values: object) -> Episode:
    return Episode(Setup(rows, relaxed=(), strict=(), mixed=(("ascend_910c", 1),), policy=policy,
                         values=tuple({"max_num_seqs": 32, **values}.items())))


def set_params(one: Episode, **values: float) -> None:
    for name, value in values.items():
        one.state.params[getattr(e.P, name)] = value


# --- Execution time (5.2) -------------------------------------------------------------------------------------------
def test_a_batch_by_hand() -> None:
    """a = 2, b = 3, c = 1,000, g = 5, d = 7, lam = 1/4: chunks of 10 behind 20 and of 40; decodes of 100 and 300."""
    one = episode()
    set_params(one, square_ps=2, token_ps=3, least_ps=1000, longest_ps=5, mean_ps=7, overlap=0.25, estimator=1)
    state = one.state
    contexts, nothing = np.array([100, 300]), np.zeros((0, 2), np.int64)
    chunks = np.array([[20, 10], [0, 40]])
    first, second = 2 * (900 - 400) + 3 * 10, 2 * 1600 + 3 * 40
    assert (first, second) == (1030, 3320)
    assert time_of(state, contexts[:0], chunks) == first + second
    assert time_of(state, contexts, nothing) == 5 * 300 + 7 * 200 == 2900
    assert time_of(state, contexts, chunks) == 0.25 * 4350 + 0.75 * (4350 + 2900)
    assert time_of(state, contexts[:0], np.array([[0, 5]])) == 1000, "never less than c"


# --- Service level (5.1) --------------------------------------------------------------------------------------------
def test_slack_builds_up() -> None:
    """TTFT 1 s, TPOT 50 ms: at 0.7 s after its arrival the 5th token of a request has 0.5 s left."""
    one = episode(rows=((0.0, 100, 50, True), (0.0, 100, 50, False)))
    state, request = one.state, one.state.requests[0]
    state.requests["ttft_slo_ps"], state.requests["tpot_slo_ps"] = s.PS_PER_S, s.PS_PER_S // 20
    state.clock.now_ps = 7 * s.PS_PER_S // 10
    assert slack_of(state, 0) == 3 * s.PS_PER_S // 10
    request["generated_tokens"], request["first_token_ps"] = 4, 6 * s.PS_PER_S // 10
    assert slack_of(state, 0) == s.PS_PER_S // 2
    assert slack_of(state, 1) == s.NEVER, "offline requests promise nothing"
    set_params(one, due_from=1)
    assert slack_of(state, 0) == s.PS_PER_S // 10, "0.6 s + 4 x 50 ms - 0.7 s"
    state.clock.now_ps = s.PS_PER_S
    assert slack_of(state, 0) == -s.PS_PER_S // 5, "past its deadline it stops offline work"


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
    set_params(one, reserve=0)
    assert reserve_of(one.state, 0) == 0
