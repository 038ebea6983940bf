"""vLLM 0.6.3's default scheduler restated with Python lists, to hold the compiled one against, pass by pass.

Queues are the engine's: one of waiting requests whose ends are appended to, one of running ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field

BLOCK = 16


@dataclass(eq=False)
class Request:
    """A request as the scheduler sees it."""

    slot: int
    prompt: int
    output: int
    urgent: bool
    made: int = 0
    blocks: int = 0

    @property
    def length(self) -> int:
        return self.prompt + self.made

    @property
    def key(self) -> tuple[int, int]:
        return (not self.urgent, self.slot)


def blocks_of(tokens: int) -> int:
    return -(-tokens // BLOCK)


@dataclass
class Schedule:
    """The engine's state; `step` is one pass, or several where a pass schedules nothing but took memory."""

    total: int
    tokens: int
    sequences: int
    watermark: float
    by_priority: bool
    waiting: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)
    preemptions: int = 0
    free: int = 0

    def __post_init__(self) -> None:
        self.free = self.total

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def step(self) -> dict[int, int]:
        """New tokens of each request in the next iteration."""
        while True:
            before = self.preemptions
            given = self._prompts() or self._decodes()
            if given or self.preemptions == before:
                return given

    def end(self, given: dict[int, int]) -> None:
        """The iteration is over: each request in it has made a token."""
        for request in list(self.running):
            if request.slot in given:
                request.made += 1
                if request.made == request.output:
                    self.running.remove(request)
                    self.free += request.blocks

    # --- one pass
    def _fits(self, request: Request) -> bool:
        left = self.free - blocks_of(request.length)
        enough = left >= int(self.watermark * self.total) or not self.running
        return len(self.running) < self.sequences and left >= 0 and enough

    def _prompts(self) -> dict[int, int]:
        given: dict[int, int] = {}
        while self.waiting:
            request = self.waiting[0]
            if not self._fits(request) or (given and sum(given.values()) + request.length > self.tokens):
                break
            self.running.append(self.waiting.pop(0))
            request.blocks = blocks_of(request.length)
            self.free -= request.blocks
            given[request.slot] = request.length
        return given

    def _decodes(self) -> dict[int, int]:
        if self.by_priority:
            self._make_way()
        given: dict[int, int] = {}
        todo, self.running = list(self.running), []
        lost = []
        while todo:
            request = todo.pop(0)
            while self.free < 1:
                victim = todo.pop() if todo else request
                self._lose(victim)
                lost.append(victim)
                if victim is request:
                    break
            else:
                self._grow(request)
                given[request.slot] = 1
                self.running.append(request)
        for request in lost:
            self.waiting.insert(0, request)
        return given

    def _make_way(self) -> None:
        self.running.sort(key=lambda one: one.key)
        if self.waiting:
            head = self.waiting.pop(0)
            while self.running and self.running[-1].key > head.key and not self._fits(head):
                victim = self.running.pop()
                self._lose(victim)
                self.waiting.insert(0, victim)
            self.waiting.insert(0, head)
        self.waiting.sort(key=lambda one: one.key)

    def _lose(self, victim: Request) -> None:
        self.free += victim.blocks
        self.preemptions += 1
        victim.blocks = 0

    def _grow(self, request: Request) -> None:
        more = max(0, blocks_of(request.length) - request.blocks)
        request.blocks += more
        self.free -= more
