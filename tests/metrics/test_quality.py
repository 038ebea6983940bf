"""Violations and when they happen: docs/protocol.md's definitions on hand-made requests."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooco_gym.metrics.quality import Rules, judge, worst_window_rate
from ooco_gym.sim.state import REJECTED
from tests.metrics.hand_made import ps, request, table


def verdict(row, end_s=1000.0, from_decode=False):
    quality = judge(table(row), Rules(tpot_min_tokens=16, from_decode=from_decode, end_ps=ps(end_s)))
    return bool(quality.ttft_missed[0]), bool(quality.tpot_missed[0])


@pytest.mark.parametrize(("row", "expected"), [
    (request(first_s=2.0, finish_s=2.0 + 99 * 0.05), (False, False)),  # exactly at both SLOs
    (request(first_s=2.001, finish_s=2.001 + 99 * 0.05), (True, False)),
    (request(first_s=1.0, finish_s=1.001 + 99 * 0.05), (False, True)),
    (request(first_s=1.0, finish_s=2.0 + 9 * 0.05, tokens=10), (False, False)),  # short: by its deadline, not its TPOT
    (request(first_s=2.0, finish_s=2.01 + 9 * 0.05, tokens=10), (False, True)),
    (request(first_s=2.5, finish_s=2.5, tokens=1), (True, True)),
    (request(first_s=1.9, finish_s=1.9, tokens=1), (False, False)),
    (request(status=REJECTED), (True, True)),
])
def test_finished_and_rejected(row, expected):
    assert verdict(row) == expected


def test_unfinished_violates_only_once_it_is_certain():
    waiting = request(arrival_s=100.0)
    assert verdict(waiting, end_s=102.0) == (False, False)
    assert verdict(waiting, end_s=102.001)[0]
    decoding = request(first_s=1.0, decode_s=1.0, generated=40)
    assert verdict(decoding, end_s=1.0 + 99 * 0.05) == (False, False)
    assert verdict(decoding, end_s=1.01 + 99 * 0.05) == (False, True)


def test_both_definitions_of_tpot():
    late_join = request(first_s=1.0, decode_s=1.5, finish_s=1.5 + 99 * 0.05)
    assert verdict(late_join) == (False, True)
    assert verdict(late_join, from_decode=True) == (False, False)
    quality = judge(table(late_join), Rules(16, False, ps(1000.0)))
    assert quality.tpot_s[0] == pytest.approx(0.05 + 0.5 / 99)
    assert quality.tpot_decode_s[0] == pytest.approx(0.05)


def test_deadline_and_lateness_are_those_of_the_last_token():
    quality = judge(table(request(first_s=0.5, finish_s=10.0, tokens=101)), Rules(16, False, ps(1000.0)))
    assert quality.deadline_missed[0]
    assert quality.lateness_s[0] == pytest.approx(10.0 - (2.0 + 100 * 0.05))
    assert quality.normalized_latency_s[0] == pytest.approx(10.0 / 101)


@given(arrivals=st.lists(st.floats(0, 3599), min_size=1, max_size=60), data=st.data())
@settings(max_examples=50, deadline=None)
def test_worst_window_is_at_least_each_window_of_a_tiling(arrivals, data):
    arrival_s = np.sort(np.array(arrivals))
    violated = np.array(data.draw(st.lists(st.booleans(), min_size=len(arrivals), max_size=len(arrivals))))
    worst = worst_window_rate(arrival_s, violated, 0.0, 3600.0)
    tiles = [violated[(arrival_s >= t) & (arrival_s < t + 600)] for t in range(0, 3600, 600)]
    assert max(tile.mean() for tile in tiles if tile.size) <= worst <= 1.0
    assert (worst == 0.0) == (not violated.any())


def test_worst_window_finds_the_bad_ten_minutes():
    arrival_s = np.arange(0.0, 7200.0, 10.0)
    violated = (arrival_s >= 1800.0) & (arrival_s < 2400.0)
    assert worst_window_rate(arrival_s, violated, 0.0, 7200.0) == 1.0
    assert worst_window_rate(arrival_s, violated, 0.0, 300.0) == 0.0
    assert np.isnan(worst_window_rate(arrival_s[:0], violated[:0], 0.0, 7200.0))
