"""Large files: imported as Parquet, and played by windows of it."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ooco_gym.workload.trace_file as trace_file_module
import ooco_gym.workload.writing as writing_module
from ooco_gym.cli import main
from ooco_gym.errors import UserError
from ooco_gym.workload import Trace, load_workload, read_trace, scale, workload_mean_rate, write_trace
from ooco_gym.workload.load import resolve_workload
from ooco_gym.workload.trace_file import TraceFile
from tests.workload.files import put


def test_what_is_written_is_read_back_in_the_order_of_time(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"arrival_s": float(i // 9), "prompt_tokens": i + 1, "output_tokens": 1}
                                  for i in range(60)]
    rows[40] |= {"session": 7, "prefix_hashes": [1], "class": "offline", "tpot_slo_s": 0.5}
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps({"class": "online", **row}) + "\n" for row in reversed(rows)))
    whole = read_trace(path)
    assert whole.prompt_tokens[:9].tolist() == list(range(9, 0, -1)), "at the same time the file's order holds"
    assert whole.session is not None and whole.prefix_hashes is not None and whole.tpot_slo_s is not None
    assert whole.session[whole.prompt_tokens == 41] == 7 and list(whole.prefix_hashes[1]) == [1]
    for ending in ("parquet", "csv.gz", "jsonl"):
        assert read_trace(write_trace(whole, tmp_path / f"again.{ending}")).equals(whole)


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any, **more: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "o.parquet").write_text("what was there before")
    monkeypatch.setattr(pyarrow.parquet, "write_table", full)
    with pytest.raises(UserError, match="cannot write trace .*o.parquet': No space left on device"):
        write_trace(Trace(np.zeros(1), np.ones(1), np.ones(1)), tmp_path / "o.parquet")
    assert [item.name for item in tmp_path.iterdir()] == ["o.parquet"]
    assert (tmp_path / "o.parquet").read_text() == "what was there before"


def test_a_window_reads_its_row_groups_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing_module, "ROW_GROUP", 100)
    rng = np.random.default_rng(3)
    trace = Trace(np.sort(rng.uniform(0, 1000, 5000)), rng.integers(1, 99, 5000), rng.integers(1, 99, 5000),
                  session=rng.integers(-1, 9, 5000))
    path = write_trace(trace, tmp_path / "t.parquet")
    file = TraceFile(path)
    assert (file.rows, file.first_s, file.last_s) == (5000, trace.arrival_s[0], trace.arrival_s[-1])
    assert file.mean_rate == pytest.approx(trace.mean_rate)
    window, first_row = file.window(400.0, 420.0)
    assert window.equals(trace.slice_time(400.0, 420.0)) and first_row == np.searchsorted(trace.arrival_s, 400.0)
    assert read_trace(path, start_s=400.0, end_s=420.0).equals(window)
    assert len(read_trace(path, start_s=2000.0, end_s=3000.0)) == 0 == len(file.window(5.0, 5.0)[0])
    edges = np.array([[0.0, 10.0], [500.0, 2000.0]])
    assert np.array_equal(file.counts_before(edges), np.searchsorted(trace.arrival_s, edges))


@settings(deadline=None, max_examples=25)
@given(st.floats(0, 1000), st.floats(0.1, 300), st.sampled_from([0.3, 1.0, 2.6]), st.integers(0, 9))
def test_a_scaled_window_is_that_part_of_the_scaled_whole(tmp_path_factory: pytest.TempPathFactory, start_s: float,
                                                          duration_s: float, factor: float, seed: int) -> None:
    path = tmp_path_factory.getbasetemp() / "scaled.parquet"
    rng = np.random.default_rng(3)
    trace = Trace(np.sort(rng.uniform(0, 1300, 3000)), rng.integers(1, 99, 3000), rng.integers(1, 99, 3000))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing_module, "ROW_GROUP", 64)
        write_trace(trace, path)
    trace_file_module._kept.cache_clear()
    wanted = scale(trace, factor, seed).slice_time(start_s, start_s + duration_s)
    window = {"start_s": start_s, "duration_s": duration_s, "seed": seed, "rate_scale": factor}
    if len(trace.slice_time(start_s, start_s + duration_s)) == 0:
        with pytest.raises(UserError, match="no request in the window"):
            load_workload(str(path), **window)
    else:
        assert load_workload(str(path), **window).equals(wanted)


def test_rates_and_peaks_of_files_are_those_of_their_requests(tmp_path: Path,
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing_module, "ROW_GROUP", 500)
    rng = np.random.default_rng(5)
    times = np.sort(np.concatenate([rng.uniform(0, 40_000, 2000), rng.uniform(21_000, 23_000, 2000)]))
    ones = np.ones(4000, np.int64)
    paths = [write_trace(Trace(times, ones, ones), tmp_path / f"t.{ending}") for ending in ("parquet", "csv")]
    found = [(workload_mean_rate(str(path)), resolve_workload(str(path)).peak_start_s(1800.0),
              resolve_workload(f"{path}+0.001*ooc").peak_start_s(3600.0)) for path in paths]
    assert found[0] == pytest.approx(found[1])
    assert found[0][0] == pytest.approx(0.1, rel=0.01) and 20_400 <= found[0][1] <= 22_200
    assert 5 * 3600 <= found[0][2] <= 6.5 * 3600


def test_parquets_out_of_order_are_read_whole_and_sorted(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    columns = {"arrival_s": np.array([5.0, 6.0, 1.0, 2.0]), "prompt_tokens": np.arange(1, 5),
               "output_tokens": np.arange(1, 5)}
    pyarrow.parquet.write_table(pa.table(columns), path, row_group_size=2)
    assert read_trace(path, start_s=1.5, end_s=5.5).prompt_tokens.tolist() == [4, 1]


def test_the_command_imports_gzip_and_simulates_a_window(tmp_path: Path,
                                                         capsys: pytest.CaptureFixture[str]) -> None:
    seconds = np.random.default_rng(1).uniform(0, 60, 3000)
    packed = put(tmp_path, [{"TIMESTAMP": f"2024-05-10 00:00:{second:09.6f}", "ContextTokens": 300,
                             "GeneratedTokens": i % 9} for i, second in enumerate(seconds)], "csv.gz")
    out = tmp_path / "out"
    assert main(["data", "import", str(packed), f"out={out}"]) == 0
    assert "sorted by time" in capsys.readouterr().out
    summary = json.loads((out / "summary.json").read_text())
    assert summary["requests"] == len(read_trace(packed)) and "dispersion" in summary
    assert main(["simulate", f"workload.path={summary['to']}", "start_s=10", "duration_s=5", "rate_scale=1",
                 "offline.rate=0", f"out={tmp_path / 'run'}"]) == 0
    trace = read_trace(packed)
    played = json.loads((tmp_path / "run" / "summary.json").read_text())["online"]
    assert played["arrived"] == len(trace.slice_time(10.0, 15.0)) > 100


@pytest.mark.parametrize(("duration_s", "begin_s"), [(100.0, 328.0), (300.0, 300.0), (560.0, 29.0)])
def test_the_busiest_part_of_a_short_trace_is_found_and_lies_within_it(tmp_path, duration_s, begin_s):
    """Three requests a second from 330 s on for 90 s, one in ten seconds before and after, 590 s in all."""
    arrival_s = np.sort(np.concatenate([np.arange(0.0, 590.0, 10.0), 330.0 + np.arange(0.0, 90.0, 1 / 3)]))
    trace = Trace(arrival_s, np.full(len(arrival_s), 10), np.full(len(arrival_s), 10))
    path = tmp_path / "trace.parquet"
    write_trace(trace, path)
    found = resolve_workload(str(path)).peak_start_s(duration_s)
    counts = [np.sum((arrival_s >= start) & (arrival_s < start + duration_s)) for start in (found, begin_s)]
    assert counts[0] >= 0.99 * counts[1] and found + duration_s <= 591.0
