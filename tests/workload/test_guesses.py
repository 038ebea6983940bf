"""Rows of a file that are no load are left out or asked about, with the key that chooses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ooco_gym.cli import main
from ooco_gym.errors import UserError
from ooco_gym.workload import open_trace, read_trace, write_trace
from ooco_gym.workload.guesses import loaded
from ooco_gym.workload.table_reader import read_table
from tests.workload.test_unfolding import SAMPLES as FORMATS_FOLDER

HEAD = ("arrival_s", "prompt_tokens", "output_tokens")


pytestmark = pytest.mark.usefixtures("own_folder")


def written(columns: Sequence[str], rows: Sequence[Sequence[Any]], name: str = "log.csv") -> str:
    text = "\n".join(",".join(map(str, row)) for row in [(*HEAD, *columns), *rows])
    Path(name).write_text(f"{text}\n")
    return name


@pytest.mark.parametrize(("column", "good", "bad"), [
    ("status", 200, 500), ("http.response.status_code", 200, 429), ("Status-Code", "200", "503"),
    ("finish_reason", "stop", "error"), ("state.status", "ok", "Cancelled"), ("error", "", "connection reset"),
    ("success", "true", "False"), ("benchmark_phase", "profiling", "warmup")])
def test_rows_that_failed_or_only_warmed_up_are_left_out_with_the_key_to_keep_them(
        column: str, good: Any, bad: Any) -> None:
    rows = [(0.5 * at, 300, 20, good) for at in range(10)]
    rows[3], rows[6] = (1.5, "", 0, bad), (3.0, 300, 0, bad)  # which need no lengths
    trace = read_trace(written([column], rows))
    assert len(trace) == 8 and 1.5 not in trace.arrival_s
    assert f"left out 2 of 10 rows, of which column '{column}'" in trace.notes[0] and "line 5" in trace.notes[0]
    assert f"workload.only.{column}=[" in trace.notes[0]


@pytest.mark.parametrize(("column", "values", "why"), [
    ("attributes.span_kind", ("llm", "agent"), "call no model"), ("run_type", ("llm", "chain"), "call no model"),
    ("level", ("DEFAULT", "ERROR"), "failed"), ("hasError", (False, True), "failed"),
    ("cancelled", (False, True), "failed"), ("response_status", (200, 500), "failed"),
    ("errorCode", (None, "ThrottlingException"), "failed"), ("statusCode", (200, 429), "failed")])
def test_rows_of_gateways_and_spans_that_are_no_call_are_left_out(tmp_path, column, values, why):
    rows = [{"arrival_s": i, "prompt_tokens": 10 + i, "output_tokens": 2, column: values[i % 2]} for i in range(6)]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    trace = read_trace(tmp_path / "log.jsonl")
    assert trace.prompt_tokens.tolist() == [10, 12, 14] and any(f"'{column}' says that they {why}" in note
                                                                for note in trace.notes)


def test_rows_are_chosen_by_any_column() -> None:
    rows = [(0.5 * at, 300, 20, 200 + 300 * (at % 2), "ab"[at // 5]) for at in range(10)]
    name = written(["status", "model"], rows)
    assert len(read_trace(name, only={"status": [200, 500]})) == 10, "what the user chose is not left out"
    assert len(read_trace(name, only={"status": 500, "model": "B"})) == 3
    assert open_trace(name, only={"model": "a"}).rows == 3, "the others failed"
    nested = written(["http.code"], [(at, 1, 1, "xy"[at % 2]) for at in range(4)], "nested.csv")
    assert len(read_trace(nested, only={"http": {"code": "x"}})) == 2, "as the command line writes it"
    for only, said in (({"mdel": "a"}, "did you mean 'model'"), ({"model": "c"}, "its values are: a, b")):
        with pytest.raises(UserError, match=said):
            read_trace(name, only=only)
    assert read_trace(name).notes[1].startswith("warning: column 'model' names 2 models (a, b)")
    assert "workload.only.model=a" in read_trace(name).notes[1]


def test_the_command_line_chooses_rows(capsys: pytest.CaptureFixture[str]) -> None:
    name = written(["model"], [(at, 300, 20, "ab"[at % 2]) for at in range(10)])
    for words in (["only.model=a"], ["only={model: a}"]):
        assert main(["data", "import", name, *words, "to=one.csv", "out=o"]) == 0
        assert len(read_trace("one.csv")) == 5
    assert main(["data", "import", name, "only.model=c", "to=one.csv", "out=o"]) == 2
    assert "its values are: a, b" in capsys.readouterr().err


def test_all_that_failed_is_refused() -> None:
    with pytest.raises(UserError, match="none is left"):
        read_trace(written(["status"], [(0, 1, 1, 500)]))


def test_rows_that_are_there_twice_are_left_out_by_their_id_else_asked_about() -> None:
    rows = [(0.25 * at, 300, 20, f"r{at}") for at in range(10)]
    trace = read_trace(written(["request_id"], [*rows, *rows[2:5]]))
    assert len(trace) == 10 and "left out 3 of 13 rows, which are there twice" in trace.notes[0]
    assert len(read_trace(written(["id"], [(at, 1, 1, "user") for at in range(5)]))) == 5, "no id of a request"
    name = written([], [row[:3] for row in (*rows, *rows)])
    assert len(read_trace(name)) == 20 and "workload.distinct=true" in read_trace(name).notes[0]
    assert len(read_trace(name, distinct=True)) == 10
    batch = read_trace(written([], [(0, 300, 20)] * 9))
    assert len(batch) == 9 and not batch.notes, "a batch is handed in at one time"


def test_hashes_tell_rows_apart() -> None:
    table = "\n".join(json.dumps({**dict(zip(HEAD, (0.5 * (at % 5), 9, 9), strict=True)), "hash_ids": [at]})
                      for at in range(10))
    Path("log.jsonl").write_text(table)
    assert len(loaded(read_table(Path("log.jsonl")), dict(zip(HEAD, HEAD, strict=True)), distinct=True)[0].columns[
        "arrival_s"]) == 10


def test_mooncakes_columns_without_hashes_are_asked_for_their_unit() -> None:
    Path("week.csv").write_text("timestamp,input_length,output_length\n0,10,10\n604800,10,10\n")
    with pytest.raises(UserError, match=r"workload.time_unit=s\), or ms"):
        read_trace("week.csv")
    assert read_trace("week.csv", time_unit="s").arrival_s[-1] == 604_800
    assert read_trace("week.csv", format="mooncake").arrival_s[-1] == 604.8


def test_the_warm_up_of_aiperf_is_left_out() -> None:
    lines = (FORMATS_FOLDER / "aiperf.jsonl").read_text().splitlines()
    first = json.loads(lines[0])
    warm = {**first, "metadata": {**first["metadata"], "benchmark_phase": "warmup"}}
    Path("a.jsonl").write_text("\n".join([json.dumps(warm), *lines]))
    whole = read_trace(FORMATS_FOLDER / "aiperf.jsonl")
    assert len(read_trace("a.jsonl")) == len(whole)


def test_a_parquet_of_our_own_with_such_a_column_is_read_as_a_whole() -> None:
    name = written(["status"], [(at, 300, 20, 500 if at == 5 else 200) for at in range(10)])
    import pyarrow.csv
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.csv.read_csv(name), "log.parquet")
    assert open_trace("log.parquet").rows == 9
    write_trace(read_trace("log.parquet"), "own.parquet")
    assert open_trace("own.parquet").window(0.0, 4.0)[0].arrival_s.tolist() == [0, 1, 2, 3]


def test_rows_without_a_value_can_be_kept(tmp_path):
    """What the sentence on failed rows proposes keeps all of them."""
    path = tmp_path / "calls.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens,error\n0,10,2,\n1,10,2,timeout\n2,10,2,\n")
    trace = read_trace(str(path))
    assert len(trace) == 2 and any("only.error=[timeout,null]" in note for note in trace.notes)
    assert len(read_trace(str(path), only={"error": ["timeout", "null"]})) == 3
