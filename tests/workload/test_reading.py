"""Reading traces of every format, and values in every form that logs have them in."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from ooco_gym.errors import UserError
from ooco_gym.workload import Trace, list_formats, load_spec, load_workload, open_trace, read_trace, scale
from ooco_gym.workload.arrivals import tide_at
from tests.workload.files import AZURE_2023, AZURE_2024, BURSTGPT, MOONCAKE, OWN, put, write

KINDS = ("csv", "jsonl", "parquet", "csv.xz", "jsonl.xz")
DATES = ("2023-11-16 18:15:46", "2023-11-16 18:15:46.5", "2023-11-16T18:15:46", "2023-11-16T18:15:46Z",
         "2023-11-16T18:15:46.500000Z", "2023-11-16 18:15:46+00:00", "2023-11-16 18:15:46.123456789+00:00",
         "2023-11-16T20:15:46.5+02:00", "2023/11/16 18:15:46", "2023-11-16 18:15:46 UTC", " 2023-11-16 18:15:46 ",
         "2023-11-16T18:15:46+0000")
SECONDS = (0, 0.5, 0, 0, 0.5, 0, 0.123456789, 0.5, 0, 0, 0, 0)


@pytest.mark.parametrize("packed", [False, True])
def test_each_format_is_recognised(tmp_path: Path, packed: bool) -> None:
    def read(text: str) -> Trace:
        return read_trace(write(tmp_path, gzip.compress(text.encode()) if packed else text, "any_name"))

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


def test_missing_files_folders_and_formats(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        read_trace(tmp_path / "no.csv")
    with pytest.raises(UserError, match="cannot be read"):
        read_trace(tmp_path)
    with pytest.raises(UserError, match="did you mean 'azure'"):
        read_trace(write(tmp_path, AZURE_2023), format="azur")
    with pytest.raises(UserError, match="no column 'timestamp'"):
        read_trace(write(tmp_path, AZURE_2023), format="mooncake")
    assert list_formats() == ["aiperf", "azure", "bailian", "bench_serve", "burstgpt", "dynamo", "guidellm", "mooncake",
                              "ooco_gym", "openai", "openai_batch", "openai_responses", "otel", "otel_session",
                              "tracelab", "weka"]


# --- Sessions' names, dates and times in every form that logs have them in -------------------------------------------
def one_column(folder: Path, kind: str, name: str, values: list[Any]) -> Path:
    """Writes a trace with one column of values beside lengths and, where these are not times, arrivals."""
    return put(folder, [{**({} if name == "arrival_s" else {"arrival_s": i}), name: value, "prompt_tokens": 1,
                         "output_tokens": 1} for i, value in enumerate(values)], kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("names", [
    ["conv-1", None, "conv-2", "conv-1"], ["6f1b2c9e-1111-4222-8333", None, "7", "6f1b2c9e-1111-4222-8333"],
    [2**63 + 1, None, 2**63 + 2, 2**63 + 1], [2**64 - 1, None, 3, 2**64 - 1]], ids=["text", "uuid", "large", "mixed"])
def test_equal_names_are_equal_sessions(tmp_path: Path, kind: str, names: list[Any]) -> None:
    if kind == "parquet" and isinstance(names[0], int):
        path = one_column(tmp_path, kind, "session", [0] * 4)
        table = parquet.read_table(path)
        parquet.write_table(table.set_column(1, "session", pa.array(names, pa.uint64())), path)
    else:
        path = one_column(tmp_path, kind, "session", names)
    session = read_trace(path).session
    assert session is not None and session[0] == session[3] != session[2] and session[1] == -1 and session[2] >= 0
    part = open_trace(path).window(1.0, 4.0)[0]
    assert part.session is not None and part.session.tolist() == session[1:].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_conversations_by_parent_may_have_names(tmp_path: Path, kind: str) -> None:
    rows = [{"chat_id": chat, "parent_chat_id": parent, "timestamp": i, "input_length": 5, "output_length": 1}
            for i, (chat, parent) in enumerate((("a", "-1"), ("b", "a"), ("c", "b"), ("d", "-1")))]
    path = put(tmp_path, rows, kind)
    session = read_trace(path).session
    assert session is not None and len(set(session[:3])) == 1 and session[3] != session[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", range(len(DATES)))
def test_every_form_of_a_date_alone_and_beside_each_other(tmp_path: Path, kind: str, place: int) -> None:
    both = [([DATES[place]] * 2, [SECONDS[place]] * 2), ([DATES[0], *DATES[place:]], [0, *SECONDS[place:]])]
    for values, offsets in both:
        path = one_column(tmp_path, kind, "arrival_s", values)
        times = read_trace(path, columns={"arrival_s": "arrival_s"}).arrival_s
        expected = sorted(offsets)
        assert times.tolist() == pytest.approx([one - expected[0] for one in expected], abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_nanoseconds_since_1970_lose_nothing(tmp_path: Path, kind: str) -> None:
    first = 1_700_000_000_123_456_789
    path = one_column(tmp_path, kind, "when", [first, first + 1, first + 1_000_000_007])
    times = read_trace(path, columns={"arrival_s": "when"}, time_unit="ns").arrival_s
    assert times.tolist() == [0.0, 1e-9, 1.000000007]


# --- Through the door of workloads ------------------------------------------------------------------------------------
def test_a_users_trace_goes_through_the_same_door(tmp_path: Path) -> None:
    rows = "".join(f"{i},100,10\n" for i in range(1000))
    path = write(tmp_path, "arrival_s,prompt_tokens,output_tokens\n" + rows)
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
