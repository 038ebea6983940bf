"""The request trace: arrival times, lengths and classes of requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.workload.keyed import scattered

MAX_TOKENS = 2**31 - 1
BLOCK_TOKENS = 512  # default prompt tokens per prefix hash
ENDINGS = (".csv", ".jsonl", ".json", ".parquet", ".gz", ".xz")  # of trace files
HOW = ("format", "columns", "time_unit", "time_scale", "block_tokens", "only", "distinct", "at_once")  # to read a file
NO_SESSION = -1
DEFAULT_CLASSES = ("online", "offline")
MOST_CLIENTS = 100_000  # the simulator keeps a row for each number up to the largest
MOST_CLASSES = 16  # named ones, besides these two
SECONDS = ("ttft_slo_s", "tpot_slo_s", "deadline_s")  # columns of a request's own SLOs and deadline
Hashes = tuple[np.ndarray, np.ndarray]
LISTS = ("prefix_hashes", "after")  # columns of lists, each (offsets, values)


class Values(NamedTuple):
    """Rule of a column: its type, a test of values, the expectation in words, and the value for a missing one."""

    kind: type
    good: Callable[[np.ndarray], np.ndarray]
    expected: str
    missing: float = np.nan


def _whole(values: np.ndarray) -> Any:
    """Returns whether each value is a 64-bit integer."""
    if values.dtype.kind in "bi":
        return True
    return (values == np.rint(values)) & (values >= -(2.0**63)) & (values < 2.0**63)


TOKENS = Values(np.int32, lambda x: _whole(x) & (x >= 1) & (x <= MAX_TOKENS), f"a whole number from 1 to {MAX_TOKENS}")
PROMISE = Values(np.float64, lambda x: np.isnan(x) | (np.isfinite(x) & (x > 0)),
               "a number of seconds > 0, or NaN for none of its own")
COLUMNS = {
    "arrival_s": Values(np.float64, lambda x: np.isfinite(x) & (x >= 0), "a finite number of seconds >= 0"),
    "prompt_tokens": TOKENS, "output_tokens": TOKENS,
    "online": Values(np.bool_, lambda x: (x == 0) | (x == 1), "True or False", True),
    **dict.fromkeys(SECONDS, PROMISE),
    "think_s": Values(np.float64, lambda x: np.isnan(x) | (np.isfinite(x) & (x >= 0)),
                    "a number of seconds >= 0, or NaN where it is not known"),
    "session": Values(np.int64, lambda x: _whole(x) & (x >= NO_SESSION), "a whole number >= 0, or -1 for none",
                    NO_SESSION),
    "job": Values(np.int64, lambda x: _whole(x) & (x >= NO_SESSION), "a whole number >= 0, or -1 for none", NO_SESSION),
    "key": Values(np.int64, lambda x: np.ones(len(x), bool) & _whole(x), "a whole number", NO_SESSION),
    "client": Values(np.int32, lambda x: _whole(x) & (x >= NO_SESSION) & (x < MOST_CLIENTS),
                   f"a whole number from 0 to {MOST_CLIENTS - 1:,}, or -1 for none", NO_SESSION),
    "class_id": Values(np.int8, lambda x: _whole(x) & (x >= 0) & (x < 128), "a place in class_names")}


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """Requests sorted by arrival, as arrays of equal length n with one element per request. Treat
    arrays as read-only.

    Attributes:
        arrival_s: float64[n], seconds, finite, >= 0, not descending; absolute (the time of day for generated ones).
        prompt_tokens: int32[n], >= 1.
        output_tokens: int32[n], >= 1.
        online: bool[n], True for online (latency-bound), False for offline requests; by default all online.
        ttft_slo_s: float64[n] seconds > 0, or None; NaN: the scenario's SLO.
        tpot_slo_s: float64[n] seconds > 0, or None; NaN: the scenario's SLO.
        session: int64[n] or None; requests of one conversation share a number >= 0; -1: none.
        client: int32[n] or None; requests of a client, or of a batch job, share a number below MOST_CLIENTS; -1: none.
        deadline_s: float64[n] seconds > 0 from arrival to finish of offline requests, or None; NaN:
            none.
        think_s: float64[n] seconds >= 0 from the end of the session's previous turn, and of all in `after`, to this
            arrival, or None; NaN: unknown (`ooco_gym.workload.sessions`).
        key: int64[n] or None; a request's own number, by which `after` names it.
        after: None, or (offsets int64[n+1], keys int64[offsets[n]]): request i waits for those with
            `keys[offsets[i]:offsets[i+1]]`, beside its session's previous turn.
        job: int64[n] or None; requests of one job share a number >= 0; -1: none.
        class_id: int8[n], indices into `class_names`; None: `online` alone gives the class
            (`ooco_gym.workload.classes`).
        class_names: the classes of `class_id`, including `online` and `offline` if requests are of
            these.
        prefix_hashes: None, or (offsets int64[n+1], values int64[offsets[n]]): request i's
            cumulative block hashes are `values[offsets[i]:offsets[i+1]]`.
        block_tokens: prompt tokens per hash; a prompt's last block may be shorter.
        name: for messages and reports.
        notes: repairs and drops that a reader made, one sentence each.

    Raises:
        UserError: an array breaks one of these rules; the message names the first request (from 0) and field.
    """

    arrival_s: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    online: np.ndarray = None  # type: ignore[assignment]
    ttft_slo_s: np.ndarray | None = None
    tpot_slo_s: np.ndarray | None = None
    session: np.ndarray | None = None
    prefix_hashes: Hashes | None = None
    name: str = "trace"
    notes: tuple[str, ...] = field(default=())
    deadline_s: np.ndarray | None = None
    class_id: np.ndarray | None = None
    class_names: tuple[str, ...] = ()
    block_tokens: int = BLOCK_TOKENS
    think_s: np.ndarray | None = None
    client: np.ndarray | None = None
    key: np.ndarray | None = None
    after: Hashes | None = None
    job: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.online is None:
            object.__setattr__(self, "online", np.ones(len(self.arrival_s), bool))
        for name, value in self.columns().items():
            array = _column(value, name, COLUMNS[name])
            if len(array) != len(self.arrival_s):
                raise UserError(f"trace field '{name}' has {len(array)} values, expected {len(self.arrival_s)} as "
                                "'arrival_s' has")
            object.__setattr__(self, name, array)
        ordered = np.ones(len(self), bool)
        ordered[1:] = self.arrival_s[1:] >= self.arrival_s[:-1]
        _demand(ordered, self.arrival_s, "arrival_s", "no earlier than the request before (sort first)")
        if self.class_id is not None:
            _demand(self.class_id < len(self.class_names), self.class_id, "class_id", "a place in class_names")
        for name, pair in self.lists().items():
            object.__setattr__(self, name, _lists(name, pair, len(self)))
        if self.after is not None and self.key is None:
            raise UserError("trace field 'after' names requests by 'key', which is missing")

    def columns(self) -> dict[str, np.ndarray]:
        """Returns the present columns by name; those of lists, each a pair of arrays, are not among them (`lists`)."""
        values = {name: getattr(self, name) for name in COLUMNS}
        return {name: value for name, value in values.items() if value is not None}

    def lists(self) -> dict[str, Hashes]:
        """Returns the present columns of lists, each as (offsets, values), by name."""
        return {name: pair for name in LISTS if (pair := getattr(self, name)) is not None}

    def __len__(self) -> int:
        return len(self.arrival_s)

    def __repr__(self) -> str:
        span = f", {self.arrival_s[0]:g}..{self.arrival_s[-1]:g} s" if len(self) else ""
        return f"Trace({self.name!r}, {len(self)} requests{span})"

    @property
    def mean_rate(self) -> float:
        """Requests per second between the first and the last arrival; 0 if that span is empty."""
        span_s = float(self.arrival_s[-1] - self.arrival_s[0]) if len(self) else 0.0
        return (len(self) - 1) / span_s if span_s > 0 else 0.0

    def take(self, index: np.ndarray | slice, arrival_s: np.ndarray | None = None) -> Trace:
        """Returns the requests that `index` selects (a slice, a mask bool[n] or positions int[m]).

        Their times are their own, or `arrival_s`, float64[m] not descending.
        """
        if isinstance(index, np.ndarray) and index.dtype == bool:
            index = np.flatnonzero(index)

        columns = {name: values[index] for name, values in self.columns().items()}
        if arrival_s is not None:
            columns["arrival_s"] = arrival_s
        rows = np.arange(len(self))[index] if self.lists() else np.zeros(0, np.int64)
        return replace(self, **columns, **{name: take_hashes(pair, rows) for name, pair in self.lists().items()})

    def slice_time(self, start_s: float, end_s: float) -> Trace:
        """Returns the requests with `start_s <= arrival_s < end_s`; times stay absolute."""
        first, last = np.searchsorted(self.arrival_s, [start_s, end_s], side="left")
        return self.take(slice(int(first), int(max(first, last))))

    def shift(self, by_s: float) -> Trace:
        """Returns the trace with `by_s` seconds added to each arrival; no arrival may become negative."""
        return replace(self, arrival_s=self.arrival_s + by_s)

    def equals(self, other: Trace) -> bool:
        """Returns whether all requests are equal bit for bit (NaN equals NaN); name and notes are ignored."""
        mine, theirs = self.columns(), other.columns()
        if mine.keys() != theirs.keys() or self.class_names != other.class_names:
            return False
        pairs = [(values, theirs[name]) for name, values in mine.items()]
        if self.lists().keys() != other.lists().keys():
            return False
        for name, (offsets, values) in self.lists().items():
            pairs += [(offsets, other.lists()[name][0]), (values, other.lists()[name][1])]
        if self.prefix_hashes is not None:
            pairs.append((np.array(self.block_tokens), np.array(other.block_tokens)))
        return all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in pairs)


def is_set(value: Any) -> bool:
    """Returns whether an option is other than a default: None, False, `auto`, or a mapping of these."""
    if isinstance(value, Mapping):
        return any(map(is_set, value.values()))
    return value is not None and value is not False and value != "auto"


def merge(*traces: Trace, name: str | None = None) -> Trace:
    """Returns all requests of the traces in order of arrival; at equal times the earlier argument
    goes first.

    Optional columns that a trace lacks are filled with NaN, no session, no prefix hashes. Sessions, keys
    and prefix hashes are kept: equal numbers in two traces stay equal. If block sizes differ, all
    get the smallest.
    """
    if not traces:
        return Trace(np.zeros(0), np.zeros(0, np.int32), np.zeros(0, np.int32), name=name or "empty")
    order = np.argsort(np.concatenate([trace.arrival_s for trace in traces]), kind="stable")

    columns = {}
    for column in dict.fromkeys(name for trace in traces for name in trace.columns() if name != "class_id"):
        filled = [trace.columns().get(column, np.full(len(trace), COLUMNS[column].missing)) for trace in traces]
        columns[column] = np.concatenate(filled)[order]
    block_tokens, names = BLOCK_TOKENS, ()
    if any(trace.prefix_hashes is not None for trace in traces):
        block_tokens = min(trace.block_tokens for trace in traces if trace.prefix_hashes is not None)
    lists: dict[str, Any] = {}
    for column in LISTS:
        own = [with_blocks(trace, block_tokens).lists().get(column) for trace in traces]
        if any(pair is not None for pair in own):
            lists[column] = take_hashes(_joined(own, list(map(len, traces))), order)
    if any(trace.class_id is not None for trace in traces):
        ids, names = _joined_classes(traces)
        columns["class_id"] = ids[order]
    return Trace(**columns, **lists, class_names=names, block_tokens=block_tokens,
                 name=name or "+".join(trace.name for trace in traces),
                 notes=tuple(note for trace in traces for note in trace.notes))


def _joined(lists: Sequence[Hashes | None], sizes: Sequence[int]) -> Hashes:
    """Returns offsets and values of concatenated columns of lists, where None stands for empty lists."""
    counts = [np.zeros(size, np.int64) if pair is None else np.diff(pair[0]) for pair, size in zip(lists, sizes,
                                                                                                   strict=True)]
    values = [pair[1] for pair in lists if pair is not None]
    return np.concatenate([[0], np.cumsum(np.concatenate(counts))]), np.concatenate(values)


def _joined_classes(traces: Sequence[Trace]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns the traces' concatenated class ids, and the names that they index."""
    each = [class_ids(trace) for trace in traces]
    names = tuple(dict.fromkeys(name for _, own in each for name in own))
    check_class_count(names)
    parts = []
    for ids, own in each:
        parts.append(np.array([names.index(name) for name in own], np.int8)[ids])
    return np.concatenate(parts), names


def class_ids(trace: Trace) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns each request's class as int8[n], and the names that it indexes."""
    if trace.class_id is not None:
        return trace.class_id, trace.class_names
    return np.where(trace.online, 0, 1).astype(np.int8), DEFAULT_CLASSES


def check_class_count(names: Sequence[str]) -> None:
    """Raises UserError for more than 16 named classes."""
    named = [name for name in names if name not in DEFAULT_CLASSES]
    if len(named) > MOST_CLASSES:
        raise UserError(f"requests are of {len(named)} classes, '{named[0]}', '{named[1]}' and so on; expected at most "
                        f"{MOST_CLASSES} beside {' and '.join(DEFAULT_CLASSES)}")


def take_hashes(hashes: Hashes, rows: np.ndarray) -> Hashes:
    """Returns the hash lists of the requests at positions int[m], as (offsets int64[m+1], values int64)."""
    offsets, values = hashes
    counts = np.diff(offsets)[rows]
    new_offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    positions = np.arange(new_offsets[-1]) + np.repeat(offsets[:-1][rows] - new_offsets[:-1], counts)
    return new_offsets, values[positions]


def with_blocks(trace: Trace, block_tokens: int) -> Trace:
    """Returns the trace with its prefix hashes, if any, converted to another block size.

    A smaller block's hash combines the old block in which it ends and its place there; a larger
    one's is that of the old block in which it ends. So equal hashes still mean an equal prefix.
    """
    if trace.prefix_hashes is None or block_tokens == trace.block_tokens:
        return trace
    offsets, values = trace.prefix_hashes
    known = np.minimum(np.diff(offsets) * trace.block_tokens, trace.prompt_tokens)  # tokens that the hashes cover
    counts = -(-known // block_tokens)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    rows = np.repeat(np.arange(len(trace)), counts)
    last = np.minimum((np.arange(starts[-1]) - starts[rows] + 1) * block_tokens, known[rows]) - 1  # last tokens
    place = last % trace.block_tokens // block_tokens
    pieces = -(-trace.block_tokens // block_tokens)
    ends = values[offsets[rows] + last // trace.block_tokens] * np.int64(pieces) + place
    if pieces > 1:      # avoids collisions with hashes of other blocks
        ends = scattered(ends, f"blocks of {trace.block_tokens}")
    return replace(trace, prefix_hashes=(starts, ends), block_tokens=block_tokens)


def _column(value: Any, name: str, rule: Values) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise UserError(f"trace field '{name}' must be a flat array of numbers: {error}") from None
    if array.ndim != 1 or (array.dtype.kind not in "biuf" and array.size):
        raise UserError(f"trace field '{name}' must be a flat array of numbers, found {array.ndim} dimensions of "
                        f"type {array.dtype}")
    if array.size:
        _demand(rule.good(array), array, name, rule.expected)
    return np.ascontiguousarray(array, dtype=rule.kind)


def _lists(name: str, value: Sequence[Any], n: int) -> Hashes:
    if len(value) != 2:
        raise UserError(f"trace field '{name}' must be a pair (offsets, values)")
    whole = Values(np.int64, lambda x: np.ones(len(x), bool) & _whole(x), "a whole number of 64 bits")
    offsets, values = _column(value[0], f"{name}[0]", whole), _column(value[1], f"{name}[1]", whole)
    if len(offsets) != n + 1 or offsets[0] != 0 or offsets[-1] != len(values) or np.any(np.diff(offsets) < 0):
        raise UserError(f"trace field '{name}': offsets must be {n + 1} ascending numbers from 0 to the "
                        f"number of values ({len(values)})")
    return offsets, values


def _demand(good: np.ndarray, values: np.ndarray, name: str, expected: str) -> None:
    if not good.all():
        row = int(np.argmin(good))
        raise UserError(f"trace request {row}, field '{name}': found {values[row]}, expected {expected}")
