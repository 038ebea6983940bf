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

    def line(self) -> str:
        """In words."""
        where = f" on {self.instance}" if self.instance >= 0 else ""
        return f"{self.decision}{where}: {self.action} ({self.kind}), reward {self.reward:+.3f}"


class Recording:
    """One episode so far.

    Attributes:
        lanes: what each instance has run, in order of time; after the instances, each link's transfers.
        samples, answers: at each decision.
        events: the simulator's log, in parts: LOG[n].
        begin_ps: time of the first entry.
    """

    def __init__(self, state: s.State) -> None:
        self.state = state
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
        self.take()

    def take(self) -> None:
        """Reads what has happened since the last time, and samples what stands now."""
        state = self.state
        used = int(state.queues.log_used)
        if used:
            part = state.log[:used].copy()
            state.queues.log_used = 0
            self.events.append(part)
            for event in part.tolist():
                self._read(*event)
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

    def copied(self, state: s.State | None) -> Recording:
        """A copy that goes on apart, of the episode with this state; None for one that is only kept."""
        other = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, list):
                setattr(other, name, value.copy())
        other.lanes = [lane.copy() for lane in self.lanes]
        other.state = state  # type: ignore[assignment]
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


class Watcher:
    """Follows some episodes: which decision is open in each, and what was answered to it."""

    def __init__(self, episodes: Episodes) -> None:
        self.episodes = episodes
        self._open = [(0, "", -1, -1)] * len(episodes.simulations)  # time, decision, instance, request

    def opened(self, i: int) -> None:
        """The episode in slot i has come to a decision."""
        simulation, asked = self.episodes.simulations[i], self.episodes.asked(i)
        assert simulation is not None
        decision, instance, request = asked.name if asked is not None else "", -1, -1
        if asked is not None and asked.kind < b.CLOCK:
            instance, request = int(simulation.state.pending.instance), int(simulation.state.pending.request)
        self._open[i] = (int(simulation.state.clock.now_ps), decision, instance, request)

    def answered(self, i: int) -> Answered:
        """The decision that was open in slot i, which `buffers.actions[i]` has answered; on to the next one."""
        buffers, controls = self.episodes.buffers, self.episodes.controls
        action: Any = buffers.actions[i].tolist()
        if self.episodes.config.box:
            kind = PARTNERS if action[0] == b.ILLEGAL else OWN
        elif controls is not None:
            kind = PARTNERS if action == controls.tuned.tolist() else OWN
        else:
            action = action[0]
            kind = {b.DECLINE_ACTION: DECLINED, b.PARTNER_ACTION: PARTNERS}.get(action, OWN)
        answered = Answered(*self._open[i], action, kind, float(buffers.account[i, r.REWARD]))
        Watcher.opened(self, i)
        return answered


class Recorder(Watcher):
    """Watches episodes and records them."""

    def __init__(self, episodes: Episodes) -> None:
        super().__init__(episodes)
        self._recordings: list[Recording | None] = [None] * len(episodes.simulations)

    def begin(self, i: int) -> None:
        """A new episode begins in slot i: from here on its events are logged."""
        simulation = self.episodes.simulations[i]
        assert simulation is not None
        if simulation.state.log.size != LOG_ENTRIES:
            simulation.state = simulation.state._replace(log=np.zeros(LOG_ENTRIES, s.LOG))
            self.episodes.buffers.handles[i] = simulation.handle.address
        self._recordings[i] = Recording(simulation.state)

    def opened(self, i: int) -> None:
        """It has come to its first decision."""
        self.recording(i).take()
        super().opened(i)

    def took(self, i: int) -> None:
        """The open decision of slot i was answered with `buffers.actions[i]`, and the episode has gone on."""
        answered, recording = self.answered(i), self.recording(i)
        if answered.decision:
            recording.answers.append(answered)
        recording.take()

    def recording(self, i: int) -> Recording:
        """What has been recorded in slot i.

        Raises:
            UserError: nothing yet.
        """
        recording = self._recordings[i]
        if recording is None:
            raise UserError("call reset() first: there is no episode yet")
        return recording

    def copied(self, i: int) -> Any:
        """A copy of what has been recorded in slot i, for `put_back`; None before its start."""
        recording = self._recordings[i]
        return None if recording is None else (recording.copied(None), self._open[i])

    def put_back(self, i: int, copied: Any) -> None:
        """Goes on recording from a copy; from here on, where nothing had been recorded."""
        self.begin(i)
        if copied is None:
            super().opened(i)
        else:
            self._recordings[i], self._open[i] = copied[0].copied(self.recording(i).state), copied[1]


def names_of(state: s.State) -> Sequence[str]:
    """Names of the lanes: instances by number and role, then links."""
    instances = [f"{index}: {s.ROLE_NAMES[int(role)]}" for index, role in enumerate(state.instances["role"])]
    return [*instances, *(f"link {int(link['source'])} → {int(link['target'])}" for link in state.links)]


def clock_of(day_s: float) -> str:
    """A time of day as people read it, `17:05:30`."""
    second = int(day_s) % 86_400
    return f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
