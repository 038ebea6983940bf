"""Mixes, and parts of files: nothing is invented, conversations of two services stay apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ooco_gym.cli import main
from ooco_gym.workload import generate, load_workload, merge, read_trace, sharing_ratio, write_trace

LENGTHS = {"prompt": {"quantiles": [0, 1], "tokens": [500, 6000]}, "output": {"constant": 7}}
CHATTY = {"name": "chatty", "mean_rate_per_s": 3.0, "lengths": LENGTHS,
          "sharing": {"form": "chat", "ratio": 0.5, "think_s": 30.0}}


def test_a_mix_tells_conversations_of_two_services_apart(tmp_path: Path) -> None:
    trace = generate(CHATTY, duration_s=1200, seed=1)
    assert sharing_ratio(merge(trace, trace)) > 0.5 + (sharing_ratio(trace) or 0) / 3  # type: ignore[operator]
    path = write_trace(trace, tmp_path / "t.parquet")
    twice = load_workload(f"{path}+{path}+lmsys", duration_s=1200, seed=1)
    assert twice.session is not None and trace.session is not None
    assert len(np.unique(twice.session)) == 2 * len(np.unique(trace.session)) + 1, "and none for the third"
    ratio = sharing_ratio(load_workload(f"{path}+{path}", duration_s=1200, seed=1))
    assert ratio == pytest.approx(sharing_ratio(trace))


def test_a_mix_is_made_a_file_and_a_part_of_it_another(tmp_path: Path) -> None:
    made, part = tmp_path / "made.parquet", tmp_path / "part.parquet"
    assert main(["workload", "make", "0.5*lmsys+sharegpt", "start_s=100", "duration_s=2000", "rate_scale=2",
                 f"to={made}", f"out={tmp_path / 'm'}"]) == 0
    trace = read_trace(made)
    assert trace.equals(load_workload("0.5*lmsys+sharegpt", start_s=100, duration_s=2000, seed=1, rate_scale=2.0))
    assert main(["workload", "make", str(made), "start_s=200", "duration_s=500", f"to={part}",
                 f"out={tmp_path / 'p'}"]) == 0
    cut = trace.slice_time(300.0, 800.0)  # 200 s after the first request, which comes at 100 s
    assert read_trace(part).equals(cut.shift(-100.0))
