"""Mixes, and blocks of time with gaps: nothing is invented, nothing straddles."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooco_gym.cli import main
from ooco_gym.errors import UserError
from ooco_gym.workload import (
    Trace,
    generate,
    load_workload,
    merge,
    read_trace,
    sharing_ratio,
    split,
    time_blocks,
    write_trace,
)

LENGTHS = {"prompt": {"quantiles": [0, 1], "tokens": [500, 6000]}, "output": {"constant": 7}}
CHATTY = {"name": "chatty", "mean_rate_per_s": 3.0, "lengths": LENGTHS,
          "sharing": {"form": "chat", "ratio": 0.5, "think_s": 30.0}}


@settings(deadline=None, max_examples=60)
@given(st.floats(0, 1e5), st.floats(10, 1e5), st.floats(1, 2000), st.floats(0, 500),
       st.one_of(st.none(), st.integers()),
       st.dictionaries(st.sampled_from("abcd"), st.floats(0.01, 9), min_size=1))
def test_blocks_do_not_touch_and_each_part_has_its_share(start_s: float, span_s: float, block_s: float, gap_s: float,
                                                         seed: int | None, shares: dict[str, float]) -> None:
    how: dict[str, Any] = {"block_s": block_s, "gap_s": gap_s, "shares": shares, "seed": seed}
    fitting = int((span_s + gap_s) / (block_s + gap_s) + 1e-9)
    if fitting < len(shares):
        with pytest.raises(UserError, match="give a smaller block_s"):
            time_blocks(start_s, start_s + span_s, **how)
        return
    blocks = time_blocks(start_s, start_s + span_s, **how)
    assert abs(len(blocks) - fitting) <= 1 and blocks == time_blocks(start_s, start_s + span_s, **how)
    assert blocks[0].start_s == start_s and blocks[-1].end_s <= start_s + span_s + 1e-3
    assert all(after.start_s - before.end_s >= gap_s - 1e-6 for before, after in pairwise(blocks))
    counts = {part: sum(block.part == part for block in blocks) for part in shares}
    assert min(counts.values()) >= 1 and sum(counts.values()) == len(blocks)
    for part, share in shares.items():
        assert abs(counts[part] - len(blocks) * share / sum(shares.values())) < len(shares) + 1
    if seed is None:
        assert [block.part for block in blocks] == [part for part in shares for _ in range(counts[part])]


def test_a_split_keeps_what_lies_in_blocks_and_no_conversation_in_two_parts() -> None:
    trace = generate(CHATTY, duration_s=6 * 3600, seed=1)
    blocks = time_blocks(0.0, 6 * 3600.0, block_s=600.0, gap_s=60.0)
    parts = split(trace, blocks)
    assert list(parts) == ["train", "validation", "test"]
    sessions = [set(part.session.tolist()) for part in parts.values() if part.session is not None]
    assert not sessions[0] & sessions[1] and not sessions[0] & sessions[2] and not sessions[1] & sessions[2]
    hashes = [set(part.prefix_hashes[1].tolist()) for part in parts.values() if part.prefix_hashes is not None]
    assert not hashes[0] & hashes[1] and not hashes[1] & hashes[2], "no prompt's text is seen from two sides"
    for name, part in parts.items():
        mine = [block for block in blocks if block.part == name]
        assert all(any(b.start_s <= t < b.end_s for b in mine) for t in part.arrival_s)
    bare = Trace(trace.arrival_s, trace.prompt_tokens, trace.output_tokens)
    inside = sum(len(bare.slice_time(block.start_s, block.end_s)) for block in blocks)
    assert sum(len(part) for part in split(bare, blocks).values()) == inside > 0.85 * len(bare)
    shuffled = split(bare, time_blocks(0.0, 6 * 3600.0, block_s=600.0, gap_s=60.0, seed=3))
    assert shuffled["test"].arrival_s[0] < shuffled["train"].arrival_s[-1]


def test_a_mix_tells_conversations_of_two_services_apart(tmp_path: Path) -> None:
    trace = generate(CHATTY, duration_s=1200, seed=1)
    assert sharing_ratio(merge(trace, trace)) > 0.5 + (sharing_ratio(trace) or 0) / 3  # type: ignore[operator]
    path = write_trace(trace, tmp_path / "t.parquet")
    twice = load_workload(f"{path}+{path}+lmsys", duration_s=1200, seed=1)
    assert twice.session is not None and trace.session is not None
    assert len(np.unique(twice.session)) == 2 * len(np.unique(trace.session)) + 1, "and none for the third"
    ratio = sharing_ratio(load_workload(f"{path}+{path}", duration_s=1200, seed=1))
    assert ratio == pytest.approx(sharing_ratio(trace))


def test_split_and_make_as_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = tmp_path / "made.parquet"
    assert main(["workload", "make", "0.5*lmsys+sharegpt", "start_s=100", "duration_s=2000", "rate_scale=2",
                 f"to={made}", f"out={tmp_path / 'm'}"]) == 0
    trace = read_trace(made)
    assert trace.equals(load_workload("0.5*lmsys+sharegpt", start_s=100, duration_s=2000, seed=1, rate_scale=2.0))
    out = tmp_path / "s"
    words = ["data", "split", str(made), "block_s=100", "gap_s=20", "parts=[a,b]"]
    assert main([*words, "shares=[3,1]", "seed=2", f"out={out}"]) == 0
    summary = json.loads((out / "summary.json").read_text())
    requests = 0
    for part, item in summary["parts"].items():
        times = read_trace(item["to"]).arrival_s
        assert all(any(low <= time < high for low, high in item["blocks"]) for time in times), part
        requests += len(times)
    assert summary["left_out"] + requests == len(trace) and list(summary["parts"]) == ["a", "b"]
    capsys.readouterr()
    for wrong, said in ((["data", "split", str(made)], "give a smaller block_s"), (words, "one share for each")):
        assert main([*wrong, f"out={tmp_path / 'x'}"]) == 2
        assert said in capsys.readouterr().err
