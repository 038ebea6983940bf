"""Classes of requests: the SLO or deadline of each class, and the class of each request.

Two classes always exist: `online`, under the scenario's SLO, and `offline`, which has none.
`conf/classes` and a scenario's `classes` define more. Traces and parts of workloads name the class
of their requests (docs/traces.md, docs/workloads.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np

from ooco_gym.errors import UserError, nearest
from ooco_gym.resources import load_yaml
from ooco_gym.schema import Model, Range, demand
from ooco_gym.workload.keyed import keyed_generator
from ooco_gym.workload.trace import DEFAULT_CLASSES, Trace, check_class_count, class_ids

LONGEST_S = 1e6  # longest SLO or deadline, seconds
Promise = Annotated[float, Range(0, LONGEST_S, "seconds", above=True)]
OFFLINE_WORDS = ("offline", "batch", "background", "bulk", "best_effort", "best-effort", "besteffort", "async", "low")
CLASS_WORDS = (*OFFLINE_WORDS, "online", "interactive", "realtime", "real_time", "real-time", "chat", "sync", "high")
"""Values, in any letter case, by which an unread column is recognised as one of classes."""
NAMED = "a letter, then letters, digits, '_', '.' or '-', at most 40 in all"
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,39}")
_AT = re.compile(r"(.*[^@])@([A-Za-z][A-Za-z0-9_-]{0,39})", re.DOTALL)


@dataclass(frozen=True)
class RequestClass(Model):
    """Requests with the same SLO or deadline. Times in seconds.

    Attributes:
        name: as in traces.
        online: whether it has latency SLOs and is scheduled as online; otherwise it is offline.
        ttft_s, tpot_s: SLOs of an online class; None: the scenario's.
        deadline_s: time after its arrival by which an offline request must finish; None: no
            deadline.
        timeout_s: time after its arrival at which a request leaves unless it is done; None: it stays.
        abort_share: share of requests whose client leaves at a time drawn uniformly between the request's arrival
            and when it should be done: by its SLOs, or its deadline or time-out if offline.
        expires: whether an offline request leaves at its deadline.
        weight: of one violation, relative to those of other online classes.
    """

    PLACE = "classes.{name}"

    name: str
    online: bool = True
    ttft_s: Promise | None = None
    tpot_s: Promise | None = None
    deadline_s: Promise | None = None
    weight: Annotated[float, Range(0, 1e6)] = 1.0
    timeout_s: Promise | None = None
    abort_share: Annotated[float, Range(0, 1)] = 0.0
    expires: bool = False

    @property
    def leaves(self) -> bool:
        """Whether some of its requests may leave before they are done."""
        return self.timeout_s is not None or self.abort_share > 0 or self.expires

    def validate(self, where: str) -> None:
        if not NAME.fullmatch(self.name):
            raise UserError(f"classes: '{self.name}' is not a class name; expected {NAMED}")
        if self.name in DEFAULT_CLASSES and self.online != (self.name == "online"):
            raise UserError(f"{where}.online={str(self.online).lower()} contradicts its name: choose another name")
        for key in ("ttft_s", "tpot_s", "deadline_s"):
            value = getattr(self, key)
            if value is not None and self.online == (key == "deadline_s"):
                kind, expected = ("online", "ttft_s and tpot_s") if self.online else ("offline", "deadline_s")
                raise UserError(f"{where}.{key} is not an SLO of an {kind} class; expected {expected}, or online: "
                                f"{str(not self.online).lower()}")
        if self.expires and self.online:
            raise UserError(f"{where}.expires=true lets offline requests leave at their deadline, and {self.name} is "
                            "online: give it a timeout_s")
        if self.abort_share and not self.online and self.deadline_s is None and self.timeout_s is None:
            raise UserError(f"{where}.abort_share={self.abort_share:g} draws when a client leaves until its request "
                            "should be done: give it a deadline_s or a timeout_s")


def parse_classes(value: Any) -> tuple[RequestClass, ...]:
    """Reads a scenario's `classes`: None, a name of `conf/classes`, a YAML path, or a mapping of names to SLOs.

    Raises:
        UserError: an unknown name or key, more than 16 classes, or an impossible SLO.
    """
    if value is None:
        return ()
    raw = load_yaml("classes", value)
    check_class_count(list(raw))
    found = []
    for name, promise in raw.items():
        promise = promise or {}
        demand(isinstance(promise, Mapping) and "name" not in promise, f"classes.{name}", promise,
               "a mapping such as {ttft_s: 1, tpot_s: 0.05} or {online: false, deadline_s: 14400}")
        found.append(RequestClass.read({"name": name, "online": name != "offline", **promise}))
    online = [one for one in found if one.online]
    if online and all(one.weight == 0 for one in online):
        raise UserError("classes: every online class has weight 0; expected one above it, or no weights")
    return tuple(found)


def with_defaults(classes: Iterable[RequestClass], ttft_s: float, tpot_s: float) -> tuple[RequestClass, ...]:
    """Returns all classes of a scenario, `online` and `offline` first; missing SLOs are the scenario's."""
    named = {one.name: one for one in classes}
    chosen = [named.pop("online", None) or RequestClass("online"),
              named.pop("offline", None) or RequestClass("offline", online=False), *named.values()]
    return tuple(replace(one, ttft_s=one.ttft_s or ttft_s, tpot_s=one.tpot_s or tpot_s) if one.online else one
                 for one in chosen)


def promised(trace: Trace, classes: Sequence[RequestClass], workload: str) -> Trace:
    """Returns the trace with each request's SLO or deadline of its class; values of its own take precedence.

    Args:
        trace: requests, of named classes or of `online` and `offline`.
        classes: as `with_defaults` returns them.
        workload: for the message.

    Returns:
        The trace; its `class_names` are those of `classes`, in their order.

    Raises:
        UserError: a request's class is not among `classes`.
    """
    names = tuple(one.name for one in classes)
    ids, own_names = class_ids(trace)
    unknown = [index for index, name in enumerate(own_names) if name not in names and (ids == index).any()]
    if unknown:
        name, at_s = own_names[unknown[0]], float(trace.arrival_s[np.argmax(ids == unknown[0])])
        others = ", ".join(f"{own_names[index]}: {{{'online: false' * (own_names[index].casefold() in OFFLINE_WORDS)}}}"
                           for index in unknown)
        raise UserError(f"workload '{workload}': requests from {at_s:g} s on are of class "
                        f"'{name}'{nearest(name, names)}, which has no SLO; the classes are: {', '.join(names)}; add "
                        f"'classes={{{others}}}', where {{}} means online under the SLO, {{ttft_s: 1, tpot_s: 0.05}} "
                        "an own SLO, and {online: false} offline")
    place = np.array([names.index(name) if name in names else 0 for name in own_names], np.int8)[ids]
    columns: dict[str, Any] = {}
    for column, key in (("ttft_slo_s", "ttft_s"), ("tpot_slo_s", "tpot_s"), ("deadline_s", "deadline_s")):
        of_class = np.array([getattr(one, key) for one in classes], float)[place]  # None becomes NaN
        own = getattr(trace, column)
        columns[column] = of_class if own is None else np.where(np.isnan(own), of_class, own)
    if np.isnan(columns["deadline_s"]).all():
        columns["deadline_s"] = None
    online = np.array([one.online for one in classes])[place]
    return replace(trace, online=online, class_id=place, class_names=names, **columns)


def patience_s(trace: Trace, classes: Sequence[RequestClass], seed: int) -> np.ndarray | None:
    """Returns the seconds from its arrival at which each request of a trace (as `promised` returns it) leaves unless it
    is done, float64[n], inf: it stays; None if all do. The i-th request of a class draws the same whatever else
    arrives."""
    if not any(one.leaves for one in classes):
        return None
    found = np.full(len(trace), np.inf)
    due_s = found if trace.deadline_s is None else np.where(np.isnan(trace.deadline_s), np.inf, trace.deadline_s)
    for index, one in enumerate(classes):
        mine = np.flatnonzero(trace.class_id == index)
        longest = np.full(len(mine), one.timeout_s or np.inf)
        if one.expires:
            longest = np.minimum(longest, due_s[mine])
        should_s = np.minimum(longest, due_s[mine])
        if one.online and trace.ttft_slo_s is not None and trace.tpot_slo_s is not None:
            should_s = trace.ttft_slo_s[mine] + (trace.output_tokens[mine] - 1) * trace.tpot_slo_s[mine]
        leaves, when = keyed_generator(seed, f"aborts/{one.name}").random((len(mine), 2)).T
        found[mine] = np.where(leaves < one.abort_share, np.minimum(longest, when * should_s), longest)
    return found


def tightest(classes: Sequence[RequestClass], trace: Trace | None = None) -> tuple[float, float]:
    """Returns the tightest TTFT and the tightest TPOT of the online classes, in seconds.

    Args:
        classes: as `with_defaults` returns them.
        trace: as `promised` returns it; with it, `online` counts beside other online classes only
            if it has requests.
    """
    of_default = trace is not None and trace.class_id is not None and bool((trace.class_id == 0).any())
    online = [one for one in classes[0 if of_default else 1 :] if one.online] or [classes[0]]
    return min(one.ttft_s or LONGEST_S for one in online), min(one.tpot_s or LONGEST_S for one in online)


def check_deadlines(trace: Trace) -> None:
    """Raises UserError if an online request has a deadline of its own."""
    if trace.deadline_s is not None:
        wrong = trace.online & ~np.isnan(trace.deadline_s)
        if wrong.any():
            raise UserError(f"trace request {int(np.argmax(wrong))}, field 'deadline_s': the request is online, and "
                            "only offline ones have a deadline; leave it empty, or give it a class that is offline")


def unused_note(trace: Trace, classes: Sequence[RequestClass]) -> tuple[str, ...]:
    """Returns a sentence if a named class has no request in the trace (as `promised` returns it)."""
    unused = [one.name for i, one in enumerate(classes[2:], 2) if not (trace.class_id == i).any()]
    if not unused:
        return ()
    many = len(unused) > 1
    return (f"no request is of the class{'es' if many else ''} {', '.join(unused)}: name {'them' if many else 'it'} in "
            "the trace's column class, or after @ in a part of the workload",)


def of_class(trace: Trace, name: str | None) -> Trace:
    """Returns the same requests, all of one class; None leaves them as they are."""
    if name is None:
        return trace
    online = np.full(len(trace), name != "offline")
    if name in DEFAULT_CLASSES:
        return replace(trace, online=online, class_id=None, class_names=())
    return replace(trace, online=online, class_id=np.zeros(len(trace), np.int8), class_names=(name,))


def split_class(part: str) -> tuple[str, str | None]:
    """Splits a part of a workload from its class: `azure_conv@chat` is `azure_conv` and `chat`;
    without one, None.

    A class after @ has no dot in its name, so that a file's extension is not taken for one.
    """
    found = _AT.fullmatch(part.strip())
    return (found[1], found[2]) if found else (part, None)


def without_classes(workload: Any) -> Any:
    """Returns a workload's name or mix without the classes of its parts; anything else is returned as it is."""
    if not isinstance(workload, str) or "@" not in workload:
        return workload
    return "+".join(split_class(part)[0] for part in workload.split("+"))
