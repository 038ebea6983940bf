"""Offline load: requests without a latency promise that use the capacity which online requests leave."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.resources import load_yaml, names
from ooco_gym.schema import Model, Range, check_keys, kinds, number, plain
from ooco_gym.workload.classes import of_class, split_class
from ooco_gym.workload.generate import MAX_REQUESTS, NOTES, client_shares, generate_lengths, load_lengths
from ooco_gym.workload.keyed import keyed_generator
from ooco_gym.workload.lengths import LengthModel
from ooco_gym.workload.sharing import GROUPS, Groups, form_of, hash_blocks, parse_groups
from ooco_gym.workload.trace import Trace

BACKLOG_JOBS_PER_S = 20.0
"""Default size of a backlog in jobs per second: several times what a pair of instances serves with a 7B model."""
LOAD_KEYS = ("mode", "rate", "jobs", "deadline_s", "class", "own")
"""Keys of the offline load that are independent of its dataset."""
@dataclass(frozen=True)
class OfflineLoad:
    """Offline requests, with all names in their description resolved.

    Attributes:
        mode: `rate` (evenly spaced), `backlog` (more than can be served, present from the start) or `jobs` (a finite
            set, present from the start).
        rate: requests per second in mode `rate`.
        jobs: number of requests; None: the default of mode `backlog`.
        lengths: of prompts and outputs.
        sharing: what prompts share; None: nothing.
        name: keys the hashes of shared prompts.
        class_name: class of all requests; None: `offline`.
        own: whether the workload's own offline requests are simulated, too.
        deadline_s: seconds from each request's arrival until it is due; None: no deadline. In mode `jobs` all
            arrive together, so it is the batch's.
        clients: (share, lengths) of each client (or batch job), whose requests are like one another; empty: one
            client that the trace does not name.
    """

    mode: str
    rate: float | None
    jobs: int | None
    lengths: LengthModel
    sharing: Groups | None
    name: str
    class_name: str | None = None
    own: bool = True
    deadline_s: float | None = None
    clients: tuple[tuple[float, LengthModel], ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence if it has the key of another mode, of a value that is not its dataset's own."""
        key = "jobs" if self.mode == "rate" else "rate"
        value, own = getattr(self, key), load_yaml("offline", self.name) if self.name in names("offline") else {}
        return () if value in (None, own.get(key)) else (
            f"offline.{key}={value:g} is not used: offline.mode={self.mode} has no {key}",)

    def draw(self, *, duration_s: float, seed: int, start_s: float = 0.0) -> Trace:
        """Returns the requests; arguments, times and errors as in `offline_trace`."""
        start_s, duration_s = number("start_s", start_s, 0, 1e9), number("duration_s", duration_s, 0, 1e9)
        if self.mode == "rate":
            rate = self.rate or 0.0
            arrival_s = start_s + np.arange(_limited(duration_s * rate, "offline.rate")) / (rate or 1.0)
            arrival_s = arrival_s[arrival_s < start_s + duration_s]
        else:
            wanted = duration_s * BACKLOG_JOBS_PER_S if self.jobs is None else self.jobs
            arrival_s = np.full(_limited(wanted, "offline.jobs"), start_s)
        prompt, output = generate_lengths(self.lengths, len(arrival_s), seed, stream="offline")
        hashes = client = due_s = None
        if self.clients:
            shares = np.cumsum([share for share, _ in self.clients])
            drawn = keyed_generator(seed, "offline/client").random(len(arrival_s)) * shares[-1]
            client = np.searchsorted(shares, drawn, side="right")
            each = [generate_lengths(lengths, len(arrival_s), seed, stream="offline") for _, lengths in self.clients]
            prompt, output = (np.choose(client, side) for side in zip(*each, strict=True))
        if self.deadline_s is not None:
            due_s = np.full(len(arrival_s), self.deadline_s)
        if self.sharing is not None:
            numbers = np.arange(len(arrival_s), dtype=np.int64)
            prompt, shared, group = self.sharing.prompts(self.lengths, numbers, seed, "offline")
            hashes = hash_blocks(prompt, shared, group, numbers, f"offline/{self.name}/{seed}/hashes")
        return of_class(Trace(arrival_s, prompt, output, np.zeros(len(arrival_s), bool), prefix_hashes=hashes,
                              name=f"offline-{self.mode}", client=client, deadline_s=due_s), self.class_name)


def parse_offline(offline: Mapping[str, Any]) -> OfflineLoad:
    """Reads a scenario's `offline`, as in `offline_trace`.

    Raises:
        UserError: an unknown or impossible key, a missing rate or number of jobs.
    """
    values = with_dataset(offline, None)
    keys = OfflineKeys.read({key: value for key, value in values.items() if value is not None}, beside=_KEYS)
    for key, needed in (("rate", "requests per second"), ("jobs", "a number of requests")):
        if keys.mode == key and getattr(keys, key) is None:
            raise UserError(f"offline.{key} is missing: offline.mode={key} needs {needed}, at least 0")
    return OfflineLoad(keys.mode, keys.rate, keys.jobs, _lengths(values), _sharing(values), keys.name,
                       values.get("class"), keys.own, keys.deadline_s, _clients(keys, values))


@dataclass(frozen=True)
class OfflineKeys(Model):
    """The keys of an offline load, beside `class`."""

    PLACE = "offline"

    mode: Literal["rate", "backlog", "jobs"] = "rate"
    rate: Annotated[float, Range(0, 1e6, "requests a second")] | None = None
    jobs: Annotated[int, Range(0, MAX_REQUESTS)] | None = None
    deadline_s: Annotated[float, Range(0, 1e9, "seconds", above=True)] | None = None
    own: bool = True
    lengths: Any = None
    length_correlation: Any = None
    sharing: Mapping[str, Any] | None = None
    clients: tuple[Mapping[str, Any], ...] = ()
    name: str = "custom"


_KEYS = (*NOTES, *kinds(OfflineKeys), "class", "dataset")


def offline_trace(offline: Mapping[str, Any], *, duration_s: float, seed: int, start_s: float = 0.0) -> Trace:
    """Generates the offline requests that a scenario's `offline` describes, with prefix hashes if
    prompts share text.

    In mode `rate`, request i arrives at `start_s + i / rate`, before `start_s + duration_s`. In
    mode `backlog` all arrive at `start_s`: `jobs` requests, or 20 for each second of `duration_s`,
    which exceeds capacity. In mode `jobs` the finite set of `jobs` requests arrives at `start_s`.

    Request i's lengths and prefix depend on (`offline`, seed, i) only, in every mode and at every
    rate. Its hashes never equal those of online requests.

    Args:
        offline: as in `conf/offline`: `mode` (default `rate`), `rate`, `jobs`; `lengths` (a mapping
            or a name; default OOC's), `length_correlation`, `sharing` (`{form: documents |
            few_shot, ratio, groups, zipf}`); or `dataset`, a name of `conf/offline` or a path,
            whose values are the defaults; `class` (default `offline`); `own: false` drops the
            workload's own offline requests.
        duration_s: seconds, >= 0.
        seed: any integer.
        start_s: time of the first arrival, seconds, >= 0.

    Returns:
        A trace of offline requests with absolute times.

    Raises:
        UserError: an unknown or impossible key, a missing rate or number of jobs.
    """
    return parse_offline(offline).draw(duration_s=duration_s, seed=seed, start_s=start_s)


def with_dataset(offline: Mapping[str, Any], dataset: str | None) -> dict[str, Any]:
    """Returns an offline mapping completed with a dataset's values.

    Args:
        offline: as in `offline_trace`; its `mode`, `rate` and `jobs` are kept.
        dataset: a name of `conf/offline` (`NAME_offline` if an online workload has the name, too)
            or a path, optionally with `@` and a class; None: `offline`'s own `dataset`, if any.

    Raises:
        UserError: an unknown key, an unknown dataset, or two datasets.
    """
    values = plain(offline)
    check_keys("offline", values, _KEYS)
    own = values.pop("dataset", None)
    chosen, class_name = split_class(os.fspath(own or "") if dataset is None else dataset)
    if own is None and dataset is None:
        return values
    if class_name is not None:
        values["class"] = class_name
    if own is not None and dataset_name(split_class(os.fspath(own))[0]) != dataset_name(chosen):
        raise UserError(f"two offline datasets: workload names '{dataset}', offline.dataset '{own}'; leave one out")
    given = {key: value for key, value in values.items() if value is not None}
    if dataset is not None:  # OOC's values are defaults, not the user's
        name = given.get("name")
        if name not in (None, "ooc", dataset_name(dataset)):
            raise UserError(f"two offline datasets: workload names '{dataset}', offline '{name}'; leave one out")
        given = {key: given[key] for key in LOAD_KEYS if key in given}
    return {**load_yaml("offline", dataset_name(chosen)), **given}


def is_offline_dataset(source: str) -> bool:
    """Returns whether a part of a workload is offline: `NAME_offline`, or a NAME that no online workload has."""
    return dataset_name(source) in names("offline") and source not in names("workload")


def dataset_name(source: str | os.PathLike[str]) -> str:
    """Returns the name in `conf/offline` of `NAME` or `NAME_offline`; a path unchanged."""
    text, known = os.fspath(source), names("offline")
    return text if text in known else next((name for name in known if text == f"{name}_offline"), text)


def _lengths(values: Mapping[str, Any]) -> LengthModel:
    lengths = values.get("lengths") or "ooc"
    if isinstance(lengths, Mapping):
        return load_lengths({"lengths": lengths, "length_correlation": values.get("length_correlation")})
    return load_lengths(lengths, prefer="offline")


def _clients(keys: OfflineKeys, values: Mapping[str, Any]) -> tuple[tuple[float, LengthModel], ...]:
    if keys.clients and keys.sharing:
        raise UserError("offline.clients must be left out beside offline.sharing, whose groups say what prompts share")
    shares = client_shares(keys.clients, "offline", ("share", "lengths", "length_correlation"))
    return tuple((share, _lengths({"lengths": values.get("lengths"), **item}))
                 for share, item in zip(shares, keys.clients, strict=True))


def _sharing(values: Mapping[str, Any]) -> Groups | None:
    if values.get("sharing") is None:
        return None
    form_of(values["sharing"], "offline.sharing", GROUPS)  # the others need arrivals of their own
    return parse_groups(values["sharing"], "offline.sharing")


def _limited(count: float, key: str) -> int:
    if count > MAX_REQUESTS:
        raise UserError(f"{key}: about {count:.3g} offline requests are more than the {MAX_REQUESTS:,} allowed")
    return math.ceil(count)
