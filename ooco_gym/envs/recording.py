"""What pictures and traces of an episode are drawn from: kept only where a render mode or a trace is asked for.

The simulator's own event log says what each instance has run, to the picosecond; at each decision, what stands in
memory and in the queues is sampled beside it.
"""

from __future__ import annotations

import gzip
import json
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from copy import copy
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ooco_gym.envs import buffers as b
from ooco_gym.envs import reward as r
from ooco_gym.envs.episodes import Episodes
from ooco_gym.errors import UserError
from ooco_gym.files import atomic_write
from ooco_gym.sim import queues as q
from ooco_gym.sim import state as s
from ooco_gym.sim.loop import look

ONLINE_PREFILL, OFFLINE_PREFILL, DECODE_WORK, MIXED_WORK, TRANSFER = range(5)
WORK = ("online prefill", "offline prefill", "decode", "mixed iteration", "transfer")
PARTNERS, DECLINED, OWN = "partner", "decline", "own"  # what an action was
LOG_ENTRIES = 65_536  # events of one step that are kept
_BUSY = ("online_prefill_ps", "offline_prefill_ps", "decode_ps")
_OF_ACTIVITY = {s.PREFILL_ONLINE: ONLINE_PREFILL, s.PREFILL_OFFLINE: OFFLINE_PREFILL, s.DECODE: DECODE_WORK,
                s.MIXING: MIXED_WORK}


class Slice(NamedTuple):
    """One stretch of work: times in picoseconds, how many requests, how many tokens or decode steps."""

    start_ps: int
    end_ps: int
    work: int
    requests: int
    amount: int
    interrupted: bool = False


class Sample(NamedTuple):
    """What stood at a decision (or at the episode's beginning and end)."""

    time_ps: int
    kv_share: tuple[float, ...]  # of each instance's KV memory, in use
    online_waiting: int
    offline_waiting: int
    ttft_misses: int
    tpot_misses: int
    violations: int
    arrived: int
    mixed_ps: tuple[tuple[int, ...], ...]  # of each mixed instance: its time by kind of work so far


class Answered(NamedTuple):
    """A decision and what was answered."""

    time_ps: int
    decision: str
    instance: int  # -1: of no instance
    request: int  # -1: about no request
    action: Any  # an int, or a list of levels
    kind: str  # PARTNERS, DECLINED or OWN
    reward: float


class Recording:
    """One episode so far.

    Attributes:
        lanes: what each instance has run, in order of time; after the instances, each link's transfers.
        samples, answers: at each decision.
        events: the simulator's log, in parts: LOG[n].
        begin_ps: time of the first entry.
    """

    def __init__(self, episodes: Episodes, i: int) -> None:
        simulation = episodes.simulations[i]
        assert simulation is not None
        state = simulation.state
        self.begin_ps = int(state.clock.now_ps)
        self.samples: list[Sample] = []
        self.answers: list[Answered] = []
        self.events: list[np.ndarray] = []
        self.lanes: list[list[Slice]] = [[] for _ in range(state.instances.size + state.links.size)]
        self._links = {(int(link["source"]), int(link["target"])): state.instances.size + index
                       for index, link in enumerate(state.links)}
        self._since = [self.begin_ps] * len(self.lanes)
        self._open: list[Slice | None] = [None] * len(self.lanes)
        for index, instance in enumerate(state.instances):
            work = _OF_ACTIVITY.get(int(instance["activity"]))
            if work is not None and work != DECODE_WORK:
                self._open[index] = Slice(self.begin_ps, 0, work, int(instance["running"]),
                                          int(instance["context"]))
        self._mixed = bool((state.instances["role"] == s.MIXED).any())
        self._strict = (state.instances["role"] == s.STRICT).tolist()
        members = state.instances["offline_members"] + state.instances["urgent_members"] * self._strict
        self._members = members.tolist()  # requests that could decode: on relaxed instances, offline ones
        state.queues.log_used = 0
        self._sample(state)

    def take(self, episodes: Episodes, i: int) -> None:
        """Reads what has happened since the last time, and samples what stands now."""
        simulation = episodes.simulations[i]
        assert simulation is not None
        state = simulation.state
        used = int(state.queues.log_used)
        if used:
            part = state.log[:used].copy()
            state.queues.log_used = 0
            self.events.append(part)
            for event in part.tolist():
                self._read(*event)
        self._sample(state)

    def _sample(self, state: s.State) -> None:
        self.state = state
        totals, instances = state.totals, state.instances
        kv = 1.0 - instances["free_blocks"] / instances["total_blocks"]
        self.samples.append(Sample(
            int(state.clock.now_ps), tuple(kv.tolist()), int(instances["online_waiting"].sum()),
            int(instances["offline_waiting"].sum()), int(totals.ttft_misses), int(totals.tpot_misses),
            int(totals.violations), int(totals.online_arrived),
            tuple(zip(*(instances[key].tolist() for key in _BUSY), strict=True)) if self._mixed else ()))

    @property
    def now_ps(self) -> int:
        """Time of the last sample."""
        return self.samples[-1].time_ps

    def slices(self, lane: int, since_ps: int = 0) -> list[Slice]:
        """What a lane has run since a time, with what runs now, up to now."""
        ended, now = self.lanes[lane], self.now_ps
        listed = ended[bisect_left(ended, since_ps, key=lambda one: one.end_ps):]
        begun = self._open[lane]
        if begun is not None:
            listed.append(begun._replace(end_ps=now))
        elif lane < self.state.instances.size and self.state.instances["activity"][lane] == s.DECODE:
            spec = self.state.instances[lane]
            listed.append(Slice(self._since[lane], now, DECODE_WORK, int(spec["running"]), 0))
        return [one for one in listed if one.end_ps > one.start_ps]

    def copied(self, state: s.State | None = None) -> Recording:
        """A copy that goes on apart, of the episode with this state."""
        other = copy(self)
        other.state = state  # type: ignore[assignment]  a copy that is only kept has none
        other.samples, other.answers, other.events = list(self.samples), list(self.answers), list(self.events)
        other.lanes = [list(lane) for lane in self.lanes]
        other._since, other._open, other._members = list(self._since), list(self._open), list(self._members)
        return other

    # --- The log: starts of prefills and transfers, ends of decode runs ---------------------------------------------
    def _read(self, time_ps: int, kind: int, instance: int, request: int, value: int) -> None:
        if kind == q.LOG_PREFILL_START:
            online = bool(self.state.requests["urgent"][request])
            batch = self._members[instance]
            if batch > 0 and not self._strict[instance]:  # a step was interrupted: it is not logged
                self._add(instance, Slice(self._since[instance], time_ps, DECODE_WORK, batch, 0, True))
            self._open[instance] = Slice(time_ps, 0, ONLINE_PREFILL if online else OFFLINE_PREFILL, 1, value)
        elif kind == q.LOG_PREFILL_END:
            begun = self._open[instance]
            self._close(instance, time_ps, requests=value)
            if begun is None or begun.work == OFFLINE_PREFILL:
                self._members[instance] += value
        elif kind == q.LOG_INTERRUPT:
            self._close(instance, time_ps, interrupted=True)
        elif kind == q.LOG_DECODE_RUN:
            self._add(instance, Slice(self._since[instance], time_ps, DECODE_WORK, request, value))
            self._since[instance] = time_ps
        elif kind == q.LOG_MIXED:
            self._close(instance, time_ps)
            self._open[instance] = Slice(time_ps, 0, MIXED_WORK, request, value)
        elif kind == q.LOG_TRANSFER_START:
            self._open[self._links[instance, value]] = Slice(time_ps, 0, TRANSFER, 1, request)
        elif kind == q.LOG_TRANSFER_END:
            self._close(self._links[value, instance], time_ps)
            self._left(value, request, time_ps)
            self._joined(instance, time_ps)
        elif kind in (q.LOG_EVICT, q.LOG_FINISH) and instance >= 0:
            self._left(instance, request, time_ps)

    def _add(self, lane: int, one: Slice) -> None:
        if one.start_ps < one.end_ps:
            self.lanes[lane].append(one)

    def _joined(self, instance: int, time_ps: int) -> None:
        """Runs begin where what came before has ended, or where the first request comes to an empty instance."""
        if self._members[instance] <= 0 and self._strict[instance]:
            self._since[instance] = time_ps
            self._members[instance] = 0
        self._members[instance] += 1

    def _left(self, instance: int, request: int, time_ps: int) -> None:
        if self._strict[instance] or not self.state.requests["urgent"][request]:
            self._members[instance] -= 1
        begun = self._open[instance]
        if begun is not None and begun.work == MIXED_WORK and begun.start_ps < time_ps:
            self._close(instance, time_ps)  # the iteration's end

    def _close(self, lane: int, time_ps: int, requests: int = 0, interrupted: bool = False) -> None:
        begun = self._open[lane]
        self._open[lane] = None
        self._since[lane] = time_ps
        if begun is not None:
            self._add(lane, begun._replace(end_ps=time_ps, requests=requests or begun.requests,
                                           interrupted=interrupted))


class Asking:
    """Which decision is open in each of some episodes, and what was answered to it."""

    def __init__(self, episodes: Episodes) -> None:
        self.episodes = episodes
        self.open = [(0, "", -1, -1)] * len(episodes.simulations)  # time, decision, instance, request

    def note(self, i: int) -> None:
        """Notes which decision is open in slot i."""
        simulation, asked = self.episodes.simulations[i], self.episodes.asked(i)
        assert simulation is not None
        decision, instance, request = asked.name if asked is not None else "", -1, -1
        if asked is not None and asked.kind < b.CLOCK:
            instance, request = int(simulation.state.pending.instance), int(simulation.state.pending.request)
        self.open[i] = (int(simulation.state.clock.now_ps), decision, instance, request)

    def answered(self, i: int) -> Answered:
        """The decision noted last in slot i, which `buffers.actions[i]` has answered."""
        buffers, controls = self.episodes.buffers, self.episodes.controls
        action: Any = buffers.actions[i].tolist()
        if self.episodes.config.box:
            kind = PARTNERS if action[0] == b.ILLEGAL else OWN
        elif controls is not None:
            kind = PARTNERS if action == controls.tuned.tolist() else OWN
        else:
            action = action[0]
            kind = {b.DECLINE_ACTION: DECLINED, b.PARTNER_ACTION: PARTNERS}.get(action, OWN)
        return Answered(*self.open[i], action, kind, float(buffers.account[i, r.REWARD]))


class Recorder:
    """Watches episodes and records them.

    Attributes:
        recordings: of each slot; None before its start.
    """

    def __init__(self, episodes: Episodes) -> None:
        self.episodes = episodes
        self.recordings: list[Recording | None] = [None] * len(episodes.simulations)
        self._asking = Asking(episodes)

    def begin(self, i: int) -> None:
        """A new episode begins in slot i: from here on its events are logged."""
        simulation = self.episodes.simulations[i]
        assert simulation is not None
        if simulation.state.log.size != LOG_ENTRIES:
            simulation.state = simulation.state._replace(log=np.zeros(LOG_ENTRIES, s.LOG))
            self.episodes.buffers.handles[i] = simulation.handle.address
        self.recordings[i] = Recording(self.episodes, i)

    def opened(self, i: int) -> None:
        """It has come to its first decision."""
        self.recording(i).take(self.episodes, i)
        self._asking.note(i)

    def took(self, i: int) -> None:
        """The open decision of slot i was answered with `buffers.actions[i]`, and the episode has gone on."""
        answered = self._asking.answered(i)
        recording = self.recording(i)
        if answered.decision:
            recording.answers.append(answered)
        recording.take(self.episodes, i)
        self._asking.note(i)

    def recording(self, i: int) -> Recording:
        """What has been recorded in slot i.

        Raises:
            UserError: nothing yet.
        """
        recording = self.recordings[i]
        if recording is None:
            raise UserError("call reset() first: there is no episode yet")
        return recording

    def copied(self, i: int) -> Any:
        """A copy of what has been recorded in slot i, for `put_back`; None before its start."""
        recording = self.recordings[i]
        return None if recording is None else (recording.copied(), self._asking.open[i])

    def put_back(self, i: int, copied: Any) -> None:
        """Goes on recording from a copy; from here on, where nothing had been recorded."""
        self.begin(i)
        if copied is None:
            self._asking.note(i)
        else:
            self.recordings[i] = copied[0].copied(self.recording(i).state)
            self._asking.open[i] = copied[1]


def names_of(state: s.State) -> Sequence[str]:
    """Names of the lanes: instances by number and role, then links."""
    instances = [f"{index}: {s.ROLE_NAMES[int(role)]}" for index, role in enumerate(state.instances["role"])]
    return [*instances, *(f"link {int(link['source'])} → {int(link['target'])}" for link in state.links)]


def clock_of(day_s: float) -> str:
    """A time of day as people read it, `17:05:30`."""
    second = int(day_s) % 86_400
    return f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"


# --- A Chrome trace (JSON), for ui.perfetto.dev and chrome://tracing --------------------------------------------------
# Format: "Trace Event Format" (Google), the object form. A lane for each instance and link with what it ran, from the
# simulator's log; an asynchronous slice for each request, with its phases nested; counters of KV memory and queues, and
# instants of decisions and SLO misses, as they stood at each decision. Times are microseconds since the window began.
# Phases of a request: `waiting`, `prefill`, `resident` (its memory is on an instance: it decodes, or waits for a link),
# `transfer`, `evicted` (until the log names it again: of a later batch, the log names the first request alone).
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
            for index, share in enumerate(one.kv_share):
                yield one.time_ps, _OTHER, _counter(f"KV memory {index} (%)", {"used": round(100 * share, 2)})
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
