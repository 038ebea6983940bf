"""Conversion of nested JSON to flat rows: conversations of agents, events, results of benchmarks.

The first object of a file determines its form (`FORMS`). A form's function returns the rows of one
object with our column names (and `ttft_s` and `e2e_s` of served requests); `kept` carries state
between the objects of a file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np

from ooco_gym.workload.keyed import scattered
from ooco_gym.workload.trace import BLOCK_TOKENS

Rows = list[dict[str, Any]]
CALLS = ("chat", "text_completion", "generate_content", "completion")  # model calls in the GenAI conventions
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
INPUTS = ("user_message", "tool_result")


def _weka(one: Mapping[str, Any], kept: dict[Any, Any]) -> Rows:
    """Returns a conversation of a coding agent, a job; each subagent's requests are a separate session.

    A subagent begins after the turns that had ended before it, and a turn waits for those that had ended before it; how
    long after, the times tell, as it is open whether a `think_time` includes the subagents. In some files a subagent's
    times count from its own beginning, in others from the conversation's. The former is assumed if a request would
    otherwise precede its subagent.
    """
    scope = "" if one.get("hash_id_scope") == "global" else str(one["id"])  # hashes are equal within it only
    agents = [entry for entry in one["requests"] if entry["type"] == "subagent"]
    own_clock = any(request["t"] < agent["t"] for agent in agents for request in agent["requests"])
    parts = [(str(one["id"]), 0.0, one["requests"])]
    for place, agent in enumerate(agents):
        parts.append((f"{one['id']}/{place}", agent["t"] if own_clock else 0.0, agent["requests"]))
    calls = []
    for session, begun_s, requests in parts:
        rows: Rows = []
        for request in requests:
            if request["type"] == "subagent":
                continue
            hashes = np.array(request.get("hash_ids") or [], np.int64)
            rows.append({"arrival_s": request["t"] + begun_s, "prompt_tokens": request["in"],
                         "output_tokens": request["out"], "session": session, "job": str(one["id"]),
                         "id": f"{session}#{len(rows)}", "after": [],
                         "think_s": request.get("think_time"), "elapsed_s": request.get("api_time"),
                         "prefix_hashes": scattered(hashes, scope), "block_tokens": one["block_size"]})
        calls.append(rows)
    for agent in filter(None, calls[1:]):
        _wait(calls[0], agent)
    return [row for rows in calls for row in rows]


def _wait(turns: Rows, agent: Rows) -> None:
    """Lets a subagent's calls wait for the turn before, and the turn after for these; times tell which these are."""

    def end_s(row: Mapping[str, Any]) -> float:
        return row["arrival_s"] + (row["elapsed_s"] or 0.0)

    before = [turn for turn in turns if end_s(turn) <= agent[0]["arrival_s"]]
    behind = [turn for turn in turns if turn["arrival_s"] >= end_s(agent[-1])]
    if before:
        agent[0]["after"], agent[0]["think_s"] = [before[-1]["id"]], None
    if behind:
        behind[0]["after"], behind[0]["think_s"] = [*behind[0]["after"], agent[-1]["id"]], None


def _tracelab(one: Mapping[str, Any], kept: dict[Any, Any]) -> Rows:
    """Returns a round of a coding agent, from its last input to its last event.

    The trace has only prompt lengths and cached tokens. A prompt is assumed to share that many
    tokens with the session's previous prompt.
    """
    events = one["timing_events"]
    count, found = -(-one["input_tokens_total"] // BLOCK_TOKENS), one["prefix_tokens"] // BLOCK_TOKENS
    before = kept.get(one["session_id"], np.zeros(0, np.int64))[: min(found, count)]
    first = kept.get(None, 0)
    kept[None] = first + count - len(before)
    kept[one["session_id"]] = hashes = np.concatenate([before, np.arange(first, kept[None])])
    inputs = [event["timestamp"] for event in events if event["event_type"] in INPUTS]
    return [{"arrival_s": (inputs or [events[0]["timestamp"]])[-1], "prompt_tokens": one["input_tokens_total"],
             "output_tokens": one["output_tokens"], "session": one["session_id"], "end_s": events[-1]["timestamp"],
             "prefix_hashes": hashes}]


def _dynamo(one: Mapping[str, Any], kept: dict[Any, Any]) -> Rows:
    """Returns the row of a request's end; events of tools and payloads have none."""
    event = one.get("event", one)
    if event["event_type"] != "request_end":
        return []
    request, replay, agent = event["request"], event["request"]["replay"], event.get("agent_context") or {}
    return [{"arrival_s": request.get("request_received_ms"), "prompt_tokens": replay["input_length"],
             "output_tokens": request.get("output_tokens") or 0, "end_s": event["event_time_unix_ms"],
             "session": agent.get("trajectory_id", agent.get("session_id")),
             "block_tokens": replay["trace_block_size"],
             "prefix_hashes": np.array(replay["input_sequence_hashes"], np.uint64).view(np.int64)}]


def _aiperf(one: Mapping[str, Any], kept: dict[Any, Any]) -> Rows:
    """Returns a request's record; a failed one has no output tokens."""
    about, metrics = one["metadata"], one["metrics"] or {}

    def value(name: str) -> Any:
        return metrics.get(name, {}).get("value")

    prompt = value("input_sequence_length")
    failed = one.get("error") or about.get("was_cancelled")
    return [{"arrival_s": about.get("request_start_ns"),
             "prompt_tokens": value("error_isl") if prompt is None else prompt,
             "output_tokens": 0 if failed else value("output_sequence_length"),
             "session": about.get("x_correlation_id"), "end_s": about.get("request_end_ns"),
             "benchmark_phase": about.get("benchmark_phase"), **_aiperf_times(about, metrics)}]


def _aiperf_times(about: Mapping[str, Any], metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Returns TTFT and end-to-end time of a streamed request, in seconds."""
    first = metrics.get("time_to_first_token", {})
    if first.get("value") is None or about.get("request_end_ns") is None:
        return {"ttft_s": None, "e2e_s": None}
    seconds = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}[first.get("unit", "ms")]
    return {"ttft_s": seconds * first["value"], "e2e_s": 1e-9 * (about["request_end_ns"] - about["request_start_ns"])}


def _bench_serve(one: Mapping[str, Any], kept: dict[Any, Any]) -> Rows:
    """Returns the rows of a benchmark with one list per column; times count from the first request,
    as its clock is arbitrary."""
    if "start_times" not in one:
        raise ValueError("it has no 'start_times', as SGLang's benchmark saves none; 'vllm bench serve --save-result "
                         "--save-detailed' does, for any server")
    times_s = one["start_times"]
    lists = {"arrival_s": [time_s - min(times_s) for time_s in times_s], "prompt_tokens": one["input_lens"],
             "output_tokens": one["output_lens"]}
    if "ttfts" in one and "itls" in one:
        lists["ttft_s"] = one["ttfts"]
        lists["e2e_s"] = [first + sum(gaps) for first, gaps in zip(one["ttfts"], one["itls"], strict=True)]
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]


def _otel(one: Mapping[str, Any], kept: dict[Any, Any]) -> Rows:
    """Returns the model calls among the spans of OpenTelemetry's JSON, by the GenAI conventions
    (vLLM: one per request), or among the `spans` of a trace, which is a session.

    Spans of agents, which sum the tokens of several calls, are skipped.
    """
    spans = [span for resource in one.get("resourceSpans", ()) for scope in resource.get("scopeSpans", ())
             for span in scope.get("spans", ())]
    kept[len(kept)] = session = one.get("trace_id", one.get("session_id", f"line {len(kept)}")) if not spans else None
    spans += one.get("spans", ())
    for span in spans:  # which grows by the spans below
        spans += span.get("spans") or span.get("children") or ()
    return [row for span in spans if (row := _call(span, session)) is not None]


def _ns(span: Mapping[str, Any], edge: str) -> int:
    """Returns a span's start or end in nanoseconds since 1970; dates without a zone count as UTC."""
    if f"{edge}_time" not in span:
        return int(span[f"{edge}TimeUnixNano"])
    moment = datetime.fromisoformat(span[f"{edge}_time"])
    return (moment.replace(tzinfo=moment.tzinfo or UTC) - EPOCH) // timedelta(microseconds=1) * 1000


def _call(span: Mapping[str, Any], session: str | None) -> dict[str, Any] | None:
    """Returns the row of a span that calls a model, else None."""
    about = span.get("attributes") or {}
    if isinstance(about, list):
        about = {item["key"]: next(iter(item["value"].values())) for item in about
                 if item["key"].startswith(("gen_ai.", "error."))}

    def number(*names: str) -> float | None:
        return next((float(about[name]) for name in names if about.get(name) is not None), None)

    prompt = number("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
    operation, status = about.get("gen_ai.operation.name"), span.get("status") or {}
    if operation and operation not in CALLS:
        return None
    if not operation and prompt is None and not str(span.get("name")).startswith(("llm_request", "chat ")):
        return None
    output = number("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
    output = 0 if prompt and output is None else output  # an aborted stream
    row = {"arrival_s": _ns(span, "start"), "prompt_tokens": prompt, "output_tokens": output,
           "ttft_s": number("gen_ai.latency.time_to_first_token"), "e2e_s": number("gen_ai.latency.e2e")}
    session = about.get("gen_ai.conversation.id", session)
    if session is not None:
        row |= {"session": session, "end_s": _ns(span, "end")}
    status = status if isinstance(status, Mapping) else {"code": status}
    if "error.type" in about or status.get("code", status.get("status_code")) in (2, "STATUS_CODE_ERROR", "ERROR"):
        row["error"] = str(about.get("error.type", "error"))
    if "gen_ai.request.model" in about:
        row["model"] = about["gen_ai.request.model"]
    return row


def _guidellm(one: Mapping[str, Any], kept: dict[Any, Any]) -> Rows:
    """Returns the successful requests of consecutive benchmarks."""
    rows = [(str(place), request) for place, part in enumerate(one["benchmarks"])
            for request in part["requests"]["successful"]]
    return [{"arrival_s": request.get("request_start_time", request.get("start_time")),
             "prompt_tokens": request["prompt_tokens"], "output_tokens": request["output_tokens"], "benchmark": place,
             "ttft_s": _seconds(request.get("time_to_first_token_ms"), 1e-3),
             "e2e_s": request.get("request_latency")} for place, request in rows]


def _seconds(value: float | None, unit_s: float) -> float | None:
    return None if value is None else value * unit_s


class NestedForm(NamedTuple):
    """A form: keys that identify its objects, the unit of its times, and the function that returns their rows."""

    keys: frozenset[str]
    unit: str
    rows: Callable[[Mapping[str, Any], dict[Any, Any]], Rows]


# Conversations of coding agents (github callanjfox/kv-cache-tester, and InferenceX: huggingface
# semianalysisai/cc-traces-weka-*); rounds of coding agents with the waits for their tools (github uw-syfi/TraceLab);
# request traces of NVIDIA Dynamo (`DYN_REQUEST_TRACE=1`); records of NVIDIA AIPerf (`profile_export.jsonl`); guidellm's
# `benchmarks.json`; spans of vLLM (`--otlp-traces-endpoint`) and of clients by the GenAI conventions, as the
# OpenTelemetry collector writes them, or a trace a line; results of `vllm bench serve --save-result --save-detailed`
# and of SGLang's `bench_serving --output-details`.
FORMS = {"weka": NestedForm(frozenset({"requests", "block_size"}), "s", _weka),
         "tracelab": NestedForm(frozenset({"timing_events", "input_tokens_total"}), "date", _tracelab),
         "dynamo": NestedForm(frozenset({"event_type", "event_time_unix_ms"}), "ms", _dynamo),
         "aiperf": NestedForm(frozenset({"metadata", "metrics"}), "ns", _aiperf),
         "guidellm": NestedForm(frozenset({"benchmarks"}), "s", _guidellm),
         "otel": NestedForm(frozenset({"resourceSpans"}), "ns", _otel),
         "otel_session": NestedForm(frozenset({"spans"}), "ns", _otel),
         "bench_serve": NestedForm(frozenset({"input_lens", "output_lens"}), "s", _bench_serve)}


def form_of(one: Mapping[str, Any]) -> str | None:
    """Returns the name of the form in `FORMS` whose keys a JSON object (or its `event`) has, or None."""
    event = one.get("event")
    inner = event if isinstance(event, Mapping) else one
    return next((name for name, form in FORMS.items() if form.keys <= set(inner)), None)
