"""Logs as servers, clients and benchmarks write them: the right counts, times and lengths come out by themselves."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ooco_gym import Scenario
from ooco_gym.errors import UserError
from ooco_gym.simulation import requests_of, simulate
from ooco_gym.workload import read_trace

BEGIN_S = 1_795_783_476


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def lines(rows: Iterable[Mapping[str, Any]], name: str = "log.jsonl") -> str:
    Path(name).write_text("\n".join(map(json.dumps, rows)))
    return name


def answer(place: int, created: str = "created", prompt: str = "prompt", output: str = "completion") -> dict[str, Any]:
    return {"id": f"a{place}", created: BEGIN_S + 2 * place, "model": "llama", "choices": [{"index": 0}],
            "usage": {f"{prompt}_tokens": 100 + place, f"{output}_tokens": 7, "details": {"cached_tokens": 0}}}


@pytest.mark.parametrize("rows", [
    [answer(place) for place in range(9)], [answer(place, "created_at", "input", "output") for place in range(9)],
    [{"custom_id": f"c{place}", "response": {"status_code": 200, "body": answer(place)}} for place in range(9)]],
    ids=["chat", "responses", "batch"])
def test_answers_of_openais_interface_are_read(rows: list[dict[str, Any]]) -> None:
    trace = read_trace(lines(rows))
    assert trace.arrival_s.tolist() == list(range(0, 18, 2)) and trace.prompt_tokens[-1] == 108
    assert set(trace.output_tokens) == {7}


def test_what_lies_in_objects_has_dotted_names() -> None:
    rows = [{"ts": "27/Nov/2026:12:44:36 +0000", **answer(1)}, {"ts": "27/Nov/2026:12:44:46 +0000", **answer(2)}]
    for row in rows:
        del row["created"]
    trace = read_trace(lines(rows), columns={"arrival_s": "ts"})
    assert trace.arrival_s.tolist() == [0.0, 10.0] and trace.prompt_tokens.tolist() == [101, 102]
    other = [{"at": place, "n": {"in": 5, "out": 2}} for place in range(3)]
    columns = {"arrival_s": "at", "prompt_tokens": "n.in", "output_tokens": "n.out"}
    assert len(read_trace(lines(other), columns=columns)) == 3


def span(place: int, **about: Any) -> dict[str, Any]:
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 100 + place,
                  "gen_ai.usage.output_tokens": 7, "gen_ai.conversation.id": f"s{place % 2}", **about}
    start = (BEGIN_S + place) * 10**9
    return {"name": "chat llama", "startTimeUnixNano": str(start), "endTimeUnixNano": str(start + 5 * 10**8),
            "attributes": [{"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else
                            {"stringValue": value}} for key, value in attributes.items() if value is not None]}


def test_spans_of_the_genai_conventions_are_read_and_those_of_agents_are_not() -> None:
    none = {"gen_ai.usage.input_tokens": None, "gen_ai.usage.output_tokens": None}
    spans = [span(0), span(1), span(2, **none, **{"error.type": "timeout"}), span(3),
             span(4, **{"gen_ai.operation.name": "invoke_agent"}), {"name": "GET /", "startTimeUnixNano": "1"}]
    trace = read_trace(lines([{"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}]))
    assert trace.prompt_tokens.tolist() == [100, 101, 103] and trace.arrival_s.tolist() == [0.0, 1.0, 3.0]
    assert trace.think_s is not None and trace.think_s[2] == 1.5, "from the end of the session's turn before"
    assert any("column 'error' says that they failed (timeout)" in note for note in trace.notes)


def test_guidellms_benchmarks_are_read_and_several_asked_about() -> None:
    parts = [{"requests": {"successful": [
        {"request_start_time": BEGIN_S + 100 * part + place, "prompt_tokens": 256, "output_tokens": 128,
         "time_to_first_token_ms": 50.0, "request_latency": 2.0} for place in range(4)],
        "errored": [{"prompt_tokens": 1}], "incomplete": []}} for part in range(2)]
    Path("benchmarks.json").write_text(json.dumps({"args": {}, "benchmarks": parts}, indent=1))
    trace = read_trace("benchmarks.json")
    assert len(trace) == 8 and any("workload.only.benchmark=0" in note for note in trace.notes)
    assert len(read_trace("benchmarks.json", only={"benchmark": 1})) == 4


def turns(first: Mapping[str, Any], delay: float) -> list[dict[str, Any]]:
    return [{"session_id": f"s{session}", "input_length": 100, "output_length": 500,
             **(first if turn == 0 else {"delay": delay})} for session in range(3) for turn in range(4)]


@pytest.mark.parametrize("first", [{"timestamp": 5000}, {}], ids=["times of first turns", "none"])
def test_turns_that_have_delays_in_place_of_times_play_as_closed_sessions(first: dict[str, Any]) -> None:
    trace = read_trace(lines(turns(first, 2000)))
    begun = 5.0 * bool(first)
    assert trace.arrival_s.tolist() == [begun + 2.0 * turn for turn in range(4) for _ in range(3)]
    assert trace.think_s is not None and np.nanmax(trace.think_s) == 2.0
    known = Scenario(workload="log.jsonl").resolve()
    assert known.workload.sessions == "closed" and len(requests_of(known)[0]) == 12
    assert read_trace("log.jsonl", time_unit="s").arrival_s[-1] == 6000.0 + 1000 * begun
    with pytest.raises(UserError, match="can only wait for the turn before"):
        Scenario(workload={"path": "log.jsonl", "sessions": "open"}).resolve()


def test_closed_sessions_play_until_all_turns_came() -> None:
    """Also where that takes longer than other traces are waited for."""
    name = lines(turns({"timestamp": 0}, 900_000))
    found = simulate(Scenario(workload=name, cluster="mixed_h100_8b"), "vllm_fcfs").summary
    assert found["online"]["finished"] == 12 and found["sessions"]["turns_not_reached"] == 0
    assert found["window_s"] > 3 * 900.0
