"""Violations and when they happen: docs/protocol.md's definitions on hand-made requests."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from ooco_gym.metrics import requests_table, summarise, write_requests
from ooco_gym.metrics.quality import Rules, judge, worst_window_rate
from ooco_gym.run_notes import warnings_of
from ooco_gym.sim.state import REJECTED
from tests.metrics.hand_made import ps, request, run_of, table


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


# --- The request table: its columns, its nulls, and the same bytes twice ---------------------------------------------
COLUMNS = ["id", "class", "arrival_s", "prompt_tokens", "output_tokens", "first_token_s", "finish_s",
           "generated_tokens", "wasted_tokens", "evictions", "migrations", "violated"]


def made():
    return run_of(table(
        request(arrival_s=5.0, counted=0), request(arrival_s=700.0, first_s=701.0, finish_s=702.0, tokens=20),
        request(arrival_s=800.0, first_s=803.0), request(arrival_s=900.0, online=0)), window_s=(600.0, 4200.0))


def test_columns_and_nulls():
    rows = requests_table(made()).to_pylist()
    assert list(rows[0]) == COLUMNS
    assert [row["id"] for row in rows] == [1, 2, 3]
    assert [row["class"] for row in rows] == ["online", "online", "offline"]
    assert [row["arrival_s"] for row in rows] == [100.0, 200.0, 300.0]
    assert [row["first_token_s"] for row in rows] == [101.0, 203.0, None]
    assert [row["finish_s"] for row in rows] == [102.0, None, None]
    assert [row["violated"] for row in rows] == [True, True, False]
    assert len(requests_table(made(), everything=True)) == 4


def test_what_can_never_be_served_is_counted_with_the_reason():
    run = run_of(table(
        request(arrival_s=700.0, status=REJECTED, prompt=250_000),  # beyond the 131,072 of Qwen2.5-7B
        request(arrival_s=701.0, first_s=701.5, finish_s=702.0),
        request(arrival_s=702.0, online=0, status=REJECTED, prompt=9000),
        request(arrival_s=5.0, counted=0, status=REJECTED)), window_s=(600.0, 4200.0))
    summary = summarise(run)
    assert summary["rejected"] == {"online": 1, "offline": 1, "reasons": {"memory": 1, "model window": 1},
                                   "shortest_tokens": 9100}
    assert requests_table(run)["rejected"].to_pylist() == ["model window", None, "memory"]
    said = [line for line in warnings_of(summary) if "1 online and 1 offline requests were rejected" in line]
    assert said and "9,100 tokens for the shortest" in said[0]
    assert "rejected" not in summarise(made()) and "rejected" not in requests_table(made()).column_names


def test_table_and_summary_agree():
    run = made()
    rows = requests_table(run).to_pylist()
    online = [row for row in rows if row["class"] == "online"]
    assert sum(row["violated"] for row in online) / len(online) == summarise(run)["online"]["violation_rate"]


def test_equal_runs_give_equal_bytes(tmp_path):
    write_requests(made(), tmp_path / "a.parquet")
    write_requests(made(), tmp_path / "b.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    assert parquet.read_table(tmp_path / "a.parquet").equals(requests_table(made()))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.parquet", "b.parquet"]
