"""Runs that others published: what is committed, the reader of the cases, their traces, and one tiny case played."""

from __future__ import annotations

import json

import numpy as np
import pytest

from docs.generators import published, validity
from ooco_gym.errors import UserError

CASE = """
tiny:
  title: a tiny run
  url: https://example.org
  text: Nothing.
  seen: "no"
  load: {chip: h100, tp: 1, requests_a_client: 2, spread: [0.5, 1.0], prompt: 64, output: 8}
  command: |-
    policy=vllm_fcfs policy.max_num_seqs=$clients workload.path=$trace workload.sessions=closed
    cluster=mixed_h100_8b "cluster.mixed=[{chip: $chip, tp: $tp}]" drain_s=60
  columns: [clients, tpot_ms, ttft_ms, preemptions]
  rows: [[2, 10, 5, 0], [3, 10, null, 0]]
"""


@pytest.fixture
def cases(tmp_path, monkeypatch):
    """A file of one source in place of the repository's."""
    path = tmp_path / "published.yaml"
    path.write_text(CASE, encoding="utf-8")
    read = published.sources
    monkeypatch.setattr(published, "sources", lambda: read(path))
    return path, read


def test_the_committed_tables_are_what_the_figures_say():
    assert (published.ROOT / published.PAGE).read_text(encoding="utf-8") == published.written(published.ROOT)
    figures = published.read_figures(published.ROOT)[published.NAME]
    for name, source in published.sources().items():
        assert len(figures[name]) == len(source["rows"])


def test_a_row_without_a_field_for_each_column_is_named(cases):
    path, read = cases
    path.write_text(CASE.replace("[2, 10, 5, 0]", "[2, 10, 5]"), encoding="utf-8")
    with pytest.raises(UserError, match=r"published.yaml: tiny: row \[2, 10, 5\] has 3 fields, expected 4: clients"):
        read(path)


def test_a_tiny_source_is_played_and_written(tmp_path, cases, monkeypatch, capsys):
    (tmp_path / "docs").mkdir()
    (tmp_path / "results").mkdir()
    (tmp_path / "conf").mkdir()
    (tmp_path / published.PAGE).write_text(f"before\n{published.BEGIN}\n<!-- end of results -->\nafter\n")
    assert published.measure(tmp_path, 1) == ["tiny: played 2 rows"]
    found = json.loads((tmp_path / published.FIGURES).read_text())[published.NAME]["tiny"]
    assert [one["tpot_ms"][0] for one in found] == [10, 10] and all(one["tpot_ms"][1] > 0 for one in found)
    assert found[1]["ttft_ms"][0] is None and [one["preemptions"] for one in found] == [[0, 0], [0, 0]]
    page = (tmp_path / published.PAGE).read_text(encoding="utf-8")
    assert page.startswith("before\n") and page.endswith("\nafter\n")
    monkeypatch.setattr(published, "ROOT", tmp_path)
    assert published.main(["tiny"]) == 0 and published.main(["tin"]) == 2
    said, mistake = capsys.readouterr()
    assert "| 1 | 3 | 10 / " in said and "| – / " in said and "| 0 / 0 |" in said and "did you mean 'tiny'" in mistake
    assert "policy.max_num_seqs=$clients workload.path=$trace" in said
    error = 100 * abs(found[0]["ttft_ms"][1] / 5 - 1)
    assert "2 published runs" in (tmp_path / validity.CLOCKS).read_text(encoding="utf-8")
    assert "| `tiny` | h100 | 2 | – | " in page and f"| {error:.1f} % (" in page


def test_one_row_prints_the_command_that_gives_its_figures(tmp_path, cases, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert published.main(["tiny", "0"]) == 0
    said = capsys.readouterr().out
    trace = "outputs/published/tiny_0/trace.parquet"
    command = f"ooco-gym simulate policy=vllm_fcfs policy.max_num_seqs=2 workload.path={trace}"
    assert said.startswith(command)
    assert "TPOT, ms: 10 / " in said
    assert published.main(["tiny", "2"]) == 2 and "unknown row 'tiny 2'" in capsys.readouterr().err


def test_clients_wait_for_their_answers_and_prompts_come_again():
    closed = published.trace_of({"clients": 2, "requests": 5, "spread": [0.5, 1.0], "prompt": 100, "output": 10}, 0)
    assert closed is not None and closed.session is not None and closed.think_s is not None
    assert closed.session.tolist() == [0, 1, 0, 1, 0] and np.isnan(closed.think_s[:2]).all()
    assert closed.prompt_tokens.min() >= 50 and closed.prompt_tokens.max() <= 100
    row = {"rate": 2, "duration_s": 3, "prompts": [2, 2], "head": 16, "prompt": 40, "output": 1}
    again = published.trace_of(row, 0)
    assert again is not None and again.prefix_hashes is not None
    assert again.arrival_s.tolist() == [0, 0.5, 1, 1.5, 2, 2.5]
    hashes = again.prefix_hashes[1].reshape(6, 3)
    assert (hashes[4] == hashes[0]).all() and hashes[0, 0] == hashes[1, 0] != hashes[2, 0]
    assert len(np.unique(hashes[:4, 1:])) == 8


def test_bursts_are_those_that_the_source_drew():
    counts = [len(published._bursts(rate, seed)) for rate in (1.0, 2.0) for seed in range(5)]
    assert counts == [22, 32, 21, 25, 28, 41, 47, 37, 43, 50]  # as its output says


def test_a_source_whose_file_is_not_at_hand_says_so(monkeypatch, capsys):
    monkeypatch.delenv("LLMSERVINGSIM", raising=False)
    assert published.main(["llmservingsim", "0"]) == 2
    assert "$LLMSERVINGSIM must name a folder" in capsys.readouterr().err
