"""The feature contract of `Batching-v0`: what a policy sees of one engine, from plain descriptions of its requests.

`observe(engine, actions)` computes what the simulator's compiled code computes from its state (a test compares both),
from dicts that an engine can fill before each iteration. Names of their keys are those of vLLM V1 where it has them;
`docs/batching_features.md` says for each feature where it comes from. Nothing here needs numba or the simulator.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ooco_gym.rounding import steady

LOOK_ONLINE, LOOK_OFFLINE = 8, 4  # waiting requests of each class that are looked at one by one
QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.9)
HORIZONS_S = (10, 60, 300, 1800)  # of the moving rates of online arrivals
BLOCKS_S = (600, 3600)  # blocks of time over which the violation budget is looked at
_LATE_MS, _TIMES_SLO = 10_000.0, 8.0
_TIE_S = 1e-9  # times closer than this are the same: what is due just now is not late, however it was rounded

Latency = Callable[[Sequence[tuple[int, int]]], float]


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


def _log(name: str, unit: str, limit: float, meaning: str, vllm: str) -> Contracted:
    return Contracted(name, unit, "log", limit, 0.0, 1.0, meaning, vllm)


def _time(name: str, meaning: str, vllm: str) -> Contracted:
    return Contracted(name, "ms", "signed log", _LATE_MS, -1.0, 1.0, meaning, vllm)


def _share(name: str, limit: float, meaning: str, vllm: str) -> Contracted:
    return Contracted(name, "share", "linear", limit, 0.0, 1.0, meaning, vllm)


_RUNNING, _WAITING = "`Scheduler.running`", "`Scheduler.waiting`"
_MISSING = "`Request.num_tokens - num_computed_tokens`"
_CLASS = "class by `Request.priority`"
_DUE = ("`Request.arrival_time`, time of the first token (to be noted in `Scheduler.update_from_output`), "
        "`num_output_tokens`; the SLOs are yours")
_TTFT = "`Request.arrival_time`; the SLO is yours"
_BELIEF = "your latency predictor, of the batch's (new tokens, context)"
_KEPT = "to be kept where requests arrive and finish: "

ENGINE = (
    _log("online_decodes", "requests", 1024, "running online requests that decode: their context but for the last "
         "token is computed", f"{_RUNNING}, {_MISSING} = 1, `num_output_tokens` > 0, {_CLASS}"),
    _log("online_context", "tokens", 1e6, "their context lengths in all", "`Request.num_tokens`"),
    _log("offline_decodes", "requests", 1024, "running offline requests that decode", f"{_RUNNING}, as above"),
    _log("offline_context", "tokens", 1e6, "their context lengths in all", "`Request.num_tokens`"),
    _log("online_prompts", "requests", 256, "running online requests whose prompts are being computed",
         f"{_RUNNING}, all others"),
    _log("online_prompt_tokens", "tokens", 1e6, "tokens that these miss", _MISSING),
    _log("offline_prompts", "requests", 256, "running offline requests whose prompts are being computed",
         f"{_RUNNING}, all others"),
    _log("offline_prompt_tokens", "tokens", 1e6, "tokens that these miss", _MISSING),
    _log("online_waiting", "requests", 1024, "online requests that wait", _WAITING),
    _log("online_waiting_tokens", "tokens", 1e6, "their tokens", "`Request.num_tokens`"),
    _log("offline_waiting", "requests", 4096, "offline requests that wait", _WAITING),
    _log("offline_waiting_tokens", "tokens", 1e7, "their tokens", "`Request.num_tokens`"),
    _log("offline_wait", "s", 3600, "time since the first of these arrived", "`Request.arrival_time`"),
    _time("slack_least", "least that a running online request in time is ahead of its next token's deadline, by which "
          "its mean time per token keeps the TPOT SLO; 1 where there is none", _DUE),
    _time("slack_10", "10 % quantile of the same", _DUE),
    _time("slack_25", "25 % quantile", _DUE),
    _time("slack_50", "median", _DUE),
    _time("slack_90", "90 % quantile", _DUE),
    _share("behind", 1.0, "share of these requests that are behind their deadline", _DUE),
    _log("lost", "requests", 256, "online requests, running or among the first eight waiting, that missed their TTFT "
         "SLO", _DUE),
    _log("next_tokens", "tokens", 32_768, "tokens that the online prompt misses that is next: running ones in their "
         "order, then waiting ones", _MISSING),
    _time("next_slack", "until its deadline for the first token (or, preempted, the next); 1 where there is none",
          _TTFT),
    _log("second_tokens", "tokens", 32_768, "tokens that the one after it misses", _MISSING),
    _time("second_slack", "until its deadline; 1 where there is none", _TTFT),
    _time("ttft_slack", "least time until the deadline of an online prompt in time, running or among the first eight "
          "waiting; 1 where there is none", _TTFT),
    _time("ttft_margin", "least of the same, less the believed latency of computing it and all before it one by one",
          f"{_TTFT}; {_BELIEF}"),
    _share("prompts_late", 1.0, "share of these prompts that come too late in that order",
           f"{_TTFT}; {_BELIEF}"),
    _share("kv_free", 1.0, "free KV blocks over all", "`BlockPool.get_num_free_blocks`, `num_gpu_blocks`"),
    _share("kv_offline", 1.0, "KV blocks that running offline requests hold over all",
           "blocks of a request in `KVCacheManager`"),
    _share("seats_free", 1.0, "free seats over all", "`len(Scheduler.running)`, `max_num_seqs`"),
    _log("offline_next_tokens", "tokens", 32_768, "tokens of the first waiting offline request", _WAITING),
    _share("offline_next_cached", 1.0, "share of them in the prefix cache", "`KVCacheManager.get_computed_blocks`"),
    _share("offline_cached", 1.0, "share in the prefix cache of the tokens of the first four waiting offline requests",
           "`KVCacheManager.get_computed_blocks`"),
    _share("online_step", 4.0, "believed latency of an iteration of the online decodes alone, over the TPOT SLO",
           _BELIEF),
    _share("decode_step", 4.0, "believed latency of one of all decodes, over the TPOT SLO", _BELIEF),
    _log("online_work", "ms", 10_000, "what all missing tokens of online prompts (at most a token budget) would add to "
         "the first", f"{_BELIEF}; `max_num_batched_tokens`"),
    _log("offline_work", "ms", 10_000, "what all offline decodes, and all missing tokens of offline prompts (at most a "
         "token budget), would add to the first", f"{_BELIEF}; `max_num_batched_tokens`"),
    _share("spent_600s", 4.0, "share of the violation budget that this block of 10 minutes has spent",
           _KEPT + "`Blocks`"),
    _share("spent_3600s", 4.0, "share that this hour has spent", _KEPT + "`Blocks`"),
    *(_log(f"online_rate_{horizon}s", "requests/s", 100, f"online arrivals, exponential average over {horizon} s",
           _KEPT + "`ArrivalRates`") for horizon in HORIZONS_S),
    _log("since_online_arrival", "s", 60, "time since the last online arrival", _KEPT + "`ArrivalRates`"),
)
ACTION = (
    _share("present", 1.0, "1 where this answer may be given", "–"),
    _share("time", _TIMES_SLO, "how long the iteration may take, over the TPOT SLO", "the policy's manifest"),
    _share("online_share", 1.0, "share of the time beside online decodes that online prompts may take",
           "the policy's manifest"),
    _share("offline_share", 1.0, "share of it up to which offline work may fill the iteration",
           "the policy's manifest"),
    _share("step", _TIMES_SLO, "believed latency of the iteration that this gives, over the TPOT SLO", _BELIEF),
    _share("late", 1.0, "share of the running online requests in time that would be behind their deadline after it",
           f"{_DUE}; {_BELIEF}"),
    _share("online_time", _TIMES_SLO, "time for online prompts in it, over the TPOT SLO", _BELIEF),
    _share("offline_time", _TIMES_SLO, "time for offline work in it, over the TPOT SLO", _BELIEF),
)


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
        self._add(now_s, 0)

    def missed(self, now_s: float) -> None:
        """An online request has missed an SLO, for the first time."""
        self._add(now_s, 1)

    def describe(self, now_s: float) -> dict[str, Any]:
        """The keys of an engine that are kept here."""
        self._turn(now_s)
        return {"online_in_block": {length: tuple(counts) for length, counts in self._counts.items()}}

    def _add(self, now_s: float, which: int) -> None:
        self._turn(now_s)
        for counts in self._counts.values():
            counts[which] += 1

    def _turn(self, now_s: float) -> None:
        for length in BLOCKS_S:
            block = now_s // length
            if block != self._block[length]:
                self._block[length], self._counts[length] = block, [0, 0]


# --- The observation --------------------------------------------------------------------------------------------------
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

    Raises:
        KeyError: the description lacks a key.
    """
    found = Found(engine)
    return found.cluster(), _actions(found, actions)


def scaled(feature: Contracted, value: float) -> float:
    """A feature's figure as a policy sees it: scaled, and cut at its bounds."""
    by = feature.limit if feature.scale == "linear" else math.log1p(feature.limit)
    return _scaled(value, feature.scale, by, feature.low, feature.high)


def _scaled(value: float, scale: str, by: float, low: float, high: float) -> float:
    """As `scaled`; `by` is the limit, or on a logarithmic scale log1p of it."""
    if scale == "linear":
        value /= by
    elif scale == "log":
        value = math.log1p(max(0.0, value)) / by
    else:
        value = math.copysign(math.log1p(abs(value)) / by, value)
    return min(high, max(low, value))


def deadline(request: Mapping[str, Any]) -> float:
    """When an online request's next token is due, in seconds: by its TTFT, or so that its mean TPOT is kept."""
    if request["first_token_time"] is None:
        return request["arrival_time"] + request["ttft_slo"]
    start = request.get("tpot_from", request["first_token_time"])
    return start + request["num_output_tokens"] * request["tpot_slo"]


def lost(request: Mapping[str, Any], now: float) -> bool:
    """Whether an online request has missed its TTFT SLO."""
    first = request["first_token_time"]
    return (now if first is None else first) > request["arrival_time"] + request["ttft_slo"] + _TIE_S


def _tokens(request: Mapping[str, Any]) -> int:
    return request["num_prompt_tokens"] + request["num_output_tokens"]


def _missing(request: Mapping[str, Any]) -> int:
    return _tokens(request) - request["num_computed_tokens"]


_NONE_MS = 1e9  # what counts as time without end: cut at the limit


class Found:
    """The figures behind the features of an engine, before they are scaled; the slacks of its online requests."""

    def __init__(self, engine: Mapping[str, Any]) -> None:
        self.latency: Latency = engine["latency"]
        self.now, self.tpot = engine["now"], engine["tpot_slo"]
        self.values: dict[str, float] = {}
        self._running(engine)
        self._prompts(engine)
        self._believed(int(engine["max_num_batched_tokens"]))
        self._offline(engine)
        self._kept(engine)

    def cluster(self) -> np.ndarray:
        """The features of `ENGINE`, scaled."""
        values = self.values
        return np.array([_scaled(values[name], scale, by, low, high) for name, scale, by, low, high in _ENGINE],
                        np.float32)

    def _running(self, engine: Mapping[str, Any]) -> None:
        """One pass over what runs: an engine asks before each iteration."""
        values, running, now = self.values, engine["running"], self.now
        counts = {True: [0, 0, 0, 0], False: [0, 0, 0, 0]}  # decodes, their context, prompts, what these miss
        self.prompts, self.slacks, gone, held = [], [], 0, 0
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
                    self.prompts.append(request)
            if not online:
                held += request["num_blocks"]
                continue
            first = request["first_token_time"]
            if first is None:
                continue
            if first > request["arrival_time"] + request["ttft_slo"] + _TIE_S:
                gone += 1
            else:
                self.slacks.append(request.get("tpot_from", first) + made * request["tpot_slo"] - now)
        for name, online in (("online", True), ("offline", False)):
            (values[f"{name}_decodes"], values[f"{name}_context"], values[f"{name}_prompts"],
             values[f"{name}_prompt_tokens"]) = counts[online]
        self.slacks.sort()
        for quantile, name in _SLACKS:
            place = int(quantile * (len(self.slacks) - 1))
            values[name] = 1e3 * self.slacks[place] if self.slacks else _NONE_MS
        values["behind"] = bisect_left(self.slacks, -_TIE_S) / max(1, len(self.slacks))
        values["lost"] = gone
        values["kv_free"] = engine["num_free_blocks"] / engine["num_blocks"]
        values["kv_offline"] = held / engine["num_blocks"]
        values["seats_free"] = 1.0 - len(running) / engine["max_num_seqs"]

    def _prompts(self, engine: Mapping[str, Any]) -> None:
        """The online prompts that are still to be computed, in their order."""
        values, before, late, in_time = self.values, 0.0, 0, 0
        listed = [*self.prompts, *list(engine["waiting_online"])[:LOOK_ONLINE]]
        least, margin = _NONE_MS, _NONE_MS
        for request in listed:
            before += 1e3 * self.latency([(_missing(request), _tokens(request))])
            slack = 1e3 * (deadline(request) - self.now)
            if request["first_token_time"] is None and lost(request, self.now):
                values["lost"] += 1
                continue
            in_time += 1
            late += slack < before - 1e3 * _TIE_S
            least, margin = min(least, slack), min(margin, slack - before)
        values["ttft_slack"], values["ttft_margin"] = least, margin
        values["prompts_late"] = late / max(1, in_time)
        for place, name in enumerate(("next", "second")):
            there = len(listed) > place
            values[f"{name}_tokens"] = _missing(listed[place]) if there else 0
            values[f"{name}_slack"] = 1e3 * (deadline(listed[place]) - self.now) if there else _NONE_MS
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
        values["offline_next_tokens"] = _tokens(waiting[0]) if waiting else 0
        cached = [request["num_cached_tokens"] for request in waiting]
        values["offline_next_cached"] = cached[0] / _tokens(waiting[0]) if waiting else 0.0
        values["offline_cached"] = sum(cached) / max(1, sum(map(_tokens, waiting)))

    def _kept(self, engine: Mapping[str, Any]) -> None:
        values, since = self.values, self.now - engine["last_online_arrival"]
        for horizon in HORIZONS_S:
            values[f"online_rate_{horizon}s"] = engine["online_rates"][horizon] * steady(math.exp(-since / horizon))
        values["since_online_arrival"] = since
        for length in BLOCKS_S:
            arrived, missed = engine["online_in_block"][length]
            values[f"spent_{length}s"] = missed / (max(1e-9, engine["violation_budget"]) * max(1, arrived))


def _actions(found: Found, actions: Sequence[tuple[float, float, float]]) -> np.ndarray:
    """The features of each answer, float32 (actions, features of `ACTION`)."""
    if not len(actions):
        return np.zeros((0,), np.float32)
    time, online, offline = np.array(actions, np.float64).T
    room = np.maximum(0.0, time * found.tpot - found.alone)
    online_s = np.minimum(online * room, found.online_work)
    offline_s = np.maximum(0.0, np.minimum(offline * room - online_s, found.offline_work))
    step = found.alone + online_s + offline_s
    late = np.searchsorted(np.array(found.slacks), step - _TIE_S) / max(1, len(found.slacks))
    figures = (np.ones(len(step)), time, online, offline, step / found.tpot, late, online_s / found.tpot,
               offline_s / found.tpot)
    return np.minimum(_ACTION_HIGH, np.maximum(_ACTION_LOW, np.stack(figures, axis=1) / _ACTION_LIMIT)).astype(
        np.float32)


# What scaling needs of each feature; the answers' are all linear.
_ENGINE = tuple((one.name, one.scale, one.limit if one.scale == "linear" else math.log1p(one.limit), one.low, one.high)
                for one in ENGINE)
_SLACKS = tuple(zip(QUANTILES, ("slack_least", "slack_10", "slack_25", "slack_50", "slack_90"), strict=True))
_ACTION_LIMIT, _ACTION_LOW, _ACTION_HIGH = (np.array([getattr(one, key) for one in ACTION])
                                            for key in ("limit", "low", "high"))
assert all(one.scale == "linear" for one in ACTION)
