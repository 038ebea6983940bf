"""Files of any size: converted piece by piece in bounded memory, read by windows; the same rules as in memory."""

from __future__ import annotations

import errno
import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ooco_gym.workload.pieces as pieces_module
import ooco_gym.workload.reading as reading_module
import ooco_gym.workload.writing as writing_module
from ooco_gym.cli import main
from ooco_gym.errors import UserError
from ooco_gym.workload import Trace, load_workload, read_trace, scale, workload_mean_rate, write_trace
from ooco_gym.workload.load import workload_peak_start_s
from ooco_gym.workload.pieces import read_pieces
from ooco_gym.workload.reading import TraceFile
from ooco_gym.workload.sample import open_source
from ooco_gym.workload.writing import Converted, convert

HEAD = "arrival_s,prompt_tokens,output_tokens\n"


def through_disk(path: Path, to: Path, **how: Any) -> Converted:
    source = open_source(path, **how)
    return convert(source.pieces, source.form, path, to)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of a few rows, so that small files have many."""
    monkeypatch.setattr(pieces_module, "PIECE_BYTES", 64)
    monkeypatch.setattr(pieces_module, "PIECE_ROWS", 5)
    monkeypatch.setattr(writing_module, "ROW_GROUP", 7)


def write_log(path: Path, n: int, *, ordered: bool = True, seed: int = 1) -> None:
    """A log in Azure's format, a few rows of which failed."""
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(0.02, n)) if ordered else rng.uniform(0, 0.02 * n, n)
    start_us = np.datetime64("2024-05-10", "us").astype(np.int64)
    table = pa.table({
        "TIMESTAMP": pa.array((start_us + times * 1e6).astype(np.int64)).cast(pa.timestamp("us")),
        "ContextTokens": rng.integers(1, 4000, n), "GeneratedTokens": rng.integers(0, 400, n)})
    pyarrow.csv.write_csv(table, path)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("ending", ["parquet", "csv.gz", "jsonl"])
@pytest.mark.usefixtures("small_pieces")
def test_a_conversion_is_what_reading_gives(tmp_path: Path, ordered: bool, ending: str,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing_module, "MERGED_ROWS", 64)
    path = tmp_path / "log.csv"
    write_log(path, 300, ordered=ordered)
    done = through_disk(path, tmp_path / f"log_out.{ending}")
    whole = read_trace(path)
    again = read_trace(tmp_path / f"log_out.{ending}")
    assert again.equals(whole) and done.requests == len(whole)
    assert done.notes == whole.notes and (done.first_s, done.last_s) == (whole.arrival_s[0], whole.arrival_s[-1])
    assert any("dropped" in note for note in done.notes) and ordered != any("sorted" in note for note in done.notes)
    assert sorted(item.name for item in tmp_path.iterdir()) == ["log.csv", f"log_out.{ending}"]


@pytest.mark.usefixtures("small_pieces")
def test_columns_that_come_late_and_ties_survive(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"arrival_s": float(i // 9), "prompt_tokens": i + 1, "output_tokens": 1}
                                  for i in range(60)]
    rows[0] |= {"session": None, "prefix_hashes": None, "class": "online"}
    rows[40] |= {"session": 7, "prefix_hashes": [1, 2], "class": "offline", "tpot_slo_s": 0.5}
    rows = [row | {"class": row.get("class", "online")} for row in rows]
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in reversed(rows)))
    through_disk(path, tmp_path / "t.parquet")
    whole = read_trace(path)
    assert read_trace(tmp_path / "t.parquet").equals(whole)
    assert whole.prompt_tokens[:9].tolist() == list(range(9, 0, -1)), "at the same time the file's order holds"
    assert whole.session is not None and whole.prefix_hashes is not None and whole.tpot_slo_s is not None
    assert whole.session[whole.prompt_tokens == 41] == 7 and list(whole.prefix_hashes[1]) == [1, 2]


MANGLED = ["", "x", "-1,1,1\n", "1,0,1\n", "nan,1,1\n", "1,1\n", "1,1,1,1\n", HEAD, "1e300,1,1\n", "\n\n", "1,1.5,1\n",
           "3,10000000,1\n", "\x00", "0.5,2,2\n", "é,1,1\n"]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from(MANGLED)), max_size=2), st.booleans(), st.booleans())
def test_small_and_streaming_readers_have_the_same_rules(tmp_path_factory: pytest.TempPathFactory,
                                                         faults: list[tuple[int, str]], packed: bool,
                                                         ordered: bool) -> None:
    lines = [f"{i if ordered else (7 * i) % 40},{i + 1},{i % 5 + 1}\n" for i in range(40)]
    for at, text in faults:
        lines.insert(at, text)
    folder = tmp_path_factory.mktemp("rules")
    path = folder / "mangled.csv"
    raw = (HEAD + "".join(lines)).encode()
    path.write_bytes(gzip.compress(raw) if packed else raw)

    def outcome(stream: bool) -> tuple[str, Any]:
        try:
            if stream:
                return "trace", (through_disk(path, folder / "o.parquet").notes, read_trace(folder / "o.parquet"))
            trace = read_trace(path)
            return "trace", (trace.notes, trace)
        except UserError as error:
            return "error", str(error)

    memory = outcome(stream=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces_module, "PIECE_BYTES", 100)
        disk, memory_in_pieces = outcome(stream=True), outcome(stream=False)
    assert memory[0] == disk[0] == memory_in_pieces[0], (memory, disk)
    if memory[0] == "trace":
        assert disk[1][0] == memory[1][0] and disk[1][1].equals(memory[1][1])
        assert memory_in_pieces[1][1].equals(memory[1][1])
    else:
        assert disk[1] == memory_in_pieces[1]
        assert str(path) in disk[1] and "\n" not in disk[1]
        if len(faults) == 1:
            assert disk[1] == memory[1], "one fault is found at the same place"


@pytest.mark.usefixtures("small_pieces")
def test_a_bad_row_far_down_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(HEAD + "".join(f"{i},1,1\n" for i in range(500)) + "500,-3,1\n501,1,1\n")
    with pytest.raises(UserError, match=r"t.csv', line 502, field 'prompt_tokens': found '-3'"):
        through_disk(path, tmp_path / "o.parquet")
    assert [item.name for item in tmp_path.iterdir()] == ["t.csv"]
    parquet = tmp_path / "t.parquet"
    columns = {name: np.arange(1, 40) for name in ("arrival_s", "prompt_tokens", "output_tokens")}
    columns["output_tokens"][32] = 0
    pyarrow.parquet.write_table(pa.table(columns), parquet)
    with pytest.raises(UserError, match=r"row 33, field 'output_tokens': found 0"):
        read_trace(parquet, format="ooco_gym")


@pytest.mark.parametrize("after", [0, 3, 20])
@pytest.mark.usefixtures("small_pieces")
def test_a_full_disk_is_said_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    path = tmp_path / "log.csv"
    write_log(path, 60)
    (tmp_path / "o.parquet").write_text("what was there before")
    written = 0
    plain = pyarrow.parquet.ParquetWriter.write_table

    def full(self: Any, *arguments: Any, **more: Any) -> None:
        nonlocal written
        written += 1
        if written > after:
            raise OSError(errno.ENOSPC, "No space left on device")
        plain(self, *arguments, **more)

    monkeypatch.setattr(pyarrow.parquet.ParquetWriter, "write_table", full)
    with pytest.raises(UserError, match="cannot write trace .*o.parquet': No space left on device"):
        through_disk(path, tmp_path / "o.parquet")
    assert sorted(item.name for item in tmp_path.iterdir()) == ["log.csv", "o.parquet"]
    assert (tmp_path / "o.parquet").read_text() == "what was there before"


@pytest.mark.parametrize("ordered", [True, False])
def test_no_more_than_a_few_batches_are_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ordered: bool) -> None:
    """What is read and what is sorted at a time does not grow with the file."""
    monkeypatch.setattr(pieces_module, "PIECE_BYTES", 1 << 14)
    monkeypatch.setattr(writing_module, "MERGED_ROWS", 1024)
    path = tmp_path / "log.csv"
    write_log(path, 20_000, ordered=ordered)
    sizes = [table.rows for table in read_pieces(path)]
    assert sum(sizes) == 20_000 and len(sizes) > 30 and max(sizes) < 600
    held = []
    plain = writing_module.in_order

    def watched(*arguments: Any) -> Any:
        for table in plain(*arguments):
            held.append(table.num_rows)
            yield table

    monkeypatch.setattr(writing_module, "in_order", watched)
    through_disk(path, tmp_path / "o.parquet")
    assert len(held) > 10 and max(held) < 2048


MEASURE = """
import resource, sys
from pathlib import Path
from ooco_gym.workload.writing import convert
from ooco_gym.workload.sample import open_source
path = Path(sys.argv[1])
source = open_source(path)
convert(source.pieces, source.form, path, path.with_suffix(".parquet"))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_peak_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    peaks = []
    for n in (500_000, 2_000_000):
        path = tmp_path / f"log{n}.csv"
        write_log(path, n)
        out = subprocess.run([sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, check=True)
        peaks.append(int(out.stdout) / 1024)
    assert peaks[1] < peaks[0] + 64, f"{peaks} MB: 1.5 million rows more are 54 MB of text and far more as objects"


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
    assert 1 <= file.groups_read <= 3, "of 50"
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
    reading_module._kept.cache_clear()
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
    found = [(workload_mean_rate(str(path)), workload_peak_start_s(str(path), 1800.0),
              workload_peak_start_s(f"{path}+0.001*ooc", 3600.0)) for path in paths]
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
    path = tmp_path / "log.csv"
    write_log(path, 3000, ordered=False)
    packed = tmp_path / "log.csv.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    out = tmp_path / "out"
    assert main(["data", "import", str(packed), f"out={out}"]) == 0
    assert "sorted by time" in capsys.readouterr().out
    summary = json.loads((out / "summary.json").read_text())
    assert summary["requests"] == len(read_trace(path)) and "dispersion" in summary
    assert main(["simulate", f"workload.path={summary['to']}", "start_s=10", "duration_s=5", "rate_scale=1",
                 "offline.rate=0", f"out={tmp_path / 'run'}"]) == 0
    trace = read_trace(path)
    played = json.loads((tmp_path / "run" / "summary.json").read_text())["online"]
    assert played["arrived"] == len(trace.slice_time(10.0, 15.0)) > 100
