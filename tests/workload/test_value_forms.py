"""Sessions' names, dates and times in every form that logs have them in, in every file type."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from ooco_gym.workload import open_trace, read_trace

KINDS = ("csv", "jsonl", "parquet", "csv.xz", "jsonl.xz")
DATES = ("2023-11-16 18:15:46", "2023-11-16 18:15:46.5", "2023-11-16T18:15:46", "2023-11-16T18:15:46Z",
         "2023-11-16T18:15:46.500000Z", "2023-11-16 18:15:46+00:00", "2023-11-16 18:15:46.123456789+00:00",
         "2023-11-16T20:15:46.5+02:00", "2023/11/16 18:15:46", "2023-11-16 18:15:46 UTC", " 2023-11-16 18:15:46 ",
         "2023-11-16T18:15:46+0000")
SECONDS = (0, 0.5, 0, 0, 0.5, 0, 0.123456789, 0.5, 0, 0, 0, 0)


def put(folder: Path, kind: str, name: str, values: list[Any]) -> Path:
    """Writes a trace with one column of values beside lengths and, where these are not times, arrivals."""
    path = folder / f"t.{kind}"
    rows = [{**({} if name == "arrival_s" else {"arrival_s": i}), name: value, "prompt_tokens": 1, "output_tokens": 1}
            for i, value in enumerate(values)]
    if kind == "parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path)
        return path
    text = "".join(json.dumps(row) + "\n" for row in rows) if kind.startswith("jsonl") else "\n".join(
        [",".join(rows[0]), *(",".join("" if item is None else str(item) for item in row.values()) for row in rows)])
    path.write_bytes(lzma.compress(text.encode()) if kind.endswith(".xz") else text.encode())
    return path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("names", [
    ["conv-1", None, "conv-2", "conv-1"], ["6f1b2c9e-1111-4222-8333", None, "7", "6f1b2c9e-1111-4222-8333"],
    [2**63 + 1, None, 2**63 + 2, 2**63 + 1], [2**64 - 1, None, 3, 2**64 - 1]], ids=["text", "uuid", "large", "mixed"])
def test_equal_names_are_equal_sessions(tmp_path: Path, kind: str, names: list[Any]) -> None:
    if kind == "parquet" and isinstance(names[0], int):
        path = put(tmp_path, kind, "session", [0] * 4)
        table = parquet.read_table(path)
        parquet.write_table(table.set_column(1, "session", pa.array(names, pa.uint64())), path)
    else:
        path = put(tmp_path, kind, "session", names)
    session = read_trace(path).session
    assert session is not None and session[0] == session[3] != session[2] and session[1] == -1 and session[2] >= 0
    part = open_trace(path).window(1.0, 4.0)[0]
    assert part.session is not None and part.session.tolist() == session[1:].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_conversations_by_parent_may_have_names(tmp_path: Path, kind: str) -> None:
    rows = [{"chat_id": chat, "parent_chat_id": parent, "timestamp": i, "input_length": 5, "output_length": 1}
            for i, (chat, parent) in enumerate((("a", "-1"), ("b", "a"), ("c", "b"), ("d", "-1")))]
    table = {name: [row[name] for row in rows] for name in rows[0]}
    path = put(tmp_path, kind, "session", ["x"])
    if kind == "parquet":
        parquet.write_table(pa.table(table), path)
    else:
        text = "".join(json.dumps(row) + "\n" for row in rows)
        path.write_bytes(lzma.compress(text.encode()) if kind.endswith("xz") else text.encode())
    session = read_trace(path).session
    assert session is not None and len(set(session[:3])) == 1 and session[3] != session[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", range(len(DATES)))
def test_every_form_of_a_date_alone_and_beside_each_other(tmp_path: Path, kind: str, place: int) -> None:
    both = [([DATES[place]] * 2, [SECONDS[place]] * 2), ([DATES[0], *DATES[place:]], [0, *SECONDS[place:]])]
    for values, offsets in both:
        path = put(tmp_path, kind, "arrival_s", values)
        times = read_trace(path, columns={"arrival_s": "arrival_s"}).arrival_s
        expected = sorted(offsets)
        assert times.tolist() == pytest.approx([one - expected[0] for one in expected], abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_nanoseconds_since_1970_lose_nothing(tmp_path: Path, kind: str) -> None:
    first = 1_700_000_000_123_456_789
    path = put(tmp_path, kind, "when", [first, first + 1, first + 1_000_000_007])
    times = read_trace(path, columns={"arrival_s": "when"}, time_unit="ns").arrival_s
    assert times.tolist() == [0.0, 1e-9, 1.000000007]
