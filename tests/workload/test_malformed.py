"""Every format, as CSV, JSON lines and Parquet, against every fault: a sentence with file and row, or a told repair."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooco_gym.cli import main
from ooco_gym.errors import UserError
from ooco_gym.workload import load_workload, read_trace
from tests.workload.files import AZURE_2023, AZURE_2024, BURSTGPT, MOONCAKE, OWN, Rows, put, write

# Time, prompt and output column of each format, and a time for row i.
FORMATS: dict[str, tuple[str, str, str, Callable[[int], Any]]] = {
    "azure": ("TIMESTAMP", "ContextTokens", "GeneratedTokens", lambda i: f"2023-11-16 18:15:{i:02d}.500000"),
    "mooncake": ("timestamp", "input_length", "output_length", lambda i: 1000 * i),
    "burstgpt": ("Timestamp", "Request tokens", "Response tokens", lambda i: i),
    "ooco_gym": ("arrival_s", "prompt_tokens", "output_tokens", lambda i: i / 2),
}
KINDS = ("csv", "csv.gz", "jsonl", "jsonl.gz", "parquet")
BAD = 20        # the row that a fault is put into, from 0


def rows_of(name: str, n: int = 30) -> Rows:
    time, prompt, output, moment = FORMATS[name]
    hashes = {"hash_ids": None} if name == "mooncake" else {}  # without the column nothing tells the unit of times
    return [{time: moment(i), prompt: 100 + i, output: 10 + i, **hashes} for i in range(n)]


def place(kind: str, row: int = BAD) -> str:
    return f"row {row + 1}" if kind == "parquet" else f"line {row + 1 + kind.startswith('csv')}"


def refused(path: Path, *parts: str, **how: Any) -> None:
    with pytest.raises(UserError) as caught:
        read_trace(path, **how)
    message = str(caught.value)
    assert str(path) in message and "\n" not in message
    for part in parts:
        assert part in message, message


both = pytest.mark.parametrize("name", sorted(FORMATS))
kinds = pytest.mark.parametrize("kind", KINDS)


@both
@kinds
@pytest.mark.parametrize(("column", "value", "found"), [
    ("time", "negative", ""), ("time", None, "found nothing"), ("prompt", 0, "found"), ("prompt", -7, "-7"),
    ("prompt", None, "found nothing"), ("prompt", 2**31, str(2**31)), ("prompt", 1.5, "1.5"), ("output", -1, "-1")])
def test_an_impossible_value_is_placed(tmp_path: Path, name: str, kind: str, column: str, value: Any,
                                       found: str) -> None:
    field = FORMATS[name][("time", "prompt", "output").index(column)]
    rows = rows_of(name)
    if value == "negative":
        value = "1960-01-01 00:00:00" if name == "azure" else -5
    if isinstance(value, float) and kind == "parquet":
        rows = [{**row, field: float(row[field])} for row in rows]
    rows[BAD] = {**rows[BAD], field: value}
    refused(put(tmp_path, rows, kind), place(kind), f"field '{field}'", found, "expected")


@both
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_words_for_numbers_are_placed(tmp_path: Path, name: str, kind: str) -> None:
    for field in FORMATS[name][:3]:
        rows = rows_of(name)
        rows[BAD] = {**rows[BAD], field: "many"}
        refused(put(tmp_path, rows, kind), place(kind), f"field '{field}'", "'many'")


@both
@kinds
def test_zero_output_is_dropped_or_refused_and_said(tmp_path: Path, name: str, kind: str) -> None:
    rows = rows_of(name)
    rows[BAD][FORMATS[name][2]] = 0
    path = put(tmp_path, rows, kind)
    if name == "ooco_gym":
        refused(path, place(kind), "'output_tokens'", "0")
        return
    trace = read_trace(path)
    assert len(trace) == 29 and any("dropped 1 of 30" in note and place(kind) in note for note in trace.notes)


@both
@kinds
def test_order_is_repaired_and_said(tmp_path: Path, name: str, kind: str) -> None:
    trace = read_trace(put(tmp_path, rows_of(name)[::-1], kind))
    assert any("sorted by time: 29 of 30" in note for note in trace.notes)
    assert trace.prompt_tokens.tolist() == list(range(100, 130))


@both
@kinds
def test_a_length_that_no_model_has_is_pointed_out(tmp_path: Path, name: str, kind: str) -> None:
    rows = rows_of(name)
    rows[BAD][FORMATS[name][1]] = 10_000_000
    notes = read_trace(put(tmp_path, rows, kind)).notes
    assert any("suspicious lengths: 1 of 30" in note and "10,000,000" in note and place(kind) in note
               for note in notes)
    assert read_trace(put(tmp_path, rows_of(name), kind)).notes in ((), ("times count from the first request",))


@both
@kinds
def test_a_missing_column_is_named_and_no_wrong_one_proposed(tmp_path: Path, name: str, kind: str) -> None:
    for field in FORMATS[name][:3]:
        rows = [{key: value for key, value in row.items() if key != field} for row in rows_of(name)]
        with pytest.raises(UserError, match=f"has no column '{field}'; format '{name}' needs"):
            read_trace(put(tmp_path, rows, kind), format=name)


@pytest.mark.parametrize("name", ["mooncake", "burstgpt", "ooco_gym"])
@kinds
@pytest.mark.parametrize(("factor", "said"), [(1000, "milliseconds"), (1_000_000, "microseconds")])
def test_times_in_a_finer_unit_are_pointed_out(tmp_path: Path, name: str, kind: str, factor: int, said: str) -> None:
    time = FORMATS[name][0]
    rows = [{**row, time: i * factor * (1000 if name == "mooncake" else 1)} for i, row in enumerate(rows_of(name))]
    notes = " ".join(read_trace(put(tmp_path, rows, kind)).notes)
    said = {"milliseconds": "microseconds", "microseconds": "nanoseconds"}[said] if name == "mooncake" else said
    assert f"if they are {said}, import the file with time_unit=" in notes


@pytest.mark.parametrize("name", ["mooncake", "burstgpt"])
@kinds
def test_milliseconds_since_1970_read_as_seconds_are_refused(tmp_path: Path, name: str, kind: str) -> None:
    time = FORMATS[name][0]
    scale = 1000 if name == "mooncake" else 1
    rows = [{**row, time: (1_700_000_000_000 + 1000 * i) * scale} for i, row in enumerate(rows_of(name))]
    refused(put(tmp_path, rows, kind), place(kind, 0), f"'{time}'", "before the year 2286", "time_unit=")


def test_the_advice_on_units_works(tmp_path: Path) -> None:
    rows = [{**row, "arrival_s": 250 * i} for i, row in enumerate(rows_of("ooco_gym"))]
    path = put(tmp_path, rows, "csv")
    assert any("time_unit=ms" in note for note in read_trace(path).notes)
    assert main(["data", "import", str(path), "time_unit=ms", f"out={tmp_path / 'out'}"]) == 0
    assert read_trace(tmp_path / "out" / "t.parquet").arrival_s[:3].tolist() == [0.0, 0.25, 0.5]


@both
def test_headers(tmp_path: Path, name: str) -> None:
    time, prompt, output, _ = FORMATS[name]
    path = put(tmp_path, rows_of(name), "csv")
    text = path.read_text()
    head, *lines = text.splitlines(keepends=True)

    def again(changed: str) -> Path:
        path.write_text(changed)
        return path

    refused(again(head + "".join(lines[:9]) + head + "".join(lines[9:])), "line 11", f"'{time}'", f"found '{time}'")
    refused(again(text.replace(output, prompt, 1)), f"two columns named '{prompt}'")
    refused(again("".join(lines)), "of a CSV a first line")
    refused(again("# made by hand\n" + text), "line 2", "fields, expected 1", "# made by hand")
    refused(again(text[:-4]), "line 31", "fields, expected ") if "," in text[-4:] else None
    for harmless in (text.replace("\n", "\r\n"), text.replace("\n", "\r"), "\ufeff" + text, text.replace(",", ", "),
                     text.replace(",", ";"), text.replace(",", "\t")):
        assert len(read_trace(again(harmless))) == 30


@both
def test_what_is_no_trace_file(tmp_path: Path, name: str) -> None:
    path = put(tmp_path, rows_of(name), "csv")
    text = path.read_bytes()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("a.csv", text)
    parquet = put(tmp_path, rows_of(name), "parquet").read_bytes()
    for content, said in ((gzip.compress(text)[:-12], "cannot be read"), (gzip.compress(b""), "is empty"),
                          (gzip.compress(gzip.compress(text)), "neither UTF-8"), (bz2.compress(text), "neither UTF-8"),
                          (packed.getvalue(), "neither UTF-8"), (gzip.compress(parquet), "neither UTF-8"),
                          (text.decode().encode("utf-16"), "line 1: neither UTF-8"),
                          (text + b"\xff,1,1\n", "line 32: neither UTF-8"),
                          (json.dumps(rows_of(name)).encode(), "found a JSON array"),
                          (json.dumps(rows_of(name), indent=1).encode(), "found a JSON array"),
                          *((parquet[:-cut], "cannot be read") for cut in (1, 8, 100, len(parquet) - 5))):
        path.write_bytes(content)
        refused(path, said)


@pytest.mark.parametrize("deep", [65, 100_000])
def test_json_within_json_is_read_or_refused(tmp_path: Path, deep: int) -> None:
    """Readers that go down by recursion would end the process. Brackets in text are no nesting."""
    row = json.dumps(rows_of("ooco_gym")[0])
    path = tmp_path / "trace.jsonl"
    path.write_text(f"{row}\n{row[:-1]}, \"more\": {'[' * (deep - 1)}{']' * (deep - 1)}}}\n")
    if deep > 65:
        refused(path, "line 2: not valid JSON (nested too deeply)")
    else:
        assert len(read_trace(path)) == 2
    path.write_text(f"{row}\n{row[:-1]}, \"more\": \"{'[' * deep}\\\"{'{' * deep}\"}}\n")
    assert len(read_trace(path)) == 2


OWN_HEAD = "arrival_s,prompt_tokens,output_tokens\n"


@pytest.mark.parametrize(("text", "parts"), [
    ("", ["empty"]),
    ("\n\n", ["empty"]),
    (OWN_HEAD, ["no request"]),
    (OWN_HEAD + "0,1,1\n\nnan,1,1\n", ["line 4", "'arrival_s'", "nan"]),
    (OWN_HEAD + "0,1,1\ninf,1,1\n", ["line 3", "'arrival_s'", "inf"]),
    (OWN_HEAD + "0,1,1\n1,99999999999999999999999,4\n", ["line 3", "'prompt_tokens'", "9999"]),
    (OWN_HEAD + "0,1,1\n1,2\n", ["line 3", "found 2 fields, expected 3"]),
    ("arrival_s,prompt_token,output_tokens\n0,1,1\n", ["'prompt_tokens'", "did you mean 'prompt_token'"]),
    ("TIMESTAMP,ContextToken,GeneratedTokens\n0,1,1\n", ["'ContextTokens'", "did you mean 'ContextToken'", "azure"]),
    (OWN_HEAD[:-1] + ",class\n0,1,1,online\n1,1,1,off line\n", ["line 3", "'class'", "'off line'"]),
    (OWN_HEAD[:-1] + ",tpot_slo_s\n0,1,1,0\n", ["line 2", "'tpot_slo_s'", "> 0"]),
    (OWN_HEAD[:-1] + ",session\n0,1,1,-5\n", ["line 2", "'session'"]),
    (OWN_HEAD[:-1] + ",prefix_hashes\n0,1,1,1 b\n", ["line 2", "'prefix_hashes'", "'1 b'"]),
    (MOONCAKE + '{"timestamp": 5, "input_length": 1\n', ["line 4", "not valid JSON"]),
    (MOONCAKE + "[1, 2]\n", ["line 4", "JSON object"]),
    (MOONCAKE + '{"timestamp": NaN, "input_length": 1, "output_length": 1}\n', ["line 4", "'timestamp'", "nan"]),
    (MOONCAKE + '{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": ["a"]}\n',
     ["line 4", "'hash_ids'"]),
    (BURSTGPT.splitlines()[0] + "\n5,GPT,1,0,1,API log\n", ["no request with output tokens"]),
    (b"PAR1 and then nothing", ["cannot be read"]),
])
def test_a_malformed_file_is_answered_with_place_and_expectation(text: str | bytes, parts: list[str],
                                                                 tmp_path: Path) -> None:
    refused(write(tmp_path, text), *parts)


def said_of(path: Path, **how: Any) -> None:
    """A file ends in a trace or in one sentence that names it."""
    message, requests = "", 0
    try:
        requests = len(read_trace(path, **how))
    except UserError as error:
        message = str(error)
    assert requests > 0 or (str(path) in message and "\n" not in message)


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_mangled_files_end_in_a_trace_or_a_user_error(tmp_path_factory: pytest.TempPathFactory,
                                                      data: st.DataObject) -> None:
    characters = st.text("0123456789,.-+eE\"'{}[]: \r\n\tnaif", max_size=6)
    text = data.draw(st.sampled_from([AZURE_2023, AZURE_2024, MOONCAKE, BURSTGPT, OWN])).encode()
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(at, min(len(text), at + 8)))
        new = data.draw(st.one_of(st.binary(max_size=6), characters.map(str.encode)))
        text = text[:at] + new + text[end:]
    said_of(write(tmp_path_factory.getbasetemp(), text, "mangled"))


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_any_table_ends_in_a_trace_or_a_user_error(tmp_path_factory: pytest.TempPathFactory,
                                                   data: st.DataObject) -> None:
    """Right column names, wrong contents of any type, in any of the kinds."""
    name, kind = data.draw(st.sampled_from(sorted(FORMATS))), data.draw(st.sampled_from(KINDS))
    leaves = st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=8),
                       st.datetimes().map(str), st.lists(st.integers(-1, 5), max_size=2))
    fields = [*FORMATS[name][:3], *data.draw(st.lists(st.sampled_from(
        ["class", "session", "hash_ids", "prefix_hashes", "ttft_slo_s", "Session ID", "x"]), unique=True))]
    rows: Rows = [dict.fromkeys(fields)] * 0
    for i in range(data.draw(st.integers(1, 4))):
        good = rows_of(name)[i]
        rows.append({field: data.draw(leaves) if data.draw(st.integers(0, 3)) == 0 else good.get(field, 1)
                     for field in fields})
    folder = tmp_path_factory.mktemp("any")
    try:
        path = put(folder, rows, kind)
    except (pa.ArrowException, OverflowError, ValueError, UnicodeError):
        return      # pyarrow cannot write such a column
    said_of(path)


@pytest.mark.parametrize(("source", "said"), [
    ("miss.csv", "trace file 'miss.csv' does not exist$"), ("mist.csv", "does not exist .did you mean 'mast.csv'"),
    ("folder/miss.parquet", "does not exist$"), ("miss.parq", "'miss.parq' does not exist; expected a file, or one of"),
    ("ooo", "unknown workload 'ooo' .did you mean 'ooc'")])
def test_a_wrong_file_name_proposes_a_file_that_is_there_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                                    source: str, said: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mast.csv" if "mist" in source else tmp_path / "other.yaml").write_text("x")
    with pytest.raises(UserError, match=said):
        load_workload(source, duration_s=5, seed=1)


def test_sessions_may_be_missing_where_others_are_written_as_fractions(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens,session\n0,10,5,1.0\n1,10,5,\n2,10,5,1.0\n")
    assert read_trace(path).session.tolist() == [1, -1, 1]
