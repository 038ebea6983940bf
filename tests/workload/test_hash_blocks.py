"""How many tokens a prefix hash stands for, and what a time's unit is: block sizes and formats in every file type."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ooco_gym.cli import main
from ooco_gym.errors import UserError
from ooco_gym.workload import Trace, load_workload, merge, read_trace, sharing_ratio, write_trace
from ooco_gym.workload.describe import describe
from ooco_gym.workload.trace import with_blocks
from tests.workload.files import put

KINDS = ("csv", "jsonl", "parquet")
BLOCKS = (16, 64, 128, 256, 512, 1024)
OURS: tuple[str, ...] = ("arrival_s", "prompt_tokens", "output_tokens", "prefix_hashes")
FORMS: dict[str, tuple[str, ...]] = {
    "ooco_gym": OURS,
    "columns": ("when", "in", "out", "blocks"),
    "mooncake": ("timestamp", "input_length", "output_length", "hash_ids"),
    "bailian": ("timestamp", "input_length", "output_length", "hash_ids"),
}
DOCUMENTED = {"mooncake": 512, "bailian": 16}


def pair(form: str, block: int, prompt: int = 2048) -> list[dict[str, Any]]:
    """Two requests whose first block is the same."""
    rows = []
    for i in range(2):
        hashes = [7, *range(1000 * (i + 1), 1000 * (i + 1) + -(-prompt // block) - 1)]
        row: dict[str, Any] = dict(zip(FORMS[form], (300 * i, prompt, 5, hashes), strict=True))
        more = {"chat_id": i + 1, "parent_chat_id": i or -1, "type": "text", "turn": i + 1} if form == "bailian" else {}
        rows.append({**more, **row})
    return rows


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_shared_block_is_as_long_as_it_is(tmp_path: Path, kind: str, form: str, block: int) -> None:
    path = put(tmp_path, pair(form, block), kind)
    columns = dict(zip(OURS, FORMS[form], strict=True)) if form == "columns" else None
    trace = read_trace(path, columns=columns, block_tokens=block)
    assert trace.block_tokens == block and sharing_ratio(trace) == block / 4096
    assert read_trace(write_trace(trace, tmp_path / f"again.{kind}")).equals(trace)
    if block == DOCUMENTED.get(form, 512):
        assert read_trace(path, columns=columns).equals(trace)
    else:
        with pytest.raises(UserError, match=rf"(line|row) \d.*blocks of {block} tokens fit.*block_tokens={block}"):
            read_trace(path, columns=columns)


@pytest.mark.parametrize("kind", KINDS)
def test_bailian_counts_seconds_and_follows_parents(tmp_path: Path, kind: str) -> None:
    requests = ((5, -1, 0.0, [1, 2, 3]), (9, 5, 10.5, [1, 2, 4]), (6, -1, 11.0, [2, 1, 3]), (2, 9, 99.5, [1, 2, 4]),
                (8, 77, 100.0, [9, 2, 3]), (4, 77, 101.0, [9, 2, 5]))
    rows = [{"chat_id": chat, "parent_chat_id": parent, "timestamp": time_s, "input_length": 33, "output_length": 4,
             "type": "text", "turn": 1, "hash_ids": hashes} for chat, parent, time_s, hashes in requests]
    trace = read_trace(put(tmp_path, rows, kind))
    assert trace.arrival_s.tolist() == [0.0, 10.5, 11.0, 99.5, 100.0, 101.0] and trace.block_tokens == 16
    assert trace.session is not None and trace.session.tolist() == [5, 5, 6, 5, 77, 77]
    assert trace.prefix_hashes is not None
    first, second, third, fourth, fifth, sixth = np.split(trace.prefix_hashes[1], 6)
    assert second[:2].tolist() == first[:2].tolist() and fourth.tolist() == second.tolist()
    assert not set(third) & set(first), "a block stands for itself alone, and counts with what is before it"
    assert sixth[:2].tolist() == fifth[:2].tolist() and not set(fifth) & set(first)


def test_seconds_where_a_format_has_milliseconds_are_doubted_in_one_sentence(tmp_path: Path) -> None:
    bare = [{"timestamp": i / 600, "input_length": 100, "output_length": 5, "hash_ids": [i]} for i in range(100)]
    path = put(tmp_path, bare, "jsonl")
    assert any("1.67e-06 s apart" in note and "time_unit=s" in note for note in read_trace(path, "mooncake").notes)
    right = read_trace(path, time_unit="s")
    assert right.arrival_s[-1] == 99 / 600 and not right.notes
    assert read_trace(path, "mooncake", time_unit="s").equals(right)


@pytest.mark.parametrize("more", [{}, {"tier": "online"}], ids=["", "with a column of ours"])
@pytest.mark.parametrize("step", [1, 0.5, 20, 99])
def test_mooncakes_times_are_asked_for_their_unit_where_they_may_be_seconds(tmp_path: Path, step: float,
                                                                            more: dict[str, str]) -> None:
    rows = [{"timestamp": 5000 + step * i, "input_length": 100, "output_length": 5, "hash_ids": [i], **more}
            for i in range(9)]
    path, columns = put(tmp_path, rows, "jsonl"), {"class": "tier"} if more else None
    with pytest.raises(UserError, match=r"'timestamp' is unknown: milliseconds, as there, or seconds; say time_unit=s"):
        read_trace(path, columns=columns)
    assert np.ptp(read_trace(path, columns=columns, time_unit="s").arrival_s) == 8 * step
    assert np.ptp(read_trace(path, columns=columns, time_unit="ms").arrival_s) == pytest.approx(0.008 * step)
    for row in rows:
        row["timestamp"] = 1000 * row["timestamp"]
    assert np.ptp(read_trace(put(tmp_path, rows, "jsonl"), columns=columns).arrival_s) == 8 * step, "plainly ms"


def test_dates_in_a_format_of_numbers_are_read(tmp_path: Path) -> None:
    rows = [{"timestamp": f"2026-09-01T10:00:0{i}Z", "input_length": 100, "output_length": 5, "hash_ids": [i]}
            for i in range(5)]
    assert read_trace(put(tmp_path, rows, "jsonl")).arrival_s.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


HEX = [["9f3c2b1a00ffee01", "0a1b2c3d4e5f6071"], ["9f3c2b1a00ffee01", "0000000000000012"], None, ["sha256:Ab+/="]]


@pytest.mark.parametrize("name", ["hash_ids", "prefix_hashes", "prefix_block_hashes"])
@pytest.mark.parametrize("kind", KINDS)
def test_equal_names_are_equal_prefixes(tmp_path: Path, kind: str, name: str) -> None:
    rows = [{"arrival_s": i, "prompt_tokens": 900 if hashes is None else 512 * len(hashes), "output_tokens": 5,
             name: hashes} for i, hashes in enumerate(HEX)]
    path = put(tmp_path, rows, kind)
    found = read_trace(path).prefix_hashes
    assert found is not None and found[0].tolist() == [0, 2, 4, 4, 5]
    assert found[1][0] == found[1][2] and len(set(found[1].tolist())) == 4
    again: Any = read_trace(path, start_s=1.0).prefix_hashes
    assert again[1].tolist() == found[1][2:].tolist(), "the same in a part of the file"
    rows[1][name] = ["9f3c2b1a00ffee01", "null"]
    with pytest.raises(UserError, match=rf"(line|row) \d.*'{name}'.*numbers or names"):
        read_trace(put(tmp_path, rows, kind))


@pytest.mark.parametrize(("stamp", "unit"), [(1_715_335_200_123, 1e3), (1_715_335_200_123_456, 1e6)])
def test_stamps_of_a_finer_unit_are_told_by_their_size(tmp_path: Path, stamp: int, unit: float) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"arrival_s,prompt_tokens,output_tokens\n{stamp},100,5\n{stamp + int(90 * unit)},100,5\n")
    trace = read_trace(path)
    assert trace.arrival_s.tolist() == [0.0, 90.0] and "count from the first request" in trace.notes[0]


def test_years_in_seconds_are_described(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,100,5\n1500000000,50,5\n3000000001,60,6\n")
    assert describe(read_trace(path))["dispersion"]["1"] is None


def test_lists_in_csv_may_be_as_python_writes_them(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    for hashes in ('"[7, 8]"', "7 8", '"7,8"', "[7 8]"):
        path.write_text(f"timestamp,input_length,output_length,hash_ids\n0,1000,5,{hashes}\n")
        found: Any = read_trace(path).prefix_hashes
        assert found[1].tolist() == [7, 8], hashes
    path.write_text('timestamp,input_length,output_length,hash_ids\n0,1000,5,"[7, x]"\n')
    with pytest.raises(UserError, match="in CSV such as 3 7 or"):
        read_trace(path)


@pytest.mark.parametrize(("hashes", "said"), [
    ([[1, 2, 3], [1]], "line 3.*3 and not 1 numbers, one for each 512 of 1,400 prompt"),
    ([[1, 2, 3], [1, 2, 3, 4]], "line 3.*3 and not 4 numbers.*say block_tokens=N"),
])
def test_each_row_has_a_hash_for_each_block(tmp_path: Path, hashes: list[list[int]], said: str) -> None:
    rows = [dict(zip(FORMS["mooncake"], (0, 1400, 1, one), strict=True)) for one in hashes]
    with pytest.raises(UserError, match=said):
        read_trace(put(tmp_path, rows, "csv"))
    rows[1]["hash_ids"] = []
    assert len(read_trace(put(tmp_path, rows, "csv"))) == 2, "a row may have none"


def test_of_our_own_traces_the_shared_head_may_be_all_that_is_known(tmp_path: Path) -> None:
    rows = [dict(zip(OURS, (i, 5000 + 700 * i, 1, [1, 2]), strict=True)) for i in range(3)]
    assert read_trace(put(tmp_path, rows, "jsonl")).block_tokens == 512


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("other", BLOCKS)
def test_blocks_of_another_size_mean_the_same_prefixes(block: int, other: int) -> None:
    prompt = np.array([5000, 5000, 3000, 40], np.int32)
    counts = -(-prompt // block)
    values = np.concatenate([np.arange(counts[0]), np.arange(counts[1]) + 1000 * (np.arange(counts[1]) * block >= 2048),
                             5000 + np.arange(counts[2]), 9000 + np.arange(counts[3])])
    trace = Trace(np.arange(4.0), prompt, prompt, prefix_hashes=(np.concatenate([[0], np.cumsum(counts)]), values),
                  block_tokens=block)
    changed = with_blocks(trace, other)
    offsets, _ = changed.prefix_hashes  # type: ignore[misc]
    assert np.diff(offsets).tolist() == (-(-prompt // other)).tolist()
    whole = max(block, other)
    assert sharing_ratio(changed) == sharing_ratio(trace) == 2048 // whole * whole / prompt.sum()
    both = merge(trace, changed)
    assert both.block_tokens == min(block, other) and len(both) == 8


def test_the_simulated_cache_finds_the_tokens_that_are_shared(tmp_path: Path) -> None:
    path = put(tmp_path, pair("bailian", 16, prompt=512), "jsonl")
    out = tmp_path / "out"
    assert main(["simulate", "policy=vllm_fcfs", "policy.prefix_caching=on", f"workload.path={path}",
                 "cluster=mixed_h100_8b", f"out={out}"]) == 0
    found = json.loads((out / "summary.json").read_text())["online"]
    assert found["hit_rate"] == 16 / 1024
    mixed = load_workload(f"{path}+mooncake", duration_s=60, seed=1)
    assert mixed.block_tokens == 16


@pytest.mark.parametrize(("form", "unit", "more"), [("bailian", "seconds", ", session=chat_id"),
                                                   ("mooncake", "milliseconds", "")])
def test_describe_says_how_a_file_was_read(tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str, unit: str,
                                           more: str) -> None:
    path = put(tmp_path, pair(form, DOCUMENTED[form]), "jsonl")
    assert main(["data", "describe", str(path), f"out={tmp_path / 'out'}"]) == 0
    wanted = {"format": form, "times": unit, "columns": "arrival_s=timestamp, prompt_tokens=input_length, "
              f"output_tokens=output_length, prefix_hashes=hash_ids{more}",
              "prefix hashes": f"one for each {DOCUMENTED[form]} prompt tokens"}
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["read"] == wanted
    printed = capsys.readouterr().out
    assert all(title in printed for title in wanted)
