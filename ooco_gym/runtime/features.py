"""The feature contract of `Batching-v0`, `Admission-v0`, `Reclaiming-v0` and `Serving-v0`: what a policy sees.

`features.json` has the tables. `observe`, `observe_entries`, `observe_victims` and `observe_targets` compute from dicts
that an engine can fill what the simulator's compiled code computes from its state (tests compare both). Names of keys
are those of vLLM V1 where it has them; `docs/batching_features.md` says for each feature where it comes from. Each
raises a KeyError where a description lacks a key. Nothing here needs numba or the simulator.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ooco_gym.rounding import steady

LOOK_ONLINE, LOOK_OFFLINE = 8, 4  # waiting requests of each class that are looked at one by one
HORIZONS_S = (10, 60, 300, 1800)  # of the moving rates of online arrivals
BLOCKS_S = (600, 3600)  # blocks of time over which the violation budget is looked at
MEAN_WEIGHT = 0.01  # of the newest request in the moving mean of output lengths
NONE_MS = 1e9  # what counts as time without end: cut at the limit
TIE_S = 1e-9  # times closer than this are the same: what is due just now is not late, however it was rounded
_SLACKS = ((0.0, "slack_least"), (0.1, "slack_10"), (0.25, "slack_25"), (0.5, "slack_50"), (0.9, "slack_90"))


# --- Tables ---------------------------------------------------------------------------------------------------------
class Contracted(NamedTuple):
    """One feature: name, unit, how it is scaled, what it means, and where vLLM V1 has what it is made of."""

    name: str
    unit: str
    scale: str  # log, signed log, or linear
    limit: float
    low: float
    high: float
    meaning: str
    vllm: str


class Features(tuple[Contracted, ...]):
    """A table of features, in the order in which a policy sees them."""

    def __init__(self, rows: Iterable[Contracted]) -> None:
        self._how = [(one.scale, one.limit if one.scale == "linear" else math.log1p(one.limit), one.low, one.high)
                     for one in self]

    def scaled(self, rows: Iterable[Sequence[float]]) -> np.ndarray:
        """Rows of figures as a policy sees them: scaled, and cut at their bounds; float32 (rows, features)."""
        found = [[_scaled(value, *how) for value, how in zip(row, self._how, strict=True)] for row in rows]
        return np.array(found, np.float32).reshape(len(found), len(self))


def _scaled(value: float, scale: str, by: float, low: float, high: float) -> float:
    """`by` is the limit, or on a logarithmic scale log1p of it."""
    if scale == "linear":
        value /= by
    elif scale == "log":
        value = math.log1p(max(0.0, value)) / by
    else:
        value = math.copysign(math.log1p(abs(value)) / by, value)
    return min(high, max(low, value))


ENGINE, ACTION, ENTRY, VICTIM, TARGET = (
    Features(Contracted(**row, low=-1.0 if row["scale"] == "signed log" else 0.0, high=1.0) for row in rows)
    for rows in json.loads(Path(__file__).with_name("features.json").read_text(encoding="utf-8")).values())
_ACTION_LIMIT, _ACTION_LOW, _ACTION_HIGH = (np.array([getattr(one, key) for one in ACTION])
                                            for key in ("limit", "low", "high"))


# --- What is kept from one observation to the next ------------------------------------------------------------------
class ArrivalRates:
    """Moving rates of online arrivals, in requests a second: exponential averages over `HORIZONS_S`."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.rates, self.last_s = dict.fromkeys(HORIZONS_S, 0.0), now_s

    def arrived(self, now_s: float) -> None:
        """An online request has arrived."""
        for horizon in HORIZONS_S:
            faded = self.rates[horizon] * steady(math.exp(-(now_s - self.last_s) / horizon))
            self.rates[horizon] = faded + 1.0 / horizon
        self.last_s = now_s

    def describe(self) -> dict[str, Any]:
        """The keys of an engine that are kept here."""
        return {"online_rates": dict(self.rates), "last_online_arrival": self.last_s}


class Blocks:
    """Online requests that arrived, and that missed an SLO, in the present block of time of each length."""

    def __init__(self) -> None:
        self._block = dict.fromkeys(BLOCKS_S, -1.0)
        self._counts = {length: [0, 0] for length in BLOCKS_S}

    def arrived(self, now_s: float) -> None:
        """An online request has arrived."""
        self._add(now_s, 1, 0)

    def missed(self, now_s: float) -> None:
        """An online request has missed an SLO, for the first time."""
        self._add(now_s, 0, 1)

    def describe(self, now_s: float) -> dict[str, Any]:
        """The keys of an engine that are kept here."""
        self._add(now_s, 0, 0)
        return {"online_in_block": {length: tuple(counts) for length, counts in self._counts.items()}}

    def _add(self, now_s: float, arrived: int, missed: int) -> None:
        for length in BLOCKS_S:
            block = now_s // length
            if block != self._block[length]:
                self._block[length], self._counts[length] = block, [0, 0]
            self._counts[length][0] += arrived
            self._counts[length][1] += missed


class OutputMean:
    """Moving mean of the output lengths of offline requests that finished, the newest with weight `MEAN_WEIGHT`.

    Args:
        tokens: what is believed before one has finished.
    """

    def __init__(self, tokens: float = 0.0) -> None:
        self.tokens = tokens

    def finished(self, num_output_tokens: int) -> None:
        """An offline request has finished."""
        self.tokens += MEAN_WEIGHT * (num_output_tokens - self.tokens)

    def describe(self) -> dict[str, Any]:
        """The key of an engine that is kept here."""
        return {"offline_output_mean": self.tokens}


# --- Requests -------------------------------------------------------------------------------------------------------
class Batch(Sequence[tuple[int, int]]):
    """(New tokens, context after them) of each request of an iteration.

    What decodes take depends on how many they are and on their contexts' sum, so that a predictor may take these.

    Args:
        decodes: how many requests compute one token.
        context: the sum of their contexts.
        prompts: the others' pairs.
    """

    __slots__ = ("context", "decodes", "prompts")

    def __init__(self, decodes: float, context: float, prompts: Sequence[tuple[int, int]] = ()) -> None:
        self.decodes, self.context, self.prompts = int(decodes), int(context), prompts

    def __len__(self) -> int:
        return self.decodes + len(self.prompts)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        place = range(len(self))[place]
        if place >= self.decodes:
            return self.prompts[place - self.decodes]
        each, more = divmod(self.context, self.decodes)
        return 1, each + (place < more)


def _deadline(request: Mapping[str, Any]) -> float:
    """When an online request's next token is due, in seconds: by its TTFT, or so that its mean TPOT is kept."""
    if request["first_token_time"] is None:
        return request["arrival_time"] + request["ttft_slo"]
    start = request.get("tpot_from", request["first_token_time"])
    return start + request["num_output_tokens"] * request["tpot_slo"]


def _length(request: Mapping[str, Any]) -> int:
    return request["num_prompt_tokens"] + request["num_output_tokens"]


def _missing(request: Mapping[str, Any]) -> int:
    return _length(request) - request["num_computed_tokens"]


def _decodes(request: Mapping[str, Any]) -> bool:
    """Whether a running request decodes, rather than computes its prompt (or, preempted, its context again)."""
    return request["num_output_tokens"] > 0 and _missing(request) == 1


def _new_blocks(request: Mapping[str, Any], tokens: int, size: int) -> int:
    """Blocks beyond those held that a running request needs to compute `tokens` more."""
    return max(0, -(-(request["num_computed_tokens"] + tokens) // size) - request["num_blocks"])


# --- An engine ------------------------------------------------------------------------------------------------------
class Found:
    """The figures behind the features of an engine, before they are scaled; the slacks of its online requests."""

    def __init__(self, engine: Mapping[str, Any]) -> None:
        self.latency: Callable[[Sequence[tuple[int, int]]], float] = engine["latency"]
        self.now, self.tpot = engine["now"], engine["tpot_slo"]
        self.values: dict[str, float] = {}
        self._prompts(engine, self._running(engine))
        self._believed(int(engine["max_num_batched_tokens"]))
        self._offline(engine)
        self._kept(engine)

    def cluster(self) -> np.ndarray:
        """The features of `ENGINE`, scaled."""
        return ENGINE.scaled([[self.values[one.name] for one in ENGINE]])[0]

    def _running(self, engine: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """One pass over what runs: an engine asks before each iteration. Returns the online prompts."""
        values, running, now = self.values, engine["running"], self.now
        counts = {True: [0, 0, 0, 0], False: [0, 0, 0, 0]}  # decodes, their context, prompts, what these miss
        prompts, self.slacks, gone, held = [], [], 0, 0
        for request in running:
            online, made = bool(request["online"]), request["num_output_tokens"]
            tokens = request["num_prompt_tokens"] + made
            missing = tokens - request["num_computed_tokens"]
            count = counts[online]
            if made > 0 and missing == 1:
                count[0] += 1
                count[1] += tokens
            else:
                count[2] += 1
                count[3] += missing
                if online:
                    prompts.append(request)
            if not online:
                held += request["num_blocks"]
                continue
            first = request["first_token_time"]
            if first is None:
                continue
            if first > request["arrival_time"] + request["ttft_slo"] + TIE_S:
                gone += 1
            else:
                self.slacks.append(request.get("tpot_from", first) + made * request["tpot_slo"] - now)
        for name, online in (("online", True), ("offline", False)):
            (values[f"{name}_decodes"], values[f"{name}_context"], values[f"{name}_prompts"],
             values[f"{name}_prompt_tokens"]) = counts[online]
        self.slacks.sort()
        for quantile, name in _SLACKS:
            values[name] = 1e3 * self.slacks[int(quantile * (len(self.slacks) - 1))] if self.slacks else NONE_MS
        values["behind"] = bisect_left(self.slacks, -TIE_S) / max(1, len(self.slacks))
        values["lost"] = gone
        values["kv_free"] = engine["num_free_blocks"] / engine["num_blocks"]
        values["kv_offline"] = held / engine["num_blocks"]
        values["seats_free"] = 1.0 - len(running) / engine["max_num_seqs"]
        return prompts

    def _prompts(self, engine: Mapping[str, Any], running: list[Mapping[str, Any]]) -> None:
        """The online prompts that are still to be computed, in their order."""
        values, before, late, in_time = self.values, 0.0, 0, 0
        listed = [*running, *list(engine["waiting_online"])[:LOOK_ONLINE]]
        least, margin = NONE_MS, NONE_MS
        for request in listed:
            before += 1e3 * self.latency([(_missing(request), _length(request))])
            slack = 1e3 * (_deadline(request) - self.now)
            if request["first_token_time"] is None and slack < -1e3 * TIE_S:
                values["lost"] += 1
                continue
            in_time += 1
            late += slack < before - 1e3 * TIE_S
            least, margin = min(least, slack), min(margin, slack - before)
        values["ttft_slack"], values["ttft_margin"] = least, margin
        values["prompts_late"] = late / max(1, in_time)
        for place, name in enumerate(("next", "second")):
            there = len(listed) > place
            values[f"{name}_tokens"] = _missing(listed[place]) if there else 0
            values[f"{name}_slack"] = 1e3 * (_deadline(listed[place]) - self.now) if there else NONE_MS
        for name in ("online", "offline"):
            values[f"{name}_waiting"] = engine[f"num_waiting_{name}"]
            values[f"{name}_waiting_tokens"] = engine[f"num_waiting_{name}_tokens"]

    def _believed(self, budget: int) -> None:
        values = self.values
        online = Batch(values["online_decodes"], values["online_context"])
        every = Batch(values["online_decodes"] + values["offline_decodes"],
                      values["online_context"] + values["offline_context"])
        self.alone = self.latency(online) if online else 0.0
        values["online_step"] = self.alone / self.tpot
        values["decode_step"] = (self.latency(every) if every else 0.0) / self.tpot
        work = {}
        for name, decodes in (("online", online), ("offline", every)):
            tokens = min(budget, int(values[f"{name}_prompt_tokens"] + values[f"{name}_waiting_tokens"]))
            batch = Batch(decodes.decodes, decodes.context, [(tokens, tokens)] if tokens > 0 else ())
            work[name] = max(0.0, self.latency(batch) - self.alone) if batch else 0.0
            values[f"{name}_work"] = 1e3 * work[name]
        self.online_work, self.offline_work = work["online"], work["offline"]

    def _offline(self, engine: Mapping[str, Any]) -> None:
        values, waiting = self.values, list(engine["waiting_offline"])[:LOOK_OFFLINE]
        values["offline_wait"] = self.now - waiting[0]["arrival_time"] if waiting else 0.0
        values["offline_next_tokens"] = _length(waiting[0]) if waiting else 0
        cached = [request["num_cached_tokens"] for request in waiting]
        values["offline_next_cached"] = cached[0] / _length(waiting[0]) if waiting else 0.0
        values["offline_cached"] = sum(cached) / max(1, sum(map(_length, waiting)))

    def _kept(self, engine: Mapping[str, Any]) -> None:
        values, since = self.values, self.now - engine["last_online_arrival"]
        for horizon in HORIZONS_S:
            values[f"online_rate_{horizon}s"] = engine["online_rates"][horizon] * steady(math.exp(-since / horizon))
        values["since_online_arrival"] = since
        for length in BLOCKS_S:
            arrived, missed = engine["online_in_block"][length]
            values[f"spent_{length}s"] = missed / (max(1e-9, engine["violation_budget"]) * max(1, arrived))


def observe(engine: Mapping[str, Any], actions: Sequence[tuple[float, float, float]]) -> tuple[np.ndarray, np.ndarray]:
    """What a policy of `Batching-v0` sees of an engine that is about to compose its next iteration.

    Args:
        engine: `now` (s), `running` and `waiting_online`, `waiting_offline` (lists of requests in their order; of the
            waiting ones the first `LOOK_ONLINE` and `LOOK_OFFLINE` are enough), `num_waiting_online`,
            `num_waiting_online_tokens`, `num_waiting_offline`, `num_waiting_offline_tokens`, `num_free_blocks`,
            `num_blocks`, `max_num_seqs`, `max_num_batched_tokens`, `tpot_slo` (s), `violation_budget` (a share),
            `latency` (believed seconds of an iteration, given (new tokens, context after it) of each request),
            `online_rates`, `last_online_arrival` (`ArrivalRates`) and `online_in_block` (`Blocks`).
            A request: `online` (bool), `arrival_time`, `first_token_time` (None before it; `tpot_from` besides, where
            its TPOT is counted from another time, as the start of its first decode), `num_prompt_tokens`,
            `num_output_tokens`, `num_computed_tokens`; online ones `ttft_slo`, `tpot_slo` (s); running offline ones
            `num_blocks`; waiting offline ones `num_cached_tokens`.
        actions: (time over the TPOT SLO, online share, offline share) of each candidate, as the policy's manifest has
            them.

    Returns:
        (float32 (features of `ENGINE`,), float32 (actions, features of `ACTION`)).
    """
    found = Found(engine)
    if not len(actions):
        return found.cluster(), np.zeros((0,), np.float32)
    time, online, offline = np.array(actions, np.float64).T
    room = np.maximum(0.0, time * found.tpot - found.alone)
    online_s = np.minimum(online * room, found.online_work)
    offline_s = np.maximum(0.0, np.minimum(offline * room - online_s, found.offline_work))
    step = found.alone + online_s + offline_s
    late = np.searchsorted(np.array(found.slacks), step - TIE_S) / max(1, len(found.slacks))
    figures = (np.ones(len(step)), time, online, offline, step / found.tpot, late, online_s / found.tpot,
               offline_s / found.tpot)  # all of them linear
    rows = np.clip(np.stack(figures, axis=1) / _ACTION_LIMIT, _ACTION_LOW, _ACTION_HIGH)
    return found.cluster(), rows.astype(np.float32)


# --- Offline requests that may enter --------------------------------------------------------------------------------
def observe_entries(engine: Mapping[str, Any], iteration: Mapping[str, Any],
                    requests: Sequence[Mapping[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """What a policy of `Admission-v0` sees of an engine whose next iteration lacks but the offline newcomers.

    Args:
        engine: as `observe` takes it, with `block_size` and `offline_output_mean` (`OutputMean`).
        iteration: as composed so far: `scheduled` (new tokens, context after them) of each request in it,
            `time_limit` (believed seconds that it may take with offline prompts), `token_budget` (tokens left).
        requests: the candidates, waiting offline requests in the manner of `engine`, with `num_cached_tokens`,
            `num_preemptions`, `num_blocks_to_allocate` (for the whole context) and `is_next` besides.

    Returns:
        (float32 (features of `ENGINE`,), float32 (requests, features of `ENTRY`)).
    """
    found, scheduled = Found(engine), list(iteration["scheduled"])
    limit, size, free = iteration["time_limit"], engine["block_size"], max(1, engine["num_free_blocks"])
    before = found.latency(scheduled) if scheduled else 0.0
    rows = []
    for request in requests:
        tokens, cached = _length(request), request["num_cached_tokens"]
        missing, need = tokens - cached, request["num_blocks_to_allocate"]
        output = max(1.0, engine["offline_output_mean"] - request["num_output_tokens"])
        growth = math.ceil(math.ceil(tokens + output) / size) - math.ceil(tokens / size)
        chunk = min(missing, iteration["token_budget"])
        step = max(before, min(limit, found.latency([*scheduled, (chunk, cached + chunk)])))
        late = sum(slack < step - TIE_S for slack in found.slacks) / max(1, len(found.slacks))
        rows.append((1.0, tokens, cached / tokens, request["num_output_tokens"], output,
                     found.now - request["arrival_time"], request["num_preemptions"],
                     1e3 * found.latency([(missing, tokens)]), need / free, (need + growth) / free,
                     before / found.tpot, limit / found.tpot, step / found.tpot, late, float(request["is_next"])))
    return found.cluster(), ENTRY.scaled(rows)


# --- Running offline requests that may give way -----------------------------------------------------------------------
class Lack(NamedTuple):
    """Blocks that what must run takes beyond those that it holds, online requests' of them, and those that lack."""

    need: int
    online: int
    blocks: int


def lacking(engine: Mapping[str, Any]) -> Lack:
    """The blocks that lack for what must run in the next iteration of an engine, as `observe_victims` takes it.

    That is the next token of every request that decodes; then, as far as the iteration's tokens go, online prompts that
    are under way; then whole contexts of the first online requests that wait, while there is a seat.
    """
    size, left, need = engine["block_size"], int(engine["max_num_batched_tokens"]), {True: 0, False: 0}
    prompts = []
    for request in engine["running"]:
        if _decodes(request):
            left -= 1
            need[bool(request["online"])] += _new_blocks(request, 1, size)
        elif request["online"]:
            prompts.append(request)
    for request in prompts:
        tokens = min(left, _missing(request))
        if tokens <= 0:
            break
        need[True] += _new_blocks(request, tokens, size)
        left -= tokens
    seats = min(LOOK_ONLINE, engine["max_num_seqs"] - len(engine["running"]))
    for request in list(engine["waiting_online"])[: max(0, seats)]:
        if left <= 0:
            break
        need[True] += request["num_blocks_to_allocate"]
        left -= _length(request) - request["num_cached_tokens"]
    every, free = need[True] + need[False], engine["num_free_blocks"] - engine.get("num_reserved_blocks", 0)
    return Lack(every, need[True], max(0, every - free))


def observe_victims(engine: Mapping[str, Any], victims: Sequence[Mapping[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """What a policy of `Reclaiming-v0` sees of an engine whose blocks are short for its next iteration.

    Args:
        engine: as `observe` takes it, with `block_size`, `offline_output_mean` (`OutputMean`) and `host_tokens_per_s`
            (tokens whose memory the link to the host moves in a second); running requests have `num_blocks`, waiting
            online ones `num_cached_tokens` and `num_blocks_to_allocate` (for the whole context). Where some of
            `num_free_blocks` may not be taken, `num_reserved_blocks` says how many.
        victims: the candidates: `place` in `running`, `to_host` (bool; whether its memory goes there),
            `num_private_blocks` (that no other request reads) and `num_preemptions` of each.

    Returns:
        (float32 (features of `ENGINE`,), float32 (victims, features of `VICTIM`)).
    """
    found, lack, running = Found(engine), lacking(engine), engine["running"]
    offline = [place for place, request in enumerate(running) if not request["online"]]
    rows = []
    for victim in victims:
        request, freed = running[victim["place"]], victim["num_private_blocks"]
        order = offline.index(victim["place"]) / (len(offline) - 1) if len(offline) > 1 else 1.0
        tokens, computed, made = _length(request), request["num_computed_tokens"], request["num_output_tokens"]
        own = _new_blocks(request, 1, engine["block_size"]) if _decodes(request) else 0
        cost = 2.0 * computed / engine["host_tokens_per_s"]
        if not victim["to_host"]:
            cost = found.latency([(computed, computed)]) if computed > 0 else 0.0
        rows.append((1.0, tokens, computed / tokens, made, max(1.0, engine["offline_output_mean"] - made),
                     found.now - request["arrival_time"], victim["num_preemptions"], float(_decodes(request)), order,
                     freed, (freed + own) / max(1, lack.blocks), lack.blocks, lack.online / max(1, lack.need),
                     float(victim["to_host"]), 1e3 * cost))
    return found.cluster(), VICTIM.scaled(rows)


# --- Engines that a request may be sent to ----------------------------------------------------------------------------
def observe_targets(request: Mapping[str, Any], engines: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """What a policy of `Serving-v0` sees of the engines to which a request that has just arrived may be sent.

    Args:
        request: in the manner of `observe`.
        engines: each as `observe` takes it, with the request's `num_cached_tokens`, `num_blocks_to_allocate` (for its
            whole context there) and `is_default` (the router's own choice) besides.

    Returns:
        float32 (engines, features of `TARGET`).
    """
    rows, tokens = [], _length(request)
    for engine in engines:
        found, cached = Found(engine), engine["num_cached_tokens"]
        there = found.values
        held = [figure for name in ("online", "offline") for figure in (
            there[f"{name}_decodes"] + there[f"{name}_prompts"] + there[f"{name}_waiting"],
            there[f"{name}_prompt_tokens"] + there[f"{name}_waiting_tokens"])]
        due = 1e3 * (request["arrival_time"] + request["ttft_slo"] - engine["now"]) if request["online"] else NONE_MS
        rows.append((1.0, tokens, float(request["online"]), due, cached / tokens,
                     1e3 * found.latency([(tokens - cached, tokens)]),
                     engine["num_blocks_to_allocate"] / max(1, engine["num_free_blocks"]), there["kv_free"],
                     there["seats_free"], *held, there["online_step"], there["decode_step"],
                     float(engine["is_default"])))
    return TARGET.scaled(rows)
