"""What pictures and traces of an episode are drawn from: kept only where a render mode or a trace is asked for.

The simulator's own event log says what each instance has run, to the picosecond; at each decision, what stands in
memory and in the queues is sampled beside it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from copy import copy
from typing import Any, NamedTuple

import numpy as np

from ooco_gym.envs import buffers as b
from ooco_gym.envs import reward as r
from ooco_gym.envs.episodes import Episodes
from ooco_gym.envs.features import DECISIONS
from ooco_gym.errors import UserError
from ooco_gym.sim import queues as q
from ooco_gym.sim import state as s

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
        self.begin_ps = int(state.counters[s.NOW])
        self.samples: list[Sample] = []
        self.answers: list[Answered] = []
        self.events: list[np.ndarray] = []
        self.lanes: list[list[Slice]] = [[] for _ in range(state.instances.size + state.links.size)]
        self._links = {(int(link["source"]), int(link["target"])): state.instances.size + place
                       for place, link in enumerate(state.links)}
        self._since = [self.begin_ps] * len(self.lanes)
        self._open: list[Slice | None] = [None] * len(self.lanes)
        for place, instance in enumerate(state.instances):
            work = _OF_ACTIVITY.get(int(instance["activity"]))
            if work is not None and work != DECODE_WORK:
                self._open[place] = Slice(self.begin_ps, 0, work, int(instance["running"]),
                                          int(instance["context"]))
        self._mixed = bool((state.instances["role"] == s.MIXED).any())
        self._strict = (state.instances["role"] == s.STRICT).tolist()
        members = state.instances["offline_members"] + state.instances["urgent_members"] * self._strict
        self._members = members.tolist()  # who could decode: on relaxed instances, offline requests
        state.counters[s.LOG_USED] = 0
        self._sample(state)

    def take(self, episodes: Episodes, i: int) -> None:
        """Reads what has happened since the last time, and samples what stands now."""
        simulation = episodes.simulations[i]
        assert simulation is not None
        state = simulation.state
        used = int(state.counters[s.LOG_USED])
        if used:
            part = state.log[:used].copy()
            state.counters[s.LOG_USED] = 0
            self.events.append(part)
            for event in part.tolist():
                self._read(*event)
        self._sample(state)

    def _sample(self, state: s.State) -> None:
        self.state = state
        counters, instances = state.counters, state.instances
        kv = 1.0 - instances["free_blocks"] / instances["total_blocks"]
        self.samples.append(Sample(
            int(counters[s.NOW]), tuple(kv.tolist()), int(instances["online_waiting"].sum()),
            int(instances["offline_waiting"].sum()), int(counters[s.TTFT_MISSES]), int(counters[s.TPOT_MISSES]),
            int(counters[s.VIOLATIONS]), int(counters[s.ONLINE_ARRIVED]),
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
        """Notes which decision is open in place i."""
        simulation, kind = self.episodes.simulations[i], int(self.episodes.buffers.turns[i, b.KIND])
        assert simulation is not None
        counters = simulation.state.counters
        decision = str(DECISIONS[int(b.KIND_ORDER[kind])]) if kind != b.NO_KIND else ""
        instance, request = -1, -1
        if kind not in (b.NO_KIND, b.PACK, b.CONTROL):
            instance, request = int(counters[s.PENDING_INSTANCE]), int(counters[s.PENDING_REQUEST])
        self.open[i] = (int(counters[s.NOW]), decision, instance, request)

    def answered(self, i: int) -> Answered:
        """The decision noted last in place i, which `buffers.actions[i]` has answered."""
        buffers, controls = self.episodes.buffers, self.episodes.controls
        action: Any = buffers.actions[i].tolist()
        if controls is not None:
            kind = PARTNERS if action == controls.tuned.tolist() else OWN
        else:
            action = action[0]
            kind = {b.DECLINE_ACTION: DECLINED, b.PARTNER_ACTION: PARTNERS}.get(action, OWN)
        return Answered(*self.open[i], action, kind, float(buffers.account[i, r.REWARD]))


class Recorder:
    """Watches episodes and records them.

    Attributes:
        recordings: of each place; None before its start.
    """

    def __init__(self, episodes: Episodes) -> None:
        self.episodes = episodes
        self.recordings: list[Recording | None] = [None] * len(episodes.simulations)
        self._asking = Asking(episodes)

    def begin(self, i: int) -> None:
        """A new episode begins in place i: from here on its events are logged."""
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
        """The open decision of place i was answered with `buffers.actions[i]`, and the episode has gone on."""
        answered = self._asking.answered(i)
        recording = self.recording(i)
        if answered.decision:
            recording.answers.append(answered)
        recording.take(self.episodes, i)
        self._asking.note(i)

    def recording(self, i: int) -> Recording:
        """What has been recorded in place i.

        Raises:
            UserError: nothing yet.
        """
        recording = self.recordings[i]
        if recording is None:
            raise UserError("call reset() first: there is no episode yet")
        return recording

    def copied(self, i: int) -> Any:
        """A copy of what has been recorded in place i, for `put_back`; None before its start."""
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
    instances = [f"{place}: {s.ROLE_NAMES[int(role)]}" for place, role in enumerate(state.instances["role"])]
    return [*instances, *(f"link {int(link['source'])} → {int(link['target'])}" for link in state.links)]


def clock_of(day_s: float) -> str:
    """A time of day as people read it, `17:05:30`."""
    second = int(day_s) % 86_400
    return f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
