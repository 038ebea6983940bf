"""Reading traces of others, repairs, and what a malformed file is answered with."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from ooco_gym.errors import UserError
from ooco_gym.workload import Trace, list_formats, load_spec, load_workload, read_trace, scale, write_trace
from ooco_gym.workload.arrivals import tide_at

AZURE_2023 = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224670,879,55
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:00.017335+00:00,2399,6
2024-05-10 00:00:01+00:00,76,15
"""
MOONCAKE = """{"timestamp": 0, "input_length": 1400, "output_length": 500, "hash_ids": [0, 1, 2]}
{"timestamp": 0, "input_length": 900, "output_length": 490, "hash_ids": [0, 14]}
{"timestamp": 3052, "input_length": 1200, "output_length": 3, "hash_ids": []}
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,GPT-4,1087,0,1087,Conversation log
118,ChatGPT,417,276,693,API log
"""
OWN = """arrival_s,prompt_tokens,output_tokens,class,ttft_slo_s,session,prefix_hashes
0.5,1300,20,online,1.5,,1 2 3
1.0,11,21,offline,,7,
"""


def put(folder: Path, text: str | bytes, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("packed", [False, True])
def test_each_format_is_recognised(tmp_path: Path, packed: bool) -> None:
    def read(text: str) -> Trace:
        return read_trace(put(tmp_path, gzip.compress(text.encode()) if packed else text, "any_name"))

    old, new, mooncake, burst, own = (read(text) for text in (AZURE_2023, AZURE_2024, MOONCAKE, BURSTGPT, OWN))
    assert old.arrival_s == pytest.approx([0.0, 4.314579, 4.541877], abs=1e-9)
    assert old.prompt_tokens.tolist() == [374, 396, 879] and old.output_tokens.tolist() == [44, 109, 55]
    assert new.arrival_s == pytest.approx([0.0, 0.007405, 0.99007], abs=1e-9)
    assert mooncake.arrival_s.tolist() == [0.0, 0.0, 3.052]
    assert mooncake.prefix_hashes is not None
    assert [item.tolist() for item in mooncake.prefix_hashes] == [[0, 3, 5, 5], [0, 1, 2, 0, 14]]
    assert burst.arrival_s.tolist() == [5.0, 118.0], "the failed request is dropped"
    assert any("dropped 1 of 3" in note and "line 3" in note for note in burst.notes)
    assert own.online.tolist() == [True, False] and own.session is not None and own.session.tolist() == [-1, 7]
    assert own.ttft_slo_s is not None and own.ttft_slo_s[0] == 1.5 and np.isnan(own.ttft_slo_s[1])
    assert own.prefix_hashes is not None and own.prefix_hashes[1].tolist() == [1, 2, 3]


def test_unsorted_times_are_sorted_with_a_note(tmp_path: Path) -> None:
    trace = read_trace(put(tmp_path, "arrival_s,prompt_tokens,output_tokens\n3,30,1\n1,10,1\n2,20,1\n"))
    assert trace.prompt_tokens.tolist() == [10, 20, 30]
    assert any("sorted by time: 1 of 3" in note for note in trace.notes)


def test_unknown_columns_are_left_out_with_a_note(tmp_path: Path) -> None:
    trace = read_trace(put(tmp_path, "arrival_s,prompt_tokens,output_tokens,mood\n1,1,1,good\n"))
    assert any("mood" in note for note in trace.notes)


OWN_HEAD = "arrival_s,prompt_tokens,output_tokens\n"


@pytest.mark.parametrize(("text", "parts"), [
    ("", ["empty"]),
    ("\n\n", ["empty"]),
    (OWN_HEAD, ["no request"]),
    (OWN_HEAD + "0,1,1\n-1,1,1\n", ["line 3", "'arrival_s'", "-1", ">= 0"]),
    (OWN_HEAD + "0,1,1\n\nnan,1,1\n", ["line 4", "'arrival_s'", "nan"]),
    (OWN_HEAD + "0,1,1\ninf,1,1\n", ["line 3", "'arrival_s'", "inf"]),
    (OWN_HEAD + "0,1,1\n1,,1\n", ["line 3", "'prompt_tokens'", "nothing"]),
    (OWN_HEAD + "0,1,1\n1,0,1\n", ["line 3", "'prompt_tokens'", "'0'", "from 1"]),
    (OWN_HEAD + "0,1,1\n1,2,0\n", ["line 3", "'output_tokens'", "'0'", "from 1"]),
    (OWN_HEAD + "0,1,1\n1,2,-4\n", ["line 3", "'output_tokens'", "'-4'"]),
    (OWN_HEAD + "0,1,1\n1,2.5,4\n", ["line 3", "'prompt_tokens'", "'2.5'", "whole number"]),
    (OWN_HEAD + "0,1,1\n1,many,4\n", ["line 3", "'prompt_tokens'", "'many'"]),
    (OWN_HEAD + "0,1,1\n1,99999999999999999999999,4\n", ["line 3", "'prompt_tokens'", "9999"]),
    (OWN_HEAD + "0,1,1\n1,2\n", ["line 3", "found 2 fields, expected 3"]),
    ("arrival_s,prompt_token,output_tokens\n0,1,1\n", ["'prompt_tokens'", "did you mean 'prompt_token'"]),
    ("TIMESTAMP,ContextToken,GeneratedTokens\n0,1,1\n", ["'ContextTokens'", "did you mean 'ContextToken'", "azure"]),
    ("arrival_s,arrival_s,output_tokens\n0,1,1\n", ["two columns named 'arrival_s'"]),
    (OWN_HEAD[:-1] + ",class\n0,1,1,online\n1,1,1,off line\n", ["line 3", "'class'", "'off line'"]),
    (OWN_HEAD[:-1] + ",tpot_slo_s\n0,1,1,0\n", ["line 2", "'tpot_slo_s'", "> 0"]),
    (OWN_HEAD[:-1] + ",session\n0,1,1,-5\n", ["line 2", "'session'"]),
    (OWN_HEAD[:-1] + ",prefix_hashes\n0,1,1,1 b\n", ["line 2", "'prefix_hashes'", "'1 b'"]),
    (AZURE_2023 + "yesterday,1,1\n", ["line 5", "'TIMESTAMP'", "'yesterday'"]),
    (AZURE_2023 + ",1,1\n", ["line 5", "'TIMESTAMP'", "nothing"]),
    (MOONCAKE + '{"timestamp": 5, "input_length": 1\n', ["line 4", "not valid JSON"]),
    (MOONCAKE + "[1, 2]\n", ["line 4", "JSON object"]),
    (MOONCAKE + '{"timestamp": 5, "output_length": 1}\n', ["line 4", "'input_length'", "nothing"]),
    (MOONCAKE + '{"timestamp": "soon", "input_length": 1, "output_length": 1}\n', ["line 4", "'timestamp'", "'soon'"]),
    (MOONCAKE + '{"timestamp": NaN, "input_length": 1, "output_length": 1}\n', ["line 4", "'timestamp'", "nan"]),
    (MOONCAKE + '{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": ["a"]}\n',
     ["line 4", "'hash_ids'"]),
    (BURSTGPT.splitlines()[0] + "\n5,GPT,1,0,1,API log\n", ["no request with output tokens"]),
    (gzip.compress(OWN.encode())[:-9], ["cannot be read"]),
    (b"PAR1 and then nothing", ["cannot be read"]),
    (b"\xff\xfe\x00abc\n", ["UTF-8"]),
])
def test_a_malformed_file_is_answered_with_place_and_expectation(text: str | bytes, parts: list[str],
                                                                 tmp_path: Path) -> None:
    path = put(tmp_path, text)
    with pytest.raises(UserError) as caught:
        read_trace(path)
    message = str(caught.value)
    assert str(path) in message and "\n" not in message
    for part in parts:
        assert part in message, message


def test_missing_files_folders_and_formats(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        read_trace(tmp_path / "no.csv")
    with pytest.raises(UserError, match="cannot be read"):
        read_trace(tmp_path)
    with pytest.raises(UserError, match="did you mean 'azure'"):
        read_trace(put(tmp_path, AZURE_2023), format="azur")
    with pytest.raises(UserError, match="no column 'timestamp'"):
        read_trace(put(tmp_path, AZURE_2023), format="mooncake")
    assert list_formats() == ["aiperf", "azure", "bailian", "bench_serve", "burstgpt", "dynamo", "mooncake", "ooco_gym",
                              "otel", "tracelab", "weka"]


def test_parquet_mistakes_name_the_row(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"arrival_s": [0.0, 1.0], "prompt_tokens": [1, 0], "output_tokens": [1, 1]}), path)
    with pytest.raises(UserError, match="row 2, field 'prompt_tokens': found 0"):
        read_trace(path)
    put(tmp_path, path.read_bytes()[:-20], "t.parquet")
    with pytest.raises(UserError, match="cannot be read"):
        read_trace(path)


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
    path = put(tmp_path_factory.getbasetemp(), text, "mangled")
    requests, message = 0, ""
    try:
        requests = len(read_trace(path))
    except UserError as error:
        message = str(error)
    assert requests > 0 or (str(path) in message and "\n" not in message)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_mangled_parquet_ends_in_a_trace_or_a_user_error(tmp_path_factory: pytest.TempPathFactory,
                                                         data: st.DataObject) -> None:
    path = tmp_path_factory.getbasetemp() / "mangled.parquet"
    write_trace(Trace([0.0, 1.0], [1, 2], [3, 4]), path)  # type: ignore[arg-type]
    raw = path.read_bytes()
    path.write_bytes(raw[:data.draw(st.integers(0, len(raw) - 1))])
    with pytest.raises(UserError, match="mangled.parquet"):
        read_trace(path)


def test_a_users_trace_goes_through_the_same_door(tmp_path: Path) -> None:
    rows = "".join(f"{i},100,10\n" for i in range(1000))
    path = put(tmp_path, OWN_HEAD + rows)
    window = load_workload(path, start_s=100, duration_s=50, seed=1)
    assert window.arrival_s.tolist() == list(range(100, 150))
    scaled = load_workload({"path": str(path), "scale": 2.0}, start_s=100, duration_s=50, seed=1, rate_scale=0.25)
    assert scaled.equals(scale(read_trace(path), 0.5, 1).slice_time(100, 150))
    mixed = load_workload(f"{path}+ooc", start_s=100, duration_s=50, seed=1)
    assert np.count_nonzero(mixed.arrival_s == np.rint(mixed.arrival_s)) == 50 and len(mixed) > 50
    with pytest.raises(UserError, match="no request in the window"):
        load_workload(path, start_s=5000, duration_s=50, seed=1)


REAL = Path(os.environ.get("OOCO_GYM_DATA", "")) / "traces"


@pytest.mark.parametrize(("name", "rate", "prompt"), [
    ("azure_conv_2023.parquet", 5.53, 1155), ("mooncake_conversation_dev.parquet", 3.3, 12_000)])
def test_real_traces(name: str, rate: float, prompt: float) -> None:
    if not os.environ.get("OOCO_GYM_DATA") or not (REAL / name).is_file():
        pytest.skip(f"OOCO_GYM_DATA does not name a folder that holds traces/{name}")
    trace = read_trace(REAL / name)
    assert trace.mean_rate == pytest.approx(rate, rel=0.05)
    assert trace.prompt_tokens.mean() == pytest.approx(prompt, rel=0.05)
    assert ("mooncake" in name) == (trace.prefix_hashes is not None)


@pytest.mark.parametrize(("name", "first_hour"), [("conv", 48), ("code", 96)])
def test_the_azure_tides_are_the_published_tuesday(name: str, first_hour: int) -> None:
    path = REAL / f"azure_2024_{name}_rate_digitised.csv"
    if not os.environ.get("OOCO_GYM_DATA") or not path.is_file():
        pytest.skip(f"OOCO_GYM_DATA does not name a folder that holds traces/{path.name}")
    time_s, rate = np.genfromtxt(path, delimiter=",", skip_header=1, usecols=(0, 1)).T
    arrivals = load_spec(f"azure_{name}").arrivals
    inside = (time_s >= first_hour * 3600) & (time_s < first_hour * 3600 + 86_400)
    level = tide_at(arrivals.tide, time_s[inside]) / np.mean(arrivals.tide) * arrivals.mean_rate_per_s
    assert np.corrcoef(level, rate[inside])[0, 1] > 0.97
    assert level.mean() == pytest.approx(rate[inside].mean(), rel=0.02)
