"""The request table: its columns, its nulls, and the same bytes twice."""

from __future__ import annotations

from pyarrow import parquet

from ooco_gym.metrics import requests_table, summarise, write_requests
from ooco_gym.run_notes import warnings_of
from ooco_gym.sim.state import REJECTED
from tests.metrics.hand_made import request, run_of, table

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
