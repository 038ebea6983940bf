"""Loading of all workloads: embedded names, YAML files, users' traces, mixes of them, and mappings.

The reader of trace files is imported on first use: most simulations generate their load.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ooco_gym.errors import UserError, nearest
from ooco_gym.protocol import WINDOW_S
from ooco_gym.resources import load_yaml
from ooco_gym.schema import number, plain, whole
from ooco_gym.workload import arrivals as _arrivals
from ooco_gym.workload.classes import of_class
from ooco_gym.workload.generate import NOTES, WorkloadSpec, generate, list_workloads, load_spec
from ooco_gym.workload.mix import YAML, MixPart, Source, is_file, is_trace_file, parse_workload
from ooco_gym.workload.sessions import CLOSED, OPEN, Think, Turns, at_most, check_mode, close_sessions
from ooco_gym.workload.trace import DEFAULT_CLASSES, HOW, Trace, class_ids, is_set, merge
from ooco_gym.workload.transforms import scale, with_own_numbers
from ooco_gym.workload.trees import Agents

if TYPE_CHECKING:
    from ooco_gym.workload.trace_file import TraceFile

_PLAYED = ("scale", "class", "sessions", "think_s", "concurrency")
_FORMS = {
    "path": (HOW, "a trace file has its own load; online_rate=… or rate_scale=… sets its rate, start_s=… its window"),
    "mix": (("name",), "its parts have their own keys, as YAMLs of yours, or files that 'ooco-gym data import' wrote")}
"""For mappings with one of these keys: others that they have besides `_PLAYED`, and why they have no more."""
_TIDE_STEP_S, _START_STEP_S = 60.0, 600.0
MOST_CLIENTS = 1_000_000
_STARTS_WITHIN = 24  # most steps between the starts that are tried, per window length


def of_trace(workload: Source) -> Source:
    """Returns the keys that have an effect in a mapping or YAML file with `path` or `mix`; other
    workloads unchanged.

    If `path` or `mix` was set on one of our generators, the generator's own keys are dropped.

    Raises:
        UserError: a key beside `path` or `mix` that has no effect.
    """
    values: Source = workload
    if not isinstance(values, Mapping):
        text = os.fspath(values)
        values = load_yaml("workload", text) if text.endswith(YAML) and is_file(text) else {}
    form = next((key for key in _FORMS if values.get(key) is not None), None)
    if form is None:
        return workload
    others, why = _FORMS[form]
    known, embedded = (form, *others, *_PLAYED), values.get("name") in list_workloads()
    own = load_yaml("workload", str(values["name"])) if embedded else {}
    for key, value in plain(values).items():
        if key not in known + NOTES and is_set(value) and value != own.get(key):
            raise UserError(f"workload: key '{key}' has no effect beside {form}={values[form]}: {why}; leave it out"
                            f"{nearest(key, known)}; the keys here are: {', '.join(known)}")
    return {key: values[key] for key in known if values.get(key) is not None and not (key == "name" and embedded)}


@dataclass(frozen=True)
class WorkloadPart:
    """One part of a resolved workload: `weight` times the rate of `source`; `stream` tells equal names apart.

    Times of a file count from `origin_s` of its own clock.
    """

    name: str
    source: WorkloadSpec | TraceFile
    weight: float = 1.0
    stream: str | None = None
    class_name: str | None = None
    origin_s: float = 0.0

    def draw(self, start_s: float, duration_s: float, seed: int, rate_scale: float, by_session: bool = False) -> Trace:
        """Returns the part's requests in a window; `by_session` scales a file by whole sessions."""
        if isinstance(self.source, WorkloadSpec):
            trace = generate(self.source, start_s=start_s, duration_s=duration_s, seed=seed, rate_scale=rate_scale,
                             stream=self.stream)
        else:
            trace = self._cut(self.source, number("start_s", start_s, 0), duration_s, seed, rate_scale,
                              by_session)
        return of_class(trace, self.class_name)

    def _cut(self, file: TraceFile, start_s: float, duration_s: float, seed: int, rate_scale: float,
             by_session: bool) -> Trace:
        number("duration_s", duration_s, 0, unit="seconds")
        # A copy made by scaling lies between its original and the next request, so one more request
        # on either side is read.
        from_s = start_s + self.origin_s
        trace, first_row = file.window(from_s, from_s + duration_s, margin=1)
        if len(trace.slice_time(from_s, from_s + duration_s)) == 0:
            raise UserError(f"trace file '{self.name}' has no request in the window from {start_s:g} s to "
                            f"{start_s + duration_s:g} s; its requests lie between {file.first_s - self.origin_s:g} s "
                            f"and {file.last_s - self.origin_s:g} s: set start_s and duration_s")
        trace = scale(trace, rate_scale, seed, first_row, by_session).slice_time(from_s, from_s + duration_s)
        if not self.origin_s:
            return trace
        note = f"times of '{self.name}' count from its first request, at {self.origin_s:g} s of the file's clock"
        return replace(trace.shift(-self.origin_s), notes=(*trace.notes, note))

    def mean_rate(self) -> float:
        """Returns requests per second, without the weight."""
        return self.source.arrivals.mean_rate_per_s if isinstance(self.source, WorkloadSpec) else self.source.mean_rate

    def counts_before(self, edges_s: np.ndarray) -> np.ndarray:
        """Returns the number of a file's requests before each time, int64 of the same shape."""
        return self.source.counts_before(edges_s + self.origin_s)  # type: ignore[union-attr]

    def window_rate(self, start_s: float, duration_s: float) -> float:
        """Returns requests per second in a window, without the weight; a generator's are expected ones."""
        if not isinstance(self.source, WorkloadSpec):
            before, until = self.counts_before(np.array([start_s, start_s + duration_s]))
            return float(until - before) / duration_s
        arrivals = self.source.arrivals
        steps = max(1, math.ceil(duration_s / _TIDE_STEP_S))
        middles = start_s + (np.arange(steps) + 0.5) * duration_s / steps
        return arrivals.mean_rate_per_s * float(
            _arrivals.tide_at(arrivals.tide, middles).mean() / np.mean(arrivals.tide))

    def rates(self, start_s: float, duration_s: float, offline: Collection[str]) -> tuple[float, float]:
        """Returns requests per second in a window, without the weight: (online, those of the classes `offline`)."""
        every = self.window_rate(start_s, duration_s)
        if self.class_name is not None or isinstance(self.source, WorkloadSpec):
            return (0.0, every) if self.class_name in offline else (every, 0.0)
        from_s = start_s + self.origin_s
        ids, names = class_ids(self.source.window(from_s, from_s + duration_s)[0])
        named = [index for index, name in enumerate(names) if name in offline]
        share = float(np.isin(ids, named).mean()) if every else 0.0
        return every * (1.0 - share), every * share

    def peak_start_s(self, duration_s: float) -> float:
        """Returns the start of the part's busiest `duration_s`."""
        if isinstance(self.source, WorkloadSpec):
            return self.source.peak_start_s if duration_s == 4 * 3600.0 else _arrivals.peak_start_s(
                self.source.arrivals.tide, duration_s)
        first_s = math.floor(self.source.first_s - self.origin_s)
        last_s = max(0.0, self.source.last_s - self.origin_s - first_s - duration_s)
        step_s = max(1.0, math.floor(min(_START_STEP_S, duration_s / _STARTS_WITHIN)))
        starts = first_s + np.minimum(np.arange(0.0, last_s + step_s, step_s), math.ceil(last_s))
        counts = np.diff(self.counts_before(np.stack([starts, starts + duration_s])), axis=0)[0]
        return float(starts[np.argmax(counts)])

    def by_hour(self) -> np.ndarray:
        """Returns relative rates by hour of the day, without the weight, float64[24]."""
        if isinstance(self.source, WorkloadSpec):
            arrivals = self.source.arrivals
            return arrivals.mean_rate_per_s * np.asarray(arrivals.tide) / np.mean(arrivals.tide)
        counts = np.diff(self.counts_before(np.arange(0.0, self.source.last_s - self.origin_s + 3601.0, 3600.0)))
        return np.bincount(np.arange(len(counts)) % 24, counts, minlength=24) / 3600.0


@dataclass(frozen=True)
class Workload:
    """A workload with its specifications read and its trace files open.

    Attributes:
        name: as given.
        parts: a mix's parts in order; otherwise one part.
        factor: multiplies the rate of all parts (a mapping's `scale`).
        sessions: `open`: each turn arrives at its own time; `closed`: after the previous turn has
            finished.
        think: think time before a turn if the trace has none; None: not given.
        concurrency: number of clients that share the online requests: whichever has an answer sends
            the next one; None: all requests arrive at their own times.
    """

    name: str
    parts: tuple[WorkloadPart, ...]
    factor: float = 1.0
    sessions: str = OPEN
    think: Think | None = None
    concurrency: int | None = None

    @property
    def closed(self) -> bool:
        """Whether requests wait for others to finish."""
        return self.sessions == CLOSED or self.concurrency is not None

    def turns(self, trace: Trace, seed: int) -> Turns | None:
        """Returns the turns of a drawn trace that wait for other requests; None if none does.

        Raises:
            UserError: sessions are closed, but the trace has no sessions, or a turn has no think time.
        """
        if self.concurrency is not None:
            return at_most(trace, self.concurrency)
        named = replace(trace, name=self.name)
        return close_sessions(named, self.think, seed) if self.sessions == CLOSED else None

    @property
    def files(self) -> list[TraceFile]:
        """The workload's open trace files; empty for generators."""
        return [part.source for part in self.parts if not isinstance(part.source, WorkloadSpec)]

    @property
    def span_s(self) -> tuple[float, float]:
        """First and last arrival of the trace files; (0, 0) for generators."""
        times = [(part.source.first_s - part.origin_s, part.source.last_s - part.origin_s) for part in self.parts
                 if not isinstance(part.source, WorkloadSpec)] or [(0.0, 0.0)]
        return min(first_s for first_s, _ in times), max(last_s for _, last_s in times)

    def from_first_request(self) -> Workload:
        """Returns this workload with times that count from the whole second of the first request of all files."""
        origin_s = float(math.floor(min((file.first_s for file in self.files), default=0.0)))
        return replace(self, parts=tuple(replace(part, origin_s=origin_s) for part in self.parts))

    def draw(self, *, start_s: float = 0.0, duration_s: float, seed: int, rate_scale: float = 1.0) -> Trace:
        """Returns the requests of a window; arguments, times and errors as in `load_workload`."""
        rate_scale = number("rate_scale", rate_scale, 0, 1e6) * self.factor
        whole = self.sessions == CLOSED
        traces = [part.draw(start_s, duration_s, seed, rate_scale * part.weight, whole) for part in self.parts]
        if len(traces) == 1:
            return traces[0]
        return merge(*with_own_numbers(traces), name=self.name)

    def mean_rate(self) -> float:
        """Returns the mean rate in requests per second, over a day for generators, scales included."""
        return sum(part.weight * self.factor * part.mean_rate() for part in self.parts)

    def rates(self, start_s: float, duration_s: float, offline: Collection[str] = DEFAULT_CLASSES[1:],
              ) -> tuple[float, float]:
        """Returns requests per second in a window, scales included: (online, those of the classes `offline`)."""
        online, others = 0.0, 0.0
        for part in self.parts:
            rates = part.rates(start_s, duration_s, offline)
            online += part.weight * self.factor * rates[0]
            others += part.weight * self.factor * rates[1]
        return online, others

    def window(self, start_s: float | None, duration_s: float | None) -> tuple[float, float]:
        """Returns start and length in seconds of the measured window, with defaults for None.

        By default trace files are replayed from first to last request, in whole seconds; with
        `duration_s` alone, their busiest `duration_s`. A generator has the protocol's window around
        its peak.
        """
        if self.files and duration_s is None:
            start_s = 0.0 if start_s is None else start_s
            duration_s = max(1.0, math.floor(self.span_s[1]) + 1.0 - start_s)
        duration_s = WINDOW_S if duration_s is None else duration_s
        return self.peak_start_s(duration_s) if start_s is None else start_s, duration_s

    def peak_start_s(self, duration_s: float) -> float:
        """Returns the start of the workload's busiest `duration_s`."""
        if len(self.parts) == 1:
            return self.parts[0].peak_start_s(duration_s)
        total = sum((part.weight * self.factor * part.by_hour() for part in self.parts), np.zeros(24))
        return _arrivals.peak_start_s(tuple(total), duration_s)


def resolve_workload(spec: Source) -> Workload:
    """Reads the specifications and opens the trace files that a workload names.

    Args:
        spec: as in `load_workload`.

    Raises:
        UserError: an unknown name or key, or a malformed file.
    """
    spec = of_trace(spec)
    if not isinstance(spec, Mapping):
        text = os.fspath(spec)
        parts = tuple(map(_resolved, parse_workload(text)))
        closed = any(waits_of(part.source) for part in parts)
        return Workload(text, parts, sessions=CLOSED if closed else OPEN).from_first_request()
    values = plain(spec)
    given, clients = values.pop("sessions", None), values.pop("concurrency", None)
    if clients is not None:
        if given == CLOSED or values.get("think_s") is not None:
            raise UserError("workload: concurrency and closed sessions exclude each other: a request waits for one "
                            "other request")
        return replace(resolve_workload(values), sessions=OPEN,
                       concurrency=whole("workload.concurrency", clients, 1, MOST_CLIENTS))
    mode, think = check_mode(given), values.pop("think_s", None)
    if think is not None and mode == OPEN:
        raise UserError(f"workload: think_s={think} needs closed sessions; add workload.sessions=closed")
    if mode == CLOSED:
        return replace(resolve_workload(values), sessions=mode, think=None if think is None else Think.parse(think))
    class_name = values.pop("class", None)
    if class_name is not None:
        found = resolve_workload({**values, "at_once": values.get("at_once") or "auto"} if "path" in values else values)
        if all(part.class_name for part in found.parts):
            raise UserError(f"workload: key 'class' has no effect: each part of '{found.name}' has one; leave it out")
        return replace(found, parts=tuple(replace(part, class_name=part.class_name or str(class_name))
                                          for part in found.parts))
    factor = 1.0 if values.get("scale") is None else number("workload.scale", values["scale"], 0, 1e4)
    if values.get("path") is not None:
        path = str(values["path"])
        file = _opened(path, **{key: values[key] for key in HOW if values.get(key) is not None})
        if file.untimed and given == OPEN:
            raise UserError(f"workload.sessions=open: trace '{path}' has turns without times, which can only wait for "
                            "the turn before; leave it out")
        return Workload(path, (WorkloadPart(path, file),), factor,
                        CLOSED if file.untimed else OPEN).from_first_request()
    if values.get("mix") is not None:
        return replace(resolve_workload(str(values["mix"])), factor=factor)
    one = load_spec(values)
    return Workload(one.name, (WorkloadPart(one.name, replace(one, scale=1.0)),), factor,
                    CLOSED if waits_of(one) else OPEN)


def waits_of(source: WorkloadSpec | TraceFile) -> bool:
    """Returns whether requests wait for others, as some have no time of their own."""
    if not isinstance(source, WorkloadSpec):
        return source.untimed
    return isinstance(source.sharing, Agents) or any(map(waits_of, source.clients))


def load_workload(spec: Source, *, start_s: float = 0.0, duration_s: float, seed: int,
                  rate_scale: float = 1.0) -> Trace:
    """Returns the requests of a workload that arrive in `[start_s, start_s + duration_s)`.

    Args:
        spec: one of
            - the name of an embedded workload (`ooc`), or a mix (`ooc+azure_conv`, `0.5*ooc+azure_code`), whose parts
              may be paths too;
            - the path of a trace file (read by `read_trace`, times from the file) or of a workload's YAML;
            - a mapping: a trace file if it has `path` (and reading options `HOW`, as in
              `read_trace`); a mix if it has `mix`; else a generator's parameters, with defaults
              from `name`. `scale` multiplies the rate; `class` names the requests' class; with
              `sessions: closed` (and `think_s`) turns of conversations wait for each other
              (`ooco_gym.workload.sessions`).
        start_s: start of the window, seconds: time of day for generators, time since the first request for files.
        duration_s: length of the window, seconds; infinity: the whole trace file.
        seed: any integer; for trace files it determines which requests scaling drops or copies.
        rate_scale: multiplies the mean rate: generators by their rate, files by `scale` (OOCO
            5.1.3).

    Returns:
        A trace with absolute times; `trace.shift(-start_s)` makes the window begin at 0.

    Raises:
        UserError: an unknown name or key, a malformed file, or a window in which a trace file has no request.
    """
    return resolve_workload(spec).draw(start_s=start_s, duration_s=duration_s, seed=seed, rate_scale=rate_scale)


def workload_mean_rate(spec: Source) -> float:
    """Returns the mean rate of a workload in requests per second, over a day for generators, scales included."""
    return resolve_workload(spec).mean_rate()


def _resolved(part: MixPart) -> WorkloadPart:
    if is_trace_file(part.source):
        file = _opened(part.source, at_once="auto" if part.class_name else False)
        return WorkloadPart(part.source, file, part.weight, class_name=part.class_name)
    stream, spec = None if part.stream == part.source else part.stream, load_spec(part.source)
    return WorkloadPart(part.source, replace(spec, scale=1.0), part.weight * spec.scale, stream, part.class_name)


def _opened(path: str, **how: Any) -> TraceFile:
    from ooco_gym.workload.trace_file import open_trace

    return open_trace(path, **how)


