"""vLLM's V1 scheduler restated with Python lists, to hold the compiled one against: tokens by request, step by step."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Request:
    """A request as the scheduler sees it."""

    slot: int
    prompt: int
    output: int
    rank: tuple[int, int]  # (class, place in the order of arrival): smaller counts more
    computed: int = 0
    made: int = 0
    blocks: int = 0

    @property
    def length(self) -> int:
        return self.prompt + self.made


@dataclass
class Schedule:
    """Running and waiting requests under a budget of tokens and blocks."""

    free: int
    tokens: int
    sequences: int
    by_priority: bool
    block: int = 16
    waiting: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)
    preemptions: int = 0

    def add(self, request: Request) -> None:
        self.waiting.append(request)
        self._sort()

    def step(self) -> dict[int, int]:
        """New tokens of each request in the next iteration."""
        given: dict[int, int] = {}
        before = self.preemptions
        self._continue(given)
        if self.preemptions > before:
            return given
        while self.waiting and len(self.running) < self.sequences and sum(given.values()) < self.tokens:
            head = self.waiting[0]
            if self._blocks(head.length) > self.free:
                break
            self.running.append(self.waiting.pop(0))
            given[head.slot] = min(head.length, self.tokens - sum(given.values()))
            self._take(head, given[head.slot])
        return given

    def end(self, given: dict[int, int]) -> None:
        """The iteration is over: tokens are made, and requests finish."""
        for request in list(self.running):
            if request.slot not in given:
                continue
            request.computed += given[request.slot]
            if request.computed == request.length:
                request.made += 1
            if request.made == request.output:
                self.running.remove(request)
                self.free += request.blocks

    def _continue(self, given: dict[int, int]) -> None:
        done: list[Request] = []
        while sum(given.values()) < self.tokens:
            todo = [request for request in self.running if request not in done]
            if not todo:
                return
            request = todo[0]
            tokens = min(request.length - request.computed, self.tokens - sum(given.values()))
            while self._blocks(request.computed + tokens) - request.blocks > self.free:
                victim = max(self.running, key=lambda one: one.rank) if self.by_priority else self.running[-1]
                self._preempt(victim, given)
                if victim is request:
                    return
            self._take(request, tokens)
            given[request.slot] = tokens
            done.append(request)

    def _preempt(self, victim: Request, given: dict[int, int]) -> None:
        self.running.remove(victim)
        given.pop(victim.slot, None)
        self.free += victim.blocks
        victim.blocks = victim.computed = 0
        self.waiting.insert(0, victim)
        self._sort()
        self.preemptions += 1

    def _sort(self) -> None:
        if self.by_priority:
            self.waiting.sort(key=lambda request: request.rank)

    def _take(self, request: Request, tokens: int) -> None:
        more = max(0, self._blocks(request.computed + tokens) - request.blocks)
        request.blocks += more
        self.free -= more

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.block)
