"""Traces whose requests lie nested in JSON: a sample of ten requests of each form, and what is wrong with others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ooco_gym.errors import UserError
from ooco_gym.workload import close_sessions, read_trace, sharing_ratio, write_trace
from ooco_gym.workload.trace_file import read_described
from ooco_gym.workload.unfolding import FORMS

SAMPLES = Path(__file__).parents[1] / "data" / "formats"
# Of each: sessions, calls that wait for another one, think times in order of arrival, tokens of a hash, and by hand the
# share of prompt tokens in blocks seen before.
EXPECTED: dict[str, tuple[int, int, list[float], int, float | None]] = {
    "weka": (3, 8, [1.5, 0.5, 1.75, 3.5, 1.25, 3.0, 0.5, 2.5], 64, 1046 / 1681),
    "tracelab": (2, 8, [15.75] * 8, 512, 25_600 / 42_250), "dynamo": (3, 7, [2.3] * 7, 64, 0.45),
    "aiperf": (5, 4, [0.15] * 4, 512, None), "bench_serve": (0, 0, [], 512, None),
    "otel": (0, 0, [], 512, None), "otel_session": (2, 8, [6.25] * 8, 512, None), "guidellm": (0, 0, [], 512, None)}


def sample(name: str) -> Path:
    return next(SAMPLES.glob(f"{name}.json*"))


def test_there_is_a_sample_of_each_form() -> None:
    assert set(EXPECTED) == set(FORMS) == {path.name.partition(".")[0] for path in SAMPLES.iterdir()}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_sample_is_recognised_and_read(name: str, tmp_path: Path) -> None:
    sessions, follow, think_s, block, shared = EXPECTED[name]
    trace, said = read_described(sample(name))
    assert said["format"].startswith(name) and trace.arrival_s[0] == 0.0
    assert len(trace) == 10 - (name in ("aiperf", "bench_serve")), "failed requests are dropped"
    assert sum("dropped 1 of 10" in note for note in trace.notes) == 10 - len(trace)
    assert (0 if trace.session is None else len(np.unique(trace.session))) == sessions
    assert trace.block_tokens == block and sharing_ratio(trace) == (shared and pytest.approx(shared))
    if sessions:
        turns = close_sessions(trace, None, 1)
        waits = turns.previous >= 0
        assert np.count_nonzero(waits) == follow and turns.think_s[waits].tolist() == pytest.approx(think_s)
    assert read_trace(write_trace(trace, tmp_path / "again.parquet")).equals(trace)
    assert read_trace(sample(name), format=name).equals(trace)


def test_subagents_on_their_own_clock_come_to_the_same(tmp_path: Path) -> None:
    """And so does the conversation alone, over many lines."""
    one = json.loads(sample("weka").read_text().splitlines()[0])
    for request in (agent := next(entry for entry in one["requests"] if entry["type"] == "subagent"))["requests"]:
        request["t"] -= agent["t"]
    (tmp_path / "one.json").write_text(json.dumps(one, indent=2))
    trace = read_trace(tmp_path / "one.json")
    assert trace.arrival_s.tolist() == [0.0, 5.5, 8.25, 9.75, 13.0]
    assert trace.session is not None and trace.session.tolist() == [0, 0, 1, 1, 0]


@pytest.mark.parametrize(("scope", "shared"), [("local", 0.0), ("global", 128 / 320)])
def test_hashes_are_of_the_conversation_or_of_all(scope: str, shared: float, tmp_path: Path) -> None:
    rows = [{"id": name, "block_size": 64, "hash_id_scope": scope, "requests": [
        {"t": t, "type": "s", "in": 160, "out": 4, "hash_ids": [1, 2]}]} for name, t in (("a", 0.0), ("b", 1.0))]
    (tmp_path / "two.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert sharing_ratio(read_trace(tmp_path / "two.jsonl")) == pytest.approx(shared)


def broken(name: str, **changes: Any) -> dict[str, Any]:
    """The last object of a sample, keys replaced, or left out where they are None."""
    one = {**json.loads(sample(name).read_text().splitlines()[-1]), **changes}
    return {key: value for key, value in one.items() if value is not None}


@pytest.mark.parametrize(("name", "changes", "said"), [
    ("weka", {"id": None}, "line 3: not of the form 'weka': key 'id' is missing"),
    ("weka", {"requests": [{"type": "n", "t": 1.0, "in": 0, "out": 1}]}, "line 3, field 'prompt_tokens': found 0"),
    ("tracelab", {"timing_events": []}, "line 11: not of the form 'tracelab'"),
    ("tracelab", {"output_tokens": -1}, "line 11, field 'output_tokens': found -1"),
    ("aiperf", {"metrics": {"output_sequence_length": {"value": 5}}}, "line 11, field 'prompt_tokens': found nothing"),
    ("otel_session", {"spans": [{"name": "llm_request"}]}, "line 3: .*key 'startTimeUnixNano' is missing"),
    ("dynamo", {"event": {"event_type": "request_end", "request": {}}}, "line 12: .*key 'replay' is missing"),
    ("otel", {"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "llm_request"}]}]}]},
     "line 6: not of the form 'otel': key 'startTimeUnixNano' is missing"),
    ("bench_serve", {"output_lens": [1]}, "line 2: not of the form 'bench_serve'"),
    ("bench_serve", {"input_lens": [0] * 10}, "line 2, field 'prompt_tokens': found 0")])
def test_what_is_wrong_is_placed(tmp_path: Path, name: str, changes: dict[str, Any], said: str) -> None:
    path = tmp_path / "f.jsonl"
    path.write_text(sample(name).read_text() + json.dumps(broken(name, **changes)) + "\n")
    with pytest.raises(UserError, match=said):
        read_trace(path)


NO_USAGE = {"name": "chat", "start_time": "2026-09-01T10:03:00Z", "end_time": "2026-09-01T10:03:00Z", "attributes": {
    "gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": None}}


@pytest.mark.parametrize(("name", "one"), [
    ("aiperf", broken("aiperf", metrics={})), ("otel_session", {"trace_id": "t9", "spans": [NO_USAGE]}),
    ("guidellm", {"benchmarks": [{"requests": {"successful": [
        {"request_start_time": 1.0, "prompt_tokens": None, "output_tokens": None}]}}]})])
def test_a_call_without_token_counts_is_left_out_and_counted(tmp_path: Path, name: str, one: dict[str, Any]) -> None:
    text, path = sample(name).read_text(), tmp_path / "f.jsonl"
    whole = json.dumps(json.loads(text)) if name == "guidellm" else text.strip()
    path.write_text(f"{whole}\n{json.dumps(one)}\n")
    trace = read_trace(path)
    assert len(trace) == 10 - (name == "aiperf")
    assert any("left out 1 of 11 rows without token counts" in note for note in trace.notes)


def chat(place: int, **changes: Any) -> dict[str, Any]:
    return {"name": "chat llama", "start_time": f"2026-01-05T08:00:{5 * place:02d}Z",
            "end_time": f"2026-01-05T08:00:{5 * place + 2:02d}Z", "attributes": {
                "gen_ai.usage.input_tokens": 100 + place, "gen_ai.usage.output_tokens": 7}, **changes}


def test_calls_below_other_spans_count_and_lines_without_a_name_are_sessions_of_their_own(tmp_path: Path) -> None:
    agent = {"name": "invoke_agent coder", "children": [chat(1), {"name": "subtask", "spans": [chat(2)]}]}
    failed, bare = chat(3, status="ERROR"), chat(4, attributes={})
    lines = [{"spans": [chat(0), agent, failed, bare]}, {"spans": [chat(5)]}]
    (tmp_path / "f.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    trace = read_trace(tmp_path / "f.jsonl")
    assert trace.prompt_tokens.tolist() == [100, 101, 102, 105] and trace.session.tolist() == [0, 0, 0, 1]
    assert trace.think_s is not None and trace.think_s[1:3].tolist() == [3.0, 3.0]
    assert any("failed" in note for note in trace.notes)
    assert any("left out 1 of 5 rows without token counts" in note for note in trace.notes)


def test_a_session_in_one_line_may_have_its_times_as_a_number(tmp_path: Path) -> None:
    spans = [{"name": "llm_request", "startTimeUnixNano": str(10**18 + i), "endTimeUnixNano": str(10**18 + 10**9),
              "attributes": [{"key": f"gen_ai.usage.{side}_tokens", "value": {"intValue": "7"}}
                             for side in ("input", "output")]} for i in (0, 250_000_001)]
    (tmp_path / "f.jsonl").write_text(json.dumps({"session_id": "s", "spans": spans}) + "\n")
    trace = read_trace(tmp_path / "f.jsonl")
    assert trace.arrival_s.tolist() == [0.0, 0.250000001] and trace.session.tolist() == [0, 0]


def test_a_benchmark_that_tells_no_arrivals_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f.jsonl").write_text(json.dumps(broken("bench_serve", start_times=None)))
    with pytest.raises(UserError, match="not of the form 'bench_serve': it has no 'start_times'.*vllm bench serve"):
        read_trace(tmp_path / "f.jsonl")
