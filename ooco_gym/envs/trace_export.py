"""Writes an episode as a Chrome trace (JSON), for ui.perfetto.dev and chrome://tracing.

Format: "Trace Event Format" (Google), the object form. A lane for each instance and link with what it ran, from the
simulator's log; an asynchronous slice for each request, with its phases nested; counters of KV memory and queues, and
instants of decisions and SLO misses, as they stood at each decision. Times are microseconds since the window began.
Phases of a request: `waiting`, `prefill`, `resident` (its memory is on an instance: it decodes, or waits for a link),
`transfer`, `evicted` (until the log names it again: of a later batch, the log names the first request alone).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ooco_gym.envs.recording import WORK, Recording, names_of
from ooco_gym.errors import UserError
from ooco_gym.files import atomic_write
from ooco_gym.sim import queues as q
from ooco_gym.sim import state as s
from ooco_gym.sim.loop import look

CLUSTER, REQUESTS = 1, 2  # processes of the trace
_ENDS, _ENDS_ALL, _BEGINS_ALL, _BEGINS, _OTHER = range(5)  # order of what happens at one time
_PHASES = {q.LOG_PREFILL_START: "prefill", q.LOG_PREFILL_END: "resident", q.LOG_INTERRUPT: "waiting",
           q.LOG_TRANSFER_START: "transfer", q.LOG_TRANSFER_END: "resident", q.LOG_EVICT: "evicted"}
Event = dict[str, Any]
Timed = Iterator[tuple[int, int, Event]]  # time, order among what happens then, event


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

    events = list(_names(recording))
    for time_ps, _, event in sorted([*_lanes(recording), *_requests(recording), *_counters(recording),
                                     *_instants(recording)], key=lambda one: one[:2]):
        if "dur" in event:  # until now, when it ends
            event["dur"] = round(at(event["dur"]) - at(time_ps), 3)
        events.append({**event, "ts": at(time_ps)})
    return events


def _event(ph: str, name: str, lane: int = 0, process: int = CLUSTER, **others: Any) -> Event:
    return {"ph": ph, "name": name, "pid": process, "tid": lane, **others}


def _names(recording: Recording) -> Iterator[Event]:
    for process, name in ((CLUSTER, "cluster"), (REQUESTS, "requests")):
        yield _event("M", "process_name", 0, process, ts=0, args={"name": name})
    for lane, name in enumerate([*names_of(recording.state), "decisions", "SLO misses"], start=1):
        yield _event("M", "thread_name", lane, ts=0, args={"name": name})
        yield _event("M", "thread_sort_index", lane, ts=0, args={"sort_index": lane})


def _lanes(recording: Recording) -> Timed:
    for lane in range(len(recording.lanes)):
        for one in recording.slices(lane):
            yield one.start_ps, _OTHER, _event("X", WORK[one.work], lane + 1, cat="work", dur=one.end_ps, args={
                "requests": one.requests, "amount": one.amount, "interrupted": one.interrupted})


def _counters(recording: Recording) -> Timed:
    shares, waiting = None, None
    for one in recording.samples:
        if one.kv_share != shares:
            for index, share in enumerate(one.kv_share):
                yield one.time_ps, _OTHER, _event("C", f"KV memory {index} (%)", args={"used": round(100 * share, 2)})
        now = {"online": one.online_waiting, "offline": one.offline_waiting}
        if now != waiting:
            yield one.time_ps, _OTHER, _event("C", "waiting (requests)", args=now)
        shares, waiting = one.kv_share, now


def _instants(recording: Recording) -> Timed:
    lane = len(recording.lanes) + 1
    for one in recording.answers:
        yield one.time_ps, _OTHER, _event("i", f"{one.decision}: {one.kind}", lane, cat="decision", s="t", args={
            "instance": one.instance, "request": one.request, "action": one.action, "reward": one.reward})
    for before, one in pairwise(recording.samples):
        for name, count in (("TTFT", one.ttft_misses - before.ttft_misses),
                            ("TPOT", one.tpot_misses - before.tpot_misses)):
            if count:
                yield one.time_ps, _OTHER, _event("i", f"{name} missed", lane + 1, cat="decision", s="t",
                                                  args={"requests": count})


def _requests(recording: Recording) -> Timed:
    rows = look(recording.state).requests
    for slot, (phases, end_ps) in phases_of(recording).items():
        row, begin_ps = rows[slot], phases[0][0]
        if begin_ps >= end_ps:
            continue
        common = {"process": REQUESTS, "cat": "online" if row["online"] else "offline", "id": str(slot)}
        name = f"{common['cat']} {slot}"
        yield begin_ps, _BEGINS_ALL, _event("b", name, **common, args={
            **{key: int(row[key]) for key in ("prompt_tokens", "generated_tokens", "evictions", "migrations")},
            "missed": [slo for bit, slo in ((1, "TTFT"), (2, "TPOT")) if row["violated"] & bit]})
        for (start_ps, phase), (stop_ps, _) in pairwise([*phases, (end_ps, "")]):
            if start_ps < stop_ps:
                yield start_ps, _BEGINS, _event("b", phase, **common)
                yield stop_ps, _ENDS, _event("e", phase, **common)
        yield end_ps, _ENDS_ALL, _event("e", name, **common)


def phases_of(recording: Recording) -> dict[int, tuple[list[tuple[int, str]], int]]:
    """When each request's phases began (its own first), and when it ended, or now; of those of which something was
    logged."""
    rows, instances = recording.state.requests, recording.state.instances
    events = np.concatenate([np.zeros(0, s.LOG), *recording.events])
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
    # the log names one request of each prefill; the others are known by when their first token came
    begun = {(lane, one.end_ps): one.start_ps for lane in range(instances.size) for one in recording.lanes[lane]}
    for slot, listed in found.items():
        first_ps, origin = int(rows["first_token_ps"][slot]), int(rows["origin"][slot])
        if first_ps > recording.begin_ps and all(phase != "prefill" for _, phase in listed):
            if (origin, first_ps) in begun and instances["role"][origin] != s.MIXED:
                listed.append((begun[origin, first_ps], "prefill"))
            listed.append((first_ps, "resident"))
        listed.sort(key=lambda one: one[0])
    return {slot: (listed, ends.get(slot, recording.now_ps)) for slot, listed in found.items()}
