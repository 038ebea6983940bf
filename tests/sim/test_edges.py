"""What a run has done up to a time: time, memory and tokens between two edges, wherever these lie."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ooco_gym.sim import state as s
from ooco_gym.sim.edges import Edge, edge_of
from tests.sim.episodes import setups
from tests.sim.harness import Episode, Setup
from tests.sim.test_sessions import mixed

CLOCK = {"engine_clock": {"async_scheduling": True, "decode_s": 0.001, "schedule_s": 0.0005}}


def edge_at(setup: Setup, at_ps: int) -> Edge:
    episode = Episode(setup)
    if at_ps > 0:
        episode.advance(at_ps - 1)
    return edge_of(episode.state, at_ps)


def followed(setup: Setup, at_ps: int) -> np.ndarray:
    """Time of each instance by activity, int64[m, 8], followed event by event."""
    episode, now_ps = Episode(setup), 0
    instances = episode.state.instances
    busy_ps = np.zeros((len(instances), 8), np.int64)
    while True:
        until_ps = min(episode.next_event_ps(), at_ps)
        for index, spec in enumerate(instances):
            busy_ps[index, spec["activity"]] += until_ps - now_ps
        now_ps = until_ps
        if now_ps >= at_ps or episode.advance(now_ps) == s.DONE:
            break
    busy_ps[:, s.IDLE] = 0
    return busy_ps


@given(setups(random_rules=False) | mixed() | mixed().map(lambda setup: setup.with_(rules=CLOCK)),
       st.integers(0, 12 * s.PS_PER_S))
def test_an_instance_is_busy_as_long_as_it_runs_an_iteration(setup: Setup, at_ps: int) -> None:
    busy_ps, edge = followed(setup, at_ps), edge_at(setup, at_ps)
    assert (edge.busy_ps >= 0).all() and (edge.busy_ps.sum(axis=1) == busy_ps.sum(axis=1)).all()
    for column, activity in enumerate((s.PREFILL_ONLINE, s.PREFILL_OFFLINE, s.DECODE)):
        if not setup.mixed:
            assert (edge.busy_ps[:, column] == busy_ps[:, activity]).all()


@given(setups(random_rules=False) | mixed(), st.lists(st.integers(0, 15 * s.PS_PER_S), min_size=2, max_size=5))
def test_windows_side_by_side_add_up(setup: Setup, edges_ps: list[int]) -> None:
    edges = [edge_at(setup, at_ps) for at_ps in sorted(edges_ps)]
    parts = [after.since(before) for before, after in pairwise(edges)]
    whole = edges[-1].since(edges[0])
    for name in Edge._fields:
        assert (sum(getattr(part, name) for part in parts) == getattr(whole, name)).all(), name
        if name != "computed_tokens":  # what is evicted is computed no more
            assert all((getattr(part, name) >= 0).all() for part in parts), name
