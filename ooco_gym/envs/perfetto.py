"""An episode as a Chrome trace (JSON), for ui.perfetto.dev and chrome://tracing.

Format: "Trace Event Format" (Google), the object form. A lane for each instance and link with what it ran, from the
simulator's log; an asynchronous slice for each request, with its phases nested; counters of KV memory and queues, and
instants of decisions and SLO misses, as they stood at each decision. Times are microseconds since the window began.

Phases of a request: `waiting`, `prefill`, `resident` (its memory is on an instance: it decodes, or waits for a link),
`transfer`, `evicted` (until the log names it again: a later prefill is known of the first request of its batch alone).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ooco_gym.envs.recording import WORK, Recording, names_of
from ooco_gym.errors import UserError
from ooco_gym.files import atomic_write
from ooco_gym.sim import queues as q
from ooco_gym.sim import state as s
from ooco_gym.sim.look import look

CLUSTER, REQUESTS = 1, 2  # processes of the trace
_ENDS, _ENDS_ALL, _BEGINS_ALL, _BEGINS, _OTHER = range(5)  # order of what happens at one time
_PHASES = {q.LOG_PREFILL_START: "prefill", q.LOG_PREFILL_END: "resident", q.LOG_INTERRUPT: "waiting",
           q.LOG_TRANSFER_START: "transfer", q.LOG_TRANSFER_END: "resident", q.LOG_EVICT: "evicted"}
Event = dict[str, Any]


def write_trace(path: str | PathLike[str], recording: Recording, window_start_ps: int, about: dict[str, Any]) -> None:
    """Writes the trace of an episode so far.

    Args:
        path: of the file; gzipped where it ends in `.gz`.
        recording: what has been recorded of the episode.
        window_start_ps: time 0 of the trace.
        about: what the episode is, for `otherData`.

    Raises:
        UserError: the file cannot be written.
    """
    target = Path(path)
    content = {"traceEvents": trace_events(recording, window_start_ps), "displayTimeUnit": "ms", "otherData": about}
    text = json.dumps(content, separators=(",", ":")).encode()
    try:
        with atomic_write(target) as temporary:
            temporary.write_bytes(gzip.compress(text, mtime=0) if target.suffix == ".gz" else text)
    except OSError as error:
        raise UserError(f"export_trace('{target}'): the file cannot be written ({error.strerror}); choose another "
                        "path") from error


def trace_events(recording: Recording, window_start_ps: int) -> list[Event]:
    """The events of a trace in order of time, names first."""
    zero_ns = window_start_ps // 1000

    def at(time_ps: int) -> float:
        return (time_ps // 1000 - zero_ns) / 1000  # whole nanoseconds: what ends at a time does not overlap

    timed: list[tuple[int, int, Event]] = []
    for time_ps, order, event in (*_lanes(recording), *_requests(recording), *_counters(recording),
                                  *_instants(recording)):
        if "dur" in event:
            event["dur"] = at(event["dur"]) - at(time_ps)
            event["dur"] = round(event["dur"], 3)
        timed.append((time_ps, order, {**event, "ts": at(time_ps)}))
    timed.sort(key=lambda one: one[:2])
    return [*_names(recording), *(event for _, _, event in timed)]


def _names(recording: Recording) -> Iterator[Event]:
    lanes = [*names_of(recording.state), "decisions", "SLO misses"]
    for process, name in ((CLUSTER, "cluster"), (REQUESTS, "requests")):
        yield {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "ts": 0, "args": {"name": name}}
    for lane, name in enumerate(lanes, start=1):
        for key, value in (("thread_name", {"name": name}), ("thread_sort_index", {"sort_index": lane})):
            yield {"ph": "M", "name": key, "pid": CLUSTER, "tid": lane, "ts": 0, "args": value}


def _lanes(recording: Recording) -> Iterator[tuple[int, int, Event]]:
    for lane in range(len(recording.lanes)):
        for one in recording.slices(lane):
            yield one.start_ps, _OTHER, {
                "ph": "X", "name": WORK[one.work], "cat": "work", "pid": CLUSTER, "tid": lane + 1, "dur": one.end_ps,
                "args": {"requests": one.requests, "amount": one.amount, "interrupted": one.interrupted}}


def _counters(recording: Recording) -> Iterator[tuple[int, int, Event]]:
    before = None
    for one in recording.samples:
        if before is None or one.kv_share != before.kv_share:
            for place, share in enumerate(one.kv_share):
                yield one.time_ps, _OTHER, _counter(f"KV memory {place} (%)", {"used": round(100 * share, 2)})
        now = (one.online_waiting, one.offline_waiting)
        if before is None or now != (before.online_waiting, before.offline_waiting):
            yield one.time_ps, _OTHER, _counter("waiting (requests)", {"online": now[0], "offline": now[1]})
        before = one


def _counter(name: str, values: dict[str, float]) -> Event:
    return {"ph": "C", "name": name, "pid": CLUSTER, "tid": 0, "args": values}


def _instants(recording: Recording) -> Iterator[tuple[int, int, Event]]:
    lanes = len(recording.lanes)
    for one in recording.answers:
        yield one.time_ps, _OTHER, _instant(f"{one.decision}: {one.kind}", lanes + 1, {
            "instance": one.instance, "request": one.request, "action": one.action, "reward": one.reward})
    before = recording.samples[0]
    for one in recording.samples[1:]:
        for name, count in (("TTFT", one.ttft_misses - before.ttft_misses),
                            ("TPOT", one.tpot_misses - before.tpot_misses)):
            if count:
                yield one.time_ps, _OTHER, _instant(f"{name} missed", lanes + 2, {"requests": count})
        before = one


def _instant(name: str, lane: int, values: dict[str, Any]) -> Event:
    return {"ph": "i", "name": name, "cat": "decision", "s": "t", "pid": CLUSTER, "tid": lane, "args": values}


# --- Requests -------------------------------------------------------------------------------------------------------
def _requests(recording: Recording) -> Iterator[tuple[int, int, Event]]:
    rows = look(recording.state).requests
    for slot, (phases, end_ps) in phases_of(recording).items():
        row = rows[slot]
        begin_ps, common = phases[0][0], {"cat": "online" if row["online"] else "offline", "id": str(slot),
                                          "pid": REQUESTS, "tid": 0}
        if begin_ps >= end_ps:
            continue
        name = f"{common['cat']} {slot}"
        about = {"prompt_tokens": int(row["prompt_tokens"]), "generated_tokens": int(row["generated_tokens"]),
                 "evictions": int(row["evictions"]), "migrations": int(row["migrations"]),
                 "missed": [slo for bit, slo in ((1, "TTFT"), (2, "TPOT")) if row["violated"] & bit]}
        yield begin_ps, _BEGINS_ALL, {"ph": "b", "name": name, **common, "args": about}
        for (start_ps, phase), (stop_ps, _) in zip(phases, [*phases[1:], (end_ps, "")], strict=True):
            if start_ps < stop_ps:
                yield start_ps, _BEGINS, {"ph": "b", "name": phase, **common}
                yield stop_ps, _ENDS, {"ph": "e", "name": phase, **common}
        yield end_ps, _ENDS_ALL, {"ph": "e", "name": name, **common}


def phases_of(recording: Recording) -> dict[int, tuple[list[tuple[int, str]], int]]:
    """When each request's phases began (its own first), and when it ended, or now; of those of which something was
    logged."""
    rows, now = recording.state.requests, recording.now_ps
    events = np.concatenate(recording.events) if recording.events else np.zeros(0, s.LOG)
    found: dict[int, list[tuple[int, str]]] = {}
    ends: dict[int, int] = {}
    for time_ps, kind, _, slot, _ in events.tolist():
        if kind not in (q.LOG_ARRIVAL, q.LOG_FINISH, *_PHASES):
            continue
        if slot not in found:
            prefilled = 0 < int(rows["first_token_ps"][slot]) <= recording.begin_ps
            found[slot] = [(max(recording.begin_ps, int(rows["arrival_ps"][slot])),
                            "resident" if prefilled else "waiting")]
        if kind == q.LOG_FINISH:
            ends[slot] = time_ps
        elif kind in _PHASES:
            found[slot].append((time_ps, _PHASES[kind]))
    _add_first_prefills(recording, found)
    return {slot: (sorted(listed, key=lambda one: one[0]), ends.get(slot, now)) for slot, listed in found.items()}


def _add_first_prefills(recording: Recording, found: dict[int, list[tuple[int, str]]]) -> None:
    """The log names one request of each prefill; the others are known by when their first token came."""
    rows = recording.state.requests
    begun = {(lane, one.end_ps): one.start_ps for lane in range(recording.state.instances.size)
             for one in recording.lanes[lane]}
    for slot, listed in found.items():
        first_ps, origin = int(rows["first_token_ps"][slot]), int(rows["origin"][slot])
        if first_ps <= recording.begin_ps or any(phase == "prefill" for _, phase in listed):
            continue
        start_ps = begun.get((origin, first_ps))
        if start_ps is not None and recording.state.instances["role"][origin] != s.MIXED:
            listed.append((start_ps, "prefill"))
        listed.append((first_ps, "resident"))
