"""The feature contract of `Batching-v0`: what a policy sees of one engine, from plain descriptions of its requests.

`observe(engine, actions)` computes what the simulator's compiled code computes from its state (a test compares both),
from dicts that an engine can fill before each iteration. Names of their keys are those of vLLM V1 where it has them;
`docs/batching_features.md` says for each feature where it comes from. Nothing here needs numba or the simulator.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ooco_gym.rounding import steady
from ooco_gym.runtime.features import ACTION, ENGINE, NONE_MS, TIE_S

LOOK_ONLINE, LOOK_OFFLINE = 8, 4  # waiting requests of each class that are looked at one by one
QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.9)
HORIZONS_S = (10, 60, 300, 1800)  # of the moving rates of online arrivals
BLOCKS_S = (600, 3600)  # blocks of time over which the violation budget is looked at

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


def deadline(request: Mapping[str, Any]) -> float:
    """When an online request's next token is due, in seconds: by its TTFT, or so that its mean TPOT is kept."""
    if request["first_token_time"] is None:
        return request["arrival_time"] + request["ttft_slo"]
    start = request.get("tpot_from", request["first_token_time"])
    return start + request["num_output_tokens"] * request["tpot_slo"]


def lost(request: Mapping[str, Any], now: float) -> bool:
    """Whether an online request has missed its TTFT SLO."""
    first = request["first_token_time"]
    return (now if first is None else first) > request["arrival_time"] + request["ttft_slo"] + TIE_S


def tokens_of(request: Mapping[str, Any]) -> int:
    return request["num_prompt_tokens"] + request["num_output_tokens"]


def missing(request: Mapping[str, Any]) -> int:
    return tokens_of(request) - request["num_computed_tokens"]


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
        return ENGINE.scaled([[self.values[name] for name in _NAMES]])[0]

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
            if first > request["arrival_time"] + request["ttft_slo"] + TIE_S:
                gone += 1
            else:
                self.slacks.append(request.get("tpot_from", first) + made * request["tpot_slo"] - now)
        for name, online in (("online", True), ("offline", False)):
            (values[f"{name}_decodes"], values[f"{name}_context"], values[f"{name}_prompts"],
             values[f"{name}_prompt_tokens"]) = counts[online]
        self.slacks.sort()
        for quantile, name in _SLACKS:
            place = int(quantile * (len(self.slacks) - 1))
            values[name] = 1e3 * self.slacks[place] if self.slacks else NONE_MS
        values["behind"] = bisect_left(self.slacks, -TIE_S) / max(1, len(self.slacks))
        values["lost"] = gone
        values["kv_free"] = engine["num_free_blocks"] / engine["num_blocks"]
        values["kv_offline"] = held / engine["num_blocks"]
        values["seats_free"] = 1.0 - len(running) / engine["max_num_seqs"]

    def _prompts(self, engine: Mapping[str, Any]) -> None:
        """The online prompts that are still to be computed, in their order."""
        values, before, late, in_time = self.values, 0.0, 0, 0
        listed = [*self.prompts, *list(engine["waiting_online"])[:LOOK_ONLINE]]
        least, margin = NONE_MS, NONE_MS
        for request in listed:
            before += 1e3 * self.latency([(missing(request), tokens_of(request))])
            slack = 1e3 * (deadline(request) - self.now)
            if request["first_token_time"] is None and lost(request, self.now):
                values["lost"] += 1
                continue
            in_time += 1
            late += slack < before - 1e3 * TIE_S
            least, margin = min(least, slack), min(margin, slack - before)
        values["ttft_slack"], values["ttft_margin"] = least, margin
        values["prompts_late"] = late / max(1, in_time)
        for place, name in enumerate(("next", "second")):
            there = len(listed) > place
            values[f"{name}_tokens"] = missing(listed[place]) if there else 0
            values[f"{name}_slack"] = 1e3 * (deadline(listed[place]) - self.now) if there else NONE_MS
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
        values["offline_next_tokens"] = tokens_of(waiting[0]) if waiting else 0
        cached = [request["num_cached_tokens"] for request in waiting]
        values["offline_next_cached"] = cached[0] / tokens_of(waiting[0]) if waiting else 0.0
        values["offline_cached"] = sum(cached) / max(1, sum(map(tokens_of, waiting)))

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
    late = np.searchsorted(np.array(found.slacks), step - TIE_S) / max(1, len(found.slacks))
    figures = (np.ones(len(step)), time, online, offline, step / found.tpot, late, online_s / found.tpot,
               offline_s / found.tpot)
    return np.minimum(_ACTION_HIGH, np.maximum(_ACTION_LOW, np.stack(figures, axis=1) / _ACTION_LIMIT)).astype(
        np.float32)


_SLACKS = tuple(zip(QUANTILES, ("slack_least", "slack_10", "slack_25", "slack_50", "slack_90"), strict=True))
_NAMES = [one.name for one in ENGINE]
_ACTION_LIMIT, _ACTION_LOW, _ACTION_HIGH = (np.array([getattr(one, key) for one in ACTION])
                                            for key in ("limit", "low", "high"))
assert all(one.scale == "linear" for one in ACTION)
