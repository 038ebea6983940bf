"""Logs as servers, clients and benchmarks write them: the right counts, times and lengths come out by themselves."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from ooco_gym import Scenario
from ooco_gym.cli import main
from ooco_gym.errors import UserError
from ooco_gym.simulation import requests_of, simulate
from ooco_gym.workload import read_trace

BEGIN_S = 1_795_783_476


pytestmark = pytest.mark.usefixtures("own_folder")


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


def test_answers_without_usage_are_left_out_and_counted() -> None:
    rows: list[dict[str, Any]] = [answer(place) for place in range(9)]
    rows[0]["usage"], rows[4]["usage"] = None, None
    trace = read_trace(lines(rows))
    assert trace.prompt_tokens.tolist() == [101, 102, 103, 105, 106, 107, 108]
    assert any("left out 2 of 9 rows without token counts in 'usage.prompt_tokens' and" in note and "at line 1" in note
               for note in trace.notes)
    for row in rows:
        row["usage"] = {"prompt_tokens": None, "completion_tokens": None}
    with pytest.raises(UserError, match="9 rows without token counts in .*include_usage"):
        read_trace(lines(rows))
    broken = span(0, **{"gen_ai.usage.output_tokens": None})    # a stream that broke off
    trace = read_trace(lines([{"resourceSpans": [{"scopeSpans": [{"spans": [span(0), broken]}]}]}]))
    assert len(trace) == 1 and "dropped 1 of 2 requests with zero output tokens" in " ".join(trace.notes)


BUCKETS = [{"object": "bucket", "start_time": BEGIN_S + 60 * place, "end_time": BEGIN_S + 60 * place + 60, "results": [
    {"input_tokens": 5000, "output_tokens": 900, "num_model_requests": 12, "project_id": None}]} for place in range(5)]


@pytest.mark.parametrize("text", [
    json.dumps({"object": "page", "data": BUCKETS, "has_more": False}),
    json.dumps({"object": "page", "data": BUCKETS}, indent=2), "\n".join(map(json.dumps, BUCKETS)),
    "start_time,input_tokens,output_tokens,num_model_requests\n" + f"{BEGIN_S},5000,900,12\n" * 5],
    ids=["page", "page with breaks", "buckets", "csv"])
def test_an_export_of_what_was_used_is_told_from_a_log_of_requests(text: str) -> None:
    Path("usage.json").write_text(text)
    with pytest.raises(UserError, match=r"has a sum a row .*'num_model_requests' counts 12 requests .*, 60 in all"):
        read_trace("usage.json")


@pytest.mark.parametrize(("text", "said"), [
    ('10.0.0.1 - - [27/Nov/2026:12:44:36 +0000] "POST /v1/completions HTTP/1.1" 200 512 "-" "python"\n' * 3,
     "is text that a server logs and has no names of columns; .* docs/traces.md says how to log"),
    ("(APIServer pid=1) INFO 11-27 12:44:36 [logger.py:41] Received request cmpl-1: prompt: 'hi', params: x\n" * 3,
     "is text that a server logs"),
    ("time=2026-11-27T12:44:36Z prompt_tokens=10 completion_tokens=5\n" * 3, "is text that a server logs"),
    (json.dumps({"time_iso8601": "2026-11-27T12:44:36+00:00", "status": "200", "body_bytes_sent": "512"}),
     "columns.arrival_s=time_iso8601 columns.prompt_tokens=NAME .*if none has token counts, .*: log both with each"),
    ("[Fri Nov 27 12:44:36 2026] [core:error] [pid 1] File does not exist\n" * 3, "is text that a server logs"),
    ("[27/Nov/2026:12:44:36 +0000] POST /v1/completions\n" * 3, "is text that a server logs"),
    ("# HELP vllm:prompt_tokens_total x\n# TYPE y counter\n", "is text that a server logs"),
    ('data: {"usage": {"prompt_tokens": 1}}\n\n' * 3, "is text that a server logs"),
    (json.dumps({"requests": [{"arrival_s": 0}]}), r"is one JSON object with a list of objects, .*jq -c '.requests"),
    (json.dumps({"arrival_s": 0}, indent=1) * 2, r"not valid JSON .*as jq -c . 'access.log' writes them"),
    (json.dumps({"arrival_s": [0, 1], "prompt_tokens": [1, 2], "output_tokens": [1, 2]}), "'arrival_s': found .0, 1"),
    ("arrival_s,prompt_tokens,output_tokens\n11/27/2026 13:00:36,1,1\n", "or a date and time such as 2023-11-16"),
    (json.dumps([{"arrival_s": 0, "prompt_tokens": 1}]), "JSON array.*jq -c '.\\[\\]' 'access.log'")])
def test_a_log_without_names_or_without_tokens_says_what_to_log(text: str, said: str) -> None:
    Path("access.log").write_text(text)
    with pytest.raises(UserError, match=said):
        read_trace("access.log")


LITELLM = "request_id,spend,total_tokens,prompt_tokens,completion_tokens,startTime,endTime,status"
LANGFUSE = "id,startTime,endTime,promptTokens,completionTokens,level"
OBSERVATIONS = "id,startTime,completionStartTime,usageDetails.input,usageDetails.output"
AZURE_API = "TimeGenerated [UTC],PromptTokens,CompletionTokens,ResponseCode"


@pytest.mark.parametrize(("head", "row"), [
    (LITELLM, "c{i},0.01,107,{p},7,2026-11-27T12:44:{i:02d}.5+00:00,2026-11-27T12:45:00+00:00,success"),
    (LANGFUSE, '"g{i}","2026-11-27T12:44:{i:02d}.5Z","2026-11-27T12:45:00Z","{p}","7","DEFAULT"'),
    (OBSERVATIONS, "g{i},2026-11-27T12:44:{i:02d}.5Z,2026-11-27T12:45:00Z,{p},7"),
    (AZURE_API, "2026-11-27T12:44:{i:02d}.5Z,{p},7,200"),
    ("@timestamp,input.inputTokenCount,output.outputTokenCount", "2026-11-27T12:44:{i:02d}.500Z,{p},7")],
    ids=["litellm", "langfuse", "observations", "azure", "bedrock"])
def test_the_sentence_that_asks_for_columns_names_all_of_them_as_the_command_takes_them(
        head: str, row: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "\n".join(row.format(i=place, p=100 + place) for place in range(9))
    Path("log.csv").write_text(f"{head}\n{rows}\n")
    assert main(["data", "import", "log.csv", "to=in.csv", "out=out"]) == 2
    said = capsys.readouterr().err.split("say which they are: ")[1].split(" (for a workload file")[0]
    assert main(["data", "import", "log.csv", *shlex.split(said), "to=in.csv", "out=out"]) == 0
    trace = read_trace("in.csv")
    assert trace.arrival_s.tolist() == list(range(9)) and trace.prompt_tokens.tolist() == list(range(100, 109))


@pytest.mark.parametrize(("row", "columns"), [
    ({"timestamp": "", "input": {"inputBodyJson": {"max_tokens": 9}, "inputTokenCount": 5}, "output": {
        "outputBodyJson": {"usage": {"input_tokens": 5}}, "outputTokenCount": 2}},
     "timestamp input.inputTokenCount output.outputTokenCount"),                                            # Bedrock
    ({"response_created_at": 0, "request_created_at": 0, "prompt_tokens": 5, "completion_tokens": 2},
     "request_created_at prompt_tokens completion_tokens"),                                                 # Helicone
    ({"id": "a", "created_at": 0, "duration": 9, "tokens_in": 5, "tokens_out": 2}, "created_at tokens_in tokens_out"),
    ({"logging_time": 0, "full_response": {"usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 2}}},
     "logging_time full_response.usageMetadata.promptTokenCount full_response.usageMetadata.candidatesTokenCount"),
    ({"cost_components": 1, "end_time": 0, "max_prompt_tokens": 5, "cached_input_tokens": 5}, "NAME NAME NAME")])
def test_the_columns_that_are_proposed_are_the_right_ones_or_none(row: dict[str, Any], columns: str) -> None:
    with pytest.raises(UserError) as error:
        read_trace(lines([row] * 3))
    said = str(error.value).split("say which they are: ")[1].split(" (for a workload file")[0].split()
    wanted = dict(zip(("arrival_s", "prompt_tokens", "output_tokens"), columns.split(), strict=True))
    assert said == [f"columns.{ours}={theirs}" for ours, theirs in wanted.items() if ours != theirs]


@pytest.mark.parametrize(("usage", "said"), [
    ({"input_tokens": 20, "cache_read_input_tokens": 80, "cache_creation_input_tokens": 0, "output_tokens": 7}, [
        "240"]),
    ({"inputTokens": 20, "cacheWriteInputTokens": 30, "outputTokens": 7}, ["90"]),
    ({"input_tokens": 20, "cache_read_input_tokens": 0, "output_tokens": 7}, []),
    ({"prompt_tokens": 100, "cache_read_input_tokens": 80, "completion_tokens": 7}, [])])
def test_prompt_tokens_that_a_cache_had_and_a_log_counts_apart_are_warned_about(usage: Any, said: list[str]) -> None:
    prompt, *_, output = usage
    columns = {"arrival_s": "at", "prompt_tokens": f"usage.{prompt}", "output_tokens": f"usage.{output}"}
    notes = read_trace(lines([{"at": i, "usage": usage} for i in range(3)]), columns=columns).notes
    assert [note.split(" tokens of")[0].split()[-1] for note in notes if note.startswith("warning")] == said


def test_spans_without_a_call_of_a_model_are_no_request() -> None:
    with pytest.raises(UserError, match="holds no request of the form 'otel_session'"):
        read_trace(lines([{"spans": [{"span_id": "a", "meta": {"kind": "llm"}, "start_ns": 1}]}]))


def test_a_column_of_ones_own_beside_a_known_formats_leaves_the_format_as_it_is() -> None:
    rows = [{"timestamp": 1000 * i, "input_length": 100, "output_length": 5, "hash_ids": [i], "tier": "offline"}
            for i in range(3)]
    trace = read_trace(lines(rows), columns={"class": "tier"})
    assert trace.arrival_s.tolist() == [0.0, 1.0, 2.0] and not trace.online.any()


def test_rows_with_no_token_at_all_are_left_out_and_counted() -> None:
    """As spans around a call of a model have them, and calls that failed."""
    Path("log.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,100,7\n1,0,0\n2,101,7\n")
    trace = read_trace("log.csv")
    assert trace.prompt_tokens.tolist() == [100, 101]
    assert any("left out 1 of 3 rows without token counts" in note and "line 3" in note for note in trace.notes)
    Path("log.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,100,7\n1,0,7\n")
    with pytest.raises(UserError, match="line 3, field 'prompt_tokens': found '0'"):
        read_trace("log.csv")


def test_dates_with_a_decimal_comma_are_read() -> None:
    Path("log.csv").write_text("TIMESTAMP;ContextTokens;GeneratedTokens\n2026-11-18 12:06:41,250;325;74\n"
                               "2026-11-18 12:06:42,5;325;74\n")
    assert read_trace("log.csv").arrival_s.tolist() == [0.0, 1.25]


def test_decimal_commas_between_semicolons_are_read() -> None:
    Path("log.csv").write_text("arrival_s;prompt_tokens;output_tokens\n0,25;100;7\n1,5;101;7\n")
    assert read_trace("log.csv").arrival_s.tolist() == [0.25, 1.5]
    Path("log.csv").write_text("arrival_s;prompt_tokens;output_tokens\n0,25;1,785;7\n")
    with pytest.raises(UserError, match="field 'prompt_tokens': found '1.785', expected a whole number"):
        read_trace("log.csv")


@pytest.mark.parametrize(("name", "text"), [
    ("batch.csv", "prompt_tokens,output_tokens,class\n" + "100,7,offline\n" * 9),
    ("batch.csv", "prompt_tokens,output_tokens,class,deadline_s\n" + "100,7,batch,60\n" * 9),
    ("batch.jsonl", "\n".join(['{"prompt_tokens": 100, "output_tokens": 7, "class": "Offline"}'] * 9))])
def test_offline_requests_without_arrivals_are_all_there_at_the_beginning(name: str, text: str) -> None:
    Path(name).write_text(text)
    trace = read_trace(name)
    assert trace.arrival_s.tolist() == [0.0] * 9 and "no column has times: all requests arrive at 0 s" in trace.notes
    pq.write_table(pa.table({"prompt_tokens": [5], "output_tokens": [5], "class": ["offline"]}), "batch.parquet")
    assert read_trace("batch.parquet").online.tolist() == [False]


@pytest.mark.parametrize("text", [
    "ts,prompt_tokens,output_tokens,class\n9,100,7,offline\n",
    "when,prompt_tokens,output_tokens,class\n2026-11-27 12:44:36,100,7,offline\n",
    "prompt_tokens,output_tokens,class\n100,7,online\n", "prompt_tokens,output_tokens\n100,7\n"],
    ids=["a name of times", "dates", "online", "no classes"])
def test_where_times_may_be_missing_by_mistake_they_are_asked_for(text: str) -> None:
    Path("batch.csv").write_text(text)
    with pytest.raises(UserError, match=r"no column 'arrival_s'.*workload.columns.arrival_s="):
        read_trace("batch.csv")
    assert not read_trace("batch.csv", at_once=True).arrival_s.any()


@pytest.mark.parametrize("workload", [{"path": "batch.csv", "class": "offline"}, "batch.csv@offline",
                                      {"path": "batch.csv", "at_once": True}])
def test_requests_without_times_or_classes_are_a_batch_where_that_is_said(workload: Any) -> None:
    Path("batch.csv").write_text("prompt_tokens,output_tokens\n" + "100,7\n" * 9)
    known = Scenario(workload=workload).resolve()
    assert known.batch and len(requests_of(known)[0]) == 9


def test_deadlines_under_a_name_of_their_own_are_imported() -> None:
    Path("log.csv").write_text("arrival_s,prompt_tokens,output_tokens,class,due\n0,100,7,offline,60\n1,100,7,offline,\n")
    assert main(["data", "import", "log.csv", "columns.deadline_s=due", "to=in.csv", "out=out"]) == 0
    assert read_trace("in.csv").deadline_s.tolist() == pytest.approx([60.0, float("nan")], nan_ok=True)
