"""Echo's scheduler restated with Python lists (sections 4.1, 5 and 6), to hold the compiled one against.

Memory is counted in blocks; there is no prefix cache here, and no memory left free for bursts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

LATE = float("inf")


@dataclass
class Request:
    """A request as the scheduler sees it. Times in ps."""

    slot: int
    prompt: int
    output: int
    online: bool
    rank: int  # in the trie order of waiting requests
    arrival: int
    ttft: int
    tpot: int
    computed: int = 0
    made: int = 0
    blocks: int = 0
    given: int = 0
    first_token: int = 0

    @property
    def length(self) -> int:
        return self.prompt + self.made

    @property
    def lacking(self) -> int:
        return self.length - self.computed

    @property
    def decodes(self) -> bool:
        return self.made > 0 and self.lacking == 1


@dataclass
class Batch:
    """What is scheduled: contexts of decodes, (done, new) of chunks, the tokens that it is worth."""

    values: dict[str, Any]
    decodes: list[int] = field(default_factory=list)
    chunks: list[tuple[int, int]] = field(default_factory=list)

    def plus(self, request: Request, tokens: int) -> Batch:
        if request.decodes:
            return Batch(self.values, [*self.decodes, request.computed + 1], self.chunks)
        return Batch(self.values, self.decodes, [*self.chunks, (request.computed, tokens)])

    def minus(self, request: Request) -> Batch:
        if request.given == 0:
            return self
        decodes, chunks = list(self.decodes), list(self.chunks)
        if request.decodes:
            decodes.remove(request.computed + 1)
        else:
            chunks.remove((request.computed, request.given))
        return Batch(self.values, decodes, chunks)

    @property
    def time(self) -> float:
        v = self.values
        prefill = 0.0
        for done, new in self.chunks:
            prefill += max(v["square_ps"] * ((done + new) ** 2 - done**2) + v["token_ps"] * new, v["least_ps"])
        decode = 0.0
        if self.decodes:
            decode = v["longest_ps"] * max(self.decodes) + v["mean_ps"] * sum(self.decodes) / len(self.decodes)
        return v["overlap"] * max(prefill, decode) + (1 - v["overlap"]) * (prefill + decode)

    def value(self, punish: float = 0.0) -> float:
        benefit = (self.values["decode_benefit"] * len(self.decodes)
                   + self.values["prefill_benefit"] * sum(new for _, new in self.chunks))
        return (benefit - punish) / max(1.0, self.time)


@dataclass
class Schedule:
    """Running and waiting requests under Echo's rules."""

    free: int
    values: dict[str, Any]
    block: int = 16
    waiting: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)
    preemptions: int = 0
    last_rank: int = -1

    def add(self, request: Request) -> None:
        self.waiting.append(request)
        self.waiting.sort(key=lambda one: one.slot)

    def end(self, now: int) -> list[Request]:
        """The iteration is over: tokens are made, requests finish (and are returned)."""
        done = []
        for request in list(self.running):
            request.computed += request.given
            if request.given and request.computed == request.length:
                request.first_token = request.first_token or now
                request.made += 1
                if request.made == request.output:
                    self.running.remove(request)
                    self.free += request.blocks
                    done.append(request)
            request.given = 0
        return done

    def step(self, now: int) -> dict[int, int]:
        self.now, self.budget, self.batch = now, int(self.values["max_num_batched_tokens"]), Batch(self.values)
        self.limit, before = LATE, self.preemptions
        self._go_on(online=True)
        nobody_waits = self._admit_online()
        self._go_on(online=False)
        if self._estimates:
            self._keep_slo()
        if nobody_waits and self.preemptions == before:
            self._admit_offline()
        return {request.slot: request.given for request in self.running if request.given}

    # --- limits ------------------------------------------------------------------------------------------------------
    @property
    def _estimates(self) -> bool:
        return self.values["estimator"] != "off"

    def _slack(self, request: Request) -> float:
        if not request.online:
            return LATE
        due = request.arrival + request.ttft + request.made * request.tpot
        if request.made and self.values["due_from"] == "first_token":
            due = request.first_token + request.made * request.tpot
        return due - self.now

    def _need(self, request: Request, tokens: int) -> int:
        return max(0, -(-(request.computed + tokens) // self.block) - request.blocks)

    # --- the parts of an iteration -----------------------------------------------------------------------------------
    def _go_on(self, online: bool) -> None:
        for request in [one for one in self.running if one.online == online]:
            if request not in self.running or self.budget == 0:
                continue
            tokens = min(request.lacking, self.budget)
            while request in self.running and self._need(request, tokens) > self.free:
                self._preempt(self._gives_way() or max((one for one in self.running if one.online),
                                                       key=lambda one: (one.arrival, self.running.index(one))))
            if request in self.running:
                self._give(request, tokens)

    def _admit_online(self) -> bool:
        while self.budget > 0:
            queue = [one for one in self.waiting if one.online]
            if not queue:
                return True
            request = queue[0]
            tokens = min(self.budget, request.lacking)
            if (self._estimates and (self.batch.decodes or self.batch.chunks)
                    and self.batch.plus(request, tokens).time > self.limit and self._slack(request) > self.limit):
                return False
            while self._full or self._need(request, request.length) > self.free:
                victim = self._gives_way()
                if victim is None:
                    return False
                self._preempt(victim)
            self._start(request)
        return not any(one.online for one in self.waiting)

    def _keep_slo(self) -> None:
        while self.batch.time > self.limit:
            victim = self._gives_way(scheduled=True)
            if victim is None:
                return
            self._preempt(victim)

    def _admit_offline(self) -> None:
        worth = self.batch.value() if self.batch.decodes or self.batch.chunks else 0.0
        while self.budget > 0 and not self._full and self.free > 0:
            pool = [one for one in self.waiting if not one.online]
            chooses = self.values["selection"] == "kv_aware"
            options = [one for one in (self._candidates(pool) if chooses else pool[:1]) if self._may_join(one)]
            if not options:
                return
            grown = [self.batch.plus(one, min(self.budget, one.lacking)).value() for one in options]
            best = grown.index(max(grown))
            if chooses and self.values["stop"] == "improving" and grown[best] <= worth:
                return
            worth = grown[best]
            self.last_rank = options[best].rank
            self._start(options[best])

    # --- choices -----------------------------------------------------------------------------------------------------
    def _may_join(self, request: Request) -> bool:
        if self._need(request, request.length) > self.free:
            return False
        grown = self.batch.plus(request, min(self.budget, request.lacking))
        return not self._estimates or grown.time <= self.limit

    def _candidates(self, pool: list[Request]) -> list[Request]:
        """The head, the neighbours of the request admitted last, one of the bucket, those of running ones."""
        found: list[Request] = pool[:1]
        by_rank = sorted(pool, key=lambda one: one.rank)

        def propose(*requests: Request | None) -> None:
            for one in requests:
                if one is not None and one not in found and len(found) < self.values["candidates"]:
                    found.append(one)

        def beside(rank: int) -> tuple[Request | None, Request | None]:
            return (next((one for one in by_rank if one.rank >= rank), None),
                    next((one for one in reversed(by_rank) if one.rank <= rank), None))

        if self.values["waiting_order"] == "arrival":
            return found
        if self.last_rank >= 0:
            propose(*beside(self.last_rank))
        if self.values["waiting_order"] == "bucket_prefix" and self.running:
            bucket = (sum(one.length for one in self.running) // len(self.running)).bit_length()
            mine = [one for one in by_rank if one.prompt.bit_length() == bucket]
            if mine:
                propose(mine[0])
            else:
                propose(next((one for one in reversed(by_rank) if one.prompt.bit_length() < bucket), None),
                        next((one for one in by_rank if one.prompt.bit_length() > bucket), None))
        for request in reversed(self.running):
            if not request.online:
                propose(*beside(request.rank))
        return found

    def _gives_way(self, scheduled: bool = False) -> Request | None:
        options = [one for one in reversed(self.running) if not one.online and (one.given or not scheduled)]
        if not options:
            return None
        if self.values["selection"] == "fcfs":
            return max(options, key=lambda one: one.arrival)
        punish = self.values["prefill_benefit"]
        return max(options, key=lambda one: self.batch.minus(one).value(punish * one.computed))

    # --- what it does ------------------------------------------------------------------------------------------------
    @property
    def _full(self) -> bool:
        return len(self.running) >= self.values["max_num_seqs"]

    def _give(self, request: Request, tokens: int) -> None:
        more = self._need(request, tokens)
        request.blocks += more
        self.free -= more
        self.batch = self.batch.plus(request, tokens)
        request.given = tokens
        self.budget -= tokens
        self.limit = min(self.limit, self._slack(request))

    def _start(self, request: Request) -> None:
        self.waiting.remove(request)
        self.running.append(request)
        self._give(request, min(self.budget, request.lacking))

    def _preempt(self, request: Request) -> None:
        self.batch = self.batch.minus(request)
        self.budget += request.given
        self.running.remove(request)
        self.free += request.blocks
        request.computed = request.blocks = request.given = 0
        self.preemptions += 1
        self.add(request)
